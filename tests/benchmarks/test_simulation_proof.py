"""The verdicts on predictions."""

from __future__ import annotations

from simulation_proof import LIMITS, Pair, rows


def pairs(name: str, predicted: list[float], measured: list[float]) -> list[Pair]:
    return [Pair({name: p}, {name: m}) for p, m in zip(predicted, measured, strict=True)]


def verdict(name: str, predicted: list[float], measured: list[float]) -> tuple[float, str]:
    ((found, error, line),) = rows("open-chat", pairs(name, predicted, measured))
    assert found == name
    return round(error, 3), line.split("|")[-2].strip()


def test_the_error_is_the_rounds_median_each_with_its_own_calibration() -> None:
    # The machine is twice as slow in the second round, and so is what is predicted of it.
    assert verdict("ttft.p50", [1.0, 2.0, 1.0], [1.0, 2.1, 0.99]) == (0.0, "ok")


def test_what_is_off_is_told() -> None:
    assert verdict("ttft.p50", [0.8, 0.85, 0.9], [1.0, 1.0, 1.0]) == (-0.15, "MISSED")
    assert verdict("ttft.p99", [0.8, 0.85, 0.9], [1.0, 1.0, 1.0]) == (-0.15, "ok")
    assert verdict("ttft.p50", [0.8, 0.85, 1.1], [1.0, 1.0, 1.0]) == (-0.15, "ok (both sides)")


def test_what_was_not_measured_has_no_line() -> None:
    assert not list(rows("open-chat", pairs("ttft.p50", [1.0], [0.0])))
    assert len(LIMITS) == 6
