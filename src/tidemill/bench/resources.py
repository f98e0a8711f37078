"""What an engine took for what it gave: memory, CPU time, GPUs, energy, and what that costs.

Figures are of the measured window, from samples of the engine's whole family of processes
(``meters.py``), so that every engine is measured by the same means, from outside. A figure that
could not be had is None, and ``unknown`` says why. None is ever invented: power and prices that the
user gives are marked as such.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from tidemill.bench.meters import Sample, Sampler
from tidemill.bench.records import Window
from tidemill.hardware.energy import EnergyMeters
from tidemill.hardware.gpus import GpuReading

Origin = Literal["measured", "estimate"]
"""An estimate is what the user said it is (``--watts``)."""


class Memory(msgspec.Struct, frozen=True):
    """Resident bytes of all processes of the engine. ``peak`` is the most since they began, loading
    included, as far as samples saw it; ``mean`` is over the window.

    ``kind``: "PSS" counts a page that several processes map once in all, and a file's page that
    others map too in part; "RSS" counts it in each process that maps it.
    """

    kind: Literal["PSS", "RSS"]
    peak: int
    mean: int


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that the engine used. ``memory``: the most bytes in use on it, less what was in use
    before the engine began; ``busy``: the share of the window in which it computed anything;
    ``watts``: its mean power. None where nvidia-smi does not tell."""

    name: str
    memory: int
    memory_total: int
    busy: float | None = None
    watts: float | None = None


class Energy(msgspec.Struct, frozen=True):
    """``joules`` within the window, by ``source``: meters of the whole machine, whoever used it, or
    what ``--watts`` said."""

    origin: Origin
    source: str
    joules: float
    watts: float


