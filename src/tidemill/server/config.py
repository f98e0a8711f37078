"""What ``tidemill serve`` is told: a TOML file, environment variables and flags, in one form.

Precedence, the last one wins: built-in defaults, file, environment, command line. A file:

    host = "127.0.0.1"
    port = 8000
    api_key_file = "keys.toml"

    [[models]]
    source = "smollm2"          # as for `tidemill run`
    name = "assistant"          # what clients call it
    aliases = ["gpt-4o-mini"]
    max_context = 4096          # and the other options of LoadOptions

Environment variables are TIDEMILL_ and the field's name in capitals, for the fields that are not
lists (TIDEMILL_PORT, TIDEMILL_MAX_BODY_BYTES).
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tidemill.store.base import parse_size

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_NAME = re.compile(r"[\w.:/@+-]{1,200}")


class ConfigError(ValueError):
    """A setting that cannot be; the message says which, and where it came from."""


class ModelConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One model that is served.

    ``source``: what ``tidemill run`` takes. ``name``: what clients call it (default: the source's
    own name); ``aliases``: other names for it. ``preload``: loaded at start, not when first asked
    for. ``pinned``: never unloaded to make room, nor for being idle. ``chat_template``: a built-in
    one's name, or Jinja source. The rest as in ``tidemill.llm.core.LoadOptions``.
    """

    source: str
    name: str = ""
    aliases: list[str] = []
    preload: bool = True
    pinned: bool = False
    chat_template: str | None = None
    max_context: Annotated[int, msgspec.Meta(ge=2)] | None = None
    threads: Positive | None = None
    kv_dtype: Literal["f16", "q8_0", "f32"] = "f16"
    kv_memory: Positive | None = None
    kv_disk: int | str | None = None
    max_sequences: Positive = 64
    max_batch_tokens: Positive = 512
    prefix_caching: bool = True
    target_itl: Seconds | None = None
    speculative: Literal["auto", "lookup", "off"] | None = None
    draft_model: str | None = None
    pre_tokenizer: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            self.name = _short_name(self.source)
        for name in (self.name, *self.aliases):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a model: letters, digits and -_.:/@+")
        if self.kv_disk is not None:
            parse_size(self.kv_disk, "kv_disk")

    def load_options(self) -> dict[str, Any]:
        """Options for ``Core.load``, those that were left open not among them."""
        names = (
            "max_context", "threads", "kv_dtype", "kv_memory", "kv_disk", "max_sequences",
            "max_batch_tokens", "prefix_caching", "target_itl", "speculative", "draft_model",
            "pre_tokenizer",
        )  # fmt: skip
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The whole service.

    ``insecure``: listen beyond this machine without keys. ``max_body_bytes``: of one request.
    ``max_waiting``: requests queued for one model before 429. ``max_connections``: of clients,
    before 503. ``request_seconds``: the most that one request may take, queueing included.
    ``stall_seconds``: how long a client may take to send its request, or to read a piece of the
    answer. ``drain_seconds``: how long SIGTERM waits for what runs. ``keep_alive_seconds``: idle
    models that are not pinned are unloaded after that (None: never). ``max_loaded``: most models in
    memory at once (None: all). ``allow_origins``: web pages of other origins that may use the API
    ("*": all). ``allowed_hosts``: names that the server is asked by, beside those that cannot be a
    trick of a web page's ("*": all; see browsers.py). ``log_prompts``: prompts and answers are part
    of logs and traces. ``otlp_endpoint``: URL of an OpenTelemetry collector for traces, without
    ``/v1/traces`` (see tracing.py).
    """

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    api_key_file: str | None = None
    insecure: bool = False
    models: list[ModelConfig] = []
    max_body_bytes: Positive = 32 << 20
    max_waiting: Positive = 512
    max_connections: Positive = 4096
    request_seconds: Seconds = 3600.0
    stall_seconds: Seconds = 60.0
    drain_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds | None = None
    max_loaded: Positive | None = None
    allow_origins: list[str] = []
    allowed_hosts: list[str] = []
    offline: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_prompts: bool = False
    otlp_endpoint: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for model in self.models:
            for name in (model.name, *model.aliases):
                if name in seen:
                    raise ValueError(f"two models are called {name!r}; give one a name of its own")
                seen.add(name)


def load_config(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> ServerConfig:
    """The settings of all sources together. ``flags`` that are None were not given. Raises
    ConfigError."""
    settings: dict[str, Any] = {} if file is None else _read(file)
    _check(settings, str(file))
    given = _from_environment(environment)
    for name, text in given.items():
        _check({name: text}, f"TIDEMILL_{name.upper()}", strict=False)
    flags = {name: value for name, value in flags.items() if value is not None}
    return _check({**settings, **given, **flags}, "the settings together", strict=False)


def as_toml(config: ServerConfig) -> str:
    """The settings as a file that ``load_config`` reads back."""
    values = msgspec.to_builtins(config)
    models = values.pop("models")
    parts = ["".join(_line(name, value) for name, value in values.items())]
    parts += [
        "[[models]]\n" + "".join(_line(name, value) for name, value in model.items())
        for model in models
    ]
    return "\n".join(parts)


def _read(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    fields = {
        field.name for field in msgspec.structs.fields(ServerConfig)
        if field.name not in ("models", "allow_origins", "allowed_hosts")
    }  # fmt: skip
    found = {name: environment.get(f"TIDEMILL_{name.upper()}", "") for name in fields}
    return {name: text for name, text in found.items() if text}


def _check(settings: Mapping[str, Any], where: str, *, strict: bool = True) -> ServerConfig:
    try:
        return msgspec.convert(settings, ServerConfig, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def _short_name(source: str) -> str:
    """What a model is called that got no name: the last part of a path, without .gguf."""
    name = re.split(r"[/\\]", source.rstrip("/\\"))[-1]
    name = re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^\w.:@+-]", "-", name)[:200] or "model"


def _line(name: str, value: Any) -> str:
    return "" if value is None else f"{name} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's basic strings, but for DEL.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def config_path(flag: str | None) -> Path | None:
    """The file that ``--config`` names, or TIDEMILL_CONFIG."""
    path = flag or os.environ.get("TIDEMILL_CONFIG")
    return None if not path else Path(path)
