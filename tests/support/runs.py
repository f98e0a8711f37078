"""Results and recordings as a bench makes them, without one."""

from __future__ import annotations

import random

from tidemill.bench.measures import Slo, summarise
from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.result import Machine, Measured, Result
from tidemill.bench.scenario import load


def result(scenario: str = "short-chat", **fields: object) -> Result:
    given = {
        "when": "2026-01-02T03:04:05+00:00", "scenario": load(scenario), "seed": 0,
        "slo": Slo(ttft=0.5),
        "target": Measured(
            url="http://127.0.0.1:9", model="smollm2", engine="tidemill", version="1", threads=2
        ),
        "machine": Machine("Some CPU", "x86_64", 2, 1 << 30, "Linux 6", "3.11"),
    }  # fmt: skip
    return Result(**given | fields)  # type: ignore[arg-type]


def recording(
    count: int, *, seed: int = 0, factor: float = 1.0, tokens: int = 8, opened: float = 1000.0,
    **fields: object,
) -> Recording:  # fmt: skip
    """``count`` requests, one each second, with times that vary by a third or so, ``factor`` times
    as long."""
    rng = random.Random(seed)
    records = []
    for index in range(count):
        due = opened + index
        times = [due + factor * 0.2 * rng.lognormvariate(0, 0.3)]
        for _ in range(tokens - 1):
            times.append(times[-1] + factor * 0.02 * rng.lognormvariate(0, 0.3))
        given = {
            "index": index, "shape": "chat", "due": due, "sent": due + 0.001, "ended": times[-1],
            "times": times, "prompt_tokens": 20, "output_tokens": tokens, "asked": tokens,
        } | fields  # fmt: skip
        records.append(Record(**given))  # type: ignore[arg-type]
    return Recording(records, Window(opened, opened + count), 0.1)


def run(count: int = 100, **fields: object) -> tuple[Result, Recording]:
    """A result with the recording that it was made of."""
    made = recording(count, **fields)  # type: ignore[arg-type]
    found = result()
    found.summary = summarise(made, found.slo)
    return found, made
