"""The rules that a candidate must pass: each one small function over facts and answers.

A rule passes, fails with what made it fail, or does not know because no source says. What is not
known neither qualifies an engine nor rejects it: the engine is unproven, and what would have to be
found out is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from tidemill.advise.answers import Answers
from tidemill.advise.evidence import Evidence, weights_gb
from tidemill.advise.facts import CLASSES, FORMATS, HARDWARE, Engine
from tidemill.advise.flow import HIGH_CONCURRENCY, Part, gpus_of, hardware_of, in_flight
from tidemill.advise.questions import GPUS
from tidemill.records import dataclass

Outcome = Literal["pass", "fail", "unknown"]

# Days without a commit after which a project counts as dormant.
DORMANT = 365


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules look at, beside the engine."""

    part: Part
    answers: Answers
    evidence: Evidence

    @property
    def kinds(self) -> tuple[str, ...]:
        return hardware_of(self.part, self.answers)

    @property
    def in_flight(self) -> int:
        return in_flight(self.part, self.answers)

    @property
    def gpus(self) -> int:
        return gpus_of(self.part, self.answers)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says. ``reason`` is a sentence that can stand alone after the engine's name."""

    rule: str
    outcome: Outcome
    reason: str = ""


Rule = Callable[[Engine, Case], tuple[Outcome, str]]
_OK: tuple[Outcome, str] = ("pass", "")


def engine_class(engine: Engine, case: Case) -> tuple[Outcome, str]:
    wanted = case.part.engine_class
    if wanted in engine.classes:
        return _OK
    own = " and ".join(CLASSES[name] for name in engine.classes)
    return "fail", f"is of the class {own}; the case needs {CLASSES[wanted]}"


def hardware(engine: Engine, case: Case) -> tuple[Outcome, str]:
    found = {kind: engine.has("hardware", kind) for kind in case.kinds}
    if any(found.values()):
        return _OK
    names = ", ".join(HARDWARE[kind] for kind in case.kinds)
    if all(value is False for value in found.values()):
        runs = ", ".join(HARDWARE[kind] for kind in engine.value("hardware"))
        return "fail", f"runs on {runs}, not on {names}"
    return "unknown", f"no source says whether it runs on {names}"


def weight_format(engine: Engine, case: Case) -> tuple[Outcome, str]:
    format = case.answers.format
    if engine.has("formats", format):
        return _OK
    if engine.has("converts_from", format):
        return _OK
    if engine.has("formats", format) is False:
        reads = ", ".join(FORMATS[name] for name in engine.value("formats"))
        return "fail", f"reads {reads}; the model comes as {FORMATS[format]}"
    note = engine.facts["formats"].note if "formats" in engine.facts else ""
    return "unknown", f"no source says that it reads {FORMATS[format]}" + (
        f" ({note})" if note else ""
    )


def architecture(engine: Engine, case: Case) -> tuple[Outcome, str]:
    name = case.answers.architecture
    if name == "other":
        return "unknown", "whether it runs the model's architecture has to be tried"
    match engine.has("architectures", name):
        case True:
            return _OK
        case False:
            return "fail", f"does not have the architecture {name}"
    return "unknown", f"no source says that it has the architecture {name}"


def own_operators(engine: Engine, case: Case) -> tuple[Outcome, str]:
    if not case.answers.custom_operators:
        return _OK
    match engine.value("custom_models"):
        case True:
            return _OK
        case False:
            return "fail", "takes no models with operators of your own without changing its source"
    return "unknown", "no source says how operators of your own get into it"


