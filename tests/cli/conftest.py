"""Runs the command line in processes of its own, with a model store that is empty."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Tidemill = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli_env(tmp_path: Path) -> dict[str, str]:
    return {"TIDEMILL_HOME": str(tmp_path / "home"), "TIDEMILL_THREADS": "1"}


@pytest.fixture
def tidemill(cli_env: dict[str, str]) -> Tidemill:
    def run(*arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidemill", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **cli_env, **env},
        )

    return run
