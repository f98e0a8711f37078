from __future__ import annotations

import pytest

from tidemill.bench.measures import Slo, summarise
from tidemill.bench.records import Record, Recording, Window

WINDOW = Window(10.0, 20.0)


def record(index: int = 0, due: float = 11.0, **fields: object) -> Record:
    """Sent when due, first token 0.5 s later, four tokens 0.1 s apart, unless said otherwise."""
    times = [due + 0.5 + 0.1 * i for i in range(4)]
    given = {
        "index": index, "shape": "chat", "due": due, "sent": due, "ended": times[-1],
        "times": times, "prompt_tokens": 20, "output_tokens": 4,
    } | fields  # fmt: skip
    return Record(**given)  # type: ignore[arg-type]


def recording(*records: Record) -> Recording:
    return Recording(list(records), WINDOW, client_cpu=0.5, watched={7: 2.0})


def test_latencies_follow_their_definitions() -> None:
    late = record(sent=11.2)  # still counts from when it was due
    latency = summarise(recording(late)).latency
    assert latency["ttft"]["p50"].value == pytest.approx(0.5)
    assert latency["itl"]["p99"].value == pytest.approx(0.1)
    assert latency["tpot"]["p50"].value == pytest.approx(0.1)
    assert latency["e2e"]["p50"].value == pytest.approx(0.8)


def test_tpot_is_by_tokens_where_a_piece_holds_several() -> None:
    latency = summarise(recording(record(output_tokens=7))).latency
    assert latency["tpot"]["p50"].value == pytest.approx(0.05)
    assert latency["itl"]["p50"].value == pytest.approx(0.1)


def test_what_came_as_a_whole_has_no_time_per_token() -> None:
    latency = summarise(recording(record(times=[11.5, 11.5], output_tokens=40))).latency
    assert "tpot" not in latency
    assert latency["ttft"]["p50"].value == pytest.approx(0.5)


def test_rates_are_of_what_arrived_in_the_window() -> None:
    before = record(due=5.0)
    across = record(due=9.35, times=[9.8, 9.9, 10.0, 10.1], ended=10.1)  # two of its tokens
    after = record(due=19.65, times=[20.2, 20.3], output_tokens=2, ended=20.3)
    summary = summarise(recording(before, across, record(), after))
    assert summary.output_rate == pytest.approx((2 + 4) / 10)
    assert summary.prompt_rate == pytest.approx(20 / 10)
    assert summary.request_rate == pytest.approx(2 / 10)
    assert summary.requests == 2  # due in the window: the third and the last
    assert summary.unfinished == 1
    assert summary.client_share == pytest.approx(0.05)


def test_errors_are_counted_by_kind_and_have_no_latency() -> None:
    failed = [
        record(1, times=[], output_tokens=None, error="http_429", detail="full"),
        record(2, output_tokens=None, error="closed"),
    ]
    summary = summarise(recording(record(), *failed), Slo(ttft=1.0))
    assert (summary.requests, summary.good) == (3, 1)
    assert summary.errors == {"http_429": 1, "closed": 1}
    assert summary.examples["http_429"] == "full"
    assert summary.attained == pytest.approx(1 / 3)
    assert summary.goodput == pytest.approx(1 / 10)
    assert summary.latency["ttft"]["p99"].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), True),
        (Slo(ttft=0.51, tpot=0.11, e2e=0.81), True),
        (Slo(ttft=0.4), False),
        (Slo(tpot=0.09), False),
        (Slo(e2e=0.7), False),
    ],
)
def test_an_slo_is_met_only_as_a_whole(slo: Slo, met: bool) -> None:
    assert summarise(recording(record()), slo).attained == met


def test_a_late_load_generator_makes_a_run_invalid() -> None:
    assert summarise(recording(record())).invalid is None
    late = summarise(recording(record(sent=11.05)))
    assert late.delay_p99 == pytest.approx(0.05)
    assert late.invalid is not None
    assert "50.0 ms late" in late.invalid
    assert summarise(recording()).invalid == "no request was due in the window"


def test_without_usage_pieces_are_counted_and_it_says_so() -> None:
    summary = summarise(recording(record(output_tokens=None, prompt_tokens=None)))
    assert not summary.counted
    assert summary.mean_output_tokens == 4
    assert summarise(recording(record())).counted


def test_one_shape_alone() -> None:
    long = record(1, shape="long", times=[14.0], output_tokens=1, ended=14.0)
    both = recording(record(), long)
    assert summarise(both, shape="long").latency["ttft"]["p50"].value == pytest.approx(3.0)
    assert "tpot" not in summarise(both, shape="long").latency
    assert summarise(both).requests == 2
