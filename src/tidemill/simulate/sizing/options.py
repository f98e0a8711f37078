"""The options of hardware: every number of devices and every weight format that may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidemill.simulate.analytic import BITS, DoesNotFitError, analytic, format_of
from tidemill.simulate.calibration import Calibration, calibrated
from tidemill.simulate.profiles import Hardware
from tidemill.simulate.shapes import Shape
from tidemill.simulate.sizing.option import Option

_MOST_DEVICES = 8
"""Of one replica: those of one machine."""

_SLOW_LINK = 1e11
"""Bytes a second below which pipelines are tried too: they send less than tensor parallelism."""


def of_hardware(
    hardware: Iterable[Hardware],
    shape: Shape,
    context: int,
    bits: Sequence[int] = BITS,
    prices: Mapping[str, float] | None = None,
) -> Iterator[Option]:
    """By their data sheets, for sequences of at most ``context`` tokens. ``prices``: of a device
    for an hour, by the hardware's id, in place of the profile's."""
    prices = prices or {}
    for device in hardware:
        for number in bits:
            for tensor, pipeline in _cuts(device, shape):
                yield _option(
                    device, shape, context, number, tensor, pipeline, prices.get(device.id)
                )


def of_calibration(calibration: Calibration, hour: float | None = None) -> Option:
    """The machine that was measured, with the model that was."""
    weights = " and ".join(calibration.weights)
    return Option("local", "cpu", weights, 1, 1, calibrated(calibration, hour=hour))


def _cuts(hardware: Hardware, shape: Shape) -> Iterator[tuple[int, int]]:
    """Degrees of tensor and pipeline parallelism."""
    joined = 1 if hardware.link is None else min(hardware.link.devices, _MOST_DEVICES)
    slow = hardware.link is not None and hardware.link.bandwidth.value < _SLOW_LINK
    for tensor in (1, 2, 4, 8):
        for pipeline in (1, 2, 4) if slow else (1,):
            if tensor * pipeline <= joined and shape.config.n_heads % tensor == 0:
                yield tensor, pipeline


def _option(
    hardware: Hardware, shape: Shape, context: int, bits: int, tensor: int, pipeline: int,
    hour: float | None,
) -> Option:  # fmt: skip
    weights = format_of(hardware, bits)
    power = hardware.power
    spec, problem = None, ""
    try:
        spec = analytic(
            hardware, shape, weights=weights, tensor_parallel=tensor, pipeline_parallel=pipeline,
            max_context=context, hour=hour,
        )  # fmt: skip
    except DoesNotFitError as error:
        problem = str(error)
    return Option(
        hardware.id, hardware.kind, weights, tensor, pipeline, spec, problem,
        None if power is None else power.value * tensor * pipeline,
    )  # fmt: skip