class Density(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens a second (input tokens do not count) for each core that was used (CPU seconds a
    second), for each that was given (threads), for each GPU used, and for each watt, which is the
    same as output tokens a joule."""

    per_core_used: float | None = None
    per_core_given: float | None = None
    per_gpu: float | None = None
    per_watt: float | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What the user pays, in a currency of theirs: ``hour`` for the machine, ``kwh`` for power,
    ``people`` an hour for those who run it. ``watts``: the machine's power, where no meter is."""

    hour: float | None = None
    kwh: float | None = None
    people: float | None = None
    watts: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Price of an hour, and of a million tokens, in the currency that prices were given in.

    ``hour`` = machine + people + mean watts / 1000 x price of a kWh.
    A million tokens = ``hour`` / (tokens a second x 3600) x 10^6, with tokens of prompts
    (``input``), of answers (``output``), and both together. Each bears the whole cost: the three
    are ways to say the same, not parts of a sum. ``includes``: what ``hour`` is made of.
    """

    hour: float
    includes: str
    input: float | None = None
    output: float | None = None
    both: float | None = None


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """``cores``: threads that the engine was given. ``cpu_seconds``: of all its processes within
    the window. ``cpu_share``: of the cores given, how much it used (above 1: it took more).
    ``unknown``: why a figure is None, by its name."""

    cores: int | None = None
    cpu_seconds: float | None = None
    cpu_share: float | None = None
    memory: Memory | None = None
    gpus: list[Gpu] = []
    energy: Energy | None = None
    density: Density = Density()
    cost: Cost | None = None
    unknown: dict[str, str] = {}


def taken(
    sampler: Sampler, window: Window, *, cores: int | None, output_rate: float, prompt_rate: float,
    prices: Prices,
) -> Resources:  # fmt: skip
    """Of an engine that was started here. ``cores`` is None if it was not told how many it has;
    the rates are tokens a second within the window."""
    unknown: dict[str, str] = {}
    samples = sampler.samples
    cpu = memory = None
    if samples and samples[-1].memory:
        cpu = _grown(samples, lambda sample: sample.cpu, window)
        inside = [s.memory for s in samples if window.opened <= s.when <= window.closed]
        memory = Memory(
            "PSS" if sampler.exact else "RSS",
            max(sample.memory for sample in samples),
            round(sum(inside) / len(inside)) if inside else samples[-1].memory,
        )
    else:
        unknown |= dict.fromkeys(("cpu_seconds", "memory"), "only Linux tells, in /proc")
    if cores is None:
        unknown["cores"] = "the engine itself chooses how many threads it uses"
    gpus = _gpus(sampler.gpus_before, sampler.gpus, window)
    energy = _metered(sampler, gpus, window) or _estimated(prices, window)
    if energy is None:
        unknown["energy"] = _no_meter(sampler.energy)
    used = cpu / window.seconds if cpu else None
    return Resources(
        cores=cores,
        cpu_seconds=cpu,
        cpu_share=used / cores if used and cores else None,
        memory=memory,
        gpus=gpus,
        energy=energy,
        density=Density(
            per_core_used=output_rate / used if used else None,
            per_core_given=output_rate / cores if cores else None,
            per_gpu=output_rate / len(gpus) if gpus else None,
            per_watt=output_rate / energy.watts if energy and energy.watts else None,
        ),
        cost=cost(prices, energy, output_rate, prompt_rate, unknown),
        unknown=unknown,
    )


def of_url(window: Window, *, output_rate: float, prompt_rate: float, prices: Prices) -> Resources:
    """What can be said of a server that was not started here: its cost, if prices are given."""
    why = "the server was not started here: its processes cannot be watched"
    unknown = dict.fromkeys(("cores", "cpu_seconds", "memory", "energy"), why)
    energy = _estimated(prices, window)
    if energy is not None:
        del unknown["energy"]
    return Resources(
        energy=energy,
        density=Density(per_watt=output_rate / energy.watts if energy else None),
        cost=cost(prices, energy, output_rate, prompt_rate, unknown),
        unknown=unknown,
    )


def cost(
    prices: Prices, energy: Energy | None, output_rate: float, prompt_rate: float,
    unknown: dict[str, str],
) -> Cost | None:  # fmt: skip
    """By the formula in ``Cost``; None where no price was given, or, with the reason in
    ``unknown``, where power has one and its amount is not known."""
    parts = {"machine": prices.hour, "people": prices.people}
    if prices.kwh is not None:
        if energy is None:
            unknown["cost"] = "power has a price, but how much is used is not known: give --watts"
            return None
        parts["power"] = energy.watts / 1000 * prices.kwh
    given = {name: price for name, price in parts.items() if price is not None}
    if not given:
        return None
    hour = sum(given.values())

    def million(rate: float) -> float | None:
        return hour / (rate * 3600) * 1e6 if rate > 0 else None

    return Cost(
        hour=hour, includes=" + ".join(given), input=million(prompt_rate),
        output=million(output_rate), both=million(prompt_rate + output_rate),
    )  # fmt: skip


def _grown(samples: Sequence[Sample], value: Callable[[Sample], float], window: Window) -> float:
    """How much what only grows did so within the window, linearly between samples."""
    times = [sample.when for sample in samples]

    def at(when: float) -> float:
        after = bisect.bisect_left(times, when)
        if after == 0:
            return value(samples[0])
        if after == len(samples):
            return value(samples[-1])
        left, right = samples[after - 1], samples[after]
        share = (when - left.when) / (right.when - left.when)
        return value(left) + share * (value(right) - value(left))

    return at(window.closed) - at(window.opened)


# ---- energy


def _metered(sampler: Sampler, gpus: Sequence[Gpu], window: Window) -> Energy | None:
    joules, sources = 0.0, []
    if sampler.energy.meters and sampler.samples:
        joules += _grown(sampler.samples, lambda sample: sample.joules, window)
        names = ", ".join(meter.name for meter in sampler.energy.meters)
        sources.append(f"{sampler.energy.kind} ({names})")
    watts = [gpu.watts for gpu in gpus if gpu.watts is not None]
    if watts:
        joules += sum(watts) * window.seconds
        sources.append(f"nvidia-smi (GPUs: {len(watts)})")
    if not sources:
        return None
    return Energy("measured", " + ".join(sources), joules, joules / window.seconds)


def _estimated(prices: Prices, window: Window) -> Energy | None:
    if prices.watts is None:
        return None
    return Energy("estimate", "--watts", prices.watts * window.seconds, prices.watts)


def _no_meter(meters: EnergyMeters) -> str:
    if meters.unreadable:
        return (
            f"this user may not read the meter {meters.unreadable[0]} (root may: `sudo chmod o+r` "
            "it), or give --watts for an estimate"
        )
    return (
        "this machine shows no meter (RAPL, hwmon, INA sensors or a battery below /sys, "
        "nvidia-smi); give --watts for an estimate"
    )


# ---- GPUs

_IDLE_BYTES = 64 << 20
"""What a GPU's use may change by without an engine on it."""


def _gpus(
    before: Iterable[GpuReading], readings: Sequence[GpuReading], window: Window
) -> list[Gpu]:
    """Those whose memory has grown since before the engine began."""
    found = []
    for first in before:
        own = [reading for reading in readings if reading.index == first.index]
        most = max((r.memory_used for r in own), default=0) - first.memory_used
        if most < _IDLE_BYTES:
            continue
        inside = [r for r in own if window.opened <= r.when <= window.closed]
        found.append(
            Gpu(
                first.name, most, first.memory_total,
                _mean(r.busy for r in inside), _mean(r.watts for r in inside),
            )
        )  # fmt: skip
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
