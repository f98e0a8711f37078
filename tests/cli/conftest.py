"""Runs the command line in this process, with a model store that is empty."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.mine import MINE
from tidemill.bench.selftest import mock_server
from tidemill.cli.main import main


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Tidemill = Callable[..., Finished]


@pytest.fixture
def cli_env(tmp_path: Path) -> dict[str, str]:
    return {"TIDEMILL_HOME": str(tmp_path / "home"), "TIDEMILL_THREADS": "1"}


@pytest.fixture
def tidemill(
    cli_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tidemill:
    """``tidemill("run", model, "Hello", stdin="", NAME="value of an environment variable")``"""

    def run(*arguments: str, stdin: str = "", **env: str) -> Finished:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in {**cli_env, **env}.items():
                patch.setenv(name, value)
            patch.setattr("sys.stdin", io.StringIO(stdin))
            with pytest.raises(SystemExit) as left:
                main(list(arguments))
        shown = capsys.readouterr()
        return Finished(int(left.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of an endpoint whose first token takes 10 ms."""
    with mock_server(0.01, 0.002) as found:
        yield found


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path
