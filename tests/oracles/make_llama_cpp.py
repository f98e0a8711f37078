"""Record what llama.cpp says of the two real models: greedy continuations and perplexity.

Run in an environment that has ``llama-cpp-python`` and ``gguf`` (see run.sh):

    python make_llama_cpp.py MODEL.gguf NAME [--check]

writes tests/fixtures/llama_cpp/NAME.json with

- ``quantised``: for each of 20 prompts its ids and 64 greedy ids, with the gap between the two best
  log-probabilities at each step;
- ``float``: the same with the model's weights expanded to F32, where neither engine rounds
  activations to eight bits;
- ``decided``: the 20 of a pool of prompts on whose continuation llama.cpp is surest (by the
  smallest gap along the way), on the quantised model. Why: docs/decisions/2026-11-30-agreement.md;
- ``perplexity``: of tests/fixtures/prose.txt as ``llama-perplexity`` defines it (chunks of 512
  tokens that start with BOS where the model wants one; the second half of each is scored).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from gguf.quants import dequantize

FIXTURES = Path(__file__).parent.parent / "fixtures"
N_NEW = 64
CHUNK = 512
N_PROMPTS = 20

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Water boils at a temperature of",
    "To make a cup of tea, first",
    "The theory of evolution by natural selection was",
    "1, 2, 3, 4, 5, 6,",
    "import numpy as np\n\ndef mean(values):\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the",
    "Q: What is the largest planet in the solar system?\nA:",
    "In 1969, Neil Armstrong",
    "A list of the months of the year: January, February,",
    "The quick brown fox",
    "Photosynthesis is the process by which",
    "SELECT name, age FROM users WHERE",
    "Roses are red, violets are",
    "The Pythagorean theorem states that",
    "Translate to French: Good morning, my friend.\n",
]

# Sequences, lists, verses, licences and code that a language model has seen many times.
POOL = [
    "1, 2, 3, 4, 5, 6,",
    "2, 4, 6, 8, 10, 12, 14,",
    "5, 10, 15, 20, 25, 30,",
    "10, 20, 30, 40, 50,",
    "100, 99, 98, 97, 96, 95, 94,",
    "1 2 3 4 5 6 7 8 9 10 11 12 13",
    "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "101, 102, 103, 104, 105, 106,",
    "one, two, three, four, five, six,",
    "a b c d e f g h i j k",
    "A, B, C, D, E, F, G,",
    "January, February, March, April, May, June, July, August, September, October, November, "
    "December, January, February, March,",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,",
    "red, green, blue, red, green, blue, red, green, blue,",
    "yes no yes no yes no yes no yes no",
    "1 + 1 = 2\n1 + 2 = 3\n1 + 3 = 4\n1 + 4 = 5\n",
    "2 x 1 = 2\n2 x 2 = 4\n2 x 3 = 6\n2 x 4 = 8\n",
    "Item 1\nItem 2\nItem 3\nItem 4\nItem 5\n",
    "Chapter 1\nChapter 2\nChapter 3\nChapter 4\n",
    "1. one\n2. two\n3. three\n4. four\n5. five\n",
    "the cat sat on the mat. the cat sat on the mat. the cat sat on the mat.",
    "All work and no play makes Jack a dull boy. All work and no play makes Jack a dull boy. "
    "All work and no play",
    "I will not be late. I will not be late. I will not be late. I will",
    "tick tock tick tock tick tock tick tock",
    "ha ha ha ha ha ha ha ha ha ha",
    "0 0 0 0 0 0 0 0 0 0 0 0",
    "abcabcabcabcabcabcabcabcabc",
    "<li>1</li>\n<li>2</li>\n<li>3</li>\n<li>4</li>\n",
    "x1 = 1\nx2 = 2\nx3 = 3\nx4 = 4\nx5 = 5\n",
    "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\n",
    "case 1: return 1;\ncase 2: return 2;\ncase 3: return 3;\ncase 4: return 4;\n",
    "print(1)\nprint(2)\nprint(3)\nprint(4)\nprint(5)\n",
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software "
    'and associated documentation files (the "Software"), to deal in the Software without',
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor",
    "We hold these truths to be self-evident, that all men are created equal, that they are "
    "endowed by their Creator with",
    "Four score and seven years ago our fathers brought forth on this continent, a new nation,",
    'Licensed under the Apache License, Version 2.0 (the "License");\n'
    "you may not use this file except in compliance with the License.\n",
    "Our Father who art in heaven, hallowed be thy name. Thy kingdom come, thy will be done,",
    "Twinkle, twinkle, little star, how I wonder what you are.",
    "To be, or not to be, that is the question:",
    "9, 8, 7, 6, 5, 4, 3, 2, 1, 0. 9, 8, 7, 6, 5, 4, 3, 2, 1, 0. 9, 8, 7,",
    "2001, 2002, 2003, 2004, 2005, 2006,",
    "1st, 2nd, 3rd, 4th, 5th, 6th,",
    "1\n2\n3\n4\n5\n6\n7\n8\n",
    "row 1, row 2, row 3, row 4, row 5, row 6,",
    "1/2, 1/3, 1/4, 1/5, 1/6, 1/7,",
    "10 9 8 7 6 5 4 3 2 1 10 9 8 7 6 5 4 3 2 1 10 9 8",
    "The dog ran. The cat ran. The dog ran. The cat ran. The dog ran. The cat",
    "- - - - - - - - - - - - - -",
    "1,000 2,000 3,000 4,000 5,000 6,000",
]


class Model:
    """A llama.cpp context over one file, read through the low-level API."""

    def __init__(self, path: Path, n_ctx: int) -> None:
        llama_cpp.llama_backend_init()
        self.llm = llama_cpp.Llama(
            str(path), n_ctx=n_ctx, n_batch=512, n_threads=2, logits_all=False, verbose=False
        )
        self.n_vocab = self.llm.n_vocab()

    def tokenize(self, text: str) -> list[int]:
        return list(self.llm.tokenize(text.encode(), add_bos=True, special=False))

    def greedy(self, ids: list[int], n: int) -> tuple[list[int], list[float]]:
        self.llm.reset()
        self.llm.eval(ids)
        out: list[int] = []
        gaps: list[float] = []
        for _ in range(n):
            logits = np.array(llama_cpp.llama_get_logits_ith(self.llm._ctx.ctx, -1)[: self.n_vocab])
            best = int(np.argmax(logits))
            second = float(np.partition(logits, -2)[-2])
            out.append(best)
            gaps.append(round(float(logits[best]) - second, 5))
            self.llm.eval([best])
        return out, gaps


def perplexity(path: Path, ids: list[int], bos: int | None) -> float:
    llm = llama_cpp.Llama(
        str(path), n_ctx=CHUNK, n_batch=CHUNK, n_threads=2, logits_all=True, verbose=False
    )
    nll = 0.0
    count = 0
    for start in range(0, len(ids) - CHUNK + 1, CHUNK):
        chunk = ids[start : start + CHUNK]
        if bos is not None:
            chunk = [bos, *chunk[1:]]
        llm.reset()
        llm.eval(chunk)
        for i in range(CHUNK // 2, CHUNK - 1):
            row = llm.scores[i].astype(np.float64)
            peak = row.max()
            nll -= row[chunk[i + 1]] - peak - math.log(np.exp(row - peak).sum())
            count += 1
    return math.exp(nll / count)


def continue_all(path: Path, prompts: list[str]) -> list[dict[str, Any]]:
    model = Model(path, 1024)
    cases = []
    for prompt in prompts:
        ids = model.tokenize(prompt)
        out, gaps = model.greedy(ids, N_NEW)
        cases.append({"prompt": prompt, "prompt_ids": ids, "ids": out, "gaps": gaps})
    return cases


def expand(source: Path, target: Path) -> None:
    """The same GGUF with every tensor as F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, element)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(path: Path) -> dict[str, Any]:
    decided = continue_all(path, POOL)
    decided.sort(key=lambda case: -min(case["gaps"]))
    with tempfile.TemporaryDirectory() as folder:
        expanded = Path(folder) / "f32.gguf"
        expand(path, expanded)
        floats = continue_all(expanded, PROMPTS)
    model = Model(path, 1024)
    ids = model.tokenize((FIXTURES / "prose.txt").read_text())
    adds_bos = llama_cpp.llama_vocab_get_add_bos(model.llm._model.vocab)
    value = perplexity(path, ids, model.llm.token_bos() if adds_bos else None)
    return {
        "made_with": f"llama-cpp-python {llama_cpp.__version__}",
        "quantised": continue_all(path, PROMPTS),
        "float": floats,
        "decided": decided[:N_PROMPTS],
        "perplexity": {"tokens": len(ids), "chunk": CHUNK, "value": value},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("name")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    result = record(args.model)
    target = FIXTURES / "llama_cpp" / f"{args.name}.json"
    if args.check:
        old = json.loads(target.read_text())
        drift = result["perplexity"]["value"] / old["perplexity"]["value"] - 1
        same = sum(a["ids"] == b["ids"] for a, b in zip(old["float"], result["float"], strict=True))
        print(f"{args.name}: {same}/{N_PROMPTS} continuations equal, perplexity {drift:+.3%}")
        if abs(drift) > 0.002 or same < N_PROMPTS - 2:
            raise SystemExit(f"{args.name}: the recorded expectations no longer hold")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
    surest = [round(min(case["gaps"]), 2) for case in result["decided"]]
    print(f"{args.name}: perplexity {result['perplexity']['value']:.4f}, decided by {surest}")


if __name__ == "__main__":
    main()
