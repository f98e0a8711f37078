"""What the front end and a model's worker process say to each other, as bytes.

A frame is four bytes of length (little-endian) and one MessagePack array: a kind and its fields.
Both ends are the same program, so the format is no public one; nothing in it can name code, and a
frame that makes no sense ends the connection.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from tidemill.engine.base import (
    EmbeddingEvent,
    EngineStats,
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    TierStats,
    TokenEvent,
    TokenLogprob,
)
from tidemill.engine.errors import ContextLengthError, QueueFullError, RequestError
from tidemill.engine.histogram import Histogram
from tidemill.engine.params import DefaultLength, SamplingParams
from tidemill.text.grammar import Grammar

LENGTH_BYTES = 4
MAX_FRAME = 1 << 30


class Kind(enum.IntEnum):
    """What a frame says, with its fields. The first three go to the worker, the rest come back."""

    LOAD = 0  # model, load options
    ADD = 1  # request
    ABORT = 2  # request id
    STAGE = 3  # stage of loading, how much of it is done (0 to 1)
    READY = 4  # what was loaded, as a dict
    FAILED = 5  # why there will be no model
    ACCEPTED = 6  # request id
    REFUSED = 7  # request id, an error as pack_error() writes it
    EVENTS = 8  # time, events
    STATS = 9  # EngineStats as a dict
    LOG = 10  # level, logger, message, traceback or None


class WireError(Exception):
    """The other end sent what is no frame."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any])


def encode(kind: Kind, *fields: Any) -> bytes:
    body = _encoder.encode([int(kind), *fields])
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class Frames:
    """Takes bytes as they arrive, gives the whole frames in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[list[Any]]:
        """The frames that ``data`` completes. Raises WireError."""
        buffer = self._buffer
        buffer += data
        frames = []
        start = 0
        while len(buffer) - start >= LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + LENGTH_BYTES], "little")
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes")
            end = start + LENGTH_BYTES + length
            if len(buffer) < end:
                break
            try:
                frame = _decoder.decode(memoryview(buffer)[start + LENGTH_BYTES : end])
            except msgspec.MsgspecError as error:
                raise WireError(str(error)) from None
            frames.append(frame)
            start = end
        del buffer[:start]
        return frames


# ---- requests


def pack_request(request: Request) -> list[Any]:
    params = request.params
    values = {name: getattr(params, name) for name in SamplingParams.__slots__}
    values["logit_bias"] = dict(params.logit_bias)
    if params.grammar is not None:
        values["grammar"] = [params.grammar.kind, params.grammar.text]
    if isinstance(params.max_tokens, DefaultLength):
        raise TypeError("max_tokens is to be given: a default would be one number among others")
    return [
        request.id,
        list(request.prompt_token_ids),
        values,
        request.priority,
        request.salt,
        request.continues_text,
        request.urgent,
        request.pooling,
    ]


def unpack_request(packed: Sequence[Any]) -> Request:
    id_, prompt, values, priority, salt, continues_text, urgent, pooling = packed
    for name in ("stop", "stop_token_ids"):
        values[name] = tuple(values[name])
    if values["grammar"] is not None:
        values["grammar"] = Grammar(*values["grammar"])
    return Request(
        id_, tuple(prompt), SamplingParams(**values), priority, salt, continues_text,
        urgent=urgent, pooling=pooling,
    )  # fmt: skip


# ---- errors

_REFUSALS: dict[str, type[Exception]] = {
    "request": RequestError,
    "context": ContextLengthError,
    "queue": QueueFullError,
}


def pack_error(error: Exception) -> list[Any]:
    if isinstance(error, ContextLengthError):
        return ["context", str(error), None, None]
    if isinstance(error, RequestError):
        return ["request", str(error), error.param, error.code]
    if isinstance(error, QueueFullError):
        return ["queue", str(error), None, None]
    return ["failure", f"{type(error).__name__}: {error}", None, None]


def unpack_error(packed: Sequence[Any]) -> Exception:
    kind, message, param, code = packed
    if kind == "request":
        return RequestError(message, param=param, code=code)
    return _REFUSALS.get(kind, RuntimeError)(message)


# ---- events

_TOKEN, _PROMPT, _EMBEDDING, _FINISH, _ERROR = range(5)


def _pack_scores(scores: Sequence[TokenLogprob] | None) -> list[tuple[int, float, int]] | None:
    if scores is None:
        return None
    return [(s.token_id, s.logprob, s.rank) for s in scores]


def _unpack_scores(packed: Sequence[Any] | None) -> tuple[TokenLogprob, ...] | None:
    return None if packed is None else tuple(TokenLogprob(*score) for score in packed)


_PART = 256  # tokens of a prompt whose scores are packed as one


def _pack_prompt_scores(scores_of: Iterable[Sequence[TokenLogprob] | None]) -> list[bytes]:
    packed = [_pack_scores(scores) for scores in scores_of]
    return [_encoder.encode(packed[i : i + _PART]) for i in range(0, len(packed), _PART)]


class PromptScores(Iterable[tuple[TokenLogprob, ...] | None]):
    """A prompt's scores as they arrived, unpacked while they are read: that takes a while for a
    long prompt, so it is left to a thread other than the event loop's."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[tuple[TokenLogprob, ...] | None]:
        for part in self._parts:
            yield from map(_unpack_scores, _decoder.decode(part))


