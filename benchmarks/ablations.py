"""What each technique buys: everything measured with it and without it, one technique at a time.

    python benchmarks/ablations.py [--model smollm2] [--rounds 5] [--only batching,paged] [--quick]

Within a round both sides are measured one after the other, in an order that turns round; gains are
taken within a round and shown as median (lowest, highest). Where a technique must not change what
comes out, both sides' tokens are compared, and a difference ends the run. Prompts are random tokens
except for the editing prompt; everything is greedy. How each is turned off is said in
``techniques/all.py``. ``--quick`` takes small sizes, to see whether it runs; its figures mean
nothing. The table goes to standard output, every round to a JSON file in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison.machine import measure_load
from techniques.all import TECHNIQUES
from techniques.comparing import compare, lines
from techniques.setup import FULL, QUICK, Bench
from tidemill import _native
from tidemill.hardware import usable_cores
from tidemill.hardware.cpu import cpu_info
from tidemill.llm.loading import open_model

HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> None:
    args, names = _arguments(argv)
    sizes = QUICK if args.quick else FULL
    bench = Bench(open_model(args.model, max_context=args.context), sizes, args.threads)
    machine = f"{cpu_info().model}, {args.threads} threads, {_native.isa_name()} kernels"
    if bench.opened.max_context < sizes.longest:
        raise SystemExit(
            f"{bench.opened.name} has a context of {bench.opened.max_context} tokens; "
            f"{sizes.longest} are needed"
        )
    size = "quick: the figures mean nothing" if args.quick else f"{args.rounds} rounds"
    print(f"{bench.opened.name}; {machine}; {size}")
    print(f"  {'':38}{'with':>9}{'without':>9}  {'gain':>9} (lowest, highest)", flush=True)
    results: list[dict[str, Any]] = []
    for name in names:
        technique = TECHNIQUES[name]
        load = measure_load(0.1 if args.quick else 1.0)
        print(f"{name}: {load}", file=sys.stderr, flush=True)
        with technique.open(bench) as measure:
            rows = compare(measure, technique.figures, args.rounds)
        print("\n".join(["", *lines(technique, rows)]), flush=True)
        if not load.quiet:
            print(f"  # before it: {load}", flush=True)
        results.append(
            {"technique": name, "title": technique.title, "without": technique.without,
             "load": asdict(load), "rows": rows}
        )  # fmt: skip
    stamp = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    file = args.json or HERE / "results" / f"ablations-{stamp}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    details = {
        "model": bench.opened.name, "machine": machine, "rounds": args.rounds,
        "quick": args.quick, "sizes": asdict(sizes), "techniques": results,
    }  # fmt: skip
    file.write_text(json.dumps(details, indent=1) + "\n")
    print(f"\neverything measured: {file}")


def _arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--context", type=int, help="the model's context; default: its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help=f"of {', '.join(TECHNIQUES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every round")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    asked = {name for name in args.only.replace(",", " ").split() if name} or set(TECHNIQUES)
    if unknown := asked - set(TECHNIQUES):
        parser.error(f"no technique {', '.join(sorted(unknown))}; there are {list(TECHNIQUES)}")
    return args, [name for name in TECHNIQUES if name in asked]


if __name__ == "__main__":
    main()
