"""Files of KV blocks: what was written comes back or is not there, whatever became of the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tidemill import store
from tidemill.store import kv
from tidemill.store.kv import KVFile, open_kv_file

BLOCK = 5000  # takes two pages
SLOT = 8192 + 64
MODEL = {"model": "a", "version": "1"}
pytestmark = pytest.mark.usefixtures("store_home")


def name(n: int) -> bytes:
    return hashlib.sha256(str(n).encode()).digest()


def content(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, BLOCK, np.uint8)


def opened(
    identity: dict[str, str] = MODEL, *, slots: int = 100, source: str = "/models/a.gguf"
) -> KVFile:
    file = open_kv_file(identity, [source], block_bytes=BLOCK, limit=slots * SLOT)
    assert file is not None
    return file


def write(file: KVFile, *numbers: int) -> None:
    for n in numbers:
        file.write(name(n), content(n))


def read(file: KVFile, n: int) -> bool:
    """Whether block ``n`` is there; it must be right then."""
    data = np.zeros(BLOCK, np.uint8)
    found = file.read(name(n), data)
    assert not found or (data == content(n)).all()
    return found


def there(file: KVFile, numbers: range | list[int]) -> list[int]:
    return [n for n in numbers if read(file, n)]


def folder() -> Path:
    (found,) = (path for path in kv.kv_folder().iterdir() if path.is_dir())
    return found


def test_what_was_written_is_read_by_the_next_process() -> None:
    file = opened()
    write(file, 1, 2, 3)
    assert there(file, range(1, 5)) == [1, 2, 3]
    file.close()
    file.close()
    again = opened()
    assert len(again) == 3
    assert name(2) in again
    assert name(4) not in again
    assert there(again, range(1, 5)) == [1, 2, 3]
    write(again, 4)
    again.close()
    assert there(opened(), range(1, 5)) == [1, 2, 3, 4]


def test_only_the_owner_may_read_them() -> None:
    write(opened(), 1)
    assert stat.S_IMODE(kv.kv_folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    for file in ("index", "blocks"):
        assert stat.S_IMODE((folder() / file).stat().st_mode) == 0o600


def test_the_least_recently_used_makes_room_and_the_file_stays_within_its_limit() -> None:
    file = opened(slots=4)
    write(file, 1, 2, 3, 4)
    file.use([name(1), name(2), name(9)])
    write(file, 5)
    assert there(file, range(1, 6)) == [1, 2, 4, 5]
    write(file, 6)
    assert there(file, range(1, 7)) == [1, 2, 5, 6]
    write(file, 7)  # of those that follow each other, the last goes first
    assert there(file, range(1, 8)) == [1, 5, 6, 7]
    write(file, *range(10, 40))
    assert len(file) == 4
    file.close()
    assert sum((folder() / each).stat().st_size for each in ("index", "blocks")) <= 4 * SLOT


def test_the_order_of_use_outlives_the_process() -> None:
    file = opened(slots=4)
    write(file, 1, 2, 3, 4)
    file.use([name(2)])
    file.use([name(1)])
    file.close()
    file = opened(slots=4)
    write(file, 5, 6)
    assert there(file, range(1, 7)) == [1, 2, 5, 6]


def test_a_smaller_limit_leaves_as_many_as_fit() -> None:
    file = opened(slots=10)
    write(file, *range(10))
    file.close()
    file = opened(slots=3)
    assert len(there(file, range(10))) == 3
    write(file, 20)
    assert len(there(file, [*range(10), 20])) == 3
    file.close()
    assert (folder() / "blocks").stat().st_size <= 3 * 8192
    assert len(opened(slots=10)) == 3


def test_a_flipped_bit_costs_its_block() -> None:
    file = opened()
    write(file, *range(8))
    file.close()
    blocks = folder() / "blocks"
    for n, at in ((2, 0), (5, BLOCK - 1)):
        with open(blocks, "r+b") as raw:
            raw.seek(n * 8192 + at)
            byte = raw.read(1)[0]
            raw.seek(n * 8192 + at)
            raw.write(bytes([byte ^ 16]))
    file = opened()
    for n in (2, 5):
        with pytest.raises(ValueError, match="bytes that were written"):
            read(file, n)
        assert name(n) not in file
    assert there(file, range(8)) == [0, 1, 3, 4, 6, 7]
    write(file, 2)
    assert read(file, 2)


def test_a_file_that_was_cut_off_loses_what_was_cut() -> None:
    file = opened()
    write(file, *range(8))
    file.close()
    os.truncate(folder() / "blocks", 5 * 8192 + 100)
    os.truncate(folder() / "index", 7 * 64 + 63)
    file = opened()
    with pytest.raises(ValueError, match="bytes that were written"):
        read(file, 5)
    assert there(file, range(8)) == [0, 1, 2, 3, 4]
    write(file, *range(8, 20))
    assert there(file, range(20)) == [0, 1, 2, 3, 4, *range(8, 20)]


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(10_000))


def _json(path: Path) -> None:
    path.write_text('{"sources": 5, "identity": [1]}')


def _directory_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent)


def _link(path: Path) -> None:
    target = path.parent.parent.parent / "precious"
    target.write_bytes(b"do not touch")
    path.unlink()
    path.symlink_to(target)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil", [Path.unlink, _empty, _noise, _json, _link, _pipe, _directory_link]
)
@pytest.mark.parametrize("which", ["index", "blocks", "about.json"])
def test_spoiled_files_cost_blocks_and_nothing_else(
    which: str, spoil: Callable[[Path], None], store_home: Path
) -> None:
    file = opened(slots=10)
    write(file, *range(8))
    file.close()
    spoil(folder() / which)
    assert len(store.list_kv()) == 1
    file = opened(slots=10)
    for n in range(8):
        try:
            read(file, n)
        except ValueError:
            assert name(n) not in file
    write(file, *range(20, 30))
    assert there(file, range(20, 30)) == list(range(20, 30))
    assert len(file) == 10
    file.close()
    assert there(opened(slots=10), range(20, 30)) == list(range(20, 30))
    precious = store_home / "precious"
    assert not precious.exists() or precious.read_bytes() == b"do not touch"


def test_an_index_cannot_make_anything_be_read_that_is_not_there() -> None:
    """Entries of every kind: names twice, times of use of all sizes, checksums of other blocks."""
    file = opened()
    write(file, *range(8))
    file.close()
    rng = random.Random(3)
    index = folder() / "index"
    good = index.read_bytes()
    for _ in range(60):
        raw = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            a, b = (rng.randrange(8) * 64 for _ in range(2))
            part = rng.choice([slice(0, 32), slice(32, 40), slice(40, 48), slice(0, 64)])
            piece = raw[a : a + 64][part]
            raw[b + part.start : b + part.stop] = rng.choice(
                [piece, bytes(len(piece)), bytes([255]) * len(piece), rng.randbytes(len(piece))]
            )
        index.write_bytes(raw)
        file = opened()
        for n in range(8):
            try:
                read(file, n)
            except ValueError:
                assert name(n) not in file
        write(file, *(n for n in range(8) if name(n) not in file))
        assert there(file, range(8)) == list(range(8))
        file.close()


@pytest.mark.parametrize("slots_there", [0, 3])
def test_a_full_disk_leaves_what_there_is_in_use(
    monkeypatch: pytest.MonkeyPatch, slots_there: int
) -> None:
    file = opened()
    write(file, *range(slots_there))
    real = os.pwrite

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor == file._blocks and offset >= slots_there * 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left"):
        write(file, 10)
    assert there(file, [*range(3), 10]) == list(range(slots_there))
    if slots_there:
        for n in range(11, 20):
            write(file, n)  # in the place of others
        assert there(file, range(20)) == [17, 18, 19]
    else:
        with pytest.raises(OSError):
            write(file, 11)


@pytest.mark.parametrize(("number", "left"), [(errno.ENOSPC, 4), (errno.EIO, 2)])
def test_overwriting_may_fail_as_well(
    monkeypatch: pytest.MonkeyPatch, number: int, left: int
) -> None:
    """Copy-on-write file systems need room for it, and have some again later. What is bad stays."""
    file = opened(slots=4)
    write(file, 1, 2, 3, 4)

    def pwrite(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        for n in (5, 6):
            with pytest.raises(OSError):
                write(file, n)
    write(file, *range(10, 20))
    assert len(file) == left
    assert there(file, range(20)) == list(range(20 - left, 20))


def test_some_of_the_disk_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened()
    write(file, 1, 2)
    free = os.fstatvfs(file._blocks)
    monkeypatch.setattr(kv, "_KEEP_FREE", free.f_frsize * free.f_bavail + 10**12)
    write(file, 3)
    assert there(file, range(1, 4)) == [2, 3]


def test_processes_have_files_of_their_own() -> None:
    first = opened()
    second = opened()
    write(first, 1)
    write(second, 2)
    assert there(first, [1, 2]) == [1]
    assert there(second, [1, 2]) == [2]
    first.close()
    assert there(opened(), [1, 2]) == [1]
    assert len(store.list_kv()) == 2


def test_files_that_nobody_has_used_for_a_week_are_removed() -> None:
    """Those of processes that ran beside each other once, and of models that came and went."""
    files = [opened(), opened(), opened(), opened({"model": "b"}, source="/models/b.gguf")]
    for file in files:
        write(file, 1)
    for file in files[:2] + files[3:]:
        file.close()
    for entry in kv.kv_folder().iterdir():
        if entry.is_dir():
            os.utime(entry / "index", (time.time() - 8 * 86400,) * 2)
    first = opened()
    left = sorted(kept.path.suffix for kept in store.list_kv())
    assert left == [".0", ".2"]  # the one that is opened, and the one in use
    assert there(first, [1]) == []
    assert there(files[2], [1]) == [1]
    first.close()
    files[2].close()
    assert there(opened(), [1]) == []
    assert len(store.list_kv()) == 2


def test_only_so_many_files_at_once() -> None:
    files = [open_kv_file(MODEL, ["/a"], block_bytes=BLOCK, limit=SLOT) for _ in range(17)]
    assert files.index(None) == 16


def test_a_killed_process_leaves_what_it_has_written(tmp_path: Path) -> None:
    code = """
