"""What is known of each engine: facts with a source and a date, read from ``engines/*.toml``.

An engine's file holds its name, its classes, the sources that were read, and facts that each name
one of them::

    name = "vLLM"
    classes = ["serving"]
    homepage = "https://github.com/vllm-project/vllm"

    [sources.readme]
    url = "https://pypi.org/project/vllm/0.33.0/"
    looked_up = 2026-11-30

    [facts]
    hardware = { value = ["nvidia", "amd"], source = "readme", complete = true }

A fact that no source states is absent. ``complete`` says that the source lists all there is, so
that what is not in the list is a "no" and not an "unknown".
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tidemill.records import dataclass

EngineClass = Literal["serving", "local", "component"]

CLASSES: dict[EngineClass, str] = {
    "serving": "high-throughput serving",
    "local": "lightweight local",
    "component": "optimisation component",
}

# Days after which a fact should be looked up again: these projects release every few weeks.
MAX_AGE = 180

HARDWARE = {
    "nvidia": "NVIDIA GPUs",
    "amd": "AMD GPUs",
    "intel": "Intel GPUs",
    "apple": "Apple silicon",
    "cpu-x86": "x86-64 CPUs",
    "cpu-arm": "Arm CPUs",
    "tpu": "Google TPUs",
    "ascend": "Huawei Ascend NPUs",
    "intel-npu": "Intel NPUs",
}
FORMATS = {
    "safetensors": "Hugging Face folders (safetensors)",
    "gguf": "GGUF",
    "mlx": "MLX",
    "openvino": "OpenVINO IR",
    "onnx": "ONNX",
    "mlc": "MLC",
    "uqff": "UQFF",
}
# Families, as the projects' own lists name them; versions within a family are for a trial to show.
ARCHITECTURES = (
    "llama", "mistral", "mixtral", "qwen", "qwen-moe", "gemma", "phi", "smollm3", "deepseek",
    "gpt-oss", "glm",
)  # fmt: skip
PARALLELISM = ("tensor", "pipeline", "data", "expert", "context", "layer-split")
BOTTLENECKS = {
    "attention": "attention kernels",
    "communication": "communication between GPUs",
    "structured-output": "constraining answers to a schema",
    "kv-cache": "prompts computed again and again",
    "memory": "a model larger than the GPUs' memory",
}

# name of a fact -> what its value is: a list of known words or of any, or a type
_WORDS: dict[str, Iterable[str] | None] = {
    "hardware": tuple(HARDWARE),
    "formats": tuple(FORMATS),
    "converts_from": tuple(FORMATS),
    "architectures": ARCHITECTURES,
    "parallelism": PARALLELISM,
    "quantisation": None,
    "api": ("openai", "anthropic", "ollama", "grpc", "library"),
    "addresses": tuple(BOTTLENECKS),
    "works_with": None,
    "paged_kv": ("all", *HARDWARE),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "batching": ("continuous", "parallel", "sequential"),
    "install": ("binary", "package", "container"),
}
_TYPES: dict[str, type] = {
    "licence": str,
    "release": str,
    "last_commit": datetime.date,
    "maintenance_since": datetime.date,
    "bits": int,
    "server": bool,
    "prefix_cache": bool,
    "speculation": bool,
    "metrics": bool,
    "authentication": bool,
    "custom_models": bool,
    "production": bool,
    "sends_usage": bool,
    "host_offload": bool,
    "metrics_prefix": str,
}
FACTS = (*_WORDS, *_CHOICES, *_TYPES)


class FactsError(ValueError):
    """An engine's file does not fit the schema; says which file, where in it, and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A public document. ``url`` names a version where there are several; Tidemill's own are
    files of its repository (``docs/models.md``)."""

    url: str
    looked_up: datetime.date

    def age(self, today: datetime.date) -> int:
        """Days since it was read."""
        return (today - self.looked_up).days


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing known: a value of the type that the schema gives its name."""

    value: Any
    source: Source
    complete: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Argument:
    """A piece of a command line that is there if ``when`` holds."""

    text: str
    when: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to install and start an engine. ``{name}`` in a text stands for a setting; see
    ``launch.py``. ``takes_names``: models may be called what ``tidemill pull`` calls them."""

    install: str
    source: Source
    environment: tuple[Argument, ...] = ()
    arguments: tuple[Argument, ...] = ()
    prepare: tuple[Argument, ...] = ()
    url: str = ""
    note: str = ""
    takes_names: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """One candidate. ``id`` is the name of its file, which ``bench --target`` uses too."""

    id: str
    name: str
    classes: tuple[EngineClass, ...]
    homepage: str
    summary: str
    facts: Mapping[str, Fact]
    launch: Launch | None = None
    # For components: engine -> what to add to its command line (a fact whose value is text).
    enable: Mapping[str, Fact] | None = None

    def value(self, fact: str) -> Any:
        """The fact's value; None where nothing is known."""
        known = self.facts.get(fact)
        return None if known is None else known.value

    def has(self, fact: str, word: str) -> bool | None:
        """Whether a list has ``word``; None where the list may be longer, or is unknown."""
        known = self.facts.get(fact)
        if known is None:
            return None
        if word in known.value:
            return True
        return False if known.complete else None

    def sources(self) -> list[Source]:
        """Every document that something here was taken from, each once."""
        found = {fact.source.url: fact.source for fact in self.facts.values()}
        if self.launch is not None:
            found.setdefault(self.launch.source.url, self.launch.source)
        return list(found.values())

    def stale(self, today: datetime.date, max_age: int = MAX_AGE) -> list[str]:
        """The facts that were looked up more than ``max_age`` days ago."""
        return [name for name, fact in self.facts.items() if fact.source.age(today) > max_age]


