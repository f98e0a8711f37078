"""Engines and evidence made up for tests of the advisor."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from tidemill.advise.answers import Answers
from tidemill.advise.evidence import Measurement, Number, Size
from tidemill.advise.facts import Engine, parse_engine
from tidemill.advise.flow import Part

TODAY = datetime.date(2026, 11, 30)

# An engine that passes every rule of the default answers.
FACTS = {
    "hardware": (["cpu-x86"], True),
    "formats": (["gguf"], True),
    "architectures": (["llama"], True),
    "install": ("binary", False),
    "server": (True, False),
    "batching": ("continuous", False),
    "paged_kv": (["all"], False),
}


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def engine(id: str = "made", classes: str = '["local", "serving"]', **changes: Any) -> Engine:
    """An engine of ``FACTS`` with others in their place: ``fact=value``, ``fact=(value, complete)``
    or ``fact=None`` for one that is not known."""
    facts = {**FACTS}
    for name, value in changes.items():
        if value is None:
            facts.pop(name, None)
        else:
            facts[name] = value if isinstance(value, tuple) else (value, False)
    lines = [
        f"{name} = {{ value = {toml(value)}, source = 's'"
        + (", complete = true }" if complete else " }")
        for name, (value, complete) in facts.items()
    ]
    text = (
        f'name = "{id.title()}"\nclasses = {classes}\nhomepage = "https://example.org"\n'
        f'summary = ""\n[sources.s]\nurl = "https://example.org/{id}"\nlooked_up = {TODAY}\n'
        "[facts]\n" + "\n".join(lines)
    )
    return parse_engine(id, text, f"{id}.toml")


class Store:
    """Measured results by engine."""

    def __init__(self, **results: Measurement) -> None:
        self.found = results

    def results(self, engine: str, model: str, workload: str) -> Sequence[Measurement]:
        return [self.found[engine]] if engine in self.found else []


def measured(engine: str, speed: float, **changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        "engine": engine,
        "workload": "short-chat",
        "hardware": "cpu-x86",
        "peak_concurrency": 64,
        "output_tokens_per_second": speed,
        "ttft_ms": 200.0,
        "tpot_ms": 40.0,
        "source": f"run-of-{engine}",
    }
    return Measurement(**{**fields, **changes})


class Prices:
    """A sizing that knows prices by engine."""

    def __init__(self, **prices: float) -> None:
        self.prices = prices

    def size(self, engine: Engine, part: Part, answers: Answers) -> Size | None:
        if engine.id not in self.prices:
            return None
        return Size(
            replicas=Number(3, "replicas", "simulated", "sizing-1"),
            per_month=Number(self.prices[engine.id], "per month", "simulated", "sizing-1"),
        )
