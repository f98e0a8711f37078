"""Record what llama.cpp says of the two real models: greedy continuations and perplexity.

Run in an environment that has ``llama-cpp-python`` (see run.sh):

    python make_llama_cpp.py MODEL.gguf NAME [--check]

writes tests/fixtures/llama_cpp/NAME.json: for each prompt its ids and 64 greedy ids with the gap
between the two best log-probabilities at each step; and the perplexity of tests/fixtures/prose.txt
as ``llama-perplexity`` defines it (chunks of 512 tokens that start with BOS where the model wants
one; the second half of each chunk is scored).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import llama_cpp
import numpy as np

FIXTURES = Path(__file__).parent.parent / "fixtures"
N_NEW = 64
CHUNK = 512

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("name")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    model = Model(args.model, 1024)
    greedy = []
    for prompt in PROMPTS:
        ids = model.tokenize(prompt)
        out, gaps = model.greedy(ids, N_NEW)
        greedy.append({"prompt": prompt, "prompt_ids": ids, "ids": out, "gaps": gaps})
    text = (FIXTURES / "prose.txt").read_text()
    ids = model.tokenize(text)
    adds_bos = llama_cpp.llama_vocab_get_add_bos(model.llm._model.vocab)
    bos = model.llm.token_bos() if adds_bos else None
    value = perplexity(args.model, ids, bos)
    result = {
        "made_with": f"llama-cpp-python {llama_cpp.__version__}",
        "greedy": greedy,
        "perplexity": {"tokens": len(ids), "chunk": CHUNK, "value": value},
    }
    target = FIXTURES / "llama_cpp" / f"{args.name}.json"
    if args.check:
        old = json.loads(target.read_text())
        same = sum(a["ids"] == b["ids"] for a, b in zip(old["greedy"], greedy, strict=True))
        drift = result["perplexity"]["value"] / old["perplexity"]["value"] - 1
        print(f"{args.name}: {same}/{len(greedy)} continuations equal, perplexity {drift:+.3%}")
        if abs(drift) > 0.002 or same < len(greedy) - 2:
            raise SystemExit(f"{args.name}: the recorded expectations no longer hold")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{args.name}: perplexity {result['perplexity']['value']:.4f} on {len(ids)} tokens")


if __name__ == "__main__":
    main()