def pack_event(event: Event) -> list[Any]:
    if isinstance(event, TokenEvent):
        scores = _pack_scores(event.logprobs)
        return [_TOKEN, event.request_id, event.index, event.token_id, event.text, scores]
    if isinstance(event, FinishEvent):
        return [
            _FINISH, event.request_id, event.index, event.reason, event.text, event.stop_reason,
            event.cumulative_logprob, event.drafted_tokens, event.accepted_tokens,
        ]  # fmt: skip
    if isinstance(event, PromptEvent):
        scores_of = event.logprobs
        packed = None if scores_of is None else _pack_prompt_scores(scores_of)
        return [
            _PROMPT, event.request_id, event.prompt_tokens, event.cached_tokens, packed,
            event.started,
        ]  # fmt: skip
    if isinstance(event, EmbeddingEvent):
        return [_EMBEDDING, event.request_id, event.vector.tobytes()]
    return [_ERROR, event.request_id, event.message, event.refused]


def unpack_event(packed: Sequence[Any]) -> Event:
    kind, request_id, *fields = packed
    if kind == _TOKEN:
        index, token_id, text, scores = fields
        return TokenEvent(request_id, index, token_id, text, _unpack_scores(scores))
    if kind == _FINISH:
        return FinishEvent(request_id, *fields)
    if kind == _PROMPT:
        prompt_tokens, cached_tokens, packed_scores, started = fields
        scores_of = None if packed_scores is None else PromptScores(packed_scores)
        return PromptEvent(request_id, prompt_tokens, cached_tokens, scores_of, started)
    if kind == _EMBEDDING:
        return EmbeddingEvent(request_id, np.frombuffer(fields[0], np.float32))
    return ErrorEvent(request_id, *fields)


# ---- statistics


_HISTOGRAMS = ("step_tokens", "step_sequences", "mask_seconds")


def pack_stats(stats: EngineStats) -> dict[str, Any]:
    values = {name: getattr(stats, name) for name in EngineStats.__slots__}
    for name in _HISTOGRAMS:
        values[name] = [values[name].counts, values[name].total]
    values["tier"] = stats.tier and asdict(stats.tier)
    return values


def unpack_stats(packed: dict[str, Any]) -> EngineStats:
    fresh = EngineStats()
    for name in _HISTOGRAMS:
        packed[name] = Histogram(getattr(fresh, name).bounds, *packed[name])
    packed["tier"] = packed["tier"] and TierStats(**packed["tier"])
    return EngineStats(**packed)
