"""What is measured: an address, or an engine that is started for it."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from tidemill.bench.client import Client, Endpoint
from tidemill.bench.engines import ENGINES, Engine, TargetError
from tidemill.bench.stream import Answer, printable, read
from tidemill.bench.workload import Fixed, Prompt, Shape

_LIST_SECONDS = 15.0

GREEDY, FULL_LENGTH = Engine.greedy, Engine.full_length
"""What makes answers greedy, and as long as they may be, with most engines that run on one's own
hardware: what a URL is asked with."""


class Target(msgspec.Struct, frozen=True):
    """``url`` or ``engine``; ``model`` as far as it was given."""

    url: str | None = None
    engine: Engine | None = None
    model: str | None = None


def parse(text: str) -> Target:
    """``http://...`` or ``ENGINE[:MODEL]``. Raises TargetError."""
    if text.lower().startswith(("http://", "https://")):
        return Target(url=_base_url(text))
    name, _, model = text.partition(":")
    if name in ENGINES:
        engine = ENGINES[name]
        model = model or engine.default_model or ""
        if not model:
            raise TargetError(f"which model? Give it as {name}:MODEL, {' or '.join(engine.takes)}")
        return Target(engine=engine, model=model)
    raise TargetError(
        f"{text!r} is neither a URL, such as http://127.0.0.1:8000/v1, nor an engine that is "
        f"started here: {', '.join(ENGINES)}, with :MODEL behind it. Any other engine with an "
        "OpenAI-compatible server can be started by hand and given by its URL"
    )


def _base_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if "@" in (parts.netloc if usable else text):  # nothing of it is repeated: it may be secret
        raise TargetError(
            "a target's URL takes no user and password before an @: leave them out, and give the "
            "server's key with --api-key, or in TIDEMILL_BENCH_KEY"
        )
    if not usable:
        raise TargetError(f"{text!r} is no URL such as http://127.0.0.1:8000/v1")
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def shown(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def _served_models(endpoint: Endpoint) -> list[str]:
    """The names that ``/v1/models`` lists. Raises TargetError."""
    client = Client(endpoint, _LIST_SECONDS)
    try:
        reply = await client.models()
    finally:
        client.close()
    where = f"{shown(endpoint.url)}/models"
    if reply.failure is not None:
        raise TargetError(f"{where}: {_MEANINGS[reply.failure]}: {reply.detail}")
    if reply.status in (401, 403):
        raise TargetError(f"{where} wants a key (HTTP {reply.status}): give --api-key")
    if reply.location:
        raise TargetError(
            f"{where} redirects to {printable(reply.location)}: give the address that it points to"
        )
    if reply.status != http.HTTPStatus.OK:
        raise TargetError(f"{where} answers HTTP {reply.status}: {_WHERE}")
    try:
        found = msgspec.json.decode(reply.body(), type=_Models)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        kind = printable(reply.content_type.partition(";")[0].strip()) or "no content type"
        what = "a web page" if kind == "text/html" else f"no list of models ({kind})"
        raise TargetError(f"{where} answers with {what}: {_WHERE}") from None
    return [model.id for model in found.data]


_WHERE = (
    "is the address that of an OpenAI-compatible API? It mostly ends in /v1. If it has no list of "
    "models, name one with --model"
)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def choose_model(url: str, api_key: str | None) -> str:
    """The one that the endpoint serves. Raises TargetError if it is not one."""
    try:
        endpoint = Endpoint(url, "", api_key=api_key)
    except ValueError as error:
        raise TargetError(str(error)) from None
    names = asyncio.run(_served_models(endpoint))
    if len(names) != 1:
        raise TargetError(
            f"{shown(url)} serves {len(names)} models, name one with --model: {_listed(names)}"
        )
    if not names[0].isprintable():
        raise TargetError(
            f"{shown(url)} calls its model {_listed(names)}, which no terminal should show: name "
            "it with --model"
        )
    return names[0]


def _listed(names: list[str]) -> str:
    return ", ".join(printable(name)[:200] for name in names[:20]) or "none"


async def settle(
    endpoint: Endpoint, tenant: str, *, full_length: Mapping[str, Any], timeout: float
) -> Endpoint:
    """How the endpoint can be asked: with as much of greedy sampling, the fields that make answers
    of full length (if wanted) and counts of tokens as it takes. Raises TargetError if it answers to
    nothing."""
    attempts = [endpoint]
    if full_length:
        attempts.insert(0, _asking(endpoint, endpoint.extra | dict(full_length)))
    attempts += [_asking(endpoint, {}), _asking(endpoint, {}, usage=False)]
    answer = Answer([])
    for attempt in attempts:
        answer = await _try(attempt, tenant, timeout)
        if answer.error in (None, "no_tokens"):  # a model may have nothing to say to this
            return attempt
        if answer.error not in ("http_400", "http_422"):  # not about what was asked for
            break
    where = f"{shown(endpoint.url)}, model {printable(endpoint.model)!r}"
    raise TargetError(f"{where}: {_said(answer)}{await _other(endpoint)}")


def _asking(endpoint: Endpoint, extra: Mapping[str, Any], *, usage: bool = True) -> Endpoint:
    return msgspec.structs.replace(endpoint, extra=dict(extra), usage=usage)


async def _try(endpoint: Endpoint, tenant: str, timeout: float) -> Answer:
    client = Client(endpoint, timeout)
    try:
        prompt = Prompt(Shape("first", Fixed(1)), "Hello", 4)
        return read(await client.send(endpoint.body(prompt), tenant))
    finally:
        client.close()


def _said(answer: Answer) -> str:
    kind = answer.error or ""
    said = f"{_MEANINGS.get(kind, kind)}: {answer.detail}"
    return f"{said} ({_ADVICE[kind]})" if kind in _ADVICE else said


_MEANINGS = {
    "timeout": "it does not answer",
    "compressed": "its answers are compressed, though that was not asked for",
    "not_a_stream": "it does not stream",
    "not_json": "its stream is none of an OpenAI-compatible API",
    "closed": "it breaks off",
    "cut_off": "its stream ends without an end",
    "connect": "it cannot be reached",
    "exhausted": "this machine has no connection left for it",
    "not_http": "it does not speak HTTP",
    "too_large": "its answer does not end",
}

_ADVICE = {
    "not_a_stream": "is the address that of an OpenAI-compatible API? It mostly ends in /v1",
    "http_401": "give the right --api-key",
    "http_403": "give the right --api-key",
    "http_404": "is the address that of an OpenAI-compatible API, and the model one that it has?",
    "http_429": "it limits how much may be asked: wait, or use a key without such a limit",
    "http_500": "its log should say more",
    "http_503": "is it still loading? Its log should say more",
}


async def _other(endpoint: Endpoint) -> str:
    """The models that it has, if this is not one of them."""
    try:
        names = await _served_models(endpoint)
    except TargetError:
        return ""
    if endpoint.model in names:
        return ""
    return f" (it serves {_listed(names)})"
