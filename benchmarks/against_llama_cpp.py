"""Speed against llama.cpp built for this machine: the same GGUF, threads and lengths, in one run.

    benchmarks/peers/llama_cpp.sh                     # once: builds the peer
    python benchmarks/against_llama_cpp.py [MODEL ...] [--rounds 5] [--json FILE]

Each round measures one engine after the other, so that a drifting machine hits both; the ratio is
taken round by round and its median reported. llama.cpp is measured by its own tools
(``llama-bench``, ``llama-batched-bench``), which time the forward pass alone. Ours is timed through
the whole engine (scheduling, KV blocks, greedy sampling, detokenising), prefix cache off.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = 512
SHORT = 64
NEW = 64
HERE = Path(__file__).parent


def tidemill_rates(path: Path, threads: int, batches: list[int]) -> dict[str, float]:
    """Tokens per second of one prefill and of decoding at each batch size, in this process."""
    import numpy as np

    from tidemill.engine.base import Request, TokenEvent
    from tidemill.engine.params import SamplingParams
    from tidemill.llm.loading import compile_model, open_model, start_engine

    opened = open_model(str(path), max_context=1024)
    compiled = compile_model(opened, threads=threads, max_sequences=max(batches))
    engine = start_engine(
        compiled, max_sequences=max(batches), max_waiting=1024, prefix_caching=False
    )
    rng = np.random.default_rng(0)
    vocab = min(opened.tokenizer.vocab_size, 32000)

    def run(n_sequences: int, n_prompt: int, n_new: int) -> tuple[float, float]:
        """Seconds until every sequence has its first token, and tokens per second after it."""
        params = SamplingParams(temperature=0, max_tokens=n_new, ignore_eos=True)
        for i in range(n_sequences):
            ids = tuple(int(t) for t in rng.integers(100, vocab, n_prompt))
            engine.add(Request(f"{i}", ids, params), time.perf_counter())
        started: set[str] = set()
        begin = time.perf_counter()
        first, later = 0.0, 0
        while engine.has_work:
            events = engine.step(time.perf_counter())
            tokens = [event.request_id for event in events if isinstance(event, TokenEvent)]
            if first:
                later += len(tokens)
            else:
                started.update(tokens)
                if len(started) == n_sequences:
                    first = time.perf_counter()
        return first - begin, later / (time.perf_counter() - first)

    run(1, PROMPT, 4)  # warm up
    rates = {"prefill": PROMPT / run(1, PROMPT, 1)[0]}
    for batch in batches:
        rates[f"decode {batch}"] = run(batch, SHORT, NEW + 1)[1]
    compiled.runner.close()
    return rates


def llama_cpp_rates(tools: Path, path: Path, threads: int, batches: list[int]) -> dict[str, float]:
    """The same from llama.cpp's tools."""
    common = ["-m", str(path), "-t", str(threads)]
    bench = subprocess.run(
        [str(tools / "llama-bench"), *common, "-p", str(PROMPT), "-n", "0", "-r", "2",
         "-o", "json"],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    rates = {"prefill": float(json.loads(bench.stdout)[0]["avg_ts"])}
    context = max(batches) * (SHORT + NEW)
    batched = subprocess.run(
        [str(tools / "llama-batched-bench"), *common, "-c", str(context), "-npp", str(SHORT),
         "-ntg", str(NEW), "-npl", ",".join(map(str, batches))],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    for row in re.findall(r"^\|\s*\d+ \|.*$", batched.stdout, re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        rates[f"decode {int(cells[2])}"] = float(cells[7])
    return rates


def own_process(path: Path, threads: int, batches: list[int]) -> dict[str, float]:
    """tidemill_rates in a fresh process, as the peer's tools have one."""
    done = subprocess.run(
        [sys.executable, __file__, str(path), "--worker", "--threads", str(threads), "--batches",
         *map(str, batches)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tools", type=Path, help="folder of llama.cpp's tools")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(tidemill_rates(Path(args.models[0]), args.threads, args.batches)))
        return
    from tidemill.store import resolve

    tools = args.tools or Path(
        subprocess.run(
            ["bash", str(HERE / "peers/llama_cpp.sh")], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    report = []
    for model in args.models:
        path = resolve(model)
        rounds = []
        for _ in range(args.rounds):
            theirs = llama_cpp_rates(tools, path, args.threads, args.batches)
            ours = own_process(path, args.threads, args.batches)
            rounds.append((ours, theirs))
        print(f"{model}, {args.threads} threads, median of {args.rounds} interleaved rounds")
        print(f"  {'':12} {'tidemill':>10} {'llama.cpp':>10} {'ratio':>7}   (lowest, highest)")
        for work in rounds[0][0]:
            ratios = sorted(ours[work] / theirs[work] for ours, theirs in rounds)
            row = {
                "model": model,
                "work": work,
                "tidemill": statistics.median(ours[work] for ours, _ in rounds),
                "llama.cpp": statistics.median(theirs[work] for _, theirs in rounds),
                "ratio": statistics.median(ratios),
            }
            report.append(row)
            print(
                f"  {work:12} {row['tidemill']:10.1f} {row['llama.cpp']:10.1f} "
                f"{row['ratio']:6.2f}x   ({ratios[0]:.2f}, {ratios[-1]:.2f})  tok/s",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
