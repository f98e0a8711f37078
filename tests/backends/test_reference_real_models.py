"""The reference on the two real models, teacher-forced along llama.cpp's recorded answers.

The answers are those on the weights expanded to float32, where llama.cpp rounds no activations
either (see oracles/make_llama_cpp.py). So they must agree wherever it was not at a near-tie.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from tidemill.backends import reference
from tidemill.backends.base import KVCacheSpec
from tidemill.models import load_model
from tidemill.weights import open_checkpoint

RECORDS = Path(__file__).parents[1] / "fixtures" / "llama_cpp"
NEAR_TIE = 0.05  # lead of the best token over the second, in logits


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_reference_agrees_with_llama_cpp(name: str, real_model: Callable[[str], Path]) -> None:
    model = load_model(open_checkpoint(real_model(name)))
    runner = reference.compile(model, kv=KVCacheSpec(16, 16, "f32"))
    record = json.loads((RECORDS / f"{name}.json").read_text())["float"][0]
    prompt, answer = record["prompt_ids"], record["ids"]
    rows = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
    tokens = (prompt + answer)[:-1]
    logits = runner.forward(make_batch([Chunk(tokens, 0, range(16))], rows))
    sure = np.asarray(record["gaps"]) > NEAR_TIE
    assert sure.sum() >= 50
    assert logits.argmax(-1)[sure].tolist() == np.asarray(answer)[sure].tolist()
