"""Ollama, which is told of the model after its start; a program stands for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import fake_ollama
from tidemill.bench.engines import ENGINES, Launch, TargetError, started

OLLAMA = ENGINES["ollama"]


def launch(folder: Path, how: str = "well") -> Launch:
    model = folder / "m.gguf"
    model.touch()
    own = folder / "own"
    own.mkdir()
    return Launch(
        model=model, context=300, sequences=4, threads=1, folder=own,
        binary=str(fake_ollama.write(folder, how)),
    )  # fmt: skip


def told(folder: Path) -> list[str]:
    return (folder / "told").read_text().splitlines()


def test_the_model_is_created_once_and_loaded_at_each_start(tmp_path: Path) -> None:
    settings = launch(tmp_path)
    assert OLLAMA.version(settings.binary) == "0.21.2"
    assert OLLAMA.files(settings) == []
    for _ in range(2):
        with started(OLLAMA, settings) as process:
            phases = process.until_ready(60)
            assert 0 < phases.listening <= phases.ready
    host = f"127.0.0.1:{process.port}"
    first, create, load, again, load_again = told(tmp_path)
    assert first == again == "serve 300 4"
    assert create.startswith(f"create model FROM {tmp_path}/m.gguf 127.0.0.1:")
    assert load == load_again == '/api/generate {"model": "model"}'
    assert process.url == f"http://{host}/v1"
    # What is to be taken out of the page cache for a cold start is its own copy, too.
    assert OLLAMA.files(settings) == [tmp_path / "own/models/blobs/sha256-1"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cannot create", r"`ollama create` failed: Error: unsupported architecture"),
        ("cannot load", r"does not load the model: .*not enough memory"),
    ],
)
def test_what_ollama_cannot_is_said(tmp_path: Path, how: str, said: str) -> None:
    with (
        started(OLLAMA, launch(tmp_path, how)) as process,
        pytest.raises(TargetError, match=said),
    ):
        process.until_ready(60)
