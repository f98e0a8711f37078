"""The store's packed files: what is found, what makes room, what goes with its model."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tidemill import store
from tidemill.store import StoreError, packed

SIZE = 100_000
TAKES = SIZE + 65536


def key(n: int) -> str:
    return f"{n:032x}"


def write(n: int, *, source: str | None = None, used: int | None = None) -> bool:
    image = bytes([n]) * SIZE
    written = packed.write_packed(
        key(n), (source or f"/models/{n}.gguf",), {"number": n}, memoryview(image)
    )
    if written and used is not None:
        path = packed.path_of(key(n))
        os.utime(path, ns=(used * 10**9, path.stat().st_mtime_ns))
    return written


def kept() -> list[int]:
    return [file.header.content["number"] for file in store.list_packed()]


def test_what_was_written_is_found(store_home: Path) -> None:
    assert packed.open_packed(key(7)) is None
    assert write(7)
    assert not write(7), "it is there already"
    opened = packed.open_packed(key(7))
    assert opened is not None
    with opened:
        header = opened.header
        assert opened.sealed
        assert header.sources == ("/models/7.gguf",)
        assert header.content == {"number": 7}
        image = os.pread(opened.descriptor, header.image_bytes + 1, header.image_offset)
    assert image == bytes([7]) * SIZE
    assert header.image_offset % 65536 == 0


def test_pieces_end_where_huge_pages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the page cache keeps the file in huge pages, whatever lies in front of the image."""
    piece = 2 << 20
    monkeypatch.setattr(packed, "_CHUNK_BYTES", piece)
    image = random.Random(0).randbytes(2 * piece + 12345)
    starts: list[int] = []

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        starts.append(offset)
        return put(descriptor, data, offset)

    put = os.pwrite
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert packed.write_packed(key(1), ("/models/1.gguf",), {}, memoryview(image))
    opened = packed.open_packed(key(1))
    assert opened is not None
    with opened:
        offset = opened.header.image_offset
    assert packed.path_of(key(1)).read_bytes()[offset:] == image
    assert starts == [0, offset, piece, 2 * piece]


def test_the_longest_unused_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_PACKED_LIMIT", str(3 * TAKES))
    for n, used in ((1, 3000), (2, 1000), (3, 2000)):
        write(n, used=used)
    assert kept() == [2, 3, 1]
    write(4, used=4000)
    assert kept() == [3, 1, 4]
    opened = packed.open_packed(key(3))
    assert opened is not None
    with opened:
        opened.mark_used()
    write(5)
    assert sorted(kept()) == [3, 4, 5]


def test_marking_as_used_does_not_break_the_seal() -> None:
    write(1, used=1000)
    for _ in range(2):
        opened = packed.open_packed(key(1))
        assert opened is not None
        with opened:
            assert opened.sealed
            opened.mark_used()
    assert store.list_packed()[0].used_ns > 10**18


def test_a_file_over_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write(1)
    monkeypatch.setenv("TIDEMILL_PACKED_LIMIT", str(SIZE))
    assert not write(2)
    assert kept() == [1], "and nothing was removed for it"


def test_a_disk_that_is_nearly_full_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    write(1)
    monkeypatch.setattr(packed, "_disk", lambda: (10**12, 10**9))
    monkeypatch.setattr(packed, "_KEEP_FREE", 2 * 10**9)
    with pytest.raises(OSError, match="would be left free"):
        write(2)
    assert kept() == [1]
    assert not list(packed.packed_folder().glob("*.part"))


def test_files_of_the_same_source_are_replaced() -> None:
    write(1, source="/models/a.gguf")
    write(2, source="/models/b.gguf")
    write(3, source="/models/a.gguf")
    assert sorted(kept()) == [2, 3]


def test_strangers_in_the_folder_are_not_listed_and_not_touched() -> None:
    write(1)
    folder = packed.packed_folder()
    (folder / "notes.txt").write_text("mine")
    (folder / key(9)).write_bytes(b"TIDEPACK" + bytes(100))
    (folder / f"{key(8)}.part").write_bytes(b"of a writer that was killed")
    assert kept() == [1]
    write(2)
    names = sorted(os.listdir(folder))
    assert names == [".lock", key(1), key(2), "notes.txt"]
    store.remove_packed()
    assert sorted(os.listdir(folder)) == [".lock", "notes.txt"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("off", 0),
        ("0", 0),
        ("12345", 12345),
        ("500MB", 500 * 10**6),
        ("20 gb", 20 * 10**9),
        ("1.5TB", 1500 * 10**9),
    ],
)
def test_limits(text: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_PACKED_LIMIT", text)
    assert store.packed_limit() == limit


@pytest.mark.parametrize("text", ["-1", "much", "20 GiB of disk", "1e9", "9" * 40, "nan"])
def test_limits_that_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_PACKED_LIMIT", text)
    with pytest.raises(StoreError, match="TIDEMILL_PACKED_LIMIT"):
        store.packed_limit()


def test_the_default_limit_is_a_share_of_a_small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for total, limit in ((10**12, 20 * 10**9), (8 * 10**9, 800 * 10**6)):
        monkeypatch.setattr(packed, "_disk", lambda total=total: (total, total))
        assert store.packed_limit() == limit


def test_a_removed_model_takes_its_packed_file_with_it(
    store_home: Path, tmp_path: Path, make_gguf: object
) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(make_gguf(5000))  # type: ignore[operator]
    stored = store.pull(model.as_uri())
    write(1, source=str(stored.path))
    write(2, source=str(stored.path) + ".other")
    write(3, source="/elsewhere.gguf")
    freed = store.remove(stored.name)
    assert freed >= 5000 + 2 * TAKES
    assert kept() == [3]


def test_packed_files_of_a_path_or_a_name_are_removed_alone(
    store_home: Path, tmp_path: Path, make_gguf: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(make_gguf(5000))  # type: ignore[operator]
    stored = store.pull(model.as_uri())
    write(1, source=str(stored.path))
    write(2, source=str(model))
    monkeypatch.chdir(tmp_path)
    assert store.remove_packed(store.location("./tiny.gguf")) == TAKES
    assert kept() == [1]
    assert store.remove_packed(store.location(stored.name)) == TAKES
    assert stored.path.is_file()
    assert store.remove_packed(store.location(stored.name)) == 0
