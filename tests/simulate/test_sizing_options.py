"""The options of hardware."""

from __future__ import annotations

import pytest

from tidemill.simulate.profiles import hardware_names, load_hardware
from tidemill.simulate.shapes import load_shape
from tidemill.simulate.sizing.option import Option
from tidemill.simulate.sizing.options import of_hardware


def options(*names: str, model: str = "llama-3.1-8b", **more: object) -> list[Option]:
    hardware = [load_hardware(name) for name in names]
    return list(of_hardware(hardware, load_shape(model), 4096, **more))  # type: ignore[arg-type]


def test_every_way_over_a_fast_link() -> None:
    made = options("h100-sxm")
    assert {(o.weights, o.tensor, o.pipeline) for o in made} == {
        (weights, tensor, 1) for weights in ("int4", "fp8", "bf16") for tensor in (1, 2, 4, 8)
    }
    for o in made:
        assert o.spec is not None
        assert o.spec.devices == o.devices
        assert o.watts == 700 * o.devices


def test_pipelines_over_a_slow_one() -> None:
    cuts = {(o.tensor, o.pipeline) for o in options("h100-pcie")}
    assert {(1, 2), (2, 2), (1, 4)} <= cuts
    assert all(tensor * pipeline <= 8 for tensor, pipeline in cuts)


def test_one_device_alone() -> None:
    assert {(o.tensor, o.pipeline, o.kind) for o in options("raspberry-pi-5")} == {(1, 1, "cpu")}


def test_eight_bits_are_what_the_hardware_computes_with() -> None:
    found = {o.hardware: o.weights for o in options("a100-80gb", "h100-sxm", bits=[8])}
    assert found == {"a100-80gb": "int8", "h100-sxm": "fp8"}


def test_what_does_not_fit_says_so() -> None:
    made = {o.devices: o for o in options("h100-sxm", model="llama-3.1-70b", bits=[16])}
    assert made[1].spec is None
    assert "llama-3.1-70b does not fit into NVIDIA H100" in made[1].problem
    assert made[4].spec is not None


def test_prices_are_of_a_device() -> None:
    made = {o.devices: o for o in options("h100-sxm", bits=[16], prices={"h100-sxm": 2.5})}
    assert made[1].price("cost") == 2.5
    assert made[4].price("cost") == 10.0


@pytest.mark.parametrize("name", hardware_names())
def test_every_profile_has_options(name: str) -> None:
    assert any(o.spec is not None for o in options(name, model="smollm2-135m"))
