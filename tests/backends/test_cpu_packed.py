"""Packed weights kept between runs: bit-equal answers, whatever happens to the file."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.batches import Chunk, make_batch
from support.tiny_models import CASE, write_folder, write_gguf
from tidemill.backends import cpu
from tidemill.backends.base import KVCacheSpec, Origin
from tidemill.backends.cpu import packed
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.models import Model, load_model
from tidemill.store import packed as store
from tidemill.weights import open_checkpoint

PROMPT = make_batch([Chunk([5, 6, 7, 1, 2], 0, [3, 2])])
ORIGIN = Origin("content one", ("/models/a.gguf",))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of this test's own, that keeps packed weights however few."""
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "store"))
    monkeypatch.delenv("TIDEMILL_PACKED_LIMIT", raising=False)
    monkeypatch.setattr(packed, "LEAST_BYTES", 1)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("llama") / "model.gguf"
    return load_model(open_checkpoint(write_gguf(CASE["llama"], path, quantise="Q4_1")))


def load(model: Model, origin: Origin | None = ORIGIN, **options: Any) -> CpuRunner:
    options = {"kv": KVCacheSpec(4, 8, "f16"), "threads": 2, "max_batch_tokens": 8, **options}
    return cpu.compile(model, origin=origin, **options)


def run(model: Model, origin: Origin | None = ORIGIN, **options: Any) -> tuple[bool, bytes]:
    """Whether the weights came from a packed file, and the bits of the logits."""
    runner = load(model, origin, **options)
    try:
        return runner.weights_are_mapped, runner.forward(PROMPT).tobytes()
    finally:
        runner.close()


def kept() -> list[Path]:
    return [file.path for file in store.list_packed()]


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "qwen2"])
def test_the_second_start_maps_the_same_weights(name: str, tmp_path: Path) -> None:
    """Norms with their transforms, stacks of experts and biases are in the file as well."""
    model = load_model(open_checkpoint(write_folder(CASE[name], tmp_path / name)))
    was_mapped, expected = run(model, origin=None)
    assert not was_mapped
    assert not kept()
    assert run(model) == (False, expected)
    assert run(model) == (True, expected)
    assert run(model, threads=1, max_batch_tokens=5) == (True, expected)
    store.remove_packed()
    assert run(model) == (False, expected)


def test_other_content_is_another_file_and_replaces_the_old_one(model: Model) -> None:
    run(model)
    (before,) = kept()
    assert run(model, Origin("content two", ORIGIN.files))[0] is False
    (after,) = kept()
    assert after != before


def test_the_same_content_elsewhere_is_found(model: Model) -> None:
    run(model)
    assert run(model, Origin(ORIGIN.identity, ("/moved/b.gguf",)))[0] is True


def test_another_packed_layout_is_another_file(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model)
    monkeypatch.setattr(packed._native, "pack_fingerprint", lambda: 1)
    assert run(model)[0] is False


def test_the_recipe_of_a_weight_is_part_of_the_key(model: Model) -> None:
    """The same file read another way (a transform added, other rows) gives other bytes."""
    run(model)
    name = next(name for name, source in model.weights.sources.items() if len(source.shape) == 1)
    source: Any = model.weights.sources[name]
    from tidemill.models.sources import ModelWeights, PlusOne

    weights = ModelWeights({**model.weights.sources, name: PlusOne(source.tensor)})
    other = dataclasses.replace(model, weights=weights)
    was_mapped, logits = run(other)
    assert not was_mapped
    assert logits != run(model, origin=None)[1]


