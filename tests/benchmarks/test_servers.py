"""The comparison of servers: loads, the table, shares of CPU time."""

from __future__ import annotations

import msgspec
import pytest

from serving.loads import CLOSED, LOADS, OPEN, arrivals, workload
from serving.profile import overhead, parsed
from serving.report import Run, text
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.measures import Summary
from tidemill.bench.statistics import Estimate


def run(server: str, round_: int, output: float, ttft: float, **more: object) -> Run:
    times = {share: Estimate(ttft, ttft, ttft) for share in ("p50", "p90", "p99")}
    latency = {"ttft": times, "e2e": times}
    summary = Summary(
        seconds=5.0, requests=10, good=10, errors={}, examples={}, unfinished=0, latency=latency,
        delay_p99=0.001, output_rate=output, prompt_rate=0.0, request_rate=1.0,
        mean_prompt_tokens=50.0, mean_output_tokens=60.0, cached_share=0.0, goodput=None,
        attained=None, counted=True, client_share=0.01, watched={7: 1.0, 8: 9.0}, invalid=None,
    )  # fmt: skip
    fields = {"sent": 10, "front_end": 7, "summary": summary} | more
    return Run(server, "chat/32", round_, **fields)  # type: ignore[arg-type]


def test_ratios_are_taken_within_a_round() -> None:
    runs = [
        run("tidemill", 0, 100, 0.1), run("llama-server", 0, 50, 0.4),
        run("tidemill", 1, 300, 0.1), run("llama-server", 1, 100, 0.2, lost=2),
    ]  # fmt: skip
    said = text(runs)
    assert "output 75 tok/s [2.50x (2.00, 3.00)]" in said
    assert "TTFT p99 300 ms [0.38x (0.25, 0.50)]" in said
    assert "front end 10.0% of CPU" in said
    assert "llama-server: lost 2 of 20" in said
    assert "tidemill: lost 0 of 20" in said


def test_latencies_at_different_rates_are_not_compared() -> None:
    said = text([run("tidemill", 0, 100, 0.1, rate=9.0), run("llama-server", 0, 50, 0.4, rate=3.0)])
    assert "[2.00x" in said
    assert "TTFT p99 400 ms [" not in said


def test_what_could_not_be_run_is_in_the_table() -> None:
    said = text([run("tidemill", 0, 100, 0.1), Run("llama-server", "chat/32", 0, error="gone")])
    assert "llama-server  not run: gone" in said


def test_runs_come_back_from_json() -> None:
    runs = [run("tidemill", 0, 100, 0.1)]
    back = msgspec.json.decode(msgspec.json.encode(runs), type=list[Run])
    assert text(back) == text(runs)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_no_two_loads_or_rounds_share_prompts(load: object) -> None:
    first = workload(load, 0).prompt(3).text  # type: ignore[arg-type]
    others = [workload(other, 0) for other in LOADS.values() if other != load]
    others.append(workload(load, 1))  # type: ignore[arg-type]
    assert all(other.prompt(3).text.split()[:8] != first.split()[:8] for other in others)


def test_open_loads_are_relative_to_a_capacity() -> None:
    assert [arrivals(load, 10.0) for load in OPEN[:2]] == [Gamma(8.0), Gamma(6.0)]
    assert arrivals(CLOSED[0], 0.0) == Closed(1)


def test_shares_of_cpu_time_by_process_and_library() -> None:
    report = """
 60.00%|   12:python|_native.cpython-311-x86_64-linux-gnu.so
 20.00%|   12:python|libpython3.11.so.1.0
 5.00% |   12:tidemill-kernel|[kernel.kallsyms]
 10.00%|   11:python|libpython3.11.so.1.0
 5.00%|   11:python|[kernel.kallsyms]
"""
    found = parsed(report)
    assert found[12, "libpython3.11.so.1.0"] == pytest.approx(0.2)
    assert overhead(found, front_end=11) == pytest.approx((0.15, 0.2, 0.05))
    assert overhead({}, front_end=11) is None
