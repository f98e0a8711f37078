"""The reference on the two real models, teacher-forced along llama.cpp's recorded answers.

llama.cpp quantises activations to 8 bits, which moves the logits of these small models by some
tenths; the reference does not. So they must agree wherever llama.cpp was in no doubt.
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
NO_DOUBT = 1.0  # lead of the best token over the second, in logits


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_reference_agrees_with_llama_cpp_where_it_is_sure(
    name: str, real_model: Callable[[str], Path]
) -> None:
    model = load_model(open_checkpoint(real_model(name)))
    runner = reference.compile(model, kv=KVCacheSpec(16, 16, "f32"))
    record = json.loads((RECORDS / f"{name}.json").read_text())["greedy"][0]
    prompt, answer = record["prompt_ids"], record["ids"]
    rows = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
    tokens = (prompt + answer)[:-1]
    logits = runner.forward(make_batch([Chunk(tokens, 0, range(16))], rows))
    sure = np.asarray(record["gaps"]) > NO_DOUBT
    assert sure.sum() >= 20
    assert logits.argmax(-1)[sure].tolist() == np.asarray(answer)[sure].tolist()
