"""The thread team's own test, which is C++: built and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_team(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a C++ compiler is needed (it built the native module)"
    program = tmp_path / "team_selftest"
    sources = [
        ROOT / "csrc" / "team.cpp",
        ROOT / "csrc" / "cores.cpp",
        ROOT / "tests" / "native" / "cpp" / "team_selftest.cpp",
    ]
    subprocess.run(
        [*compiler.split(), "-std=c++20", "-O1", "-pthread", f"-I{ROOT / 'csrc'}",
         *map(str, sources), "-o", str(program)],
        check=True, timeout=200,
    )  # fmt: skip
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert "thread team: ok" in run.stdout
