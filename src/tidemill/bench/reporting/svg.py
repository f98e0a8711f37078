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
_FONT = re.compile(r"font: (?:(\w+) )?([\d.]+)px [^;]+")
_STEP = re.compile(r"\s*([A-Za-z])\s*")

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
    for parent in list(root.iter()):
        for child in list(parent):
            # Its style sheet would be one for the whole page.
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    _rename(root, name)
    for node in root.iter():
        _tidy(node)
    for size in ("width", "height"):  # as wide as there is room for; the view box keeps the shape
        root.attrib.pop(size, None)
    root.attrib |= {"role": "img", "aria-label": alt, "style": "stroke-linejoin:round"}
    text = ElementTree.tostring(root, encoding="unicode")
    return re.sub(r">\s*\n\s*<", "><", text).strip()


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


def _tidy(node: ElementTree.Element) -> None:
    """Fewer digits and blanks, and variables for colours."""
    for key, value in node.attrib.items():
        match key:
            case "id" | "href" | "clip-path":
                continue
            case "style":
                value = _COLOUR.sub(lambda found: palette.VARIABLES[found[0]], value)
                value = _FONT.sub(_font, value).replace(": ", ":").replace("; ", ";")
                value = _NUMBER.sub(lambda found: f"{float(found[0]):.3g}", value)
            case "d":
                value = _STEP.sub(r"\1", _NUMBER.sub(_short, value)).strip()
            case _:
                value = _NUMBER.sub(_short, value)
        node.set(key, value)


def _font(found: re.Match[str]) -> str:
    """Size and weight; the family is that of the page."""
    weight = f";font-weight:{found[1]}" if found[1] else ""
    return f"font-size:{found[2]}px{weight}"


def _short(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")


def as_file(picture_svg: str) -> str:
    """As a file of its own: with paper, and with the colours that a page would give."""
    at = picture_svg.index(">") + 1
    style = (
        f"<style>{palette.style_sheet()}"
        "svg{background:var(--paper);font-family:system-ui,sans-serif}</style>"
    )
    return f"{picture_svg[:at]}{style}{picture_svg[at:]}\n"
