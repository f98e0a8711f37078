"""Colours of pictures and page, on light paper and on dark, and whose is whose.

In a picture colours are variables, so that one picture serves both. Series are told apart by colour
(after Okabe and Ito, "Color Universal Design", 2008, darkened or lightened until they stand out
from the paper by 3:1), and by dashes and markers, which those see who do not see colours.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.records import dataclass

LIGHT = {
    "paper": "#ffffff", "ink": "#1b2429", "muted": "#55646b", "grid": "#dfe6e9",
    "shade": "#eef2f4", "limit": "#b3261e", "good": "#1f7a3a", "bad": "#b3261e",
    "accent": "#0b6478", "tint": "#e6f2f5", "alarm": "#fdecea",
    "series1": "#0072b2", "series2": "#c44e00", "series3": "#00805e", "series4": "#a8478a",
    "series5": "#7a6400", "series6": "#5b52c7", "series7": "#55646b", "series8": "#a3282f",
}  # fmt: skip

DARK = {
    "paper": "#12191d", "ink": "#e6edf0", "muted": "#a3b3ba", "grid": "#2b383e",
    "shade": "#1b252a", "limit": "#ff9a91", "good": "#6fdc8c", "bad": "#ff9a91",
    "accent": "#6fcfe0", "tint": "#16333a", "alarm": "#3b1d1b",
    "series1": "#56b4e9", "series2": "#f2a04a", "series3": "#35cfa0", "series4": "#e59ac8",
    "series5": "#e8d44d", "series6": "#a9a3ff", "series7": "#b4c2c8", "series8": "#ff8f94",
}  # fmt: skip

_NAMES = tuple(LIGHT)


def stand_in(name: str) -> str:
    """What is drawn with in place of a colour, until ``svg.py`` puts the variable there. Not a
    colour that anything else has."""
    return f"#01fe{_NAMES.index(name):02x}"


VARIABLES = {stand_in(name): f"var(--{name})" for name in _NAMES}


def style_sheet() -> str:
    """The variables, for light paper and dark; paper that is printed is light."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )


@dataclass(frozen=True, slots=True)
class Look:
    """Of a series in every picture. ``dash`` and ``marker`` are matplotlib's."""

    colour: str
    dash: str | tuple[float, tuple[float, ...]]
    marker: str


_SERIES = [stand_in(name) for name in _NAMES if name.startswith("series")]
_KNOWN = ("tidemill", "llama.cpp", "vllm", "sglang", "ollama", "transformers", "openvino")
"""Engines whose colours are the same in every report."""

_DASHES: list[str | tuple[float, tuple[float, ...]]] = [
    "-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 1.6, 1.2, 1.6)), (0, (9, 2)), (0, (3, 1.4)),
]  # fmt: skip
_MARKERS = "osD^vP"


def looks(targets: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Of targets, by label, from (label, engine) in the report's order. Targets of one engine have
    its colour; dashes and markers are each target's own."""
    found: dict[str, Look] = {}
    others: dict[str, int] = {}
    for label, engine in targets:
        if label in found:
            continue
        if engine in _KNOWN:
            at = _KNOWN.index(engine)
        else:
            # From behind, where the known ones that are seldom there have theirs.
            at = -1 - others.setdefault(engine, len(others))
        i = len(found)
        found[label] = Look(
            _SERIES[at % len(_SERIES)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)]
        )
    return found
