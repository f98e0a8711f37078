from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill import LLM


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_chat_model), max_sequences=8, threads=1) as model:
        yield model
