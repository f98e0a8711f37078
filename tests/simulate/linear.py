"""Step times that are straight lines, and replicas that have them."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.simulate.base import Origin, ReplicaSpec, StepWork


@dataclass(frozen=True)
class Linear:
    """The defaults are powers of two, so that sums are exact and things coincide."""

    per_step: float = 2**-6
    per_token: float = 2**-8
    per_context: float = 2**-14
    per_row: float = 2**-9
    band: float = 0.05
    origin: Origin = "measured"
    source: str = "a straight line"

    def seconds(self, work: StepWork) -> float:
        return (
            self.per_step
            + self.per_token * (work.prompt_tokens + work.decodes)
            + self.per_context * (work.prompt_context + work.decode_context)
            + self.per_row * work.rows
        )


def spec(**changes) -> ReplicaSpec:
    changes.setdefault("name", "line")
    changes.setdefault("step_time", Linear())
    changes.setdefault("n_blocks", 2048)
    changes.setdefault("max_context", 2048)
    changes.setdefault("max_sequences", 8)
    return ReplicaSpec(**changes)
