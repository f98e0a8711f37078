"""The form in which OpenAI's API takes one text or several."""

from __future__ import annotations

Input = str | list[str | int | list[int]]
"""A text, token ids, or a list of either."""


MAX_ITEMS = 1 << 21
"""Texts or ids in a list: more than any context has tokens. To look at more takes a while."""


def separated(given: Input) -> list[str | list[int]] | None:
    """Each of the texts in a request's field; None if it has none, far too many, or ids among
    texts."""
    if isinstance(given, str):
        return [given]
    if len(given) > MAX_ITEMS:
        return None
    if given and all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    texts = [item for item in given if isinstance(item, str | list)]
    return texts if texts and len(texts) == len(given) else None
