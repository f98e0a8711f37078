"""TTFT and inter-token latency while long prompts arrive among running answers.

    python benchmarks/mixed_load.py [--model smollm2] [--targets 50 100] [--chunks 32 64 128]

Four answers run all the time; a long prompt arrives every so often. Each setting, a fixed chunk or
a target for the time between two tokens, serves the same arrivals on the same compiled model with
an engine of its own: time is real, arrivals are by the clock, and rounds interleave the settings.
Inter-token latency counts all gaps of the four answers; TTFT is from a prompt's arrival to its
first token. The first prompt of each engine is warm-up and not counted. No speculation, no prefix
cache.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.engine.base import EngineConfig, ErrorEvent, Request, TokenEvent
from tidemill.engine.engine import Engine
from tidemill.engine.params import SamplingParams
from tidemill.llm.loading import CompiledModel, compile_model, open_model

STREAMS = 4


@dataclass
class Setting:
    name: str
    config: dict[str, Any]
    gaps: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)


def serve(compiled: CompiledModel, setting: Setting, arguments: argparse.Namespace) -> None:
    """One round of a setting."""
    runner = compiled.runner
    config = EngineConfig(
        max_context=compiled.opened.max_context, max_batch_tokens=runner.max_batch_tokens,
        prefix_caching=False, **setting.config,
    )  # fmt: skip
    engine = Engine(runner, None, config, entropy=1, clock=time.perf_counter)
    rng = random.Random(7)
    vocab = runner.vocab_size

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(n))

    room = compiled.opened.max_context - 64
    for i in range(STREAMS):
        params = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True)
        engine.add(Request(f"s{i}", tokens(64), params), time.perf_counter())
    last: dict[str, float] = {}
    while len(last) < STREAMS:
        for event in step(engine):
            last[event.request_id] = time.perf_counter()
    start = time.perf_counter()
    arrivals = [start + i * arguments.every for i in range(arguments.prompts + 1)]
    arrived: dict[str, float] = {}
    done = 0
    while done <= arguments.prompts:
        now = time.perf_counter()
        if len(arrived) <= arguments.prompts and now >= arrivals[len(arrived)]:
            id = f"p{len(arrived)}"
            params = SamplingParams(temperature=0, max_tokens=1)
            length = rng.randrange(arguments.length // 2, arguments.length + 1)
            engine.add(Request(id, tokens(length), params), now)
            arrived[id] = arrivals[len(arrived)]
        events = step(engine)
        now = time.perf_counter()
        for event in events:
            id = event.request_id
            if id in last:
                if done:
                    setting.gaps.append(now - last[id])
                last[id] = now
            else:
                if done:
                    setting.ttfts.append(now - arrived[id])
                done += 1
    for id in last:
        engine.abort(id)
    engine.step(time.perf_counter())


def step(engine: Engine) -> list[TokenEvent]:
    events = engine.step(time.perf_counter())
    for event in events:
        if isinstance(event, ErrorEvent):
            raise SystemExit(event.message)
    return [event for event in events if isinstance(event, TokenEvent)]


def quantiles(values: Iterable[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
    ms = 1e3 * np.array(list(values))
    return float(np.quantile(ms, 0.5)), float(np.quantile(ms, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--length", type=int, default=2000, help="most tokens of a prompt")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two prompts")
    parser.add_argument("--prompts", type=int, default=8, help="prompts counted in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="*", default=[32, 64, 128, 256, 512])
    parser.add_argument("--targets", type=float, nargs="*", default=[50, 100], help="milliseconds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    opened = open_model(arguments.model)
    if arguments.length + 64 > opened.max_context:
        raise SystemExit(f"--length must leave room in the context of {opened.max_context}")
    compiled = compile_model(opened, threads=arguments.threads, max_sequences=STREAMS + 8)
    settings = [Setting(f"chunk {n}", {"max_prefill_tokens": n}) for n in arguments.chunks]
    settings += [Setting(f"target {ms:g} ms", {"target_itl": ms / 1e3}) for ms in arguments.targets]
    for _ in range(arguments.rounds):
        for setting in settings:
            serve(compiled, setting, arguments)
    rows = []
    print(f"{'setting':16} {'ITL p50':>8} {'p99':>8} {'TTFT p50':>9} {'p99':>8}  (ms)")
    for setting in settings:
        itl, ttft = quantiles(setting.gaps), quantiles(setting.ttfts)
        print(f"{setting.name:16} {itl[0]:8.1f} {itl[1]:8.1f} {ttft[0]:9.0f} {ttft[1]:8.0f}")
        rows.append({"setting": setting.name, "itl_ms": itl, "ttft_ms": ttft,
                     "gaps": len(setting.gaps), "prompts": len(setting.ttfts)})  # fmt: skip
    if arguments.json:
        details = {**vars(arguments), "json": str(arguments.json), "rows": rows}
        arguments.json.write_text(json.dumps(details, indent=2) + "\n")
    compiled.runner.close()


if __name__ == "__main__":
    main()
