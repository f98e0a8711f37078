"""Simulations of ``size`` as evidence of the advisor."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence

from tidemill.advise.answers import Answers
from tidemill.advise.evidence import Number, Size
from tidemill.advise.facts import Engine
from tidemill.advise.flow import Part, gpus_of, hardware_of, in_flight
from tidemill.advise.questions import kind_of_processor
from tidemill.bench import scenario as known
from tidemill.bench.measures import Slo
from tidemill.cli.kept_results import called
from tidemill.records import dataclass
from tidemill.simulate import calibration
from tidemill.simulate.analytic import BITS
from tidemill.simulate.profiles import Hardware, hardware_names, load_hardware
from tidemill.simulate.shapes import Shape, load_shape, shape_names
from tidemill.simulate.sizing.goal import Goal, Load
from tidemill.simulate.sizing.load import ScenarioLoad
from tidemill.simulate.sizing.option import Entry, Option
from tidemill.simulate.sizing.options import of_calibration, of_hardware
from tidemill.simulate.sizing.search import size

HOURS_A_MONTH = 730

# A profile's kind of hardware for the advisor, by how its name begins.
_MAKERS = {"NVIDIA": "nvidia", "AMD Instinct": "amd"}
_SAME_MEMORY = 0.05  # as a share: 80 and 80.2 GB are the same


@dataclass(frozen=True, slots=True)
class _Case:
    """What a sizing depends on. ``hardware``: ids of profiles, or "local"."""

    model: str
    workload: str
    slo: Slo
    at_once: int
    hardware: tuple[str, ...]
    bits: int
    most_devices: int


class SimulatedSizing:
    """``advise.evidence.Sizing``: replicas as ``tidemill size`` finds them.

    What is simulated is Tidemill's scheduler on the hardware of the case, which stands for any
    engine that batches continuously; what an engine adds or saves beside that is not in it. It can
    say something of GPUs of which there is a data sheet (known by maker and memory), and of this
    machine where it was calibrated with the model. ``prices``: of a device for an hour.
    """

    def __init__(self, prices: Mapping[str, float]) -> None:
        self._prices = prices
        self._calibrations = [found for _, found in calibration.stored()]  # the newest first
        self._loads: dict[str, ScenarioLoad] = {}
        self._shapes: dict[str, Shape | None] = {}
        self._found: dict[_Case, Size | None] = {}

    def size(self, engine: Engine, part: Part, answers: Answers) -> Size | None:
        if engine.value("batching") != "continuous" or answers.bits not in BITS:
            return None
        hardware = tuple(self._hardware(engine, part, answers))
        if not hardware:
            return None
        own = known.load(answers.workload).slo
        given = [None if ms is None else ms / 1000 for ms in (answers.ttft_ms, answers.tpot_ms)]
        slo = Slo(ttft=given[0], tpot=given[1]) if any(given) else own or Slo()
        case = _Case(
            answers.name, answers.workload, slo, in_flight(part, answers), hardware, answers.bits,
            gpus_of(part, answers) if engine.has("parallelism", "tensor") else 1,
        )  # fmt: skip
        if case not in self._found:
            self._found[case] = self._size(case)
        return self._found[case]

    def _hardware(self, engine: Engine, part: Part, answers: Answers) -> Iterator[str]:
        """Of what the part has and the engine runs on: profiles, or "local"."""
        kinds = [kind for kind in hardware_of(part, answers) if engine.has("hardware", kind)]
        gpus = gpus_of(part, answers)
        for profile in _profiles() if gpus and answers.gpu_memory_gb else ():
            memory = profile.memory.value / 1e9
            same = abs(memory / (answers.gpu_memory_gb or memory) - 1) <= _SAME_MEMORY
            if same and _kind(profile) in kinds:
                yield profile.id
        here = kind_of_processor(platform.machine(), platform.system())
        if not gpus and here in kinds and self._calibrated(answers.name) is not None:
            yield "local"

    def _size(self, case: _Case) -> Size | None:
        name = self._most_cautious(case.hardware)
        load = self._load(case.workload)
        goal = Goal(case.slo, Load.at_once(case.at_once))
        options = self._options(name, case, load.mix.context)
        sizing = size(options, goal, load.mix, load, thorough=False)
        others = [other for other in case.hardware if other != name]
        return None if sizing.winner is None else _as_size(sizing.winner, others)

    def _most_cautious(self, hardware: Sequence[str]) -> str:
        """Of what the case's hardware may be: what has a price, and of that the slowest memory."""
        names = [name for name in hardware if name in self._prices] or hardware
        return min(names, key=lambda n: 0 if n == "local" else load_hardware(n).bandwidth.value)

    def _options(self, name: str, case: _Case, context: int) -> Sequence[Option]:
        if name == "local":
            measured = self._calibrated(case.model)
            assert measured is not None
            return [of_calibration(measured, self._prices.get("local"))]
        shape = self._shape(case.model)
        if shape is None:
            return []
        options = of_hardware([load_hardware(name)], shape, context, [case.bits], self._prices)
        return [option for option in options if option.devices <= case.most_devices]

    def _calibrated(self, model: str) -> calibration.Calibration | None:
        return next((c for c in self._calibrations if called(c.model) == called(model)), None)

    def _load(self, workload: str) -> ScenarioLoad:
        if workload not in self._loads:
            self._loads[workload] = ScenarioLoad(known.load(workload), "in flight")
        return self._loads[workload]

    def _shape(self, model: str) -> Shape | None:
        """By the name of the model, as far as it tells; else of the model itself, if it is here."""
        if model not in self._shapes:
            names = [name for name in shape_names() if called(model).startswith(name)]
            try:
                self._shapes[model] = load_shape(max(names, key=len) if names else model)
            except (ValueError, OSError):
                self._shapes[model] = None
        return self._shapes[model]


def _profiles() -> Iterator[Hardware]:
    return (load_hardware(name) for name in hardware_names())


def _kind(profile: Hardware) -> str:
    return next((kind for maker, kind in _MAKERS.items() if profile.name.startswith(maker)), "")


def _as_size(winner: Entry, others: Sequence[str]) -> Size:
    """others: what the case's hardware may be, too."""
    spec = winner.option.spec
    assert spec is not None
    words = f"tidemill size: {winner.replicas} x {winner.option.words}, 1 of them spare"
    if others:
        words += f" (by the answers it may be {' or '.join(others)}, too)"
    words += f"; step times {spec.step_time.origin}, band {spec.step_time.band:.0%}"
    hour = winner.total("cost")
    return Size(
        replicas=Number(winner.replicas, "replicas", "simulated", words),
        per_month=None
        if hour is None
        else Number(
            hour * HOURS_A_MONTH, "per month", "simulated",
            f"{words}; {hour:,.4g} an hour by the prices given, {HOURS_A_MONTH} hours",
        ),
    )  # fmt: skip
