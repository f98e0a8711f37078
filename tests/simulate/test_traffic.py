"""The bench's load in virtual time: the same prompts, at the same times, in the same window."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from simulate.linear import Linear, spec
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.scenario import Scenario, Starts, load, prepare
from tidemill.bench.traces import TraceFile
from tidemill.bench.workload import Fixed, Shape, Uniform, Workload
from tidemill.simulate.cluster import Cluster
from tidemill.simulate.figures import Tally
from tidemill.simulate.routing import policy
from tidemill.simulate.traffic import Profile, Template, Traffic

FAST = spec(step_time=Linear(1e-3, 1e-5, 0.0, 1e-5), n_blocks=20_000, max_context=40_000)


def scenario(load_, *shapes: Shape, **changes) -> Scenario:
    shapes = shapes or (Shape("one", Fixed(30), Fixed(10)),)
    changes.setdefault("seconds", 20.0)
    changes.setdefault("warmup", 2.0)
    return Scenario(name="test", summary="", load=load_, shapes=shapes, **changes)


def played(asked: Scenario, specs=(FAST,), *, seed: int = 0, **options):
    """The jobs that ended, in that order, the tally and the cluster."""
    tally = Tally([shape.name for shape in asked.shapes], exact=True)
    traffic = Traffic(prepare(asked, seed), seed, tally, keep_times=True, **options)
    ended = []

    def on_end(job) -> None:
        ended.append(job)
        traffic.ended(job)

    cluster = Cluster(specs, policy("round-robin", 0), on_end=on_end)
    traffic.play(cluster)
    return ended, tally, cluster


@pytest.mark.parametrize("name", ["short-chat", "rag", "code-completion", "summarising"])
def test_prompts_are_as_long_as_the_benchs(name: str) -> None:
    asked = load(name)
    asked = scenario(Gamma(3.0), *asked.shapes, api=asked.api, timeout=1e5)
    ended, _, _ = played(asked, seed=7)
    workload = Workload(asked.shapes, 7)
    assert len(ended) > 40
    for job in ended:
        prompt = workload.prompt(job.conversation)
        words = len(f"{prompt.system} {prompt.text}".split())
        assert (job.prompt_tokens, job.output_tokens) == (words, prompt.max_tokens)


def test_arrivals_are_the_benchs() -> None:
    load_ = Gamma(4.0, 0.3)
    ended, tally, _ = played(scenario(load_), seed=9)
    probe, *jobs = sorted(ended, key=lambda job: job.conversation)
    start = probe.ended
    assert [job.conversation for job in jobs] == list(range(1, len(jobs) + 1))
    due = [start + offset for offset in itertools.takewhile(
        lambda offset: offset < 22.0, load_.due(random.Random(9)))]  # fmt: skip
    assert [job.due for job in jobs] == due
    assert (tally.opened, tally.closed) == (start + 2.0, start + 22.0)
    assert [job.counted for job in jobs] == [at >= start + 2.0 for at in due]


def test_a_trace_is_replayed(tmp_path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "timestamp,input_tokens,output_tokens,prefix_group,prefix_tokens\n"
        "5,100,7,a,64\n6,90,8,a,64\n6,80,9,,0\n9,70,10,a,64\n"
    )
    asked = scenario(TraceFile(str(file), speed=2.0), seconds=1e6, warmup=0.0)
    ended, _, _ = played(asked)
    jobs = sorted(ended[1:], key=lambda job: job.conversation)
    assert [job.due - ended[0].ended for job in jobs] == pytest.approx([0, 0.5, 0.5, 2])
    assert [job.prompt_tokens for job in jobs] == [100, 90, 80, 70]
    assert [job.output_tokens for job in jobs] == [7, 8, 9, 10]
    assert [job.cached_tokens for job in jobs] == [64, 64, 0, 64]  # the probe began like them


def test_a_closed_loop_keeps_as_many_under_way() -> None:
    ended, tally, cluster = played(scenario(Closed(3), requests=100, seconds=1.0))
    inside = [job for job in ended if tally.opened <= job.due < tally.closed]
    assert len(inside) >= 100
    middle = (tally.opened + tally.closed) / 2
    assert sum(job.due <= middle < job.ended for job in ended) == 3
    assert tally.closed - tally.opened >= 1.0
    assert not any(job.due >= tally.closed for job in ended)
    assert cluster.now == max(job.ended for job in ended)


def test_a_window_does_not_wait_for_streams_that_rest() -> None:
    talk = Shape("talk", Fixed(20), Fixed(4), turns=1000, pause=60.0)
    for requests, lasts in ((0, 10.0), (4, 120.0)):
        asked = scenario(Closed(2), talk, seconds=10.0, requests=requests, warmup=0.0)
        ended, tally, _ = played(asked)
        assert tally.closed - tally.opened == pytest.approx(lasts, rel=0.01)
        assert not any(job.due >= tally.closed for job in ended)


def test_streams_begin_one_after_the_other() -> None:
    ended, tally, _ = played(scenario(Closed(4), warmup=8.0))
    start = ended[0].ended
    jobs = sorted(ended[1:], key=lambda job: job.due)
    begins = [start, start + 2.0, start + 4.0, start + 6.0]
    assert [job.due for job in jobs if job.due in begins] == begins
    assert tally.opened == next(job.ended for job in jobs if job.due == start + 6.0)


def test_conversations_go_on_from_what_was_said() -> None:
    shape = Shape("talk", Fixed(20), Fixed(16), turns=3, pause=1.0, prefix=64, system=True)
    template = Template(before_system=5, after_system=7, after=4, between=3)
    ended, _, _ = played(scenario(Gamma(1.0), shape), template=template)
    talks = [job for job in ended if job.conversation == 3]
    assert [job.turn for job in talks] == [0, 1, 2]
    first = 5 + 64 + 7 + 20 + 4
    turn = 16 + 3 + 20 + 4
    assert [job.prompt_tokens for job in talks] == [first, first + turn, first + 2 * turn]
    for before, after in itertools.pairwise(talks):
        assert after.due == before.ended + 1.0
        # All full blocks of what was computed before.
        assert after.cached_tokens == (before.prompt_tokens + 15) // 16 * 16


def test_prompts_share_as_many_blocks_as_their_trace_says(tmp_path: Path) -> None:
    """Those of a Mooncake trace are of 512 tokens, and a request has them one after the other."""
    path = tmp_path / "trace.jsonl"
    lines = [(0, 1100, [1, 2, 3]), (60_000, 1100, [1, 2, 4]), (120_000, 700, [1, 5])]
    path.write_text("".join(
        json.dumps(
            {"timestamp": at, "input_length": n, "output_length": 4, "hash_ids": ids}
        ) + "\n" for at, n, ids in lines
    ))  # fmt: skip
    ended, _, _ = played(scenario(TraceFile(str(path)), seconds=1e6, warmup=0.0))
    # The probe has the lengths and the beginning of the first, so that it finds that computed.
    assert [one.cached_tokens for one in ended[1:]] == [1024, 1024, 512]


def test_beginnings_are_shared() -> None:
    shape = Shape("rag", Fixed(20), Fixed(4), prefix=160, prefixes=2)
    ended, _, _ = played(scenario(Gamma(2.0), shape), template=Template(before=10, after=3))
    later = sorted(ended, key=lambda job: job.due)[20:]
    assert {job.cached_tokens for job in later} == {(10 + 160) // 16 * 16}


def test_what_takes_too_long_is_given_up() -> None:
    slow = spec(step_time=Linear(per_step=0.5), max_sequences=1)
    ended, tally, _ = played(scenario(Gamma(2.0), timeout=10.0), [slow])
    late = [job for job in ended if job.error == "timeout"]
    assert late
    assert all(job.ended - job.due <= 10.0 for job in ended if job.error is None)
    assert tally.summary(None).errors["timeout"] == sum(job.counted for job in late)


def test_what_is_refused_does_not_hang_a_closed_loop() -> None:
    short = spec(max_context=32)
    ended, tally, _ = played(scenario(Closed(2), seconds=3.0), [short])
    assert {job.error for job in ended} == {"too_long"}
    assert 50 <= tally.summary(None).requests <= 70  # two streams that wait 0.1 s after each


def test_a_profile_changes_the_rate() -> None:
    profile = Profile(((0.0, 1.0), (100.0, 4.0), (200.0, 0.0)), period=300.0)
    asked = scenario(Gamma(2.0), seconds=900.0, warmup=0.0)
    ended, tally, _ = played(asked, profile=profile)
    counts = [0, 0, 0]
    for job in ended[1:]:
        counts[int((job.due - tally.opened) % 300 // 100)] += 1
    assert counts[2] == 0
    assert counts[0] == pytest.approx(600, rel=0.15)
    assert counts[1] == pytest.approx(2400, rel=0.1)


def test_a_profile_of_ones_changes_nothing() -> None:
    offsets = [0.5, 3.0, 40.0, 41.0]
    assert list(Profile(((0.0, 1.0), (10.0, 1.0))).warp(offsets)) == offsets
    assert list(Profile(((0.0, 1.0),), period=7.0).warp(offsets)) == pytest.approx(offsets)


@pytest.mark.parametrize(
    ("points", "period", "message"),
    [
        ((), None, "begins at 0 s"),
        (((1.0, 1.0),), None, "begins at 0 s"),
        (((0.0, 1.0), (0.0, 2.0)), None, "comes after"),
        (((0.0, -1.0),), None, "from 0 on"),
        (((0.0, math.nan),), None, "from 0 on"),
        (((0.0, 1.0), (5.0, 0.0)), None, "ends with a factor above 0"),
        (((0.0, 1.0), (5.0, 2.0)), 5.0, "longer than all its points"),
        (((0.0, 0.0),), 5.0, "a factor above 0"),
    ],
)
def test_profiles_that_cannot_be(points, period, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Profile(points, period)


def test_what_cannot_be_simulated_is_said() -> None:
    tally = Tally(["one"], exact=True)
    with pytest.raises(ValueError, match="measures starts"):
        Traffic(prepare(scenario(Starts())), 0, tally)
    with pytest.raises(ValueError, match="only a rate"):
        Traffic(prepare(scenario(Closed(1))), 0, tally, profile=Profile(((0.0, 1.0),)))


def test_lengths_vary_and_seeds_matter() -> None:
    asked = scenario(Gamma(3.0), Shape("any", Uniform(5, 300), Uniform(1, 30)))
    one, same, other = (played(asked, seed=seed)[0] for seed in (1, 1, 2))

    def lengths(jobs):
        return [(job.prompt_tokens, job.output_tokens, job.ended) for job in jobs]

    assert lengths(one) == lengths(same)
    assert lengths(one) != lengths(other)


@pytest.mark.parametrize(
    ("profile", "at", "offset"),
    [
        (Profile(((0, 1.0), (10, 3.0))), 10, 10), (Profile(((0, 1.0), (10, 3.0))), 20, 40),
        (Profile(((0, 0.0), (5, 2.0)), 10), 27, 24), (Profile(((0, 2.0),), 1e6), 3, 6),
    ],
)  # fmt: skip
def test_how_much_a_profile_has_had(profile: Profile, at: float, offset: float) -> None:
    assert profile.offset(at) == pytest.approx(offset)
    assert next(profile.warp([offset])) == pytest.approx(at)
