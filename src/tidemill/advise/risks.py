"""What can go wrong with a recommendation: formats, interfaces, baselines, monitoring, skills."""

from __future__ import annotations

from tidemill.advise.evidence import weights_gb
from tidemill.advise.facts import FORMATS, HARDWARE, Engine
from tidemill.advise.rules import Case, converts, health


def of(engine: Engine, case: Case, current: Engine | None) -> list[str]:
    """The risks of running ``engine``, and of coming to it from ``current``."""
    return [
        *_formats(engine, case),
        *_interface(engine, current),
        *_baselines(engine, current),
        *_monitoring(engine, case, current),
        *_skills(engine, case),
        *_data(engine, case),
        *_project(engine),
    ]


def _formats(engine: Engine, case: Case) -> list[str]:
    answers, found = case.answers, []
    if converts(engine, answers):
        reads = ", ".join(FORMATS[name] for name in engine.value("formats") or ())
        found.append(
            f"Formats: the model comes as {FORMATS[answers.format]} and is converted to {reads}; "
            "each version has to be converted and its quality measured again."
        )
    if answers.special_tokens:
        found.append(
            "Formats: special tokens of your own are lost most easily between tokenizers and chat "
            "templates; compare token ids with the original's before anything else."
        )
    if answers.custom_operators:
        found.append("Formats: operators of your own have to be ported, and kept up with releases.")
    weights = weights_gb(answers)
    room = answers.gpu_memory_gb if case.gpus else answers.memory_gb
    if weights is not None and room is not None and weights.value > 0.7 * room * max(1, case.gpus):
        found.append(
            f"Memory: {weights}; little is left for KV caches, which is what limits how many "
            "requests run at once."
        )
    return found


def _interface(engine: Engine, current: Engine | None) -> list[str]:
    if current is None or current.id == engine.id:
        return []
    found = []
    lost = [api for api in current.value("api") or () if engine.has("api", api) is not True]
    if lost:
        found.append(
            f"Interface: {current.name} has the API {', '.join(lost)}; of {engine.name} that is "
            "not documented."
        )
    found.append(
        f"Interface: between {current.name} and {engine.name} defaults of sampling, error texts "
        "and fields beyond OpenAI's differ; run your own calls against both."
    )
    return found


def _baselines(engine: Engine, current: Engine | None) -> list[str]:
    if current is None or current.id == engine.id:
        return []
    return [
        f"Baselines: latency, throughput and quality figures of {current.name} say nothing of "
        f"{engine.name}; measure them anew, with the same prompts and lengths."
    ]


def _monitoring(engine: Engine, case: Case, current: Engine | None) -> list[str]:
    if case.answers.stage not in ("production", "edge"):
        return []
    if not engine.value("metrics"):
        return ["Monitoring: no metrics endpoint is documented; measure from the outside."]
    if current is None or current.id == engine.id:
        return []
    prefix = engine.value("metrics_prefix")
    named = f" (those of {engine.name} begin with {prefix})" if prefix else ""
    return [f"Monitoring: dashboards and alerts of {current.name} have to be redone{named}."]


def _skills(engine: Engine, case: Case) -> list[str]:
    found = []
    if engine.value("install") == "container" and case.answers.operations != "dedicated":
        found.append("Skills: it comes as a container; somebody has to know how to keep one.")
    if case.gpus > 1:
        found.append("Skills: several GPUs for one model need drivers and links that are watched.")
    idle = [kind for kind in case.kinds if engine.has("hardware", kind) is False]
    if idle:
        names = ", ".join(HARDWARE[kind] for kind in idle)
        found.append(f"Hardware: it does not use {names}, which is there too.")
    return found


def _data(engine: Engine, case: Case) -> list[str]:
    answers, found = case.answers, []
    if answers.stays_local and engine.value("sends_usage"):
        found.append(
            "Data: it reports usage to its makers unless told not to; the command turns that off."
        )
    if answers.stays_local and engine.value("sends_usage") is None:
        found.append("Data: no source says whether it reports usage; block it at the network.")
    if answers.access_control and engine.value("authentication") is not True:
        found.append("Access: it asks for no key; put a gateway in front that does.")
    elif answers.access_control and engine.facts["authentication"].note:
        found.append(f"Access: keys protect {engine.facts['authentication'].note}.")
    if answers.audit:
        found.append(
            "Audit: who asked, and when, is not among what is known of any engine here; record it "
            "at a gateway in front."
        )
    if answers.stays_local and answers.servers and answers.edge:
        found.append(
            "Data: in a hybrid, what must stay local must never fall back to the servers: the "
            "gateway has to refuse, not to help out."
        )
    return found


def _project(engine: Engine) -> list[str]:
    found = []
    if state := health(engine):
        found.append(f"Project: it {state}.")
    release = engine.facts.get("release")
    if release is not None and "not published" in release.note:
        found.append(f"Project: version {release.value}, not published; few have run it.")
    return found
