"""The CPU backend on the two real models: the reference's answers, in the planned memory."""

from __future__ import annotations

import os
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


IN_A_PROCESS_OF_ITS_OWN = """
import re, sys
from pathlib import Path
import numpy as np
from tidemill.backends import cpu
from tidemill.backends.base import Batch, KVCacheSpec, Origin
from tidemill.models import load_model
from tidemill.weights import open_checkpoint

def kib(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

path = Path(sys.argv[1])
model = load_model(open_checkpoint(path))
"""


def numbers_of(script: str, path: Path, home: Path) -> list[int]:
    """What a fresh process prints that runs ``script`` after the lines above."""
    run = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN + script, str(path)],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "TIDEMILL_HOME": str(home)},
    )  # fmt: skip
    return [int(word) for word in run.stdout.split()]


def test_resident_memory_is_about_what_was_planned(real_model: RealModel, tmp_path: Path) -> None:
    """Loading maps the file, packs it and gives its pages back."""
    script = """
before = kib("VmRSS")
kv = KVCacheSpec(64, 16, "f16")
plan = cpu.plan(model, kv=kv, threads=2)
runner = cpu.compile(model, kv=kv, threads=2)
print(kib("VmRSS") - before, kib("VmHWM") - before, plan.weights >> 10, plan.total >> 10)
"""
    resident, peak, weights, planned = numbers_of(script, real_model("smollm2"), tmp_path)
    slack = 24 << 10
    assert weights <= resident <= planned + slack
    # The largest tensor's pages come on top while it is packed: the embedding matrix, 29 MB.
    assert peak <= planned + slack + (29 << 10)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_touches_its_own_blocks_and_nothing_of_the_file(
    name: str, real_model: RealModel, tmp_path: Path
) -> None:
    """From kept weights: they, scratch and the used quarter of the KV cache are all that becomes
    resident, although the prompt has tokens from everywhere in the vocabulary."""
    script = """
kv = KVCacheSpec(256, 16, "f16")
origin = Origin("x", (str(path),))
options = dict(kv=kv, threads=2, max_batch_tokens=256, max_logit_rows=1, origin=origin)
cpu.compile(model, **options).close()  # keeps its weights
before = kib("VmRSS")
runner = cpu.compile(model, **options)
assert runner.weights_are_mapped
for past in range(0, 1024, 256):
    positions = np.arange(past, past + 256, dtype=np.int32)
    runner.forward(Batch(
        tokens=(positions * 47).astype(np.int32), positions=positions,
        query_starts=np.array([0, 256], np.int32), context_lens=np.array([past + 256], np.int32),
        block_tables=np.arange(64, dtype=np.int32)[None], logit_rows=np.array([255], np.int32),
    ))
of_file = 0
for line in Path("/proc/self/smaps").read_text().splitlines():
    if not re.match("[A-Z]", line):  # a mapping; what follows is about it
        is_file = line.endswith(str(path.resolve()))
    elif is_file and line.startswith("Rss:"):
        of_file += int(line.split()[1])
plan = cpu.plan(model, **options)
parts = plan.weights + plan.kv // 4 + plan.scratch
print(kib("VmRSS") - before, parts >> 10, of_file)
"""
    resident, parts, of_file = numbers_of(script, real_model(name), tmp_path)
    print(resident, parts, of_file)
    assert 0.9 * parts <= resident <= parts + (4 << 10)
    assert of_file <= 1 << 10
