from __future__ import annotations

import pytest

from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.curve import enough, saturate, spread, table
from tidemill.bench.measures import Slo, summarise
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.result import Machine, Measured, Result
from tidemill.bench.scenario import load


@pytest.mark.parametrize(("slots", "concurrency"), [(1, 1), (5, 8), (16, 16)])
def test_saturation_of_so_many_slots(slots: int, concurrency: int) -> None:
    """Of a server that does ``slots`` requests at a time, each in half a second."""

    def measure(asked: Closed | Gamma, seconds: float, warmup: float, timeout: float) -> Recording:
        assert isinstance(asked, Closed)
        rate = 2 * min(slots, asked.concurrency)
        records = [
            Record(i, "a", 0, 0, (i + 0.5) / rate, [0.0]) for i in range(int(rate * seconds))
        ]
        return Recording(records, Window(0.0, seconds), 0.0)

    said: list[str] = []
    found = saturate(measure, 10.0, said.append)
    assert found.rate == pytest.approx(2 * slots)
    assert found.concurrency == concurrency
    assert len(said) == concurrency.bit_length() + 1  # up to twice as many


def test_nothing_that_is_ever_done() -> None:
    nothing = Recording([], Window(0.0, 1.0), 0.0)
    assert saturate(lambda *_: nothing, 1.0).rate == 0


def test_rates_are_spread_to_more_than_can_be_done() -> None:
    assert spread(10.0, 5) == pytest.approx([2.2, 4.4, 6.6, 8.8, 11.0])


def test_points_last_until_a_few_requests_have_come() -> None:
    assert enough(Gamma(0.1), 30.0, 0) == pytest.approx(100.0)
    assert enough(Gamma(5.0), 30.0, 0) == enough(Closed(3), 30.0, 0) == 30


def point(rate: float, ttft: float, error: str | None = None) -> Result:
    records = [
        Record(
            i, "a", i, i, i + ttft + 1, [] if error and i % 2 else [i + ttft, i + ttft + 1],
            output_tokens=11, error=error if i % 2 else None,
        )
        for i in range(10)
    ]  # fmt: skip
    slo = Slo(ttft=1.0)
    scenario = load("short-chat")
    scenario = type(scenario)(
        name="x", summary="x", load=Gamma(rate), shapes=scenario.shapes, slo=slo
    )
    return Result(
        when="2026-11-30T12:00:00+00:00", scenario=scenario, seed=0, slo=slo,
        target=Measured(url="u", model="m"), machine=Machine("c", "a", 1, None, "s", "p"),
        summary=summarise(Recording(records, Window(0.0, 10.0), 0.0), slo),
    )  # fmt: skip


def test_a_table_with_pictures() -> None:
    text = table([point(4.0, 2.0, "http_429"), point(1.0, 0.1), point(2.0, 0.4)])
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1/s", "2/s", "4/s"]
    assert "100 ms" in lines[1]
    assert "100.0%" in lines[1]
    assert "0.0%, 5 failed" in lines[3]
    assert any(
        "TTFT from p50 (o) to p99 (*): 100" in line and "ms to 2.00 s" in line for line in lines
    )
    picture = [line for line in lines if line.endswith("|")]
    places = [line.index("o") for line in picture]
    assert places == sorted(places)
    assert len({len(line) for line in picture}) == 1


def test_a_table_of_what_has_no_latency() -> None:
    result = point(1.0, 0.1)
    assert result.summary is not None
    result.summary.latency = {}
    assert "-" in table([result])
    assert table([]).startswith(" ")
