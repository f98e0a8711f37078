"""Drawn figures as SVG elements for a page: small, with colours as variables and text as text."""

from __future__ import annotations

import io
import re
import warnings
from xml.etree import ElementTree

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tidemill.bench.reporting import palette

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_COLOUR = re.compile(r"#01fe[0-9a-f]{2}")
_URL = re.compile(r"url\(#([^)]+)\)")
_STEP = re.compile(r"([A-Za-z])([^A-Za-z]*)")
SIZE = 9
"""Of type, mostly; in the units of a view box."""

# What all have, or the page has for them.
_PLAIN = (
    re.compile(r"font-family: [^;]+;? ?"),
    re.compile(rf"font-size: {SIZE}px;? ?"),
    re.compile(r"stroke-dashoffset: 0;? ?"),
)

ElementTree.register_namespace("", _SVG)


def element(figure: Figure, name: str, alt: str) -> str:
    """A figure as one ``<svg>`` element; ``name`` keeps its ids apart from those of others, ``alt``
    is its description. The same figure gives the same text."""
    with warnings.catch_warnings():
        # Letters that the font for measuring lacks; whoever shows the text has others.
        warnings.filterwarnings("ignore", message="Glyph")
        file = io.StringIO()
        about = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(file, metadata=about)  # type: ignore[no-untyped-call]
    root = ElementTree.fromstring(file.getvalue())
    _rename(root, name)
    for node in root.iter():
        _tidy(node)
    _flatten(root)
    # As wide as there is room for: the view box keeps the shape.
    box = root.get("viewBox", "")
    style = f"stroke-linejoin:round;font-size:{SIZE:g}px"
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-label": alt, "style": style}
    return ElementTree.tostring(root, encoding="unicode")


def _rename(root: ElementTree.Element, name: str) -> None:
    """Ids that are referred to get the figure's name before them; the others go."""
    used = set()
    for node in root.iter():
        reference = node.attrib.pop(_HREF, None)
        if reference is not None:
            used.add(reference[1:])
            node.set("href", f"#{name}-{reference[1:]}")
        for key, value in node.attrib.items():
            used.update(_URL.findall(value))
            node.set(key, _URL.sub(rf"url(#{name}-\1)", value))
    for node in root.iter():
        old = node.attrib.pop("id", None)
        if old in used:
            node.set("id", f"{name}-{old}")


def _flatten(node: ElementTree.Element) -> None:
    """Without groups that say nothing, what cannot be seen, and blanks between elements. The style
    sheet would be one for the whole page."""
    kept: list[ElementTree.Element] = []
    for child in node:
        _flatten(child)
        kind = child.tag.removeprefix(f"{{{_SVG}}}")
        invisible = kind == "path" and child.get("style") == "fill:none"
        if kind in ("metadata", "style") or invisible:
            continue
        if kind in ("g", "defs") and not child.attrib:
            kept += child if kind == "g" or not len(child) else [child]
        else:
            kept.append(child)
    for child in list(node):
        node.remove(child)
    node.extend(kept)
    for one in (node, *kept):
        if not (one.text or "").strip():
            one.text = None
        one.tail = None


def _tidy(node: ElementTree.Element) -> None:
    """Fewer digits and blanks, and variables for colours."""
    for key, value in list(node.attrib.items()):
        match key:
            case "id" | "href" | "clip-path":
                continue
            case "style":
                value = _COLOUR.sub(lambda found: palette.VARIABLES[found[0]], value)
                for plain in _PLAIN:
                    value = plain.sub("", value)
                value = _NUMBER.sub(lambda found: f"{float(found[0]):.3g}", value)
                value = value.replace(": ", ":").replace("; ", ";").strip("; ")
            case "d":
                value = _path(value)
            case _:
                value = _NUMBER.sub(_short, value)
        if key == "transform" and value.startswith("rotate(-0 "):
            del node.attrib[key]
        else:
            node.set(key, value)
    if "var(--grid)" in node.get("style", ""):
        node.attrib.pop("clip-path", None)  # such lines end where the axes do


def _path(text: str) -> str:
    """The same path, with steps written as such."""
    made = []
    last = ("", "")
    for command, numbers in _STEP.findall(text):
        at = [_short(number) for number in numbers.split()]
        if command == "L" and at[1] == last[1]:
            made.append(f"H{at[0]}")
        elif command == "L" and at[0] == last[0]:
            made.append(f"V{at[1]}")
        else:
            made.append(command + " ".join(at))
        last = (at[-2], at[-1]) if at else ("", "")
    return "".join(made)


def _short(number: str | re.Match[str]) -> str:
    return f"{float(number if isinstance(number, str) else number[0]):.1f}".removesuffix(".0")


def as_file(picture_svg: str) -> str:
    """As a file of its own: with paper, and with the colours that a page would give."""
    at = picture_svg.index(">") + 1
    style = (
        f"<style>{palette.style_sheet()}"
        "svg{background:var(--paper);font-family:system-ui,sans-serif}</style>"
    )
    return f"{picture_svg[:at]}{style}{picture_svg[at:]}\n"
