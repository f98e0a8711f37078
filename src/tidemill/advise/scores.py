"""The three-dimension score of candidates that may be chosen: performance, cost, ecosystem.

Each dimension is the share of its criteria that are met, by documented facts; one that no source
tells about counts half, so that it neither helps nor harms. Where a candidate was measured, its
performance is what was measured against the best of those that were.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from tidemill.advise.answers import Answers
from tidemill.advise.evidence import Measurement, Size
from tidemill.advise.facts import Engine
from tidemill.advise.questions import GPUS
from tidemill.advise.rules import CAPACITY, Case, burden, converts, health, pages_kv
from tidemill.records import dataclass

Dimension = Literal["performance", "cost", "ecosystem"]
DIMENSIONS: tuple[Dimension, ...] = ("performance", "cost", "ecosystem")
WEIGHTS: Mapping[Dimension, float] = {"performance": 0.4, "cost": 0.3, "ecosystem": 0.3}

# A project is in good health if its last commit is at most so many days before the look-up.
ACTIVE = 120


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing asked of a candidate. met: None where no source says."""

    text: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Share:
    """One dimension of a score, 0 to 1. basis: what the value comes from."""

    value: float
    basis: str
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """0 to 1; ``total`` is the mean of the dimensions by their weights."""

    shares: Mapping[Dimension, Share]
    total: float


def parse_weights(text: str) -> dict[Dimension, float]:
    """``performance=0.5,cost=0.3,ecosystem=0.2``; those left out are 0. Raises ValueError."""
    weights: dict[Dimension, float] = dict.fromkeys(DIMENSIONS, 0.0)
    for entry in text.split(","):
        name, equals, number = entry.partition("=")
        if name.strip() not in DIMENSIONS or not equals:
            raise ValueError(
                f"weights: {entry!r} is not like performance=0.5; there are {', '.join(DIMENSIONS)}"
            )
        try:
            value = float(number)
        except ValueError:
            raise ValueError(f"weights: {number!r} is not a number") from None
        if not math.isfinite(value) or not 0 <= value <= 1e6:
            raise ValueError(f"weights: {number.strip()} is not a number from 0 on")
        weights[name.strip()] = value  # type: ignore[index]
    if not sum(weights.values()):
        raise ValueError("weights: at least one must be more than 0")
    return weights


def score(
    engine: Engine,
    case: Case,
    weights: Mapping[Dimension, float],
    measured: Measurement | None,
    best_measured: float | None,
    size: Size | None,
    cheapest: float | None,
) -> Score:
    """best_measured, cheapest: the best among the candidates that are compared."""
    performance = _share(_performance(engine, case), "documented features, nothing measured")
    if measured is not None and best_measured:
        value = measured.output_tokens_per_second / best_measured
        performance = Share(value, f"measured: {measured.source}", performance.criteria)
    cost = _share(_cost(engine, case), "documented facts, no sizing")
    if size is not None and size.per_month is not None and cheapest:
        value = cheapest / size.per_month.value if size.per_month.value else 1.0
        cost = Share(value, f"{size.per_month.origin}: {size.per_month.source}", cost.criteria)
    shares: dict[Dimension, Share] = {
        "performance": performance,
        "cost": cost,
        "ecosystem": _share(_ecosystem(engine), "documented facts"),
    }
    whole = sum(weights.values())
    total = sum(shares[name].value * weights[name] for name in DIMENSIONS) / whole
    return Score(shares, total)


def _share(criteria: Iterable[Criterion], basis: str) -> Share:
    criteria = tuple(criteria)
    points = {True: 1.0, None: 0.5, False: 0.0}
    return Share(sum(points[c.met] for c in criteria) / len(criteria), basis, criteria)


def _performance(engine: Engine, case: Case) -> list[Criterion]:
    answers = case.answers
    batching = engine.value("batching")
    criteria = [
        Criterion("caches prefixes", engine.value("prefix_cache")),
        Criterion(f"runs weights of {answers.bits} bits", _at_most(engine, answers)),
    ]
    if case.in_flight > 1:
        met = None if batching is None else batching == "continuous"
        criteria += [
            Criterion("continuous batching", met),
            Criterion("paged KV cache", pages_kv(engine, case.kinds)),
        ]
    if answers.latency == "interactive":
        criteria.append(Criterion("speculative decoding", engine.value("speculation")))
    if case.gpus > 1:
        criteria.append(Criterion("tensor parallel", engine.has("parallelism", "tensor")))
    accelerators = [kind for kind in case.kinds if not kind.startswith("cpu")]
    if accelerators:
        uses = [engine.has("hardware", kind) for kind in accelerators]
        met = True if any(uses) else (None if None in uses else False)
        criteria.append(Criterion("uses the accelerators there", met))
    return criteria


def _at_most(engine: Engine, answers: Answers) -> bool | None:
    bits = engine.value("bits")
    return None if bits is None else bits <= answers.bits


def _cost(engine: Engine, case: Case) -> list[Criterion]:
    answers = case.answers
    load = burden(engine, answers)
    spare = None if load is None else load[0] < CAPACITY[answers.operations]
    criteria = [
        Criterion(f"runs on {kind}, which is there", engine.has("hardware", kind))
        for kind in case.kinds
    ]
    criteria += [
        Criterion("less operations than the team can carry", spare),
        Criterion("takes the model as it comes", _as_it_comes(engine, answers)),
        Criterion("runs weights of 4 bits: less memory", _four_bits(engine)),
    ]
    if any(kind in GPUS for kind in case.kinds):
        criteria.append(Criterion("needs no GPU at all", _cpu(engine)))
    return criteria


def _as_it_comes(engine: Engine, answers: Answers) -> bool | None:
    if converts(engine, answers):
        return False
    return engine.has("formats", answers.format)


def _four_bits(engine: Engine) -> bool | None:
    bits = engine.value("bits")
    return None if bits is None else bits <= 4


def _cpu(engine: Engine) -> bool | None:
    found = (engine.has("hardware", "cpu-x86"), engine.has("hardware", "cpu-arm"))
    return True if any(found) else (None if None in found else False)


def _ecosystem(engine: Engine) -> list[Criterion]:
    last = engine.facts.get("last_commit")
    release = engine.value("release")
    active: bool | None = None
    if health(engine):
        active = False
    elif last is not None:
        active = (last.source.looked_up - last.value) <= datetime.timedelta(days=ACTIVE)
    elif release is not None:
        active = True  # released, by a page that was looked up when its other facts were
    architectures = engine.value("architectures")
    hardware = engine.value("hardware")
    api = engine.value("api")
    published = None if release is None else "not published" not in engine.facts["release"].note
    return [
        Criterion("active project", active),
        Criterion("released to the public", published),
        Criterion("eight model families or more", architectures and len(architectures) >= 8),
        Criterion("four kinds of hardware or more", hardware and len(hardware) >= 4),
        Criterion("OpenAI's API", engine.has("api", "openai")),
        Criterion("another API beside it", api and len(api) >= 2),
        Criterion("metrics endpoint", engine.value("metrics")),
        Criterion("asks for keys", engine.value("authentication")),
    ]