import os, signal
from store.test_store_kv import opened, write
file = opened()
write(file, *range(50))
os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tests)}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert there(opened(), range(60)) == list(range(50))


def test_what_depends_on_something_else_is_never_read() -> None:
    file = opened()
    write(file, 1)
    file.close()
    for other in ({**MODEL, "version": "2"}, {**MODEL, "model": "b"}, {"model": "a"}):
        assert name(1) not in opened(other, source="/elsewhere")
    assert open_kv_file(MODEL, ["/a"], block_bytes=BLOCK + 1, limit=10 * SLOT) is not None
    assert there(opened(), [1]) == [1]


def test_a_changed_model_replaces_its_file_unless_that_is_in_use() -> None:
    used = opened({**MODEL, "version": "0"})
    old = opened()
    write(old, 1)
    other = opened({**MODEL, "model": "b"}, source="/models/b.gguf")
    write(other, 1)
    other.close()
    old.close()
    new = opened({**MODEL, "version": "2"})
    assert len(store.list_kv()) == 3
    new.close()
    used.close()
    assert len(opened()) == 0


def test_files_are_removed_with_their_model_or_alone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for source in (model / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"):
        file = opened({"model": source.name}, source=str(source))
        write(file, 1)
        file.close()
    assert store.remove_kv(tmp_path / "nothing") == 0
    assert store.remove_kv(model) > BLOCK
    assert store.remove_kv(tmp_path / "b.gguf") > BLOCK
    (left,) = store.list_kv()
    assert left.sources == (str(tmp_path / "c.gguf"),)
    assert left.bytes > BLOCK
    using = opened({"model": "c.gguf"}, source=left.sources[0])
    assert store.remove_kv() > BLOCK
    assert store.list_kv() == []
    assert store.remove_kv() == 0
    assert read(using, 1)  # who has it open keeps it