def test_few_weights_are_not_worth_a_file(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_BYTES", 1 << 30)
    run(model)
    assert not kept()


def test_it_can_be_turned_off(model: Model, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("TIDEMILL_PACKED_LIMIT", "off")
    run(model)
    assert not (home / "packed").exists()


def test_a_plan_tells_what_will_be_mapped(model: Model) -> None:
    limits: dict[str, Any] = {"kv": KVCacheSpec(4, 8, "f16"), "threads": 2}
    before = cpu.plan(model, origin=ORIGIN, **limits)
    run(model)
    after = cpu.plan(model, origin=ORIGIN, **limits)
    assert before.mapped == 0
    assert after == dataclasses.replace(before, mapped=before.weights)


def test_mapped_weights_take_no_memory_of_their_own(model: Model) -> None:
    run(model)
    runner = load(model)
    weights, _, _ = runner.allocated_bytes()
    assert weights == cpu.plan(model, kv=KVCacheSpec(4, 8, "f16"), threads=2).weights
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    (line,) = [line for line in maps.splitlines() if str(kept()[0]) in line]
    assert line.split()[1] == "r--s"
    runner.close()


# ---- damaged and hostile files


def header_bit(byte: int) -> Callable[[bytearray], None]:
    def flip(data: bytearray) -> None:
        data[byte] ^= 1

    return flip


def cut(data: bytearray) -> None:
    del data[-1:]


def cut_to_the_header(data: bytearray) -> None:
    del data[1000:]


def lengthen(data: bytearray) -> None:
    data += b"\0" * 4096


def empty(data: bytearray) -> None:
    data.clear()


def last_byte(data: bytearray) -> None:
    data[-100] ^= 0x10


def first_weight(data: bytearray) -> None:
    data[1 << 16] ^= 0x80


def no_image(data: bytearray) -> None:
    data[1 << 16 :] = bytes(len(data) - (1 << 16))


DAMAGE = [
    header_bit(0), header_bit(8), header_bit(12), header_bit(16), header_bit(40), header_bit(200),
    cut, cut_to_the_header, lengthen, empty, last_byte, first_weight, no_image,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_packed_anew(model: Model, damage: Callable[[bytearray], None]) -> None:
    _, expected = run(model)
    (path,) = kept()
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    assert run(model) == (False, expected)
    assert run(model) == (True, expected)


def test_a_copied_file_is_read_once_and_then_trusted(model: Model) -> None:
    """A copy has another modification time: it is compared with its checksums."""
    _, expected = run(model)
    (path,) = kept()
    os.utime(path)
    assert store_seal(path) is False
    assert run(model) == (True, expected)
    assert store_seal(path) is True


def store_seal(path: Path) -> bool:
    opened = store.open_packed(path.name)
    assert opened is not None
    with opened:
        return opened.sealed


def test_headers_that_lie_do_no_harm(model: Model) -> None:
    """A header with a right checksum and wrong places, sizes or kinds of content."""
    import json
    import struct
    import zlib

    _, expected = run(model)
    (path,) = kept()
    good = path.read_bytes()
    _, _, length, _ = struct.unpack_from("<8sIII", good)
    fields = json.loads(good[20 : 20 + length])
    lies: list[dict[str, Any]] = [
        {"content": {}},
        {"content": []},
        {"content": {"parts": [["x"]]}},
        {"content": {"parts": [[n, o + 64, s, c] for n, o, s, c in fields["content"]["parts"]]}},
        {"image_bytes": fields["image_bytes"] - 65536, "image_offset": 1 << 17},
        {"image_bytes": -1},
        {"image_offset": 10**30},
        {"image_offset": "many"},
        {"key": "0" * 32},
        {"sealed_ns": None},
        {"sources": 3},
    ]
    for lie in lies:
        encoded = json.dumps({**fields, **lie}).encode()
        frame = struct.pack("<8sIII", b"TIDEPACK", 1, len(encoded), zlib.crc32(encoded)) + encoded
        assert len(frame) < 1 << 16
        path.write_bytes(frame.ljust(1 << 16, b"\0") + good[1 << 16 :])
        assert run(model) == (False, expected), lie
        path = kept()[0]


def test_links_and_pipes_are_not_followed(model: Model, tmp_path: Path) -> None:
    _, expected = run(model)
    (path,) = kept()
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert run(model) == (False, expected)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert run(model) == (False, expected)
    assert elsewhere.is_file()


# ---- what the disk refuses


def test_a_store_that_cannot_be_written_costs_nothing_but_the_file(
    model: Model, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("a file where the folder should be")
    was_mapped, logits = run(model)
    assert (was_mapped, logits) == run(model, origin=None)
    (note,) = [r.message for r in caplog.records if "not kept" in r.message]
    assert "packed" in note


def test_a_read_only_store_is_used_and_not_written(model: Model, home: Path) -> None:
    """As root the folder's mode is no hindrance, so the system calls are told to refuse."""
    _, expected = run(model)
    script = f"""
        import os, sys
        for name in ("open", "utime", "unlink", "mkdir", "replace"):
            real = getattr(os, name)
            def refuse(path, *arguments, real=real, name=name, **options):
                writes = name != "open" or arguments and arguments[0] & (os.O_WRONLY | os.O_CREAT)
                if writes and (isinstance(path, int) or {str(home)!r} in str(path)):
                    raise OSError(30, "Read-only file system", str(path))
                return real(path, *arguments, **options)
            setattr(os, name, refuse)
    """
    assert child(model, script) == (True, expected)
    store.remove_packed()
    assert child(model, script) == (False, expected)
    assert not kept()


def test_a_full_disk_leaves_nothing_behind(
    model: Model, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import errno

    def full(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        _, expected = run(model)
    assert os.listdir(home / "packed") == [".lock"]
    assert "No space left on device" in caplog.text
    assert run(model) == (False, expected)
    assert run(model) == (True, expected)


# ---- several processes


PREPARE = f"""
    import sys
    sys.path[:0] = {[p for p in sys.path if p]!r}
    from pathlib import Path
    from tidemill.backends import cpu
    from tidemill.backends.base import KVCacheSpec, Origin
    from tidemill.backends.cpu import packed
    from tidemill.models import load_model
    from tidemill.weights import open_checkpoint
    from support.batches import Chunk, make_batch
    packed.LEAST_BYTES = 1
    def load():
        return cpu.compile(
            load_model(open_checkpoint(Path(sys.argv[1]))), kv=KVCacheSpec(4, 8, "f16"),
            threads=2, max_batch_tokens=8, origin=Origin({ORIGIN.identity!r}, {ORIGIN.files!r}),
        )
"""
ANSWER = """
    runner = load()
    logits = runner.forward(make_batch([Chunk([5, 6, 7, 1, 2], 0, [3, 2])])).tobytes()
    runner.close()
    print(int(runner.weights_are_mapped), logits.hex())
"""


def start(model: Model, *scripts: str) -> subprocess.Popen[str]:
    source: Any = next(iter(model.weights.sources.values()))
    path = mapped_path(source.tensor.data)
    code = "\n".join(textwrap.dedent(script) for script in scripts)
    return subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)


def mapped_path(data: np.ndarray) -> str:
    """The file that an array is a view of."""
    address = data.ctypes.data
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split(maxsplit=5)[5]
    raise AssertionError("not mapped")


def child(model: Model, script: str) -> tuple[bool, bytes]:
    process = start(model, PREPARE, script, ANSWER)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    was_mapped, logits = out.split()
    return was_mapped == "1", bytes.fromhex(logits)


def test_processes_that_start_at_once_all_answer(model: Model) -> None:
    _, expected = run(model, origin=None)
    processes = [start(model, PREPARE, ANSWER) for _ in range(4)]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert bytes.fromhex(out.split()[1]) == expected
    assert len(kept()) == 1
    assert run(model) == (True, expected)


@pytest.mark.parametrize("when", ["pwrite", "fsync", "replace"])
def test_a_killed_writer_leaves_nothing_that_loads(model: Model, home: Path, when: str) -> None:
    script = f"""
        import os, time
        def stop(*arguments):
            print("now", flush=True)
            time.sleep(60)
        os.{when} = stop
        load()
    """
    _, expected = run(model, origin=None)
    process = start(model, PREPARE, script)
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    process.stdout.close()
    assert [path for path in os.listdir(home / "packed") if path.endswith(".part")]
    assert not kept()
    assert run(model) == (False, expected)
    assert sorted(os.listdir(home / "packed")) == [".lock", kept()[0].name]
    assert run(model) == (True, expected)


def test_a_file_in_use_may_be_evicted(model: Model, home: Path) -> None:
    _, expected = run(model)
    runner = load(model)
    store.remove_packed()
    assert not kept()
    assert runner.forward(PROMPT).tobytes() == expected
    runner.close()
    assert run(model) == (False, expected)


def test_closing_waits_for_the_file(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.2)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    load(model).close()
    assert len(kept()) == 1
