"""Whether a comparison is fair: the same work, at the same quality, on the same machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from tidemill.bench.arrivals import Closed
from tidemill.bench.compare.answers import Answers
from tidemill.bench.compare.base import CompareError, Figure, Side
from tidemill.bench.measures import Summary
from tidemill.bench.result import FEW, Machine, Result
from tidemill.bench.scenario import Starts
from tidemill.bench.statistics import fisher_exact

_SAME_LENGTH = 0.01
"""Lengths that differ by less, as a share, count as one length."""
_P = 0.05
"""Shares that are that unlikely to be the same in truth count as different."""


def check_repeats(side: Side) -> None:
    """Raises CompareError if its runs are no repeats of each other."""
    for other in side.results[1:]:
        differ = differences(side.first, other)
        first, second = side.first.target, other.target
        if first.whom != second.whom:
            differ.append("another target")
        if (first.arguments, first.threads) != (second.arguments, second.threads):
            differ.append("its engine was started with other arguments or threads")
        if differ:
            raise CompareError(
                f"{side.label}: {side.first.id or 'its first run'} and {other.id or 'another'} "
                f"are no repeats of one run: {'; '.join(differ)}"
            )


def differences(a: Result, b: Result) -> list[str]:
    """In what was asked."""
    if a.scenario.name != b.scenario.name:
        return [f"the scenarios are {a.scenario.name} and {b.scenario.name}"]
    return [
        f"the scenario's {field} changed"
        for field in ("load", "shapes", "api")
        if getattr(a.scenario, field) != getattr(b.scenario, field)
    ]


def warnings(a: Side, b: Side) -> Iterator[str]:
    """What else differs, or is not known."""
    one, other = a.first, b.first
    if one.slo != other.slo:
        yield f"the SLO differs, {one.slo or 'none'} and {other.slo or 'none'}: no goodput"
    for field in Machine.__struct_fields__:
        values = [getattr(result.machine, field) for result in (one, other)]
        if values[0] != values[1]:
            yield f"the machine differs, {field}: {values[0]} and {values[1]}"
    for what, values in (
        ("threads of the engine", [one.target.threads, other.target.threads]),
        ("--engine-args", [shlex.join(r.target.arguments) or "none" for r in (one, other)]),
        ("names of the models", [one.target.model, other.target.model]),
        ("settings in requests", [one.target.extra, other.target.extra]),
        ("seeds, and so the prompts", [one.seed, other.seed]),
        ("seconds of the window", [one.scenario.seconds, other.scenario.seconds]),
    ):
        if values[0] != values[1]:
            yield f"{what} differ: {values[0]} and {values[1]}"
    prompts = [side.mean(lambda s: s.mean_prompt_tokens) for side in (a, b)]
    if min(prompts) > 0 and abs(prompts[1] / prompts[0] - 1) > _SAME_LENGTH:
        yield f"prompts differ: {prompts[0]:.0f} and {prompts[1]:.0f} tokens on average"
    for name, side in (("A", a), ("B", b)):
        good = sum(summary.good for summary in side.summaries)
        if side.summaries and good < FEW:
            yield f"{name} has only {good} good answers"
        if not all(summary.counted for summary in side.summaries):
            yield f"{name} does not count tokens: its rates and TPOT count pieces of text"
        if side.summaries and None in side.recordings:
            yield f"{name} has figures but no records: its rates have no interval"


def notes(a: Side, b: Side, *, paired: bool) -> Iterator[str]:
    """How to read it. ``paired``: both had the same requests."""
    if isinstance(a.first.scenario.load, Starts):
        return
    counts = [len(side.results) for side in (a, b)]
    if sum(counts) == 2:
        yield (
            "one run each: how much runs differ is not known, and intervals leave it out; "
            "runs of one --name are repeats"
        )
    if paired:
        yield "both had the same requests: intervals are of what differed between them"
    if not isinstance(a.first.scenario.load, Closed):
        yield "requests came by the clock: rates are those of the load as long as a server keeps up"
    yield "of 20 figures that are the same in truth, one is called better or worse by chance"


def alarms(a: Side, b: Side, figures: Sequence[Figure], same: Answers | None) -> Iterator[str]:
    """What makes the comparison unfair, or void. ``same``: of answers to the same prompts."""
    for name, side in (("A", a), ("B", b)):
        for summary in side.summaries:
            if summary.invalid:
                yield f"{name} is INVALID: {summary.invalid}"
    yield from _lengths(a, figures, same)
    if (worse := _worse(a, b, _failed, "MORE failed requests", "failed")) is not None:
        yield f"{worse}: its latencies are of the answers that came"
    if (worse := _worse(a, b, _not_right, "FEWER right answers", "not right")) is not None:
        yield f"{worse}: its speed is not of equal quality"


def _lengths(a: Side, figures: Sequence[Figure], same: Answers | None) -> Iterator[str]:
    for figure in figures:
        if figure.name == "answer length" and figure.verdict == "different":
            apart = figure.b / figure.a - 1
            if abs(apart) > _SAME_LENGTH:
                yield (
                    f"B's answers are {abs(apart):.0%} {'LONGER' if apart > 0 else 'SHORTER'} "
                    f"({figure.a:.1f} and {figure.b:.1f} tokens on average): speeds are not of "
                    "the same work"
                )
                return
    # Of answers that the model ends itself it is their mean that counts.
    if same is not None and not a.first.scenario.checked:
        other = same.pairs - same.equally_long
        if other > _SAME_LENGTH * same.pairs:
            yield (
                f"{other} of {same.pairs} answers to the same prompts are NOT EQUALLY LONG: speeds "
                "are not of the same work"
            )


def _worse(
    a: Side, b: Side, of: Callable[[Summary], tuple[int, int]], what: str, bad: str
) -> str | None:
    """Who has the larger share of something bad, if that is not by chance."""
    (bad_a, of_a), (bad_b, of_b) = (
        map(sum, zip((0, 0), *map(of, side.summaries), strict=True)) for side in (a, b)
    )
    p = fisher_exact(bad_a, of_a, bad_b, of_b)
    if p >= _P:
        return None
    who = "B" if bad_b * of_a > bad_a * of_b else "A"
    likely = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    counts = f"A {bad_a} of {of_a}, B {bad_b} of {of_b}"
    return f"{who} has {what} ({bad}: {counts}; Fisher's exact test, {likely})"


def _failed(summary: Summary) -> tuple[int, int]:
    return sum(summary.errors.values()), summary.requests


def _not_right(summary: Summary) -> tuple[int, int]:
    checked = sum(summary.verdicts.values())
    return checked - summary.verdicts.get("right", 0), checked
