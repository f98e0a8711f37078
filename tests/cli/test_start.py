"""A start loads what one run needs, and nothing more: most of its time is imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each takes from one to a hundred milliseconds.
NOT_NEEDED = {
    "asyncio",
    "concurrent.futures",
    "email",
    "hmac",
    "http.client",
    "huggingface_hub",
    "importlib.metadata",
    "importlib.resources",
    "jinja2",
    "multiprocessing",
    "numpy.fft",
    "numpy.ma",
    "numpy.polynomial",
    "numpy.random",
    "prompt_toolkit",
    "secrets",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "tidemill.backends.reference",
    "tidemill.cli.chat",
    "tidemill.llm.async_llm",
    "tidemill.server",
    "tidemill.store.operations",
    "tidemill.store.transfer",
    "tidemill.text.hf_tokenizer",
    "tokenizers",
    "tomllib",
    "tqdm",
}

MARK = "modules:"
LISTED = f"""
import sys
from tidemill.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("{MARK}", *sys.modules, file=sys.stderr)
"""


def loaded(env: dict[str, str], *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LISTED, *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stderr.partition(MARK)[2].split())


@pytest.mark.parametrize("prompt", ["Hello", "The capital of France is"])
def test_a_plain_run(tiny_chat_model: Path, cli_env: dict[str, str], prompt: str) -> None:
    modules = loaded(cli_env, "run", str(tiny_chat_model), prompt, "--raw", "-n", "2")
    assert "tidemill.engine.engine" in modules
    assert not modules & NOT_NEEDED


def test_a_chat_loads_its_template_engine_and_no_more(
    tiny_chat_model: Path, cli_env: dict[str, str]
) -> None:
    modules = loaded(cli_env, "run", str(tiny_chat_model), "Hello", "-n", "2")
    assert "jinja2" in modules
    assert not modules & (NOT_NEEDED - {"jinja2", "shutil", "tempfile"})


def test_help_loads_no_numpy(cli_env: dict[str, str]) -> None:
    modules = loaded(cli_env, "run", "--help")
    assert "tidemill.cli.run" in modules
    unwanted = NOT_NEEDED - {"shutil"} | {"numpy", "tidemill._native", "tidemill.llm.llm"}
    assert not modules & unwanted
