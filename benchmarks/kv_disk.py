"""What KV blocks on disk gain: time to the first token of a prompt whose long beginning is known.

    python benchmarks/kv_disk.py [--models smollm2 gemma3] [--lengths 2048 4096] [--rounds 3]

In each round every way is measured once, on a new beginning of random tokens and a new end of 16:

    plain             computed, no disk
    written           computed, and kept on disk
    memory            the beginning is in memory
    disk              it has been evicted from memory by other prompts
    restart           the process's memory is empty, the file is in the page cache
    restart, cold     the same, but the file has to come from the disk

Then the same among others: one answer runs all the time, and its longest pause is measured while
such a prompt arrives (plain, written, disk). Ratios are to ``plain`` of the same round; on a busy
machine those of CPU time say more. Files are in a folder of their own, which is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill import LLM, SamplingParams, store

END = 16  # tokens of a prompt behind its known beginning
ANSWER = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
BEFORE = 8  # tokens of the running answer before the prompt arrives

Figures = dict[str, list[float]]


class Bench:
    def __init__(self, model: Path, length: int, arguments: argparse.Namespace) -> None:
        self.model = model
        self.length = length
        self.arguments = arguments
        self.ttft: Figures = defaultdict(list)
        self.cpu: Figures = defaultdict(list)
        self.pause: Figures = defaultdict(list)
        self.stream_ttft: Figures = defaultdict(list)
        self._random = random.Random(f"{length}")
        self._others = [self.tokens(length), self.tokens(length)]

    def tokens(self, n: int) -> list[int]:
        return [self._random.randrange(300, 40_000) for _ in range(n)]

    @contextmanager
    def opened(self, *, disk: bool) -> Iterator[LLM]:
        options: dict[str, Any] = {"kv_disk": self.arguments.size} if disk else {}
        context = self.length + 256
        with LLM(
            self.model, max_context=context, max_sequences=2, threads=self.arguments.threads,
            kv_dtype=self.arguments.kv_dtype, speculative="off", **options,
        ) as llm:  # fmt: skip
            self.first_token(llm, [1, 2, 3])  # touch what every step touches
            yield llm

    def first_token(self, llm: LLM, beginning: list[int]) -> float:
        """Seconds to the first token of a prompt that begins so."""
        prompt = {"prompt_token_ids": beginning + self.tokens(END)}
        (output,) = llm.generate(prompt, ANSWER)
        seconds = output.metrics.time_to_first_token
        assert seconds is not None, output.error
        return seconds

    def beside_an_answer(self, llm: LLM, beginning: list[int]) -> tuple[float, float]:
        """Seconds to the first token of such a prompt while an answer runs, and the longest pause
        of that one from the prompt's arrival to its first token."""
        core = llm.core
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        arriving = core.prepare({"prompt_token_ids": beginning + self.tokens(END)}, ANSWER)
        stream = llm.stream({"prompt_token_ids": self.tokens(END)}, params)
        pauses, last = [], 0.0
        for n, _ in enumerate(stream):
            now = time.perf_counter()
            if n > BEFORE:
                pauses.append(now - last)
            last = now
            if n == BEFORE:
                arriving.builder.output.metrics.arrival_time = core.driver.clock()
                core.submit(arriving)
            if arriving.builder.output.metrics.time_to_first_token is not None:
                break
        stream.close()
        core.driver.abort(arriving.request.id)
        seconds = arriving.builder.output.metrics.time_to_first_token
        assert seconds is not None
        return seconds, max(pauses)

    def evict(self, llm: LLM) -> None:
        """Fill the memory, of two contexts, with others."""
        settle(llm)
        for other in self._others:
            self.first_token(llm, other)

    def round(self) -> None:
        beginning, second = self.tokens(self.length), self.tokens(self.length)
        with self.opened(disk=False) as llm:
            self._alone("plain", llm, self.tokens(self.length))
            self._beside("plain", llm, self.tokens(self.length))
        with self.opened(disk=True) as llm:
            self._alone("written", llm, beginning)
            self._alone("memory", llm, beginning)
            self._beside("written", llm, second)
            self.evict(llm)
            self._alone("disk", llm, beginning)
            self.evict(llm)
            self._beside("disk", llm, second)
        with self.opened(disk=True) as llm:
            self._alone("restart", llm, beginning)
        forget_pages()
        with self.opened(disk=True) as llm:
            self._alone("restart, cold", llm, beginning)

    def _alone(self, name: str, llm: LLM, beginning: list[int]) -> None:
        before = time.process_time()
        self.ttft[name].append(self.first_token(llm, beginning))
        settle(llm)
        self.cpu[name].append(time.process_time() - before)

    def _beside(self, name: str, llm: LLM, beginning: list[int]) -> None:
        seconds, pause = self.beside_an_answer(llm, beginning)
        self.stream_ttft[name].append(seconds)
        self.pause[name].append(pause)


def settle(llm: LLM) -> None:
    """Wait until all is written."""
    tier = llm.core._tier
    while tier is not None and tier._writes:
        time.sleep(0.01)


def forget_pages() -> None:
    """Have the files read from the disk the next time."""
    for path in (store.home() / "kv").glob("*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def show(title: str, figures: Figures) -> None:
    print(f"\n{title}")
    for name, values in figures.items():
        ratios = [v / p for v, p in zip(values, figures["plain"], strict=True)]
        ms, ratio = 1e3 * statistics.median(values), statistics.median(ratios)
        print(
            f"  {name:16}{ms:10.0f} ms   x {ratio:.3f}   ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-dtype", default="f16", choices=["f16", "q8_0", "f32"])
    parser.add_argument("--size", default="8GiB", help="kv_disk")
    parser.add_argument("--folder", type=Path, help="default: kv-benchmark in the store")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = {name: store.resolve(name) for name in arguments.models}
    folder = (arguments.folder or store.home() / "kv-benchmark").absolute()
    os.environ["TIDEMILL_HOME"] = str(folder)
    results = []
    try:
        for name, path in models.items():
            for length in arguments.lengths:
                bench = Bench(path, length, arguments)
                with bench.opened(disk=True) as llm:
                    bench.evict(llm)  # the others are on disk from now on
                for _ in range(arguments.rounds):
                    bench.round()
                print(f"\n== {name}, {length} tokens, {arguments.rounds} rounds", flush=True)
                show("time to the first token, alone", bench.ttft)
                show("CPU time of that, writing and the answer's four tokens included", bench.cpu)
                show("time to the first token, beside a running answer", bench.stream_ttft)
                show("that answer's longest pause", bench.pause)
                results.append(
                    {"model": name, "length": length, "ttft": bench.ttft, "cpu": bench.cpu,
                     "beside": bench.stream_ttft, "pause": bench.pause}
                )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
