"""How far step times computed from figures are off those measured: the honest error of the former.

The same machine is described twice: by its calibration, and as a profile of hardware with what the
calibration found its memory and arithmetic to reach at most. What is computed from the profile is
held against every step that was measured.
"""

from __future__ import annotations

import statistics

import numpy as np

from tidemill.records import dataclass
from tidemill.simulate.analytic import analytic
from tidemill.simulate.calibration import Calibration
from tidemill.simulate.profiles import Figure, Hardware, Precision
from tidemill.simulate.shapes import Shape

_NOTE = "measured by `tidemill calibrate`, as far as a bare loop over it reaches"


@dataclass(frozen=True, slots=True)
class Distance:
    """Computed / measured over ``steps`` kinds of steps: the median, and what 90 % lie between."""

    steps: int
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.median:.2f} times the measured time (90 % of steps: {self.low:.2f} to "
            f"{self.high:.2f})"
        )


def profile_of(calibration: Calibration) -> Hardware:
    """The machine of a calibration as a profile of its measured limits."""
    rates = calibration.limits.products_per_second
    types = [name for name in calibration.weights if name in rates and name != "F32"]
    flops: dict[Precision, Figure] = {"f32": _figure(2 * rates["F32"])}
    if types:
        flops["int8"] = _figure(2 * max(rates[name] for name in types))
    memory = calibration.machine.memory or 1 << 62
    return Hardware(
        name=f"{calibration.machine.cpu}, {calibration.threads} threads",
        kind="cpu",
        sources={},
        memory=_figure(float(memory)),
        bandwidth=_figure(calibration.limits.bytes_per_second),
        flops=flops,
    )


def distances(calibration: Calibration, shape: Shape) -> dict[str, Distance]:
    """By kind of step: decodes, prompts, mixed, and all. ``shape`` is of the calibrated model."""
    engine = calibration.engine
    computed = analytic(
        profile_of(calibration),
        shape,
        weights=None,
        max_context=engine.max_context,
        max_sequences=engine.max_sequences,
        max_batch_tokens=engine.max_batch_tokens,
    ).step_time
    ratios: dict[str, list[float]] = {"decodes": [], "prompts": [], "mixed": [], "all": []}
    for point in calibration.points:
        work = point.observation.work
        kind = "mixed" if work.prompt_tokens and work.decodes else "decodes"
        kind = "prompts" if not work.decodes else kind
        ratio = computed.seconds(work) / point.seconds
        ratios[kind].append(ratio)
        ratios["all"].append(ratio)
    return {
        kind: Distance(
            len(found), statistics.median(found), *map(float, np.quantile(found, (0.05, 0.95)))
        )
        for kind, found in ratios.items()
        if found
    }


def _figure(value: float) -> Figure:
    return Figure(value=value, kind="measured", note=_NOTE)