def memory(engine: Engine, case: Case) -> tuple[Outcome, str]:
    """The weights alone must fit: a lower bound, so that only what is certain rejects."""
    weights = weights_gb(case.answers)
    if weights is None:
        return _OK
    answers = case.answers
    has_gpus = case.gpus > 0 and any(kind in GPUS for kind in case.kinds)
    on_gpu = has_gpus and any(engine.has("hardware", kind) for kind in case.kinds if kind in GPUS)
    if on_gpu:
        room, what = answers.gpu_memory_gb, "the memory of a GPU"
        ways = engine.value("parallelism") or ()
        if room is not None and case.gpus > 1:
            splits = [way for way in ways if way in ("tensor", "pipeline", "layer-split")]
            if splits:
                room, what = room * case.gpus, f"the memory of {case.gpus} GPUs"
            elif weights.value > room and not _complete(engine, "parallelism"):
                return "unknown", "no source says that it splits a model over several GPUs"
        if engine.value("host_offload") and room is not None:  # the rest stays in main memory
            room = None if answers.memory_gb is None else room + answers.memory_gb
            what += " and main memory"
    else:
        room, what = answers.memory_gb, "main memory"
    if room is None or weights.value <= room:
        return _OK
    return "fail", f"needs {weights.value:g} GB for the weights alone; {what} is {room:g} GB"


def concurrency(engine: Engine, case: Case) -> tuple[Outcome, str]:
    peak = case.in_flight
    if peak < HIGH_CONCURRENCY:
        return _OK
    match engine.value("batching"):
        case "continuous":
            return _OK
        case None:
            return "unknown", f"no source says how it takes {peak} requests at once"
    return (
        "fail",
        f"has no continuous batching, and {peak} requests come at once "
        f"(from {HIGH_CONCURRENCY} on it is asked for)",
    )


def paged_kv(engine: Engine, case: Case) -> tuple[Outcome, str]:
    """A serving engine is one that pages its KV cache, on the hardware that it would run on."""
    if case.part.engine_class != "serving":
        return _OK
    match pages_kv(engine, case.kinds):
        case True:
            return _OK
        case None:
            return "unknown", "no source says that it pages its KV cache"
    where = ", ".join(HARDWARE[kind] for kind in engine.value("paged_kv"))
    here = ", ".join(HARDWARE[kind] for kind in case.kinds)
    return "fail", f"pages its KV cache on {where} only, not on {here}"


def http_server(engine: Engine, case: Case) -> tuple[Outcome, str]:
    if engine.value("server") is False:
        return "fail", "is a library without an HTTP server of its own"
    return _OK if engine.value("server") else ("unknown", "no source says that it has a server")


def operations(engine: Engine, case: Case) -> tuple[Outcome, str]:
    load, capacity = burden(engine, case.answers), CAPACITY[case.answers.operations]
    if load is None:
        return "unknown", "no source says how it is installed"
    points, why = load
    if points <= capacity:
        return _OK
    return (
        "fail",
        f"takes {points} points of operations ({', '.join(why)}); team.operations "
        f'"{case.answers.operations}" has {capacity}',
    )


def production(engine: Engine, case: Case) -> tuple[Outcome, str]:
    if case.answers.stage == "production" and engine.value("production") is False:
        note = engine.facts["production"].note
        return "fail", f"is not for production by its own documentation: {note}"
    return _OK


def project_health(engine: Engine, case: Case) -> tuple[Outcome, str]:
    if case.answers.stage not in ("production", "edge"):
        return _OK
    state = health(engine)
    return ("fail", state) if state else _OK


def access_control(engine: Engine, case: Case) -> tuple[Outcome, str]:
    if not case.answers.access_control:
        return _OK
    match engine.value("authentication"):
        case True:
            return _OK
        case None:
            return "unknown", "no source says that it asks for keys"
    if case.answers.operations == "dedicated":
        return _OK  # a gateway in front does it; said among the risks
    return (
        "fail",
        "asks nobody for a key, and a gateway in front is more than team.operations "
        f'"{case.answers.operations}" can keep running',
    )


