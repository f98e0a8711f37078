"""Whether a text is JSON."""

from __future__ import annotations

from tidemill.server.tools.steps import NotACall
from tidemill.server.tools.values import NUMBER, ValueReader


def is_json(text: str, kinds: str = "{") -> bool:
    """Whether ``text`` is valid JSON that begins with one of ``kinds``."""
    text = text.strip(" \t\r\n")
    if not text or text[0] not in kinds:
        return False
    reader = ValueReader()
    try:
        for position, char in enumerate(text):
            if reader.feed(char):
                return position == len(text) - 1
    except NotACall:
        pass
    return False


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None
