"""The identity of a checkpoint's content: the same for the same, another for whatever changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.tiny_models import CASE, write_gguf
from tidemill.weights import open_checkpoint
from tidemill.weights.identity import content_identity


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(CASE["llama"], tmp_path / "model.gguf")


def identity(path: Path, later: float = 10) -> str | None:
    """As it will be some seconds after the last change."""
    now = path.stat().st_ctime_ns + int(later * 1e9)
    return content_identity(open_checkpoint(path), now_ns=now)


def test_it_stays_while_nothing_changes(path: Path) -> None:
    assert identity(path) == identity(path, later=1000) is not None


def test_it_follows_a_moved_folder(path: Path, tmp_path: Path) -> None:
    before = identity(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(path, folder)
    first = identity(folder / path.name)
    folder.rename(tmp_path / "renamed")
    assert identity(tmp_path / "renamed" / path.name) == first != before


def test_a_changed_weight_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    """Even where no sample is taken: nobody can set the time of change of status."""
    before, status = identity(path), path.stat()
    data = open_checkpoint(path).tensors["token_embd.weight"].data
    place = path.read_bytes().index(data.tobytes()) + data.nbytes // 2
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff\xff\xff\xff")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert identity(path) != before


def test_a_file_that_changed_just_now_has_none(path: Path) -> None:
    assert identity(path, later=0.5) is None
    assert identity(path, later=-0.5) is None
    assert identity(path, later=2.5) is not None


def test_a_file_that_is_gone_has_none(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    path.unlink()
    assert content_identity(checkpoint) is None
