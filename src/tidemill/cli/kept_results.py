"""Kept results of ``bench`` as evidence of the advisor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from tidemill.advise.evidence import Measurement
from tidemill.advise.questions import kind_of_processor
from tidemill.bench import scenario as known
from tidemill.bench.arrivals import Closed
from tidemill.bench.result import Result

# Of all requests: an engine under which more fail was not up to the load, whatever its speed.
_MOST_FAILED = 0.01
# Of the answers: lengths that differ more are not compared.
_MOST_SHORT = 0.01


class KeptResults:
    """``advise.evidence.Measured`` over the results that were kept, newest first."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = list(results)

    def results(self, engine: str, model: str, workload: str) -> Sequence[Measurement]:
        return [
            measurement(result)
            for result in self._results
            if result.target.engine == engine
            and called(result.target.model) == called(model)
            and result.scenario.name == workload
            and usable(result)
        ]


def called(model: str) -> str:
    """A model's name without where it is."""
    return PurePath(model).name.lower().removesuffix(".gguf")


def usable(result: Result) -> bool:
    """Whether figures are of the scenario as it is, and to be trusted. The load may be another: a
    measurement says what it was."""
    summary = result.summary
    if summary is None or summary.invalid or not summary.good:
        return False
    scenario = result.scenario
    if scenario.name not in known.names() or scenario.shapes != known.load(scenario.name).shapes:
        return False
    short = 0 if scenario.checked else summary.short
    failed = summary.requests - summary.good
    return failed <= _MOST_FAILED * summary.requests and short <= _MOST_SHORT * summary.good


def measurement(result: Result) -> Measurement:
    """A usable result as the advisor sees it."""
    summary = result.summary
    assert summary is not None
    p99 = {name: 1000 * found["p99"].value for name, found in summary.latency.items()}
    return Measurement(
        engine=result.target.engine or "",
        workload=result.scenario.name,
        hardware=kind_of_processor(result.machine.architecture, result.machine.system),
        peak_concurrency=_in_flight(result),
        output_tokens_per_second=summary.output_rate,
        ttft_ms=p99.get("ttft"),
        tpot_ms=p99.get("tpot"),
        source=_source(result),
    )


def _in_flight(result: Result) -> int:
    """Requests at a time: as many as a closed loop has; of an open one the mean (Little's law),
    from the median of the times."""
    load, summary = result.scenario.load, result.summary
    assert summary is not None
    if isinstance(load, Closed):
        return load.concurrency
    return max(1, int(summary.request_rate * summary.latency["e2e"]["p50"].value))


def _source(result: Result) -> str:
    summary = result.summary
    assert summary is not None
    cores = result.target.threads or result.machine.cores
    return (
        f"bench result {result.id} of {result.when[:10]}, {summary.good} answers, "
        f"{result.machine.cpu}, {cores} threads"
    )
