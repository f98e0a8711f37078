"""Replicas as they would be started, or as a user says that they are."""

from __future__ import annotations

from dataclasses import replace

from tidemill.bench.scenario import Prepared
from tidemill.simulate.base import FrontEnd, ReplicaSpec


def benched(spec: ReplicaSpec, prepared: Prepared, max_sequences: int | None = None) -> ReplicaSpec:
    """As ``bench run`` would start it for a scenario: places and context as that needs, and no more
    KV memory than these can fill."""
    if max_sequences is None:
        max_sequences = prepared.sequences
    context = min(prepared.context, spec.max_context)
    most = max_sequences * -(-context // spec.block_size)
    return replace(
        spec, max_sequences=max_sequences, max_context=context, n_blocks=min(spec.n_blocks, most),
        max_batch_tokens=max(spec.max_batch_tokens, max_sequences),
    )  # fmt: skip


def with_front_end(spec: ReplicaSpec, seconds: float) -> ReplicaSpec:
    """With a front end that takes so long of each request, whatever its prompt is."""
    return replace(spec, front=FrontEnd(seconds, source="as given"))
