"""Ways to run one replica, and what was found of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec, per_hour
from tidemill.simulate.deploy import with_front_end
from tidemill.simulate.sizing.trial import Trial

Measure = Literal["cost", "watts", "devices"]
"""What options are compared by, the less the better: a price per hour, watts by the data sheets
where there is no price, devices where not even these are known."""

Outcome = Literal["meets", "memory", "ttft", "tpot", "e2e", "outdone", "no price"]


@dataclass(frozen=True, slots=True)
class Option:
    """``spec`` is None where the model does not fit; ``problem`` says why. ``watts``: of all
    devices of a replica at full load."""

    hardware: str
    kind: Literal["gpu", "cpu"]
    weights: str
    tensor: int
    pipeline: int
    spec: ReplicaSpec | None
    problem: str = ""
    watts: float | None = None

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline

    @property
    def limits(self) -> tuple[str, ...]:
        """Those of a step that can be set: in vLLM on GPUs, in ``tidemill serve`` elsewhere."""
        return ("max_prefill_tokens", "max_sequences") if self.kind == "gpu" else ("max_sequences",)

    @property
    def words(self) -> str:
        spread = []
        if self.tensor > 1:
            spread.append(f"TP {self.tensor}")
        if self.pipeline > 1:
            spread.append(f"PP {self.pipeline}")
        return ", ".join([self.hardware, self.weights, *spread])

    def with_front_end(self, seconds: float) -> Option:
        """As ``deploy.with_front_end``."""
        if self.spec is None:
            return self
        return replace(self, spec=with_front_end(self.spec, seconds))

    def price(self, measure: Measure) -> float | None:
        """Of one replica; None where it is not known."""
        match measure:
            case "cost":
                return None if self.spec is None else self.spec.hour
            case "watts":
                return self.watts
        return float(self.devices)


@dataclass(frozen=True, slots=True)
class Entry:
    """What was found of an option. ``trial``: the simulation of one replica at the highest load
    that it carries within the SLO, step times being as much longer as their error band says; or
    that in which it misses it nearly alone. ``replicas``: for the load, with what is spare."""

    option: Option
    outcome: Outcome
    why: str = ""
    replicas: int = 0
    trial: Trial | None = None

    @property
    def devices(self) -> int:
        return self.replicas * self.option.devices

    def total(self, measure: Measure) -> float | None:
        price = self.option.price(measure)
        return None if price is None or not self.replicas else price * self.replicas


@dataclass(frozen=True, slots=True)
class Point:
    """A way to run that is not outdone in both: what it takes for the load (``total``), and tokens
    a second for a user."""

    option: Option
    replicas: int
    total: float
    speed: float
    ttft: float


def front(points: list[Point]) -> list[Point]:
    """Those for which no other takes as little and is as fast, the least first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.total, -p.speed, p.ttft)):
        if not kept or point.speed > kept[-1].speed:
            kept.append(point)
    return kept


def replicas_for(load: float, each: float, spare: int) -> int:
    """So many that ``spare`` of them can be missing. A whole number is not exceeded by what
    rounding adds."""
    return max(1, math.ceil(load / each * (1 - 1e-9))) + spare


def unit_of(measure: Measure, currency: str) -> str:
    """What amounts of ``measure`` are in."""
    return {"cost": per_hour(currency), "watts": "W", "devices": "devices"}[measure]


def shown(amount: float) -> str:
    """Three digits, or all before the point."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
