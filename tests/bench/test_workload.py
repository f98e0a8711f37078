from __future__ import annotations

import random
from collections import Counter
from statistics import quantiles

import pytest

from tidemill.bench.workload import Fixed, Lengths, LogNormal, Shape, Uniform, Workload

CHAT = Shape("chat", Uniform(10, 20), Fixed(5))


def test_prompts_are_the_same_in_any_order() -> None:
    workload = Workload((CHAT,), seed=3)
    forwards = [workload.prompt(i) for i in range(20)]
    assert [Workload((CHAT,), seed=3).prompt(i) for i in reversed(range(20))] == forwards[::-1]
    assert len({prompt.text for prompt in forwards}) == 20


def test_lengths_are_as_asked_for() -> None:
    prompts = [Workload((CHAT,)).prompt(i) for i in range(300)]
    assert {len(prompt.text.split()) for prompt in prompts} == set(range(10, 21))
    assert {prompt.max_tokens for prompt in prompts} == {5}


def test_lognormal_has_its_median_and_p90_and_its_limit() -> None:
    rng = random.Random(1)
    lengths = [LogNormal(100, 300, 1000).draw(rng) for _ in range(20_000)]
    tenths = quantiles(lengths, n=10)
    assert tenths[4] == pytest.approx(100, rel=0.05)
    assert tenths[8] == pytest.approx(300, rel=0.05)
    assert max(lengths) == 1000


def test_shapes_come_by_their_weights() -> None:
    long = Shape("long", Fixed(3), Fixed(1), weight=1.0)
    short = Shape("short", Fixed(3), Fixed(1), weight=3.0)
    counts = Counter(Workload((long, short)).prompt(i).shape.name for i in range(4000))
    assert counts["short"] / counts["long"] == pytest.approx(3, rel=0.1)


def test_prompts_share_a_few_beginnings_and_nothing_else() -> None:
    shape = Shape("rag", Fixed(8), Fixed(1), prefix=50, prefixes=3)
    words = [Workload((shape,), seed=1).prompt(i).text.split() for i in range(60)]
    assert {len(w) for w in words} == {58}
    assert len({tuple(w[:50]) for w in words}) == 3
    assert len({tuple(w[50:]) for w in words}) == 60
    others = [Workload((shape,), seed=2).prompt(i).text.split() for i in range(60)]
    assert not {tuple(w[:8]) for w in words} & {tuple(w[:8]) for w in others}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0),
        lambda: Uniform(5, 4),
        lambda: LogNormal(10, 5, 100),
        lambda: Shape("x", Fixed(1), Fixed(1), weight=0),
        lambda: Shape("x", Fixed(1), Fixed(1), prefixes=0),
        lambda: Workload(()),
    ],
)
def test_what_makes_no_sense_is_refused(make: type[Lengths]) -> None:
    with pytest.raises(ValueError):
        make()
