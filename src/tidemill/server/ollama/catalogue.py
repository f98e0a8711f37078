"""What Ollama's clients ask about models: ``/api/tags``, ``/api/show``, ``/api/ps``; and
``/api/version``."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from tidemill.llm.description import ModelDescription, describe_model
from tidemill.llm.embeddings import says_pooling
from tidemill.llm.loading import OpenModel, open_model
from tidemill.server.config import ModelConfig
from tidemill.server.errors import ApiError, ModelUnavailable, unsupported
from tidemill.server.http import Exchange
from tidemill.server.keys import Tenant
from tidemill.server.models import Entry
from tidemill.server.prompting import Prompting
from tidemill.server.service import Service

API_VERSION = "0.12.11"
"""The release of Ollama whose API this is: clients ask for a least one. Tidemill's own version is
at ``/version``."""

_FOREVER = "9999-12-31T23:59:59Z"
_LATEST = ":latest"


class ShowRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/show``; ``name`` is the old name of ``model``."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    system: Any = None
    template: Any = None
    options: Any = None


class _Facts(msgspec.Struct, frozen=True):
    """What is known of a model's files, without its weights."""

    config: ModelConfig
    description: ModelDescription
    metadata: Mapping[str, Any]
    loaded_at: float | None
    modified: float | None
    capabilities: list[str]


_known: WeakKeyDictionary[Entry, _Facts] = WeakKeyDictionary()
"""By served model, so that clients that ask again and again open no files."""


async def tags(service: Service, exchange: Exchange) -> None:
    models = []
    for entry in service.visible(exchange.tenant):
        try:
            facts = await _facts(service, entry)
        except ModelUnavailable:  # it has not been downloaded yet
            facts = None
        models += [
            {**_summary(entry, name, facts), "modified_at": _modified(entry, facts)}
            for name in (entry.config.name, *entry.config.aliases)
        ]
    await exchange.json({"models": models})


async def running(service: Service, exchange: Exchange) -> None:
    models = []
    for entry in service.visible(exchange.tenant):
        model = entry.model
        if model is None:
            continue
        facts = await _facts(service, entry)
        left = service.models.seconds_left(entry)
        models.append(
            {
                **_summary(entry, entry.config.name, facts),
                "expires_at": _FOREVER if math.isinf(left) else timestamp(time.time() + left),
                "size_vram": 0,
                "context_length": model.prompting.max_context,
            }
        )
    await exchange.json({"models": models})


async def show(service: Service, exchange: Exchange) -> None:
    request = await exchange.read(ShowRequest)
    for name in ("verbose", "system", "template", "options"):
        if getattr(request, name):
            raise unsupported(name)
    asked = request.model or request.name
    if not asked:
        raise ApiError(400, "model is required", param="model")
    entry = served(service, asked, exchange.tenant)
    facts = await _facts(service, entry)
    await exchange.json(
        {
            "modelfile": f"FROM {entry.config.source}\n",
            "parameters": "",
            "template": entry.config.chat_template or facts.description.chat_template or "",
            "details": _details(facts),
            "model_info": _model_info(facts),
            "capabilities": facts.capabilities,
            "modified_at": _modified(entry, facts),
        }
    )


async def version(service: Service, exchange: Exchange) -> None:
    await exchange.json({"version": API_VERSION})


def served(service: Service, name: str, tenant: Tenant) -> Entry:
    """What is served by the name that a client of Ollama calls a model: there a name without a tag
    means the tag "latest". Raises ApiError 403 or 404, as ``Service.entry`` does."""
    for candidate in (name, name.removesuffix(_LATEST), name + _LATEST):
        if service.models.has(candidate):
            return service.entry(candidate, tenant)
    return service.entry(name, tenant)


def timestamp(seconds: float) -> str:
    """RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# ---- facts


async def _facts(service: Service, entry: Entry) -> _Facts:
    """Read from the model's files where it is not loaded. Raises ModelUnavailable if they are
    not on this machine."""
    config = entry.config
    facts = _known.get(entry)
    # Loaded again it may be of other files.
    loaded_at = None if entry.model is None else entry.model.loaded_at
    if facts is None or facts.config is not config or loaded_at not in (None, facts.loaded_at):
        if entry.model is not None:
            opened = entry.model.opened
        else:
            try:
                opened = await service.large(_open, config)
            except (OSError, ValueError) as error:
                raise ModelUnavailable(f"{config.name}: {error}") from error
        facts = _known[entry] = await service.large(_read, config, opened, loaded_at)
    return facts


def _open(config: ModelConfig) -> OpenModel:
    return open_model(
        config.source, max_context=config.max_context, pre_tokenizer=config.pre_tokenizer,
        offline=True,
    )  # fmt: skip


def _read(config: ModelConfig, opened: OpenModel, loaded_at: float | None) -> _Facts:
    checkpoint = opened.checkpoint
    try:
        modified = max(file.stat().st_mtime for file in checkpoint.files)
    except OSError:  # removed since they were opened
        modified = None
    return _Facts(
        config, describe_model(opened), checkpoint.metadata, loaded_at, modified,
        _capabilities(opened, Prompting(opened, config.chat_template)),
    )  # fmt: skip


def _capabilities(opened: OpenModel, prompting: Prompting) -> list[str]:
    """What Ollama's clients choose a model by. As there, one whose file says how to pool it is for
    embeddings, though any other gives some as well."""
    if says_pooling(opened.checkpoint):
        return ["embedding"]
    found = {"completion": True, "tools": prompting.can_chat, "thinking": prompting.thinks}
    return [name for name, has in found.items() if has]


def _modified(entry: Entry, facts: _Facts | None) -> str:
    known = None if facts is None else facts.modified
    return timestamp(entry.created if known is None else known)


def _summary(entry: Entry, name: str, facts: _Facts | None) -> dict[str, Any]:
    tagged = name if ":" in name.rpartition("/")[2] else name + _LATEST
    return {
        "name": tagged,
        "model": tagged,
        "size": 0 if facts is None else facts.description.file_bytes,
        # Of where it comes from: reading all of a large file takes too long for a list.
        "digest": hashlib.sha256(entry.config.source.encode()).hexdigest(),
        "details": _details(facts),
    }


def _details(facts: _Facts | None) -> dict[str, Any]:
    about = None if facts is None else facts.description
    family = about.architecture if about else ""
    return {
        "parent_model": "",
        "format": about.format if about else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _human(about.parameters) if about else "",
        "quantization_level": _quantization(about) if about else "",
    }


def _quantization(about: ModelDescription) -> str:
    """The storage type of most of the weights."""
    parameters: dict[str, float] = {}
    for group in about.groups:
        for name, tensors in group.types.items():
            share = group.parameters * tensors / group.tensors
            parameters[name] = parameters.get(name, 0.0) + share
    return max(parameters, key=lambda name: parameters[name], default="")


def _human(number: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


def _model_info(facts: _Facts) -> dict[str, Any]:
    """The file's own metadata, lists left out as null, and what is always asked for."""
    about = facts.description
    info = {
        key: value if isinstance(value, str | int | float | bool) else None
        for key, value in facts.metadata.items()
        if isinstance(value, str | int | float | bool | Sequence) or hasattr(value, "dtype")
    }
    info.pop("tokenizer.chat_template", None)
    return {
        **info,
        "general.architecture": about.architecture,
        "general.parameter_count": about.parameters,
        f"{about.architecture}.context_length": about.context_length,
    }
