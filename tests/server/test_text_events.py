"""Events made from a part that is encoded once are those that are encoded whole."""

from __future__ import annotations

import pytest

from tidemill.server.http import TextEvents, sse

TEXTS = ["", "hello", 'a "quote" \\ and\n a line', "\0", "naïve 你好 🎉", "\u2028", "</script>"]


@pytest.mark.parametrize("text", TEXTS)
def test_each_event_is_as_if_encoded_whole(text: str) -> None:
    def value(content: str) -> dict[str, object]:
        return {"id": "a", "choices": [{"delta": {"content": content}, "logprobs": None}]}

    events = TextEvents(value)
    assert events(text) == sse(value(text))
    assert events(text) == sse(value(text))  # nothing of the text before stays
