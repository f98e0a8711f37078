"""Figures from arrays are those that the bench's code makes of records."""

from __future__ import annotations

import math

import pytest

from simulate.linear import Linear, spec
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Slo, Summary
from tidemill.bench.scenario import Scenario
from tidemill.bench.workload import LogNormal, Shape, Uniform
from tidemill.simulate.changes import Failures
from tidemill.simulate.figures import Tally
from tidemill.simulate.jobs import Job, Placed
from tidemill.simulate.play import Deployment, joined, play

SHAPES = (
    Shape("short", LogNormal(40, 120, 400), Uniform(1, 40)),
    Shape("long", Uniform(200, 900), Uniform(20, 120), weight=0.3, prefix=64, prefixes=3),
)
SLO = Slo(ttft=0.2, tpot=0.02, e2e=2.0)
REPLICA = spec(step_time=Linear(4e-3, 5e-5, 1e-8, 1e-4), n_blocks=3000)


def scenario(load, **changes) -> Scenario:
    return Scenario(
        name="test", summary="", load=load, shapes=SHAPES, seconds=60.0, warmup=3.0, **changes
    )


def alike(one: Summary, other: Summary) -> None:
    """All but intervals, and what bins cannot tell."""
    for name in (
        "seconds", "requests", "good", "errors", "unfinished", "prompt_rate", "request_rate",
        "mean_prompt_tokens", "mean_output_tokens", "cached_share", "goodput", "attained",
        "counted", "short", "invalid", "verdicts", "examples",
    ):  # fmt: skip
        assert getattr(one, name) == getattr(other, name), name
    assert one.output_rate == pytest.approx(other.output_rate, rel=2e-3)
    assert one.latency.keys() == other.latency.keys()
    for name, shares in one.latency.items():
        for share, estimate in shares.items():
            found = other.latency[name][share]
            assert found.value == pytest.approx(
                estimate.value, rel=3e-3 if name == "itl" else 1e-12
            )
            assert found.low <= found.value <= found.high


@pytest.mark.parametrize("load", [Gamma(6.0), Gamma(4.0, 0.2), Closed(8)])
@pytest.mark.parametrize("slo", [None, SLO])
def test_arrays_say_what_records_say(load, slo: Slo | None) -> None:
    deployment = Deployment((REPLICA, REPLICA))
    exact, rough = (play(scenario(load), deployment, exact=exact).tally for exact in (True, False))
    alike(exact.summary(slo), rough.summary(slo))
    for shape in ("short", "long"):
        one, other = exact.summary(slo, shape), rough.summary(slo, shape)
        del one.latency["itl"]  # gaps are kept of all shapes together
        alike(one, other)


def test_what_failed_counts_as_failed_in_both() -> None:
    failures = Failures(mtbf=20.0, start=1.0, retries=0)
    deployment = Deployment((REPLICA, REPLICA), failures=failures)
    asked = scenario(Gamma(6.0), timeout=3.0)
    exact, rough = (play(asked, deployment, exact=exact).tally for exact in (True, False))
    one, other = exact.summary(SLO), rough.summary(SLO)
    assert one.errors == other.errors
    assert one.errors["lost"] > 0
    assert (one.requests, one.good, one.attained) == (other.requests, other.good, other.attained)
    assert one.good + sum(one.errors.values()) == one.requests


def test_parts_together_are_the_whole() -> None:
    deployment = Deployment((REPLICA,) * 3, policy="round-robin")
    asked = scenario(Gamma(8.0))
    whole = play(asked, deployment, exact=False)
    parts = joined([play(asked, deployment, exact=False, part=(i, 2)) for i in range(2)])
    alike(whole.tally.summary(SLO), parts.tally.summary(SLO))
    assert parts.usage.output_tokens == whole.usage.output_tokens
    assert parts.counts.replica_seconds == pytest.approx(whole.counts.replica_seconds, rel=1e-9)


def test_how_many_are_outstanding() -> None:
    tally = Tally(["one"], exact=False)
    for due, ended in ((0.0, 10.0), (4.0, 6.0), (9.0, 30.0)):
        job = Job(text=Placed(b""), prompt_tokens=1, output_tokens=1, due=due)
        job.first = job.last = job.ended = ended
        tally.add(job)
    assert tally.outstanding(0.0, 10.0) == pytest.approx((10 + 2 + 1) / 10)
    assert tally.outstanding(20.0, 30.0) == 1.0


def test_tokens_within_the_window() -> None:
    tally = Tally(["one"], exact=False)
    tally.opened, tally.closed = 10.0, 20.0
    for first, last, tokens in ((0.0, 9.0, 10), (5.0, 15.0, 11), (12.0, 13.0, 5), (19.0, 29.0, 11),
                                (0.0, 30.0, 31), (20.0, 20.0, 1), (10.0, 10.0, 1)):  # fmt: skip
        job = Job(text=Placed(b""), prompt_tokens=1, output_tokens=tokens, due=first)
        job.first, job.last = first, last
        job.ended = last
        tally.add(job)
    inside = 0 + 6 + 5 + 1 + 10 + 0 + 1
    assert tally.summary(None).output_rate == pytest.approx(inside / 10)


def test_nothing_in_the_window_is_said() -> None:
    tally = Tally(["one"], exact=False)
    tally.opened, tally.closed = 0.0, 1.0
    summary = tally.summary(SLO)
    assert summary.invalid == "no request was due in the window"
    assert summary.latency == {}
    assert summary.attained == 0.0
    assert math.isfinite(summary.output_rate)
