"""Front end and worker understand each other, whatever the chunks, and nothing hostile gets far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.engine.base import (
    NO_OUTPUT,
    EmbeddingEvent,
    EngineStats,
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    TokenEvent,
    TokenLogprob,
)
from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.wire import (
    MAX_FRAME,
    Frames,
    Kind,
    WireError,
    encode,
    pack_error,
    pack_event,
    pack_request,
    pack_stats,
    unpack_error,
    unpack_event,
    unpack_request,
    unpack_stats,
)

scores = st.builds(TokenLogprob, st.integers(0, 10**6), st.floats(-1e3, 0), st.integers(1, 10**6))
entries = st.lists(scores, min_size=1, max_size=3).map(tuple)
text = st.text(max_size=20)
events = st.one_of(
    st.builds(TokenEvent, text, st.integers(0, 9), st.integers(0, 10**6), text,
              st.none() | entries),
    st.builds(PromptEvent, text, st.integers(1, 99), st.integers(0, 99),
              st.none() | st.lists(st.none() | entries, max_size=4).map(tuple)),
    st.builds(FinishEvent, text, st.integers(0, 9), st.sampled_from(["stop", "length", "abort"]),
              text, st.none() | st.integers(0, 9) | text, st.none() | st.floats(-1e3, 0),
              st.integers(0, 9), st.integers(0, 9)),
    st.builds(ErrorEvent, text, text, st.booleans()),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.lists(events, max_size=4), max_size=5), st.data())
def test_events_arrive_as_they_were_in_any_chunks(
    batches: list[list[Event]], data: st.DataObject
) -> None:
    sent = b"".join(encode(Kind.EVENTS, 1.5, [pack_event(e) for e in b]) for b in batches)
    frames = Frames()
    arrived = []
    while sent:
        n = data.draw(st.integers(1, len(sent)))
        arrived += frames.feed(sent[:n])
        sent = sent[n:]
    assert [[_read(unpack_event(e)) for e in frame[2]] for frame in arrived] == batches
    assert all(frame[:2] == [Kind.EVENTS, 1.5] for frame in arrived)


def _read(event: Event) -> Event:
    """With a prompt's scores read, which are left packed."""
    if isinstance(event, PromptEvent) and event.logprobs is not None:
        return replace(event, logprobs=tuple(event.logprobs))
    return event


def test_the_scores_of_a_long_prompt_arrive_as_they_were() -> None:
    scores = [None, *((TokenLogprob(i, -i / 7, 1), TokenLogprob(0, -0.5, 2)) for i in range(1000))]
    ((_, packed),) = Frames().feed(encode(Kind.ADD, pack_event(PromptEvent("r", 1001, 0, scores))))
    event = unpack_event(packed)
    assert isinstance(event, PromptEvent)
    assert event.logprobs is not None
    for _ in range(2):  # as often as one likes
        assert list(event.logprobs) == scores


def test_an_embedding_and_its_request_arrive_as_they_were() -> None:
    request = Request("id", (1, 2), NO_OUTPUT, pooling="last")
    assert unpack_request(pack_request(request)) == request
    vector = np.array([0.1, -np.pi, 1e-30, 3e38], np.float32)
    frame = encode(Kind.EVENTS, 1.5, [pack_event(EmbeddingEvent("id", vector))])
    ((_, _, (packed,)),) = Frames().feed(frame)
    event = unpack_event(packed)
    assert isinstance(event, EmbeddingEvent)
    assert event.request_id == "id"
    assert event.vector.tobytes() == vector.tobytes()


def test_a_request_arrives_as_it_was() -> None:
    params = SamplingParams(
        n=3, best_of=4, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, typical_p=0.8,
        repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=-0.1,
        logit_bias={3: 1.5}, seed=2**64 - 1, max_tokens=9, min_tokens=2, stop=("a", "b"),
        stop_token_ids=(1, 2), ignore_eos=True, logprobs=3, prompt_logprobs=2, echo=True,
        skip_special_tokens=False,
    )  # fmt: skip
    request = Request("id", (1, 2, 3), params, priority=-4, salt="s", continues_text=True)
    ((_, packed),) = Frames().feed(encode(Kind.ADD, pack_request(request)))
    assert unpack_request(packed) == request


def test_a_default_length_is_not_sent_as_if_it_had_been_asked_for() -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        pack_request(Request("id", (1,), SamplingParams()))


@pytest.mark.parametrize(
    "error",
    [
        RequestError("no", param="top_p", code="invalid_value"),
        ContextLengthError("too long"),
        QueueFullError("full"),
    ],
)
def test_refusals_keep_their_class(error: Exception) -> None:
    back = unpack_error(pack_error(error))
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


def test_other_errors_are_named() -> None:
    assert str(unpack_error(pack_error(KeyError("x")))) == "KeyError: 'x'"


def test_stats_arrive_as_they_were() -> None:
    stats = EngineStats(running=3, queue_seconds=1.5, speculation_error="why")
    stats.step_tokens.add(300)
    stats.mask_seconds.add(0.001)
    assert unpack_stats(pack_stats(stats)) == stats


@pytest.mark.parametrize(
    "data",
    [(MAX_FRAME + 1).to_bytes(4, "little"), b"\x01\x00\x00\x00\xc1", b"\x01\x00\x00\x00\x05"],
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Frames().feed(data)
