"""Predictions: their bands, what limits, and that they say where they say little."""

from __future__ import annotations

import dataclasses
import functools
import time

import msgspec
import pytest

from simulate.linear import Linear, spec
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Slo
from tidemill.bench.scenario import Scenario
from tidemill.bench.workload import Shape, Uniform
from tidemill.simulate.changes import Autoscale, Failures
from tidemill.simulate.play import Deployment
from tidemill.simulate.predict import Prediction, _carry_out, predict
from tidemill.simulate.proof import Proof, figures, keep_proof, proof_beside
from tidemill.simulate.report import text

REPLICA = spec(step_time=Linear(10e-3, 1e-4, 1e-8, 1e-4), n_blocks=4000, hour=2.0)


def scenario(rate: float | None = 2.0, **changes) -> Scenario:
    load = Gamma(rate) if rate else Closed(8)
    changes.setdefault("shapes", (Shape("chat", Uniform(20, 200), Uniform(10, 100)),))
    return Scenario(name="test", summary="", load=load, seconds=50.0, warmup=5.0, **changes)


def predicted(rate: float | None = 2.0, specs=(REPLICA,), **options) -> Prediction:
    deployment = Deployment(tuple(specs))
    return predict(scenario(rate), deployment, processes=1, exact=False, **options)


def test_the_band_is_what_slower_and_faster_steps_give() -> None:
    found = predicted(slo=Slo(ttft=0.1))
    assert found.saturated is None
    assert found.limit.words == "the load: hardly a request waits for its turn"
    for name in ("ttft.p50", "tpot.p50", "e2e.p99"):
        interval = found.figures[name]
        assert interval.low < interval.value < interval.high
    tpot = found.figures["tpot.p50"]
    assert tpot.high / tpot.value > 1.04
    assert tpot.low / tpot.value < 0.96
    assert found.figures["output_rate"].high / found.figures["output_rate"].low < 1.02
    assert {name: i.value for name, i in found.figures.items()} == figures(found.summary)


def test_nobody_waits_for_the_others_once_one_has_failed() -> None:
    tasks = [functools.partial(int, "x"), functools.partial(time.sleep, 3600)]
    with pytest.raises(ValueError, match="invalid literal"):
        _carry_out(tasks, 2)  # type: ignore[arg-type]


def test_replicas_with_a_price_and_nothing_to_do() -> None:
    found = predicted(1e-6, specs=(REPLICA, REPLICA))
    assert found.summary.requests == 0
    assert found.price == 0
    assert "INVALID: no request was due in the window" in text(found)


def test_a_proof_takes_the_place_of_the_band() -> None:
    proof = Proof(made="2026-11-30", scenarios=["short-chat"], errors={"ttft.p50": 0.2})
    found = predicted(proof=proof).figures
    assert found["ttft.p50"].high == pytest.approx(1.2 * found["ttft.p50"].value)
    assert found["tpot.p50"].high < 1.2 * found["tpot.p50"].value


def test_without_bands_there_is_one_run() -> None:
    found = predicted(bands=False)
    assert all(i.low == i.value == i.high for i in found.figures.values())


def test_beyond_capacity_it_says_so_and_gives_bounds() -> None:
    found = predicted(30.0)
    assert found.saturated is not None
    assert "queue grows" in found.saturated
    assert found.limit.words == "places (max_sequences), for which requests wait"
    words = text(found)
    assert "NEAR SATURATION: the queue grows" in words
    assert "more than" in words
    assert "at most" in words


def test_near_capacity_it_says_so_too() -> None:
    """Somewhere between idle and overload; beyond that point never again."""
    verdicts = [predicted(rate).saturated is not None for rate in (1.0, 4.0, 8.0, 20.0)]
    assert verdicts == sorted(verdicts)
    assert not verdicts[0]
    assert verdicts[-1]