def load_engines(folder: Path | None = None) -> dict[str, Engine]:
    """The knowledge base, by id. Raises FactsError."""
    folder = folder or Path(__file__).with_name("engines")
    engines = {}
    for path in sorted(folder.glob("*.toml")):
        engines[path.stem] = parse_engine(path.stem, path.read_text("utf-8"), str(path.name))
    for engine in engines.values():
        for name in (*(engine.value("works_with") or ()), *(engine.enable or ())):
            if name not in engines:
                raise FactsError(f"{engine.id}.toml: no engine {name!r} is known")
    return engines


def parse_engine(id: str, text: str, where: str) -> Engine:
    """An engine's file. Raises FactsError that names ``where``."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FactsError(f"{where}: not valid TOML: {error}") from None
    _keys(
        table, where, {"name", "classes", "homepage", "summary"},
        {"sources", "facts", "launch", "enable"},
    )  # fmt: skip
    sources = {
        name: _source(entry, f"{where}: sources.{name}")
        for name, entry in _table(table, "sources", where).items()
    }
    facts = {
        name: _fact(name, entry, sources, f"{where}: facts.{name}")
        for name, entry in _table(table, "facts", where).items()
    }
    classes = tuple(_words(table["classes"], f"{where}: classes", tuple(CLASSES)))
    if not classes or ("component" in classes and len(classes) > 1):
        raise FactsError(f"{where}: classes: a component is nothing else, and one class is needed")
    enable = {
        name: _enabling(entry, sources, f"{where}: enable.{name}")
        for name, entry in _table(table, "enable", where).items()
    }
    return Engine(
        id=id,
        name=_text(table["name"], f"{where}: name"),
        classes=classes,  # type: ignore[arg-type]
        homepage=_url(table["homepage"], f"{where}: homepage"),
        summary=_text(table["summary"], f"{where}: summary"),
        facts=facts,
        launch=_launch(table["launch"], sources, f"{where}: launch") if "launch" in table else None,
        enable=enable,
    )


def _fact(name: str, entry: Any, sources: Mapping[str, Source], where: str) -> Fact:
    if name not in FACTS:
        raise FactsError(f"{where}: no such fact; known are {', '.join(FACTS)}")
    entry = _as_table(entry, where)
    _keys(entry, where, {"value", "source"}, {"complete", "note"})
    value = entry["value"]
    if name in _WORDS:
        value = tuple(_words(value, where, _WORDS[name]))
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise FactsError(f"{where}: {value!r} is not one of {', '.join(_CHOICES[name])}")
    elif type(value) is not _TYPES[name]:
        raise FactsError(f"{where}: {value!r} is not of type {_TYPES[name].__name__}")
    complete = entry.get("complete", False)
    if not isinstance(complete, bool) or (complete and name not in _WORDS):
        raise FactsError(f"{where}: complete is true or false, and for lists only")
    return Fact(
        value,
        _known_source(entry["source"], sources, where),
        complete,
        _text(entry.get("note", ""), f"{where}: note"),
    )


def _enabling(entry: Any, sources: Mapping[str, Source], where: str) -> Fact:
    _keys(_as_table(entry, where), where, {"value", "source"}, set())
    return Fact(_text(entry["value"], where), _known_source(entry["source"], sources, where))


def _source(entry: Any, where: str) -> Source:
    entry = _as_table(entry, where)
    _keys(entry, where, {"url", "looked_up"}, set())
    looked_up = entry["looked_up"]
    if type(looked_up) is not datetime.date:
        raise FactsError(f"{where}: looked_up is a date such as 2026-11-30, without quotes")
    return Source(_url(entry["url"], where), looked_up)


def _launch(entry: Any, sources: Mapping[str, Source], where: str) -> Launch:
    entry = _as_table(entry, where)
    optional = {"environment", "prepare", "url", "note", "arguments", "takes_names"}
    _keys(entry, where, {"install", "source"}, optional)
    takes_names = entry.get("takes_names", False)
    if not isinstance(takes_names, bool):
        raise FactsError(f"{where}: takes_names is true or false")
    return Launch(
        install=_text(entry["install"], where),
        source=_known_source(entry["source"], sources, where),
        environment=_arguments(entry.get("environment", []), f"{where}.environment"),
        arguments=_arguments(entry.get("arguments", []), f"{where}.arguments"),
        prepare=_arguments(entry.get("prepare", []), f"{where}.prepare"),
        url=_text(entry.get("url", ""), f"{where}.url"),
        note=_text(entry.get("note", ""), f"{where}.note"),
        takes_names=takes_names,
    )


def _arguments(value: Any, where: str) -> tuple[Argument, ...]:
    """Texts, or tables of ``text`` and ``when``."""
    if not isinstance(value, list):
        raise FactsError(f"{where}: {value!r} is not a list")
    made = []
    for i, entry in enumerate(value):
        here = f"{where}[{i}]"
        if isinstance(entry, str):
            made.append(Argument(entry))
        else:
            _keys(_as_table(entry, here), here, {"text", "when"}, set())
            made.append(Argument(_text(entry["text"], here), _text(entry["when"], here)))
    return tuple(made)


# ---- the shapes of values ----------------------------------------------------------------------


def _keys(table: Mapping[str, Any], where: str, needed: set[str], optional: set[str]) -> None:
    if missing := needed - set(table):
        raise FactsError(f"{where}: {', '.join(sorted(missing))} is missing")
    if unknown := set(table) - needed - optional:
        known = ", ".join(sorted(needed | optional))
        raise FactsError(f"{where}: {', '.join(sorted(unknown))} is not known here; known: {known}")


def _as_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FactsError(f"{where}: {value!r} is not a table")
    return value


def _table(table: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    return _as_table(table.get(name, {}), f"{where}: {name}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FactsError(f"{where}: {value!r} is not text")
    return value


def _url(value: Any, where: str) -> str:
    """A public URL, or a file of this project's documentation."""
    text = _text(value, where)
    if not text.startswith(("https://", "docs/", "pyproject.toml")):
        raise FactsError(f"{where}: {text!r} is not an https:// URL")
    return text


def _words(value: Any, where: str, known: Iterable[str] | None) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise FactsError(f"{where}: {value!r} is not a list of words")
    for word in value:
        if known is not None and word not in known:
            raise FactsError(f"{where}: {word!r} is not one of {', '.join(known)}")
    return value


def _known_source(name: Any, sources: Mapping[str, Source], where: str) -> Source:
    if name not in sources:
        raise FactsError(
            f"{where}: source {name!r} is not among [sources]: {', '.join(sources) or 'none'}"
        )
    return sources[name]
