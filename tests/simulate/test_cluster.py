"""Clusters: nothing gets lost uncounted, whatever fails, is added or removed."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulate.linear import Linear, spec
from tidemill.simulate.base import FrontEnd
from tidemill.simulate.changes import Autoscale, Failure, Failures
from tidemill.simulate.cluster import Cluster
from tidemill.simulate.jobs import Job, Placed
from tidemill.simulate.routing import POLICIES, policy


def job(number: int, due: float, *, prompt: int = 40, output: int = 20) -> Job:
    return Job(
        text=Placed(b"c%d " % number), prompt_tokens=prompt, output_tokens=output, due=due,
        conversation=number, key=b"%d" % (number % 5),
    )  # fmt: skip


def played(jobs: list[Job], specs=None, name: str = "round-robin", **options):
    """The cluster after all of ``jobs``, and those that ended, in that order."""
    ended: list[Job] = []
    cluster = Cluster(specs or [spec()], policy(name, 0), on_end=ended.append, **options)
    for one in jobs:
        cluster.call(one.due, lambda one=one: cluster.send(one))
    cluster.run(lambda: len(ended) < len(jobs))
    return cluster, ended


def arrivals(n: int, rate: float, seed: int = 3) -> list[Job]:
    rng = random.Random(seed)
    at = 0.0
    jobs = []
    for number in range(n):
        at += rng.expovariate(rate)
        jobs.append(job(number, at, prompt=rng.randint(1, 200), output=rng.randint(1, 60)))
    return jobs


@given(
    st.sampled_from(sorted(POLICIES)),
    st.one_of(
        st.none(),
        st.builds(
            Failures, mtbf=st.sampled_from([None, 5.0, 40.0]), mttr=st.sampled_from([0.0, 3.0]),
            start=st.sampled_from([0.0, 2.0]), retries=st.integers(0, 2),
            planned=st.lists(
                st.builds(Failure, st.floats(0, 40), st.integers(0, 2),
                          st.sampled_from([0.0, 5.0, math.inf])), max_size=4,
            ).map(tuple),
        ),
    ),
    st.one_of(st.none(), st.builds(
        Autoscale, least=st.integers(1, 3), most=st.integers(3, 6), interval=st.just(2.0),
        start=st.sampled_from([0.0, 3.0]), cooldown=st.sampled_from([0.0, 10.0]),
        target=st.sampled_from([0.2, 1.0]),
    )),
    st.integers(0, 10),
)  # fmt: skip
@settings(derandomize=True, max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_job_ends_once(name: str, failures, autoscale, seed: int) -> None:
    jobs = arrivals(60, 3.0, seed)
    specs = [spec(), spec(max_sequences=3), spec(step_time=Linear(per_step=0.1))]
    cluster, ended = played(jobs, specs, name, failures=failures, autoscale=autoscale)
    assert sorted(j.conversation for j in ended) == list(range(60))
    retries = failures.retries if failures else 0
    for one in ended:
        assert one.ended >= one.due
        assert one.tries <= retries + 1
        if one.error is None:
            assert one.due < one.first <= one.last == one.ended
        else:
            assert one.error == "lost"
            assert one.tries == retries + 1 or not cluster._up
    assert all(member.outstanding == len(member.jobs) == 0 for member in cluster.members)
    assert not cluster._where
    lost = sum(one.error == "lost" for one in ended)
    dropped = sum(one.tries for one in ended) - (60 - lost)
    assert cluster.counts.retries <= dropped
    for member in cluster.members:
        kv = member.replica._kv
        kv.check()
    if autoscale:
        assert cluster.counts.most <= autoscale.most + cluster.counts.removed


def test_requests_wait_in_the_front_end_one_after_the_other() -> None:
    slow = spec(front=FrontEnd(0.5))
    _, ended = played([job(0, 1.0), job(1, 1.0), job(2, 10.0)], [slow])
    alone = ended[2].first - 10.0
    assert ended[0].first - 1.0 == pytest.approx(alone)
    assert ended[1].first - 1.0 == pytest.approx(alone + 0.5, abs=0.2)


def test_a_long_prompt_takes_the_front_end_longer_even_if_it_is_cached() -> None:
    slow = spec(front=FrontEnd(0.5, prompt_token=0.01))
    bare = spec()
    for prompt in (40, 400):
        (cold, warm), (bare_cold, bare_warm) = (
            [one.first - one.due for one in played(
                [job(0, 0.0, prompt=prompt), job(0, 50.0, prompt=prompt)], [each]
            )[1]]
            for each in (slow, bare)
        )  # fmt: skip
        assert cold - bare_cold == pytest.approx(0.5 + 0.01 * prompt)
        assert warm - bare_warm == pytest.approx(0.5 + 0.01 * prompt)
        assert warm < cold


def test_one_place_is_the_queue_of_the_formula() -> None:
    """M/D/1: one server, Poisson arrivals, all requests alike. Each waits for what is left of those
    before it (Lindley), on average rho / (2 (1 - rho)) service times (Pollaczek and Khinchine)."""
    single = spec(max_sequences=1, n_blocks=512, max_context=512)
    (alone,) = played([job(0, 0.0)], [single])[1]
    service = alone.ended
    for utilisation in (0.3, 0.6):
        rng = random.Random(11)
        gaps = [rng.expovariate(utilisation / service) for _ in range(4000)]
        _, ended = played([job(i, at) for i, at in enumerate(accumulate(gaps))], [single])
        waits = [one.ended - one.due - service for one in ended]
        left = 0.0
        for gap, wait in zip(gaps, waits, strict=True):
            assert wait == pytest.approx(max(0.0, left - gap), abs=1e-6)
            left = max(0.0, left - gap) + service
        expected = service * utilisation / (2 * (1 - utilisation))
        assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.15)


def test_a_memoryless_service_is_the_queue_of_the_formula() -> None:
    """M/M/1: lengths of an exponential distribution; a mean time of service / (1 - rho)."""
    token = Linear(per_step=1e-3, per_token=1e-9, per_context=0.0, per_row=0.0)
    single = spec(step_time=token, max_sequences=1, n_blocks=4096, max_context=40_000)
    rng = random.Random(2)
    service, utilisation = 0.2, 0.5
    at, jobs = 0.0, []
    for number in range(4000):
        at += rng.expovariate(utilisation / service)
        tokens = max(1, round(rng.expovariate(1 / (1000 * service))))
        jobs.append(job(number, at, prompt=1, output=tokens))
    _, ended = played(jobs, [single])
    mean = sum(one.ended - one.due for one in ended) / len(ended)
    assert mean == pytest.approx(service / (1 - utilisation), rel=0.15)


def test_littles_law() -> None:
    """What is in the system on average is the rate times the time that each spends there."""
    jobs = arrivals(600, 0.8)
    cluster, ended = played(jobs, [spec(), spec()])
    inside = sum(one.ended - one.due for one in ended)
    steps = sorted([(one.due, 1) for one in ended] + [(one.ended, -1) for one in ended])
    area = last = present = 0.0
    for at, change in steps:
        area += present * (at - last)
        present += change
        last = at
    assert present == 0
    assert area == pytest.approx(inside)
    # The same of what computes, as the replicas' own books have it.
    running = sum(member.replica.usage.running for member in cluster.members)
    assert running <= inside
    assert running == pytest.approx(inside, rel=0.1)


def test_what_a_dead_replica_had_begins_again_elsewhere() -> None:
    jobs = [job(i, 0.0, output=200) for i in range(4)]
    failures = Failures(planned=(Failure(1.0, 0, math.inf),))
    cluster, ended = played(jobs, [spec(), spec()], failures=failures)
    assert [one.error for one in ended] == [None] * 4
    moved = [one for one in ended if one.tries == 2]
    assert len(moved) == cluster.counts.retries == 2
    assert all(one.first > 1.0 for one in moved)
    assert all(one.due == 0.0 for one in moved)
    assert cluster.counts.failures == 1


def test_without_retries_it_is_lost() -> None:
    jobs = [job(i, 0.0, output=200) for i in range(4)]
    failures = Failures(planned=(Failure(1.0, 0, math.inf),), retries=0)
    _, ended = played(jobs, [spec(), spec()], failures=failures)
    assert sorted(str(one.error) for one in ended) == ["None", "None", "lost", "lost"]
    assert {one.ended for one in ended if one.error} == {1.0}


def test_a_replica_comes_back_after_its_repair_and_start() -> None:
    failures = Failures(planned=(Failure(1.0, 0, 5.0),), start=2.0, retries=1)
    _, ended = played([job(0, 0.5), job(1, 3.0)], [spec()], failures=failures)
    (alone,) = played([job(0, 0.0)])[1]
    assert [one.error for one in ended] == [None, None]
    assert ended[0].first >= 8.0
    assert ended[-1].ended < 8.0 + 2 * alone.ended


def test_who_waits_for_nobody_is_lost() -> None:
    failures = Failures(planned=(Failure(1.0, 0, math.inf),), retries=5)
    _, ended = played([job(0, 0.5, output=900), job(1, 3.0)], [spec()], failures=failures)
    assert [one.error for one in ended] == ["lost", "lost"]


def test_failures_come_as_often_as_they_should() -> None:
    failures = Failures(mtbf=10.0, mttr=0.0, start=0.0, retries=100)
    jobs = [job(i, float(i), output=2) for i in range(3000)]
    cluster, _ = played(jobs, [spec()], failures=failures)
    assert cluster.counts.failures == pytest.approx(300, rel=0.2)


def test_it_scales_up_and_down_within_its_limits() -> None:
    autoscale = Autoscale(1, 4, target=0.5, interval=1.0, start=2.0, cooldown=5.0)
    crowd = [job(i, 10 + i / 50, output=100) for i in range(300)]
    late = [job(1000 + i, 60.0 + 20 * i, output=2) for i in range(40)]
    cluster, ended = played(crowd + late, [spec()], "least-outstanding", autoscale=autoscale)
    assert len(ended) == 340
    assert cluster.counts.most == 4
    assert cluster.counts.added == 3
    assert cluster.counts.removed == 3
    assert sum(member.state == "up" for member in cluster.members) == 1
    # A later one is paid for from when it is asked for.
    assert cluster.counts.replica_seconds < 4 * cluster.now


def test_limits_of_scaling_are_checked() -> None:
    with pytest.raises(ValueError, match="1 <= least <= most"):
        Autoscale(3, 2)
    with pytest.raises(ValueError, match="3 replicas to begin with are not between 1 and 2"):
        played([], [spec()] * 3, autoscale=Autoscale(1, 2))
    with pytest.raises(ValueError, match="positive"):
        Autoscale(1, 2, target=0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mtbf": 0.0}, "between failures must be 1 s at least"),
        ({"mtbf": math.nan}, "between failures must be 1 s at least"),
        ({"mttr": -1.0}, "mttr must be seconds"),
        ({"start": math.inf}, "start must be seconds"),
        ({"retries": -1}, "retries"),
    ],
)
def test_failures_that_cannot_be(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Failures(**fields)


def test_a_planned_failure_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="replica 1 cannot fail"):
        played([], [spec()], failures=Failures(planned=(Failure(0.0, 1),)))
    with pytest.raises(ValueError, match="from 0 on"):
        Failure(-1.0, 0)


def test_steps_without_time_are_refused() -> None:
    with pytest.raises(ValueError, match=r"line: a step of 8 tokens takes 0\.0 s"):
        played([], [spec(step_time=Linear(0.0, 0.0, 0.0, 0.0))])


def test_parts_are_the_whole() -> None:
    """Replicas by themselves do what they do beside each other, if the policy is static."""
    specs = [spec(), spec(max_sequences=2), spec()]
    _, whole = played(arrivals(90, 5.0), specs)
    pieces = []
    for part in range(2):
        ended: list[Job] = []
        cluster = Cluster(specs, policy("round-robin", 0), on_end=ended.append, part=(part, 2))
        for one in arrivals(90, 5.0):
            cluster.call(one.due, lambda one=one, cluster=cluster: cluster.send(one))
        cluster.run(lambda: True)
        pieces += ended

    def key(jobs: list[Job]):
        return sorted((one.conversation, one.first, one.ended) for one in jobs)

    assert key(pieces) == key(whole)
