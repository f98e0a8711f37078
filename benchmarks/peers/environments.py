"""Where the peers live: virtual environments and builds outside the tree, made once.

Everything lies below $TIDEMILL_PEERS, by default ~/.cache/tidemill-peers. A stamp file written
last tells a finished environment from one whose making was cut short, which is made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PATIENCE = 3600  # seconds for one step of an installation


class InstallError(RuntimeError):
    """A peer could not be had; the message says which step failed and how."""


def root() -> Path:
    return Path(os.environ.get("TIDEMILL_PEERS", "~/.cache/tidemill-peers")).expanduser()


def environment(name: str, requirements: Sequence[str], *, remove: Sequence[str] = ()) -> Path:
    """The interpreter of the virtual environment ``name`` that holds ``requirements``.

    ``remove``: packages that come along as dependencies and break the peer.
    """
    folder = root() / name / "env"
    stamp = folder / "requirements.txt"
    wanted = "\n".join([*requirements, *(f"# without {package}" for package in remove)]) + "\n"
    python = folder / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    step("make a virtual environment", [sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    step(f"install {' '.join(requirements)}", [*pip, "install", *requirements])
    if remove:
        step(f"remove {' '.join(remove)}", [*pip, "uninstall", "-y", *remove])
    stamp.write_text(wanted)
    return python


def step(what: str, command: Sequence[str], cwd: Path | None = None) -> None:
    """Run one step of an installation; raises InstallError with the end of what it said."""
    print(f"  {what} ...", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{what}: {error}") from error
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if line and "WARNING" not in line]
        raise InstallError(f"{what}: " + " | ".join(said[-3:])[-400:])
