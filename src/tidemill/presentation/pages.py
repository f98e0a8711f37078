"""What the web pages of this machine share: files, the headers of answers, whom they answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# What models and others wrote is shown on pages. Should it ever come to be markup: it could load
# nothing, run nothing and send nothing elsewhere. Trusted types forbid making markup from text.
_POLICY = (
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
    "base-uri 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",
)  # fmt: skip


class File(NamedTuple):
    content: bytes
    type: str


@cache
def files(package: str) -> Mapping[str, File]:
    """The static files of a page by name: those in ``package``, and those of every page."""
    found = {}
    for folder in (__package__, package):
        for entry in resources.files(folder).iterdir():
            kind = _TYPES.get("." + entry.name.rpartition(".")[2])
            if kind is not None and entry.is_file():
                found[entry.name] = File(entry.read_bytes(), kind)
    return found


def answer_headers(*directives: str) -> dict[str, str]:
    """Of every answer; ``directives`` are what a page's policy has beyond that of all pages."""
    return {
        "content-security-policy": "; ".join((*_POLICY, *directives)),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin may have had a browser send a request with these headers,
    by name in lower case. Browsers say so (``Sec-Fetch-Site``, or ``Origin`` where they do not:
    over plain HTTP to another machine), and pages cannot change it; programs send neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")
