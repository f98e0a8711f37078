"""The contract between what a step costs, the simulation, and the sizing.

``calibrate`` and hardware profiles give a ``StepTime``; a ``ReplicaSpec`` puts one behind the
engine's limits; the simulation plays requests on replicas; the sizing tries specs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, Protocol

from tidemill.records import dataclass

Origin = Literal["measured", "data sheet"]
"""Where a step's seconds come from; what is simulated with them is never better than that."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one forward step computes: prompt chunks, and decodes of one token each.

    prompt_context, decode_context: tokens attended to, added up over the step's tokens of either
    kind (a token at position p attends to p + 1). rows: rows of logits.
    """

    prompt_tokens: int
    prompt_context: int
    decodes: int
    decode_context: int
    rows: int


class StepTime(Protocol):
    """How long steps take on some hardware, with some model in some format."""

    @property
    def origin(self) -> Origin: ...

    @property
    def source(self) -> str:
        """Which calibration or data sheets, in words."""
        ...

    @property
    def band(self) -> float:
        """How far it may be off, as a share: half the width of the error band around a step's
        seconds. Of held-out steps for a calibration, an assumption for a data sheet."""
        ...

    def seconds(self, work: StepWork) -> float:
        """Of a whole step as the engine sees it, scheduling and sampling included."""
        ...


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What comes before a request's first step (HTTP, the chat template, the tokenizer, the way to
    the engine): ``request`` seconds, and ``prompt_token`` more for each token of its prompt, cached
    ones too. It takes one request after the other. ``source``: where that is from, in words."""

    request: float = 0.0
    prompt_token: float = 0.0
    source: str = "left out"

    def seconds(self, prompt_tokens: float) -> float:
        return self.request + self.prompt_token * prompt_tokens

    def scaled(self, factor: float) -> FrontEnd:
        return FrontEnd(self.request * factor, self.prompt_token * factor, self.source)

    def __str__(self) -> str:
        each = 1e6 * self.prompt_token
        tokens = f", and {each:.3g} us for each token of its prompt" if each else ""
        return f"{1e3 * self.request:.3g} ms{tokens} ({self.source})"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine that serves one copy of a model.

    n_blocks: KV blocks of ``block_size`` tokens that fit in its memory beside the weights. The
    limits are those of ``tidemill.engine.base.EngineConfig``. hour: its price per hour, with power,
    None if unknown; currency: of that price, "" where nobody says; devices: how many accelerators
    or machines it takes.
    """

    name: str
    step_time: StepTime
    n_blocks: int
    max_context: int
    block_size: int = 16
    max_sequences: int = 64
    max_batch_tokens: int = 512
    max_prefill_tokens: int = 256
    front: FrontEnd = FrontEnd()
    devices: int = 1
    hour: float | None = None
    currency: str = ""

    def scaled(self, factor: float) -> ReplicaSpec:
        """With all that takes time taking ``factor`` times as long."""
        return replace(
            self,
            step_time=Scaled(self.step_time, factor),
            front=self.front.scaled(factor),
        )


class Scaled:
    """A ``StepTime`` of which all steps take ``factor`` times as long."""

    def __init__(self, of: StepTime, factor: float) -> None:
        self._of = of
        self._factor = factor
        self.origin: Origin = of.origin
        self.source = of.source
        self.band = of.band

    def seconds(self, work: StepWork) -> float:
        return self._of.seconds(work) * self._factor


def currency_of(specs: Iterable[ReplicaSpec]) -> str:
    """The one that their prices are in, "" where none says. Raises ValueError if there are several.
    A price without one is in the currency of the others."""
    told = sorted({spec.currency for spec in specs if spec.hour is not None and spec.currency})
    if len(told) > 1:
        raise ValueError(
            f"prices in {' and '.join(told)} cannot be compared: bring the hardware's files to one "
            "currency, or give prices by --price NAME=X/h"
        )
    return told[0] if told else ""


def per_hour(currency: str) -> str:
    return f"{currency} per hour".strip()
