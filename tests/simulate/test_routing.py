"""Policies: fair by count or weight, balanced, and the same replica for the same beginning."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from tidemill.simulate.routing import POLICIES, policy


@dataclass
class Target:
    number: int
    weight: float = 1.0
    outstanding: int = 0


def chosen(name: str, targets: list[Target], n: int, keys: int = 10_000) -> Counter[int]:
    """How often each is chosen, if nothing ever ends."""
    found = policy(name, 1)
    rng = random.Random(5)
    counts: Counter[int] = Counter()
    for _ in range(n):
        target = targets[found.choose(b"%d" % rng.randrange(keys), targets)]
        target.outstanding += 1
        counts[target.number] += 1
    return counts


@pytest.mark.parametrize("name", ["round-robin", "least-outstanding", "weighted"])
def test_equal_replicas_get_equally_many(name: str) -> None:
    counts = chosen(name, [Target(i) for i in range(7)], 703)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("name", "most"), [("random", 150), ("two-choices", 105)])
def test_two_choices_are_more_even_than_chance(name: str, most: int) -> None:
    counts = chosen(name, [Target(i) for i in range(10)], 1000)
    assert sum(counts.values()) == 1000
    assert 50 < min(counts.values()) <= max(counts.values()) <= most


@pytest.mark.parametrize("name", ["weighted", "least-outstanding"])
def test_shares_are_as_the_weights(name: str) -> None:
    counts = chosen(name, [Target(0, 1.0), Target(1, 2.0), Target(2, 5.0)], 800)
    assert counts == {0: 100, 1: 200, 2: 500}


def test_weighted_spreads_what_one_gets() -> None:
    found = policy("weighted", 0)
    targets = [Target(0, 5.0), Target(1, 1.0), Target(2, 1.0)]
    order = [found.choose(b"", targets) for _ in range(7)]
    assert order == [0, 0, 1, 0, 2, 0, 0]  # as nginx documents it


def test_the_same_beginning_goes_to_the_same_replica() -> None:
    found = policy("prefix", 0)
    targets = [Target(i) for i in range(8)]
    homes = {key: found.choose(b"%d" % key, targets) for key in range(200)}
    assert len(set(homes.values())) == 8
    assert all(found.choose(b"%d" % key, targets) == home for key, home in homes.items())


def test_few_beginnings_move_when_a_replica_leaves() -> None:
    found = policy("prefix", 0)
    targets = [Target(i) for i in range(8)]
    before = {key: targets[found.choose(b"%d" % key, targets)].number for key in range(400)}
    left = targets[:3] + targets[4:]
    after = {key: left[found.choose(b"%d" % key, left)].number for key in range(400)}
    assert all(after[key] == home for key, home in before.items() if home != 3)


def test_one_beginning_alone_does_not_overload_a_replica() -> None:
    counts = chosen("prefix", [Target(i) for i in range(4)], 400, keys=1)
    assert max(counts.values()) <= 1.25 * 401 / 4 + 1


def test_bounds_are_by_weight() -> None:
    counts = chosen("prefix", [Target(0, 1.0), Target(1, 9.0)], 1000, keys=1)
    assert counts[0] <= 1.25 * 1001 / 10 + 1


@pytest.mark.parametrize("name", POLICIES)
def test_one_replica_gets_all(name: str) -> None:
    assert chosen(name, [Target(3)], 20) == {3: 20}


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same(name: str) -> None:
    assert chosen(name, [Target(i) for i in range(5)], 200) == chosen(
        name, [Target(i) for i in range(5)], 200
    )


def test_an_unknown_policy_is_told_of() -> None:
    with pytest.raises(ValueError, match="no policy 'best'; there are round-robin, random"):
        policy("best", 0)
