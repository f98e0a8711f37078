"""What the load generator itself adds to what it measures, shown on an endpoint of known times."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tidemill.bench.apart import run_apart
from tidemill.bench.arrivals import Gamma, Load
from tidemill.bench.client import Endpoint
from tidemill.bench.measures import Summary, summarise
from tidemill.bench.records import Recording
from tidemill.bench.run import Plan
from tidemill.bench.statistics import Estimate, percentiles
from tidemill.bench.workload import Fixed, Shape, Workload


class SelfTest(msgspec.Struct, frozen=True):
    """Seconds throughout.

    ``lag``: from a token's writing by the endpoint to its stamp by the load generator, which is the
    whole error of any single time. ``ttft_error``, ``itl_error``: median measured - value set; the
    endpoint's own timers, which may be 1 ms late, are part of it. ``tokens`` a second were read.
    """

    lag_p50: Estimate
    lag_p99: Estimate
    ttft_error: float
    itl_error: float
    tokens: float
    summary: Summary

    def __str__(self) -> str:
        return (
            f"load generator: stamps {_ms(self.lag_p50.value)} late at p50, "
            f"{_ms(self.lag_p99.value)} at p99; TTFT {_ms(self.ttft_error)} off, ITL "
            f"{_ms(self.itl_error)} off; dispatch {_ms(self.summary.delay_p99)} late at p99; "
            f"{self.summary.client_share:.1%} of a core for {self.tokens:.0f} tokens/s"
        )


@contextmanager
def mock_server(ttft: float, itl: float) -> Iterator[str]:
    """A process that answers with these times; its URL."""
    command = [sys.executable, "-m", "tidemill.bench.mock_server", str(ttft), str(itl)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


def self_test(
    *, ttft: float = 0.05, itl: float = 0.02, tokens: int = 50, load: Load | None = None,
    seconds: float = 3.0,
) -> SelfTest:  # fmt: skip
    """Measure an endpoint whose times are known; by default 20 requests a second of 50 tokens."""
    shape = Shape("mock", Fixed(100), Fixed(tokens))
    with mock_server(ttft, itl) as url:
        recording = run_apart(
            Plan(
                endpoint=Endpoint(url, "mock"), workload=Workload((shape,)),
                load=load or Gamma(20.0), seconds=seconds, keep_text=True,
            )
        )  # fmt: skip
    summary = summarise(recording)
    lag_p50, lag_p99 = percentiles(_lags(recording), (0.5, 0.99))
    return SelfTest(
        lag_p50, lag_p99,
        summary.latency["ttft"]["p50"].value - ttft,
        summary.latency["itl"]["p50"].value - itl,
        summary.output_rate,
        summary,
    )  # fmt: skip


def _lags(recording: Recording) -> list[list[float]]:
    return [
        [came - float(written) for came, written in zip(r.times, r.text.split(), strict=True)]
        for r in recording.records
    ]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
