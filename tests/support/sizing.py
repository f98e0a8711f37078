"""Step times, options and simulations made up for tests of the sizing: quick and known exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tidemill.simulate.base import Origin, ReplicaSpec, StepWork
from tidemill.simulate.sizing.fluid import Mix, ceiling, first_token, next_token
from tidemill.simulate.sizing.goal import Kind
from tidemill.simulate.sizing.load import ScenarioLoad
from tidemill.simulate.sizing.option import Option
from tidemill.simulate.sizing.trial import Latency, Trial

MIX = Mix(prompt=100.0, cached=0.0, output=50.0, longest=400, context=600)


@dataclass(frozen=True)
class Straight:
    """``fixed`` seconds a step and ``each`` for every token."""

    fixed: float = 0.01
    each: float = 0.0001
    band: float = 0.0
    origin: Origin = "data sheet"
    source: str = "made up"

    def seconds(self, work: StepWork) -> float:
        return self.fixed + self.each * (work.prompt_tokens + work.decodes)


def spec(fixed: float = 0.01, each: float = 0.0001, band: float = 0.0, **more: Any) -> ReplicaSpec:
    fields: dict[str, Any] = {
        "name": "made", "step_time": Straight(fixed, each, band), "n_blocks": 10_000,
        "max_context": 4096, "max_sequences": 64, "max_batch_tokens": 2048,
        "max_prefill_tokens": 2048,
    }  # fmt: skip
    return ReplicaSpec(**{**fields, **more})


def option(
    name: str = "made", *, tensor: int = 1, watts: float | None = None, kind: Any = "gpu",
    **more: Any,
) -> Option:  # fmt: skip
    """``more``: of its spec, which has the same name."""
    made = spec(name=name, devices=tensor, **more)
    return Option(name, kind, "bf16", tensor, 1, made, "", watts)


def trial(**changes: Any) -> Trial:
    """One that met what is met easily."""
    fields: dict[str, Any] = {
        "load": 1.0, "rate": 1.0, "replicas": 1, "requests": 1000, "failed": 0, "growing": False,
        "latency": {
            "ttft": Latency(0.1, 0.2), "tpot": Latency(0.02, 0.03), "e2e": Latency(1.0, 2.0)
        },
        "in_flight": 1.0, "output_rate": 50.0, "busy": 0.5, "prompts": 0.1, "no_slot": 0.0,
        "no_memory": 0.0, "preemptions": 0, "filled": 0.5, "front": 0.0,
    }  # fmt: skip
    return Trial(**{**fields, **changes})


@dataclass
class Queue:
    """A simulation by formula: what is carried at most is what ``fluid`` says. TTFT grows as in a
    queue with one server where requests come by the clock, with their number where so many are
    there at once; TPOT grows with the load. ``friction``: several together carry so much less."""

    kind: Kind = "rate"
    friction: float = 0.0
    mix: Mix = MIX
    calls: list[tuple[ReplicaSpec, float, int]] = field(default_factory=list)

    def __call__(self, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        self.calls.append((spec, load, replicas))
        best = ceiling(spec, self.mix)
        each = best.rate if self.kind == "rate" else best.sequences
        share = load / (each * replicas * (1 - self.friction * (replicas > 1)))
        busy = min(1.0, share)
        growing = self.kind == "rate" and share >= 1
        waiting = share if self.kind != "rate" else 1e3 if growing else share / (1 - share)
        first = first_token(spec, self.mix) * (1 + waiting)
        token = next_token(spec, self.mix) * (1 - busy) + best.step * busy
        whole = first + token * (self.mix.output - 1)
        rate = load if self.kind == "rate" else load / whole
        return trial(
            load=load, replicas=replicas, growing=growing, busy=busy, rate=rate,
            in_flight=rate * whole,
            latency={
                "ttft": Latency(first / 2, first), "tpot": Latency(token, token),
                "e2e": Latency(whole / 2, whole),
            },
        )  # fmt: skip


def by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``ScenarioLoad`` use a ``Queue`` in place of the simulation."""

    def simulate(self: ScenarioLoad, spec: ReplicaSpec, load: float, replicas: int = 1) -> Trial:
        return Queue(self.kind, mix=self.mix)(spec, load, replicas)

    monkeypatch.setattr(ScenarioLoad, "__call__", simulate)