def test_memory_can_be_what_limits() -> None:
    small = spec(step_time=Linear(10e-3, 1e-4, 1e-8, 1e-4), n_blocks=60, max_context=512)
    assert predicted(6.0, [small]).limit.words == "KV memory, for which requests wait"


def test_prompts_can_be_what_limits() -> None:
    slow = spec(step_time=Linear(1e-3, 1e-3, 0.0, 0.0), n_blocks=4000, max_sequences=64)
    asked = scenario(shapes=(Shape("long", Uniform(500, 900), Uniform(1, 3)),))
    found = predict(asked, Deployment((slow,)), processes=1, exact=False)
    assert found.limit.words == "computing: requests wait behind the prompts of others"
    assert found.saturated is not None


def test_a_closed_loop_does_not_saturate() -> None:
    found = predicted(None)
    assert found.saturated is None
    assert found.limit.places > 0.8
    assert found.limit.words.startswith("computing")


def test_more_load_is_never_faster() -> None:
    rows = [predicted(rate, bands=False).summary for rate in (0.5, 2.0, 5.0, 10.0)]
    for name, share in (("ttft", "p99"), ("tpot", "p50"), ("e2e", "p90")):
        values = [row.latency[name][share].value for row in rows]
        assert values == sorted(values), name
    assert [row.output_rate for row in rows] == sorted(row.output_rate for row in rows)


def test_processes_change_nothing() -> None:
    asked, deployment = scenario(40.0), Deployment((REPLICA,) * 6, policy="round-robin")
    one = predict(asked, deployment, processes=1, exact=False)
    two = predict(asked, deployment, processes=2, exact=False)
    assert one.figures == two.figures


def test_price_and_hours() -> None:
    found = predicted(specs=[REPLICA] * 3)
    assert found.price == pytest.approx(6.0)
    assert "6.00 per hour" in text(found)
    told = predicted(specs=[REPLICA, dataclasses.replace(REPLICA, currency="EUR")])
    assert "4.00 EUR per hour" in text(told)
    with pytest.raises(ValueError, match="prices in EUR and USD cannot be compared"):
        predicted(specs=[dataclasses.replace(REPLICA, currency=name) for name in ("USD", "EUR")])
    assert found.replica_hours == pytest.approx(3 * found.seconds / 3600)


def test_what_happened_is_in_the_report() -> None:
    deployment = Deployment(
        (REPLICA,) * 2, failures=Failures(mtbf=30.0, start=5.0), autoscale=Autoscale(1, 4),
    )  # fmt: skip
    found = predict(scenario(4.0), deployment, processes=1, slo=Slo(ttft=1.0))
    words = text(found, Slo(ttft=1.0))
    for part in (
        "simulated", "a straight line", "± 5 %", "TTFT", "SLO ttft=1", "failures", "limited by",
    ):  # fmt: skip
        assert part in words, part
    assert msgspec.json.decode(msgspec.json.encode(found), type=Prediction) == found


def test_origin_is_the_weakest() -> None:
    sheet = spec(step_time=Linear(10e-3, 1e-4, 1e-8, 1e-4, origin="data sheet", source="a sheet"))
    found = predicted(specs=[REPLICA, sheet])
    assert found.origin == "data sheet"
    assert found.source == "a straight line; a sheet"
    assert "over step times computed from: a straight line; a sheet" in text(found)


def test_a_proof_is_kept_beside_its_calibration(tmp_path) -> None:
    calibration = tmp_path / "smollm2-2t.json"
    assert proof_beside(calibration) is None
    proof = Proof(made="2026-11-30", scenarios=["rag"], errors={"ttft.p50": 0.07})
    assert keep_proof(proof, calibration).parent == tmp_path
    assert proof_beside(calibration) == proof
    assert list(tmp_path.glob("*.json")) == []  # it is none of the calibrations
    (tmp_path / "smollm2-2t.proof").write_text("{}")
    with pytest.raises(ValueError, match=r"smollm2-2t\.proof: no proof of a calibration"):
        proof_beside(calibration)
