"""What it costs to have answers follow a schema, a regular expression, or any grammar.

    python benchmarks/structured.py [--model smollm2] [--streams 1 8 32] [--rounds 5]

In a round each form, and answers that are free, are asked of as many streams, one after the other,
in an order that turns round. All have the same prompts, are greedy and of --tokens tokens: each
form goes on for longer than that. Shown are the milliseconds of a token of one stream (the mean
over its answer, after the first token), its ratio to that of free answers in the same round
(median; lowest, highest), and by token the time to find out which tokens may come next, most of
which is beside the forward step, and what the steps themselves took for it. No guessing ahead,
prefix cache off.

The first request of a form compiles it, and the first of a model makes tables of its vocabulary:
what that takes is shown apart.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tidemill import LLM, Grammar, SamplingParams

PROMPT_TOKENS = 32
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["ship", "harbour", "lighthouse", "island"]},
        "depth": {"type": "number", "minimum": 0, "maximum": 11000},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "position": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
            "required": ["lat", "lon"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "depth", "tags", "position"],
    "additionalProperties": False,
}
FORMS: dict[str, Grammar | None] = {
    "free": None,
    "schema": Grammar.json_schema({"type": "array", "items": RECORD, "minItems": 1000}),
    "any JSON": Grammar.json_schema({"type": "array", "minItems": 1000}),
    "regex": Grammar.regex(r"([A-Z][a-z]{1,20}( [a-z]{1,20}){2,20}[.] ){1000}"),
}


class Bench:
    """Figures by streams and form: seconds of a token, of its mask, and of the step for it."""

    def __init__(self, llm: LLM, tokens: int) -> None:
        self.llm = llm
        self.tokens = tokens
        self.seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
        self.masks: dict[tuple[int, str], list[float]] = defaultdict(list)
        self.steps: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._random = random.Random(3)

    def prompts(self, streams: int) -> list[dict[str, list[int]]]:
        vocab = range(self.llm.tokenizer.vocab_size)
        return [
            {"prompt_token_ids": self._random.choices(vocab, k=PROMPT_TOKENS)}
            for _ in range(streams)
        ]

    def measure(self, streams: int, form: str, prompts: list[dict[str, list[int]]]) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=self.tokens, ignore_eos=True, grammar=FORMS[form]
        )
        engine = self.llm.core.driver.engine
        before = engine.stats
        outputs = self.llm.generate(prompts, params)
        after = engine.stats
        each = []
        for output in outputs:
            times, n = output.metrics, len(output.outputs[0].token_ids)
            if output.error or n != self.tokens:
                raise SystemExit(f"{form}: {output.error or f'the answer has {n} tokens'}")
            assert times.first_token_time is not None
            assert times.last_token_time is not None
            each.append((times.last_token_time - times.first_token_time) / (n - 1))
        tokens = streams * self.tokens
        key = streams, form
        self.seconds[key].append(statistics.mean(each))
        self.masks[key].append((after.mask_seconds.total - before.mask_seconds.total) / tokens)
        self.steps[key].append((after.constraint_seconds - before.constraint_seconds) / tokens)

    def row(self, streams: int, form: str) -> str:
        mine, free = self.seconds[streams, form], self.seconds[streams, "free"]
        ratios = [a / b for a, b in zip(mine, free, strict=True)]
        mask = 1e6 * statistics.median(self.masks[streams, form])
        step = 1e6 * statistics.median(self.steps[streams, form])
        shown = f"{min(ratios):.3f}, {max(ratios):.3f}"
        return (
            f"{streams:7} {form:10} {1e3 * statistics.median(mine):9.2f} "
            f"{statistics.median(ratios):7.3f}  ({shown:12}) {mask:9.0f} {step:9.0f}"
        )


def compiled(llm: LLM) -> None:
    """How long each form takes to be compiled, and the tables of the vocabulary before that."""
    forms = {"the tables": Grammar.choice(["x"]), **FORMS}
    for form, grammar in forms.items():
        if grammar is not None:
            began = time.perf_counter()
            llm.core.constraint(SamplingParams(grammar=grammar))
            print(f"compiling {form}: {1e3 * (time.perf_counter() - began):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options: dict[str, Any] = {
        "threads": arguments.threads, "max_sequences": max(arguments.streams),
        "max_context": PROMPT_TOKENS + arguments.tokens, "speculative": "off",
        "prefix_caching": False,
    }  # fmt: skip
    with LLM(arguments.model, **options) as llm:
        compiled(llm)
        bench = Bench(llm, arguments.tokens)
        names = list(FORMS)
        for number in range(arguments.rounds):
            turn = number % len(names)
            for streams in arguments.streams:
                prompts = bench.prompts(streams)
                for form in names[turn:] + names[:turn]:
                    bench.measure(streams, form, prompts)
        print(
            f"{'streams':>7} {'form':10} {'ms/token':>9} {'ratio':>7}  {'':14} {'mask, us':>9} "
            f"{'step, us':>9}"
        )
        for streams in arguments.streams:
            for form in names:
                print(bench.row(streams, form))
    if arguments.json:
        rows = [
            {"streams": streams, "form": form, "seconds": bench.seconds[streams, form],
             "masks": bench.masks[streams, form], "steps": bench.steps[streams, form]}
            for streams, form in bench.seconds
        ]  # fmt: skip
        arguments.json.write_text(json.dumps({"model": arguments.model, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
