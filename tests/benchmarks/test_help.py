"""Every benchmark can be asked what it does."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help(script: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert f"usage: {script.name}" in shown.stdout
