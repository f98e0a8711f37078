"""Bounds without simulation: what a replica can do at best, from step times and mean lengths.

In a steady state with ``B`` sequences decoding, one ends every ``output / B`` steps and another's
prompt takes its place: a step has ``B`` decodes and ``B * prompt / output`` prompt tokens. How long
it takes gives the rate. There is no queue in this and no chance, so that a simulation comes near to
it at most.
"""

from __future__ import annotations

import dataclasses
import math

from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec, StepWork

_LEAST_PREFILL = 32  # prompt tokens in a step: fewer would take for ever


@dataclass(frozen=True, slots=True)
class Mix:
    """Mean tokens of a workload's requests: ``prompt`` to compute and ``cached`` before them,
    ``output``. ``longest``: tokens to compute of a prompt that 1 in 100 is longer than;
    ``context``: that any request fits into."""

    prompt: float
    cached: float
    output: float
    longest: int
    context: int

    @property
    def held(self) -> float:
        """KV entries of a sequence that decodes, in the mean."""
        return self.cached + self.prompt + self.output / 2


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that a replica can do: requests a second, with so many sequences at once, in steps
    of so many seconds."""

    rate: float
    sequences: int
    step: float


def ceiling(spec: ReplicaSpec, mix: Mix, tpot: float | None = None) -> Ceiling:
    """The best batch size whose steps keep to ``tpot`` seconds, the largest of equals; one
    sequence, if none does."""
    best: Ceiling | None = None
    for sequences in _batches(spec, mix):
        found = _steady(spec, mix, sequences)
        if best is None or (found.rate >= best.rate and (tpot is None or found.step <= tpot)):
            best = found
    assert best is not None
    return best


def _batches(spec: ReplicaSpec, mix: Mix) -> list[int]:
    """Powers of two that memory and limits allow, and the most that they do."""
    memory = spec.n_blocks * spec.block_size / mix.held
    most = max(1, math.floor(min(spec.max_sequences, spec.max_batch_tokens, memory)))
    return [1 << n for n in range(most.bit_length()) if 1 << n < most] + [most]


def _steady(spec: ReplicaSpec, mix: Mix, sequences: int) -> Ceiling:
    room = max(1, spec.max_batch_tokens - sequences)
    tokens = sequences * mix.prompt / mix.output
    # Prompts that need more tokens than a step has keep some of the sequences from decoding.
    share = min(1.0, room / tokens) if tokens else 1.0
    decoding = max(1, round(sequences * share))
    prompt = round(decoding * mix.prompt / mix.output)
    seconds = spec.step_time.seconds(
        StepWork(
            prompt_tokens=prompt,
            prompt_context=round(prompt * (mix.cached + mix.prompt / 2)),
            decodes=decoding,
            decode_context=round(decoding * mix.held),
            rows=decoding,
        )
    )
    rate = decoding / mix.output / seconds
    if front := spec.front.seconds(mix.cached + mix.prompt):  # one request after the other
        rate = min(rate, 1 / front)
    return Ceiling(rate, sequences, seconds)


def fitted(spec: ReplicaSpec, mix: Mix, tpot: float | None, limits: tuple[str, ...]) -> ReplicaSpec:
    """With those of its ``limits`` that can be set such that every step keeps to ``tpot`` seconds,
    if they can do that: then no answer's mean time per token is longer."""
    if tpot is None:
        return spec
    sequences = ceiling(spec, mix, tpot).sequences
    prefill = spec.max_prefill_tokens
    adjustable = "max_prefill_tokens" in limits
    while adjustable and prefill > _LEAST_PREFILL and _mixed(spec, mix, prefill, sequences) > tpot:
        prefill //= 2
    return dataclasses.replace(spec, max_sequences=sequences, max_prefill_tokens=prefill)


def _mixed(spec: ReplicaSpec, mix: Mix, prompt: int, decodes: int) -> float:
    """Seconds of a step with part of a prompt beside decodes."""
    context = round(prompt * (mix.cached + mix.prompt / 2))
    held = round(decodes * mix.held)
    return spec.step_time.seconds(StepWork(prompt, context, decodes, held, decodes + 1))


def first_token(spec: ReplicaSpec, mix: Mix) -> float:
    """Seconds to the first token of the longest of 100 prompts, when nobody else is there."""
    seconds = spec.front.seconds(mix.cached + mix.longest)
    done = 0
    while done < mix.longest:
        n = min(spec.max_batch_tokens, mix.longest - done)
        context = n * (round(mix.cached) + done) + n * (n + 1) // 2
        done += n
        last = done == mix.longest
        seconds += spec.step_time.seconds(StepWork(n, context, 0, 0, int(last)))
    return seconds


def next_token(spec: ReplicaSpec, mix: Mix) -> float:
    """Seconds per token of a sequence that is alone."""
    return spec.step_time.seconds(StepWork(0, 0, 1, round(mix.held), 1))
