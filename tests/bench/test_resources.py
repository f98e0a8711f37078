"""Figures made of samples that are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.bench.meters import Sample, Sampler
from tidemill.bench.records import Window
from tidemill.bench.resources import Energy, Prices, Resources, cost, of_url, taken
from tidemill.hardware.energy import EnergyMeters
from tidemill.hardware.gpus import GpuReading

WINDOW = Window(10.0, 20.0)
GIB = 1 << 30
FREE = Prices()


def gpu(when: float, index: int, used: int, busy: float | None, watts: float | None) -> GpuReading:
    return GpuReading(when, index, "H100", used, 80 * GIB, busy, watts)


class Given(Sampler):
    """Samples that were not taken."""

    def __init__(self, samples: list[Sample], root: Path = Path("/nowhere")) -> None:
        self.samples = samples
        self.exact = True
        self.energy = EnergyMeters(root)
        self.gpus_before = []
        self.readings: list[GpuReading] = []

    @property
    def gpus(self) -> list[GpuReading]:
        return self.readings


def steady(joules: float = 0.0) -> list[Sample]:
    """1.5 CPU seconds a second; 4 GiB for a moment while it loads, then 2."""
    return [
        Sample(float(t), 1.5 * t, (4 if t == 2 else 2) * GIB, joules * t) for t in range(0, 30, 2)
    ]


def figures(sampler: Sampler, prices: Prices = FREE, cores: int | None = 2) -> Resources:
    return taken(sampler, WINDOW, cores=cores, output_rate=30.0, prompt_rate=60.0, prices=prices)


def rapl(root: Path) -> Path:
    zone = root / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("0\n")
    return root


def test_cpu_time_and_memory() -> None:
    found = figures(Given(steady()))
    assert found.cpu_seconds == pytest.approx(15.0)
    assert found.cpu_share == pytest.approx(0.75)
    assert found.memory is not None
    assert (found.memory.kind, found.memory.peak, found.memory.mean) == ("PSS", 4 * GIB, 2 * GIB)
    assert found.density.per_core_used == pytest.approx(20.0)
    assert found.density.per_core_given == pytest.approx(15.0)
    assert found.density.per_gpu is None
    assert found.cost is None
    assert "cost" not in found.unknown  # nobody asked


def test_what_lies_between_samples_is_interpolated() -> None:
    samples = [
        Sample(9.0, 1.0, GIB, 0.0),
        Sample(11.0, 2.0, GIB, 0.0),
        Sample(21.0, 12.0, GIB, 0.0),
    ]
    assert figures(Given(samples)).cpu_seconds == pytest.approx(11.0 - 1.5)


def test_samples_that_end_early_are_not_extrapolated() -> None:
    samples = [Sample(9.0, 0.0, GIB, 0.0), Sample(15.0, 6.0, GIB, 0.0)]
    assert figures(Given(samples)).cpu_seconds == pytest.approx(5.0)


def test_where_the_system_does_not_tell() -> None:
    found = figures(Given([Sample(float(t), 0.0, 0, 0.0) for t in range(30)]))
    assert (found.cpu_seconds, found.memory) == (None, None)
    assert "Linux" in found.unknown["memory"]
    assert found.density.per_core_used is None
    assert found.density.per_core_given == 15.0


def test_an_engine_that_chooses_its_threads() -> None:
    found = figures(Given(steady()), cores=None)
    assert (found.cores, found.cpu_share, found.density.per_core_given) == (None, None, None)
    assert found.density.per_core_used == pytest.approx(20.0)
    assert "itself chooses" in found.unknown["cores"]


def test_energy_of_a_meter(tmp_path: Path) -> None:
    found = figures(Given(steady(joules=50.0), rapl(tmp_path)), Prices(watts=10.0))
    assert found.energy == Energy("measured", "RAPL (package-0)", 500.0, 50.0)
    assert found.density.per_watt == pytest.approx(0.6)
    assert "energy" not in found.unknown


def test_energy_without_a_meter() -> None:
    found = figures(Given(steady()))
    assert found.energy is None
    assert "give --watts for an estimate" in found.unknown["energy"]
    found = figures(Given(steady()), Prices(watts=65.0))
    assert found.energy == Energy("estimate", "--watts", 650.0, 65.0)


def test_a_meter_that_may_not_be_read(tmp_path: Path) -> None:
    energy = rapl(tmp_path) / "sys/class/powercap/intel-rapl:0/energy_uj"
    energy.unlink()
    energy.mkdir()  # also root cannot read that
    found = figures(Given(steady(), tmp_path))
    assert found.energy is None
    assert f"may not read the meter {energy}" in found.unknown["energy"]


def test_gpus_are_those_that_the_engine_filled() -> None:
    sampler = Given(steady())
    sampler.gpus_before = [gpu(0.0, i, GIB, 0.0, 60.0) for i in range(3)]
    sampler.readings = [
        reading
        for t in (5.0, 12.0, 18.0, 25.0)
        for reading in (
            gpu(t, 0, 41 * GIB, 0.8 if t < 15 else 1.0, 400.0 if t < 15 else 600.0),
            gpu(t, 1, GIB + (1 << 20), 0.0, 60.0),
            gpu(t, 2, 11 * GIB, None, None),
        )
    ]
    found = figures(sampler)
    first, second = found.gpus
    assert (first.memory, first.memory_total) == (40 * GIB, 80 * GIB)
    assert (first.busy, first.watts) == (pytest.approx(0.9), pytest.approx(500.0))
    assert (second.memory, second.busy, second.watts) == (10 * GIB, None, None)
    assert found.density.per_gpu == 15.0
    assert found.energy == Energy("measured", "nvidia-smi (GPUs: 1)", 5000.0, 500.0)


def test_cost_by_its_formula() -> None:
    found = figures(Given(steady()), Prices(hour=0.9, kwh=0.3, people=0.1, watts=200.0)).cost
    assert found is not None
    assert found.hour == pytest.approx(0.9 + 0.1 + 0.06)
    assert found.includes == "machine + people + power"
    assert found.output == pytest.approx(1.06 / (30 * 3600) * 1e6)
    assert found.input == pytest.approx(1.06 / (60 * 3600) * 1e6)
    assert found.both == pytest.approx(1.06 / (90 * 3600) * 1e6)


def test_no_cost_is_invented() -> None:
    unknown: dict[str, str] = {}
    assert cost(Prices(hour=1.0, kwh=0.3), None, 1.0, 1.0, unknown) is None
    assert "give --watts" in unknown["cost"]
    found = cost(Prices(hour=1.0), None, 0.0, 5.0, {})
    assert found is not None
    assert (found.output, found.includes) == (None, "machine")
    assert found.both == found.input


def test_a_url_has_a_cost_and_nothing_else() -> None:
    found = of_url(WINDOW, output_rate=10.0, prompt_rate=0.0, prices=Prices(hour=3.6))
    assert found.cost is not None
    assert found.cost.output == pytest.approx(100.0)
    assert (found.memory, found.cpu_seconds, found.energy) == (None, None, None)
    assert "was not started here" in found.unknown["memory"]
