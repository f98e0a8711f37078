from __future__ import annotations

import itertools
import random
from itertools import islice, pairwise
from statistics import fmean, pstdev

import msgspec
import pytest

from tidemill.bench.arrivals import Closed, Gamma, Load, Trace


def gaps(load: Gamma, count: int = 20_000) -> list[float]:
    times = [0.0, *islice(load.due(random.Random(7)), count)]
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_has_the_rate_and_the_burstiness_asked_for(
    burstiness: float, variation: float
) -> None:
    found = gaps(Gamma(5.0, burstiness))
    assert fmean(found) == pytest.approx(0.2, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(variation, rel=0.05)


def test_arrivals_come_again_from_their_seed() -> None:
    assert list(islice(Gamma(3.0).due(random.Random(1)), 50)) == list(
        islice(Gamma(3.0).due(random.Random(1)), 50)
    )


def test_a_trace_keeps_its_gaps_at_its_speed() -> None:
    trace = Trace((100.0, 101.0, 101.0, 104.0), speed=2.0)
    assert list(itertools.chain(trace.due(random.Random()))) == [0.0, 0.5, 0.5, 2.0]


@pytest.mark.parametrize(
    "load",
    [
        {"kind": "closed", "concurrency": 0},
        {"kind": "gamma", "rate": 0.0},
        {"kind": "gamma", "rate": 1.0, "burstiness": -1.0},
        {"kind": "trace", "timestamps": []},
        {"kind": "trace", "timestamps": [2.0, 1.0]},
        {"kind": "trace", "timestamps": [1.0], "speed": 0.0},
    ],
)
def test_what_makes_no_sense_is_refused(load: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(load, Load)


def test_loads_are_told_apart_by_their_kind() -> None:
    assert msgspec.convert({"kind": "closed", "concurrency": 4}, Load) == Closed(4)
