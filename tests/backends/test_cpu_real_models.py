"""The CPU backend on the two real models: the reference's answers, in the planned memory."""

from __future__ import annotations

import json
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

RECORDS = Path(__file__).parents[1] / "fixtures" / "llama_cpp"
RealModel = Callable[[str], Path]


def teacher_forced(runner: Runner, record: dict, chunk: int) -> np.ndarray:
    """Logits (T, vocab) at the places of a recorded answer's tokens."""
    prompt, answer = record["prompt_ids"], record["ids"]
    tokens = (prompt + answer)[:-1]
    wanted = range(len(prompt) - 1, len(tokens))
    rows = []
    for past in range(0, len(tokens), chunk):
        part = tokens[past : past + chunk]
        ask = [i for i in range(len(part)) if past + i in wanted]
        rows.append(np.array(runner.forward(make_batch([Chunk(part, past, range(16))], ask))))
    return np.concatenate(rows)


def small_runner(model: Model, threads: int = 2) -> Runner:
    return cpu.compile(model, kv=KVCacheSpec(16, 16, "f16"), max_batch_tokens=256,
                       max_logit_rows=256, threads=threads)  # fmt: skip


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_answers_are_those_of_the_reference(name: str, real_model: RealModel) -> None:
    model = load_model(open_checkpoint(real_model(name)))
    runner = small_runner(model)
    records = json.loads((RECORDS / f"{name}.json").read_text())["greedy"]
    oracle = reference.compile(model, kv=KVCacheSpec(16, 16, "f32"), max_logit_rows=256)
    exact = teacher_forced(oracle, records[0], 256)
    whole = teacher_forced(runner, records[0], 256)
    # Eight-bit activations move the logits by some hundredths of their spread.
    assert np.abs(whole - exact).mean() < 0.1 * exact.std()
    top = np.sort(exact, axis=-1)
    sure = top[:, -1] - top[:, -2] > 1.0
    assert sure.sum() >= 20
    np.testing.assert_array_equal(whole.argmax(-1)[sure], exact.argmax(-1)[sure])
    # The same bits decoded token by token, on one thread.
    alone = small_runner(model, threads=1)
    np.testing.assert_array_equal(teacher_forced(alone, records[0], 1), whole)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_answers_are_those_of_llama_cpp_where_it_is_sure(name: str, real_model: RealModel) -> None:
    runner = small_runner(load_model(open_checkpoint(real_model(name))))
    agreed = []
    for record in json.loads((RECORDS / f"{name}.json").read_text())["greedy"][:5]:
        best = teacher_forced(runner, record, 256).argmax(-1)
        sure = np.asarray(record["gaps"]) > 1.0
        agreed += (best == np.asarray(record["ids"]))[sure].tolist()
    assert len(agreed) > 100
    assert np.mean(agreed) == 1.0


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
