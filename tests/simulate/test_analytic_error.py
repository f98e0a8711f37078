"""Computed against measured: the distance that is told of is the one that there is."""

from __future__ import annotations

import msgspec
import pytest

from simulate.test_calibration import made
from tidemill.simulate.analytic import analytic
from tidemill.simulate.analytic_error import distances, profile_of
from tidemill.simulate.calibration import Calibration
from tidemill.simulate.shapes import load_shape

__all__ = ["made"]


def test_a_machine_twice_as_fast_as_computed_is_told_of(made: Calibration) -> None:
    shape = load_shape("smollm2-135m")
    engine = made.engine
    computed = analytic(
        profile_of(made), shape, weights=None, max_batch_tokens=engine.max_batch_tokens
    ).step_time
    points = [
        msgspec.structs.replace(point, seconds=computed.seconds(point.observation.work) / 2)
        for point in made.points
    ]
    found = distances(msgspec.structs.replace(made, points=points), shape)
    assert set(found) == {"decodes", "prompts", "all"}  # there are no mixed ones
    for distance in found.values():
        assert (distance.median, distance.low, distance.high) == pytest.approx((2, 2, 2))
    assert found["all"].steps == len(points)
    assert str(found["all"]).startswith("2.00 times the measured time")


def test_a_calibrated_machine_as_a_profile_has_its_measured_limits(made: Calibration) -> None:
    hardware = profile_of(made)
    assert hardware.bandwidth.value == 1e10
    assert hardware.flops["f32"].value == 2e10  # a product is two operations
    assert hardware.flops["int8"].value == 1e11
    assert {figure.kind for figure in hardware.figures().values()} == {"measured"}
