"""What a longer prompt makes resident, in a process of its own: KV memory, and no more of it than
is still read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1 << 20
SCRIPT = """
import sys
from pathlib import Path
from tidemill import LLM, SamplingParams

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

llm = LLM(
    sys.argv[1], threads=2, max_context=4096, max_sequences=1, prefix_caching=False,
    speculative="off", keep_packed=False,
)
def growth(length):
    before = resident()
    prompt = [300 + 7 * i % 9000 for i in range(length)]
    llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=2))
    return resident() - before

growth(1024)  # touches all weights, and scratch
print(llm.core.compiled.cache.plan.kv, growth(3072))
"""


# Of Gemma's 18 layers all but 3 have a window of 512.
@pytest.mark.parametrize(("name", "share"), [("smollm2", 1.0), ("gemma3", 3 / 18)])
def test_a_longer_prompt_grows_by_the_kv_that_is_still_read(
    name: str, share: float, real_model: Callable[[str], Path]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(real_model(name))],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    kv, growth = (int(word) for word in run.stdout.split())
    # The blocks of the first prompt, 1024 of 4096 tokens, are used again.
    assert growth == pytest.approx(kv * share / 2, abs=2 * MIB)
