"""``tidemill serve`` against llama.cpp's ``llama-server``: the same file, over HTTP, streamed.

    python benchmarks/against_servers.py [--model smollm2] [--loads "chat/*"] [--rounds 2]
                                         [--seconds 6] [--minutes 10] [--json FILE]
    python benchmarks/against_servers.py --tune      # which settings of llama-server are fastest
    python benchmarks/against_servers.py --show FILE...

In each round every load is put on one server after the other, in an order that turns round from one
round to the next; while one is measured, the other's processes are stopped. Ratios are taken within
a round. The load generator (``tidemill.bench``) is a process of its own and knows neither. It first
shows on a mock server how exact it is, and its share of the CPU is told for every run, as the
servers have to do without it. Answers are greedy, of the length asked for: one of any other length
counts as lost. ``serving/loads.py`` has the loads, ``serving/servers.py`` the servers' settings.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from comparison.machine import measure_load
from serving.loads import (
    CLOSED,
    CONTEXT,
    LOADS,
    STREAMS,
    ClosedLoad,
    Load,
    OpenLoad,
    arrivals,
    workload,
)
from serving.profile import overhead, shares
from serving.report import Run, text
from serving.servers import MODEL_NAME, Limits, LlamaServer, ServerProcess, Tidemill
from tidemill.bench.apart import run_apart
from tidemill.bench.arrivals import Closed, Gamma
from tidemill.bench.client import Endpoint
from tidemill.bench.measures import summarise
from tidemill.bench.run import BenchError, Plan
from tidemill.bench.selftest import self_test
from tidemill.store import resolve

HERE = Path(__file__).resolve().parent
_CAPACITY = ClosedLoad("mixed", 32)


def main() -> None:
    args = _arguments()
    if args.show:
        runs = [run for file in args.show for run in json.loads(file.read_text())["runs"]]
        print(text(msgspec.convert(runs, list[Run])))
        return
    until = time.monotonic() + 60 * args.minutes
    model = Path(resolve(args.model))
    limits = Limits(STREAMS, CONTEXT, args.threads)
    with tempfile.TemporaryDirectory(prefix="servers-") as logs:
        if args.tune:
            tune(model, limits, Path(logs), args.seconds)
            return
        test = self_test()
        _say(str(test))
        servers = [
            ServerProcess(kind, model, limits, Path(logs) / kind.name)
            for kind in (Tidemill(), LlamaServer())
        ]
        try:
            report = {"when": f"{_now():%Y-%m-%dT%H:%M:%SZ}", "model": model.name,
                      "selftest": msgspec.to_builtins(test), "runs": []}  # fmt: skip
            file = args.json or HERE / "results" / f"servers-{_now():%Y%m%d-%H%M%S}.json"
            measure(servers, args, until, report, file)
            print(text(msgspec.convert(report["runs"], list[Run])))
            if args.profile:
                profile(servers[0], args.seconds)
            print(f"\n{file}")
        finally:
            for server in servers:
                server.close()


def measure(
    servers: Sequence[ServerProcess], args: argparse.Namespace, until: float,
    report: dict[str, Any], file: Path,
) -> None:  # fmt: skip
    """All rounds that there is time for; ``file`` has everything measured so far."""
    began = time.monotonic()
    for round_ in range(args.rounds):
        lasted = (time.monotonic() - began) / max(1, round_)
        if round_ and time.monotonic() + lasted > until:
            _say(f"no time for round {round_ + 1}")
            return
        left = f", {(args.rounds - round_) * lasted / 60:.0f} minutes are left" if round_ else ""
        _say(f"round {round_ + 1} of {args.rounds}{left}: {measure_load()}")
        capacity: dict[str, float] = {}
        for load in _chosen(args.loads):
            order = servers if round_ % 2 == 0 else servers[::-1]
            for server in order:
                run = measured(server, load, round_, capacity, args.seconds)
                report["runs"].append(msgspec.to_builtins(run))
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps(report, indent=1) + "\n")
                _say(str(run))
                if load == _CAPACITY and run.summary is not None:
                    capacity[run.server] = run.summary.request_rate


def measured(
    server: ServerProcess, load: Load, round_: int, capacity: dict[str, float], seconds: float
) -> Run:
    """One load on one server."""
    name = server.kind.name
    rate = 0.0
    if isinstance(load, OpenLoad):
        if not capacity:
            return Run(name, load.name, round_, error=f"needs {_CAPACITY.name} before it")
        rate = capacity.get(name, 0.0) if load.whose == "own" else min(capacity.values())
    mix = workload(load, round_)
    how = arrivals(load, rate)
    plan = Plan(
        endpoint=Endpoint(server.url, MODEL_NAME, extra=server.kind.extra),
        workload=mix, load=how,
        # An open loop's percentiles need more requests than a few seconds have.
        seconds=seconds if isinstance(how, Closed) else 2 * seconds,
        requests=how.concurrency if isinstance(how, Closed) else 0,
        warmup=2.0, timeout=300.0, watch=server.pids,
    )  # fmt: skip
    server.resume()
    try:
        recording = run_apart(plan)
    except BenchError as error:
        return Run(name, load.name, round_, error=str(error))
    finally:
        server.pause()
    lost = sum(r.error is not None or r.output_tokens != mix.prompt(r.index).max_tokens
               for r in recording.records)  # fmt: skip
    return Run(
        name, load.name, round_, sent=len(recording.records), lost=lost,
        rate=how.rate if isinstance(how, Gamma) else None,
        front_end=server.pids[0], summary=summarise(recording),
        by_shape={s.name: summarise(recording, shape=s.name) for s in mix.shapes}
        if len(mix.shapes) > 1 else {},
    )  # fmt: skip


def profile(server: ServerProcess, seconds: float) -> None:
    """What of the CPU time at 32 streams is HTTP and Python."""
    load = next(load for load in CLOSED if load.name == "chat/32")
    found = shares(server.pids, lambda: measured(server, load, 999, {}, seconds))
    said = overhead(found, server.pids[0])
    if said is None:
        print("\nwithout Linux perf it is not known where the CPU time goes")
        return
    http, python, system = said
    print(
        f"\n{server.kind.name} at 32 streams, shares of its CPU time: HTTP process {http:.1%}, "
        f"Python in the model's process {python:.1%} (together {http + python:.1%}), operating "
        f"system there {system:.1%}, kernels {1 - http - python - system:.1%}"
    )


def tune(model: Path, limits: Limits, logs: Path, seconds: float) -> None:
    """The throughput of llama-server at 32 streams with each of its sensible settings."""
    for flash in ("on", "off"):
        for kv in ("-no-kvu", "-kvu"):
            for ubatch in ("512", "128"):
                kind = LlamaServer(settings=("-fa", flash, kv, "-ub", ubatch))
                server = ServerProcess(kind, model, limits, logs / "tune")
                try:
                    run = measured(server, LOADS["chat/32"], 0, {}, seconds)
                    print(" ".join(kind.settings), run, flush=True)
                finally:
                    server.close()


def _chosen(patterns: str) -> list[Load]:
    wanted = patterns.replace(",", " ").split()
    return [load for name, load in LOADS.items() if any(fnmatchcase(name, p) for p in wanted)]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    names = ", ".join(LOADS).replace("%", "%%")
    parser.add_argument("--loads", default="*", help=f"patterns of {names}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="no round begins that would not end by then")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measured window")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--profile", action="store_true", help="also where the CPU time goes")
    parser.add_argument(
        "--tune", action="store_true", help="only try llama-server's settings at 32 streams"
    )
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="JSON",
        help="measure nothing: the table of earlier runs, merged",
    )  # fmt: skip
    args = parser.parse_args()
    if not _chosen(args.loads):
        parser.error(f"no load matches {args.loads!r}: {', '.join(LOADS)}")
    return args


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    main()
