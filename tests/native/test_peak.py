"""The bare arithmetic that kernels are held against."""

from __future__ import annotations

import pytest

from tidemill import _native
from tidemill.weights.base import TensorType


@pytest.mark.parametrize(
    "type_", [TensorType.F32, TensorType.Q4_1, TensorType.Q6_K, TensorType.Q8_0]
)
@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_kind_of_arithmetic_has_a_rate(type_, isa):
    assert _native.peak_products(int(type_), 2, 0.002, isa) > 0


@pytest.mark.parametrize(
    ("type_", "threads", "seconds", "isa"),
    [(5, 1, 0.01, ""), (-1, 1, 0.01, ""), (0, 0, 0.01, ""), (0, 1, 0, ""), (0, 1, float("nan"), ""),
     (0, 1, 1e9, ""), (0, 1, 0.01, "mmx"), (40, 1, 0.01, "")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(type_, threads, seconds, isa):
    with pytest.raises(ValueError):
        _native.peak_products(type_, threads, seconds, isa)
