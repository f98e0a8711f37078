"""The CPU backend on the two real models: the reference's answers, in the planned memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from tidemill.backends import cpu, reference
from tidemill.backends.base import KVCacheSpec, Runner
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint

RealModel = Callable[[str], Path]

# Starts of texts, as ids of each model's vocabulary.
PROMPTS = {
    "smollm2": [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28],
    "gemma3": [2, 14946, 3324, 496, 990, 236764, 528, 496, 1944, 9744, 684, 506, 5442, 236764],
}
N_NEW = 48


def small_runner(model: Model, threads: int = 2) -> Runner:
    return cpu.compile(
        model,
        kv=KVCacheSpec(16, 16, "f16"),
        max_batch_tokens=256,
        max_logit_rows=256,
        threads=threads,
    )


def logits_along(runner: Runner, tokens: list[int], chunk: int) -> np.ndarray:
    """Logits (T, vocab) of all tokens, computed in chunks."""
    rows = []
    for past in range(0, len(tokens), chunk):
        part = Chunk(tokens[past : past + chunk], past, range(16))
        rows.append(np.array(runner.forward(make_batch([part]))))
    return np.concatenate(rows)


def greedy(runner: Runner, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    logits = logits_along(runner, tokens, 256)
    for _ in range(N_NEW):
        tokens.append(int(logits[-1].argmax()))
        part = Chunk(tokens[-1:], len(tokens) - 1, range(16))
        logits = np.array(runner.forward(make_batch([part])))
    return tokens


@pytest.mark.parametrize("name", PROMPTS)
def test_answers_are_those_of_the_reference(name: str, real_model: RealModel) -> None:
    model = load_model(open_checkpoint(real_model(name)))
    runner = small_runner(model)
    tokens = greedy(runner, PROMPTS[name])
    found = logits_along(runner, tokens, 256)
    oracle = reference.compile(model, kv=KVCacheSpec(16, 16, "f32"), max_logit_rows=256)
    exact = logits_along(oracle, tokens, 256)
    # Eight-bit activations move the logits by some hundredths of their spread.
    assert np.abs(found - exact).mean() < 0.1 * exact.std()
    top = np.sort(exact, axis=-1)
    sure = top[:, -1] - top[:, -2] > 1.0
    assert sure.sum() >= 15
    np.testing.assert_array_equal(found.argmax(-1)[sure], exact.argmax(-1)[sure])
    # What was decoded token by token is what a prefill gives.
    made = slice(len(PROMPTS[name]) - 1, -1)
    assert found.argmax(-1)[made].tolist() == tokens[len(PROMPTS[name]) :]
    # The same bits token by token, on one thread.
    np.testing.assert_array_equal(logits_along(small_runner(model, 1), tokens, 1), found)


def test_resident_memory_is_about_what_was_planned(real_model: RealModel) -> None:
    """Loading maps the file, packs it and gives its pages back."""
    script = """
import sys
from pathlib import Path
from tidemill.backends import cpu
from tidemill.backends.base import KVCacheSpec
from tidemill.models import load_model
from tidemill.weights import open_checkpoint

def kib(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

model = load_model(open_checkpoint(Path(sys.argv[1])))
before = kib("VmRSS")
kv = KVCacheSpec(64, 16, "f16")
plan = cpu.plan(model, kv=kv, threads=2)
runner = cpu.compile(model, kv=kv, threads=2)
print(kib("VmRSS") - before, kib("VmHWM") - before, plan.weights >> 10, plan.total >> 10)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(real_model("smollm2"))],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    resident, peak, weights, planned = (int(word) for word in run.stdout.split())
    slack = 24 << 10
    assert weights <= resident <= planned + slack
    # The largest tensor's pages come on top while it is packed: the embedding matrix, 29 MB.
    assert peak <= planned + slack + (29 << 10)
