"""What an answer's bytes say: when each piece of text came, how many tokens, what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidemill.bench.client import Reply
from tidemill.bench.workload import MAX_TOKENS


class Answer(msgspec.Struct):
    """One answer, read. ``error`` is None for a good one, else of which kind it is:

    those of ``client.Failure``; ``http_404`` and the like; ``compressed`` (which was not asked
    for); ``not_a_stream`` (HTML, or JSON in one piece); ``not_json`` (an event that is none);
    ``in_stream`` (the server told of an error after it had begun); ``cut_off`` (the stream ended
    without its end mark or a finish reason); ``no_tokens``.
    """

    times: list[float]
    """When each piece of text came (seconds of the monotonic clock), content or reasoning or calls;
    pieces without any are left out."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    """As the usage says; None where there was none, or none that can be."""
    text: str = ""
    content: str = ""
    """The text without what a model thought before it."""
    calls: list[tuple[str, str]] = []
    """Of tools: the name, and the arguments as they came, which should be JSON."""
    error: str | None = None
    detail: str = ""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def read(reply: Reply, asked: int = MAX_TOKENS) -> Answer:
    """The answer in ``reply``, which could have as many tokens as were ``asked`` for. Never raises:
    whatever an endpoint sends is an answer or an error of a kind."""
    answer = Answer([])
    if reply.begun and reply.status != 200:
        answer.error, answer.detail = f"http_{reply.status}", _told(reply.body())
        if reply.location:
            answer.detail = f"it redirects to {printable(reply.location)}: give that address"
    elif reply.begun and reply.content_encoding not in ("", "identity"):
        answer.error, answer.detail = "compressed", printable(reply.content_encoding)
    elif reply.begun and "event-stream" not in reply.content_type and reply.failure is None:
        answer.error = "not_a_stream"
        kind = printable(reply.content_type) or "no content type"
        answer.detail = f"{kind}: {_told(reply.body())}"
    else:
        ended = _read_events(reply, answer)
        if (answer.output_tokens or 0) > max(asked, len(answer.times)):
            answer.output_tokens = None  # more than were asked for, and than came: that cannot be
        if answer.error is None and reply.failure is not None:
            answer.error, answer.detail = reply.failure, reply.detail
        elif answer.error is None and not ended:
            answer.error, answer.detail = "cut_off", "the stream has no end mark"
        elif answer.error is None and not answer.times:
            answer.error, answer.detail = "no_tokens", "the stream ended without any text"
    return answer


def _read_events(reply: Reply, answer: Answer) -> bool:
    """Whether the stream told that it was at its end."""
    ended = False
    counted = 0  # pieces that had come when usage was told last
    texts, contents = [], []
    calls: dict[int, list[str]] = {}  # by index: the name, then pieces of the arguments
    for when, data in _events(reply):
        if data == b"[DONE]":
            ended = True
            continue
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            answer.error, answer.detail = "not_json", f"{printable(str(error))}: {_told(data)}"
            break
        if chunk.error is not None:
            answer.error, answer.detail = "in_stream", _told(data)
            break
        for choice in chunk.choices or ():
            ended = ended or choice.finish_reason is not None
            text = content = choice.text or ""
            if (delta := choice.delta) is not None:
                content = delta.content or ""
                text = content or delta.reasoning_content or delta.reasoning or ""
                if not text and delta.tool_calls:
                    answer.times.append(when)
                for call in delta.tool_calls or ():
                    said = calls.setdefault(call.index or 0, [""])
                    if (function := call.function) is not None:
                        said[0] = said[0] or function.name or ""
                        said.append(function.arguments or "")
            if text:
                answer.times.append(when)
                texts.append(text)
                contents.append(content)
        if (usage := chunk.usage) is not None:
            answer.prompt_tokens = _count(usage.prompt_tokens)
            answer.output_tokens = _count(usage.completion_tokens)
            if usage.prompt_tokens_details is not None:
                answer.cached_tokens = _count(usage.prompt_tokens_details.cached_tokens)
            counted = len(answer.times)
    if counted < len(answer.times) or not answer.output_tokens:
        answer.output_tokens = None  # it was told before the end, or cannot be
    answer.text, answer.content = "".join(texts), "".join(contents)
    answer.calls = [(name, "".join(pieces)) for name, *pieces in calls.values()]
    return ended


def _events(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and when its end had arrived."""
    body = reply.body()
    arrivals = iter(reply.pieces)
    when, arrived = 0.0, 0  # the last piece so far, and how many bytes there were with it
    data: list[bytes] = []
    start = 0
    while (end := body.find(b"\n", start)) >= 0:
        line = body[start:end].removesuffix(b"\r")
        start = end + 1
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            while arrived < start:
                when, piece = next(arrivals)
                arrived += len(piece)
            yield when, b"\n".join(data)
            data = []


def _count(tokens: int | None) -> int | None:
    """As the usage says, if it can be so many."""
    return tokens if tokens is not None and 0 <= tokens <= MAX_TOKENS else None


def printable(text: str) -> str:
    """What an endpoint says, fit for a terminal: nothing in it moves a cursor or hides text."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _told(body: bytes) -> str:
    """What an endpoint says of an error, short: the message where it is JSON as OpenAI's."""
    try:
        said = msgspec.json.decode(body)
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return _short(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return _short(body[:1200].decode("utf-8", "replace"))


def _short(text: str) -> str:
    return printable(" ".join(text[:1200].split()))[:300]
