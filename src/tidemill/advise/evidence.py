"""Numbers, and where each comes from.

The advisor invents none. What ``tidemill bench`` measured and ``tidemill size`` computed come in
through two narrow protocols, and a case without them is advised by documented facts alone, which
the report says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from tidemill.advise.answers import Answers
from tidemill.advise.facts import Engine
from tidemill.advise.flow import Part, hardware_of, in_flight
from tidemill.records import dataclass

Origin = Literal["measured", "simulated", "data sheet", "quoted", "answered", "computed"]


@dataclass(frozen=True, slots=True)
class Number:
    """A figure with its origin. ``source`` says which run, document or answers it is from."""

    value: float
    unit: str
    origin: Origin
    source: str

    def __str__(self) -> str:
        return f"{self.value:.4g} {self.unit} ({self.origin}: {self.source})"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured scenario of one engine; times at p99 in milliseconds, None where not measured.

    peak_concurrency: the load under which it was measured. source: the run, as ``bench show``
    names it.
    """

    engine: str
    workload: str
    hardware: str
    peak_concurrency: int
    output_tokens_per_second: float
    ttft_ms: float | None
    tpot_ms: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Size:
    """What it takes to meet the case's limits with one engine."""

    replicas: Number
    per_month: Number | None


class Measured(Protocol):
    """The store of measured results."""

    def results(self, engine: str, model: str, workload: str) -> Sequence[Measurement]:
        """Valid runs of an engine with this model, newest first."""


class Sizing(Protocol):
    """The sizing of ``tidemill size``."""

    def size(self, engine: Engine, part: Part, answers: Answers) -> Size | None:
        """None where it cannot say."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is to go by, beside facts."""

    measured: Measured | None = None
    sizing: Sizing | None = None

    def measurement(self, engine: Engine, part: Part, answers: Answers) -> Measurement | None:
        """The newest one on hardware that the part has, under at least the case's load."""
        if self.measured is None:
            return None
        kinds = hardware_of(part, answers)
        for result in self.measured.results(engine.id, answers.name, answers.workload):
            if result.hardware in kinds and result.peak_concurrency >= in_flight(part, answers):
                return result
        return None

    def size(self, engine: Engine, part: Part, answers: Answers) -> Size | None:
        return None if self.sizing is None else self.sizing.size(engine, part, answers)


def weights_gb(answers: Answers) -> Number | None:
    """The weights in GB, by parameters and bits alone."""
    if answers.parameters_b is None:
        return None
    return Number(
        answers.parameters_b * answers.bits / 8, "GB", "computed",
        f"{answers.parameters_b:g} billion parameters of {answers.bits} bits, as answered",
    )  # fmt: skip