def measured_limits(engine: Engine, case: Case) -> tuple[Outcome, str]:
    """What was measured must keep to the case's limits. Without a measurement nothing is said."""
    result = case.evidence.measurement(engine, case.part, case.answers)
    if result is None:
        return _OK
    for limit, value, name in (
        (case.answers.ttft_ms, result.ttft_ms, "TTFT"),
        (case.answers.tpot_ms, result.tpot_ms, "TPOT"),
    ):
        if limit is not None and value is not None and value > limit:
            return "fail", (
                f"took {value:g} ms of {name} at p99 (measured: {result.source}); the limit is "
                f"{limit:g} ms"
            )
    return _OK


def budget(engine: Engine, case: Case) -> tuple[Outcome, str]:
    limit = case.answers.per_month
    size = None if limit is None else case.evidence.size(engine, case.part, case.answers)
    if limit is None or size is None or size.per_month is None or size.per_month.value <= limit:
        return _OK
    return "fail", f"costs {size.per_month}; the budget is {limit:g} per month"


RULES: dict[str, Rule] = {
    "class": engine_class,
    "hardware": hardware,
    "format": weight_format,
    "architecture": architecture,
    "own operators": own_operators,
    "memory": memory,
    "concurrency": concurrency,
    "paged KV": paged_kv,
    "server": http_server,
    "operations": operations,
    "production": production,
    "project health": project_health,
    "access control": access_control,
    "measured limits": measured_limits,
    "budget": budget,
}


def judge(engine: Engine, case: Case) -> list[Verdict]:
    """Every rule's verdict, the failures first and unknowns next. An engine of another class is
    not asked more."""
    verdicts = []
    for name, rule in RULES.items():
        outcome, reason = rule(engine, case)
        verdicts.append(Verdict(name, outcome, reason))
        if name == "class" and outcome == "fail":
            break
    order = ("fail", "unknown", "pass")
    return sorted(verdicts, key=lambda verdict: order.index(verdict.outcome))


# ---- what several rules, scores and risks look at ----------------------------------------------

# Points of operations that a team can carry, and what costs how many.
CAPACITY = {"none": 1, "part-time": 2, "dedicated": 6}
_INSTALL = {"binary": 0, "package": 1, "container": 1}


def burden(engine: Engine, answers: Answers) -> tuple[int, list[str]] | None:
    """Points of operations and what they are for; None where the installation is not known."""
    install = engine.value("install")
    if install is None:
        return None
    points, why = _INSTALL[install], [] if install == "binary" else [f"a {install} to keep"]
    if converts(engine, answers):
        more = 2 if answers.changes == "weekly" else 1
        points += more
        why.append(f"each version of the model converted, {answers.changes}")
    if answers.stage == "production" and not engine.value("metrics"):
        points += 1
        why.append("no metrics endpoint documented")
    return points, why


def pages_kv(engine: Engine, kinds: Iterable[str]) -> bool | None:
    """Whether its KV cache is paged on one of these kinds of hardware that it runs on."""
    if engine.has("paged_kv", "all"):
        return True
    found = [engine.has("paged_kv", kind) for kind in kinds if engine.has("hardware", kind)]
    return True if any(found) else (None if None in found or not found else False)


def converts(engine: Engine, answers: Answers) -> bool:
    """Whether the model has to be converted before this engine reads it."""
    return not engine.has("formats", answers.format) and bool(
        engine.has("converts_from", answers.format)
    )


def health(engine: Engine) -> str:
    """What is wrong with the project, as far as is known; empty: nothing."""
    since = engine.value("maintenance_since")
    if since is not None:
        return f"is in maintenance mode since {since}, by its own README"
    last = engine.value("last_commit")
    if last is not None:
        looked_up = engine.facts["last_commit"].source.looked_up
        if (looked_up - last).days > DORMANT:
            return f"seems dormant: no commit after {last} was found on {looked_up}"
    return ""


def _complete(engine: Engine, fact: str) -> bool:
    return fact in engine.facts and engine.facts[fact].complete
