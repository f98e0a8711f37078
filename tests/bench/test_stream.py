from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.bench.client import Reply
from tidemill.bench.stream import read

SSE = "text/event-stream; charset=utf-8"


def reply_of(pieces: list[bytes], status: int = 200, content_type: str = SSE) -> Reply:
    """Piece i came at second i."""
    reply = Reply()
    reply.status, reply.content_type = status, content_type
    reply.pieces = [(float(i), piece) for i, piece in enumerate(pieces)]
    return reply


def event(value: Any, end: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + end + end


def chat(text: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


DONE = b"data: [DONE]\n\n"
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}
    },
}  # fmt: skip


def test_times_are_of_pieces_with_text() -> None:
    answer = read(
        reply_of(
            [
                event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
                event(chat("Hel")),
                event(chat("lo")) + event({"choices": None}) + event(chat(" you")),
                event(chat(None, finish_reason="stop")) + event(USAGE) + DONE,
            ]
        )
    )
    assert answer.error is None
    assert answer.times == [1.0, 2.0, 2.0]
    assert answer.text == "Hello you"
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (7, 5, 3)


@pytest.mark.parametrize(
    ("asked", "pieces", "counted"),
    [
        (5, 2, 5),
        (4, 2, None),  # 5 of 4
        (4, 5, 5),  # it does not heed what was asked for
    ],
)
def test_a_count_that_cannot_be_is_none(asked: int, pieces: int, counted: int | None) -> None:
    reply = reply_of([event(chat("a"))] * pieces + [event(USAGE) + DONE])
    assert read(reply, asked).output_tokens == counted


def test_completions_reasoning_and_calls_are_text_too() -> None:
    answer = read(
        reply_of(
            [
                event({"choices": [{"text": "a"}]}),
                event({"choices": [{"delta": {"reasoning_content": "b"}}]}),
                event({"choices": [{"delta": {"reasoning": "c"}}]}),
                event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}),
                DONE,
            ]
        )
    )
    assert answer.times == [0.0, 1.0, 2.0, 3.0]
    assert answer.text == "abc"
    assert answer.output_tokens is None


@settings(derandomize=True, max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=12), end=st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_read_however_they_are_cut(cuts: list[int], end: bytes) -> None:
    events = [event(chat("na"), end), b": a comment" + end + end, event(chat("ïve"), end)]
    whole = b"".join(events) + b"event: x" + end + event(chat(None, finish_reason="stop"), end)
    at = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    pieces = [whole[a:b] for a, b in pairwise(at)]
    answer = read(reply_of(pieces))
    assert (answer.error, answer.text) == (None, "naïve")
    # An event is there with the piece that has its last byte.
    ends = [len(events[0]), sum(map(len, events))]
    assert answer.times == [float(sum(b < e for b in at[1:])) for e in ends]


@pytest.mark.parametrize(
    ("reply", "error", "detail"),
    [
        (reply_of([b"<html>Sign in</html>"], content_type="text/html"), "not_a_stream", "Sign in"),
        (reply_of([b'{"choices": []}'], content_type="application/json"), "not_a_stream", "json"),
        (reply_of([b'{"error": {"message": "no such model"}}'], 404), "http_404", "no such model"),
        (reply_of([b"\xff\xfe oops"], 500), "http_500", "oops"),
        (reply_of([event({"error": {"message": "it broke"}})]), "in_stream", "it broke"),
        (reply_of([b"data: {nonsense\n\n"]), "not_json", "nonsense"),
        (reply_of([b"data: [1, 2]\n\n"]), "not_json", "object"),
        (reply_of([b'data: {"error": ' + b"[" * 100_000 + b"\n\n"]), "not_json", "recursion"),
        (reply_of([b"data: \xff\xfe\n\n"]), "not_json", "malformed"),
        (reply_of([event(chat("a"))]), "cut_off", "end mark"),
        (reply_of([DONE]), "no_tokens", "without any text"),
    ],
)
def test_what_is_no_answer_is_an_error_of_its_kind(reply: Reply, error: str, detail: str) -> None:
    answer = read(reply)
    assert answer.error == error
    assert detail in answer.detail


def test_a_failed_request_keeps_the_times_it_has() -> None:
    reply = reply_of([event(chat("a")), event(chat("b"))])
    reply.failure, reply.detail = "closed", "amid the answer"
    answer = read(reply)
    assert (answer.error, answer.times) == ("closed", [0.0, 1.0])


def usage(completion: Any, prompt: Any = 7) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


STOP = event(chat("b", finish_reason="stop"))


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        ([event(chat("a")), STOP, DONE], None),
        ([event(chat("a")), STOP, event(usage(5)), DONE], 5),
        ([event(chat("a")), STOP, DONE, event(usage(5))], 5),
        # So far, with each piece, of which the last is that of all.
        ([event(usage(1) | chat("a")), event(usage(2) | chat("b")), DONE], 2),
        # Amid the answer only: it counts what came before it.
        ([event(chat("a")), event(usage(5)), STOP, DONE], None),
        ([event(chat("a")), STOP, event(usage(-5)), DONE], None),
        ([event(chat("a")), STOP, event(usage(0)), DONE], None),
        ([event(chat("a")), STOP, event(usage(10**30)), DONE], None),
    ],
)
def test_how_many_tokens_there_were(pieces: list[bytes], tokens: int | None) -> None:
    answer = read(reply_of([b"".join(pieces)]))
    assert answer.output_tokens == tokens
    assert len(answer.times) == 2


def test_impossible_counts_of_a_prompt_are_none() -> None:
    for count in (-1, 10**12):
        answer = read(reply_of([event(chat("a")), STOP, event(usage(5, count)), DONE]))
        assert (answer.error, answer.prompt_tokens, answer.output_tokens) == (None, None, 5)
