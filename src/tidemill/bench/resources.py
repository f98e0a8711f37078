"""What an engine took for what it gave: memory, CPU time, GPUs, energy, and what that costs.

Figures are of the measured window, from samples of the engine's whole family of processes
(``meters.py``), so that every engine is measured by the same means, from outside. A figure that
could not be had is None, and ``unknown`` says why. None is ever invented: power and prices that the
user gives are marked as such.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tidemill.bench.records import Window

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
