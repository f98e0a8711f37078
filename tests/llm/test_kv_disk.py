"""KV blocks on disk, through LLM: equal answers with them, without, and after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.tiny_chat_model import write_chat_model
from support.waiting import until
from tidemill import LLM, AsyncLLM, SamplingParams, store
from tidemill.backends.base import KVDtype
from tidemill.engine import kv_tier
from tidemill.engine.base import TierStats
from tidemill.llm import kv_disk
from tidemill.store.kv import KVFile, open_kv_file

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = {"prompt_token_ids": [(11 * i + i // 13) % 256 for i in range(500)]}
FULL = 496  # of its tokens, in blocks of 16: the last token is always computed


@pytest.fixture(autouse=True)
def store_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model is computed faster than some disks are read, and machines may stand still."""
    monkeypatch.setattr(kv_disk.DiskTier, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(kv_tier, "_LEAST_PATIENCE", 60.0)
    monkeypatch.setattr(kv_disk, "_CLOSE_SECONDS", 60.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_chat_model(tmp_path_factory.mktemp("kv") / "model.gguf")
    old = time.time() - 60  # only its change of status is fresh
    os.utime(path, (old, old))
    return path


def opened(model: Path, **options: Any) -> LLM:
    return LLM(model, threads=1, **{"kv_disk": "64MiB", **options})


def answer(llm: LLM, prompt: dict[str, list[int]] = PROMPT) -> tuple[list[int], int]:
    """The tokens of the answer, and how many of the prompt's had not to be computed."""
    (output,) = llm.generate(prompt, GREEDY)
    assert output.error is None
    return list(output.outputs[0].token_ids), output.num_cached_tokens


def tier_of(llm: LLM) -> TierStats:
    tier = llm.core.driver.engine.stats.tier
    assert tier is not None
    return tier


def files(home: Path, name: str) -> list[Path]:
    return sorted((home / "kv").glob(f"*/{name}"))


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "f32"])
def test_a_restart_is_warm_and_its_answers_are_equal(model: Path, dtype: KVDtype) -> None:
    with opened(model, kv_dtype=dtype, kv_disk=None) as plain:
        expected, _ = answer(plain)
    with opened(model, kv_dtype=dtype) as first:
        assert answer(first) == (expected, 0)
    with opened(model, kv_dtype=dtype) as second:
        assert answer(second) == (expected, FULL)
        assert tier_of(second).read == FULL // 16
        assert second.core.driver.engine.stats.restored_tokens == FULL
        # The conversation goes on: what was answered is known as well.
        longer = {"prompt_token_ids": [*PROMPT["prompt_token_ids"], *expected, 1, 2]}
        went_on = answer(second, longer)
        assert went_on[1] >= FULL
    with opened(model, kv_dtype=dtype, kv_disk=None) as plain:
        assert answer(plain, longer)[0] == went_on[0]


def test_a_real_model_with_windows_goes_on_where_it_was(
    real_model: Callable[[str], Path],
) -> None:
    """Gemma 3: 15 of 18 layers see 512 tokens. All of them are kept."""
    prompt = {"prompt_token_ids": [2, *((37 * i + i // 11) % 5000 + 300 for i in range(700))]}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    found = []
    for _ in range(2):
        with LLM(real_model("gemma3"), max_context=1024, kv_disk="1GiB", keep_packed=False) as llm:
            (output,) = llm.generate(prompt, params)
            found.append((output.outputs[0].token_ids, output.num_cached_tokens))
    assert found[0][0] == found[1][0]
    assert [cached for _, cached in found] == [0, 688]


@pytest.mark.parametrize("slow", [False, True])
def test_what_fell_out_of_memory_comes_back(
    model: Path, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a slow disk as well: what still waits to be written is there."""
    if slow:
        write = KVFile.write

        def slowly(self: KVFile, name: bytes, data: kv_tier.Data) -> None:
            time.sleep(0.01)
            write(self, name, data)

        monkeypatch.setattr(KVFile, "write", slowly)
    context = 512 + 16
    with opened(model, max_context=context, max_sequences=1) as llm:
        blocks = llm.core.compiled.cache.kv.n_blocks
        assert blocks * 16 < 2 * len(PROMPT["prompt_token_ids"])
        expected, _ = answer(llm)
        other = {"prompt_token_ids": PROMPT["prompt_token_ids"][::-1]}
        assert answer(llm, other)[1] == 0
        assert answer(llm) == (expected, FULL)
        assert answer(llm, other)[1] == FULL


def test_a_killed_process_leaves_what_it_had_computed(model: Path) -> None:
    code = """
import os, signal, sys, time
from tidemill import LLM, SamplingParams
llm = LLM(sys.argv[1], threads=1, kv_disk="64MiB")
prompt = {"prompt_token_ids": [(11 * i + i // 13) % 256 for i in range(500)]}
llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1))
while llm.core.driver.engine.stats.tier.written < 31:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(model)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    with opened(model) as llm:
        assert answer(llm)[1] == FULL


def test_other_models_settings_and_versions_never_read_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(model) as llm:
        answer(llm)
    other = write_chat_model(tmp_path / "other.gguf", seed=1)
    expected = {}
    for name, path, options in (
        ("model", other, {}),
        ("dtype", model, {"kv_dtype": "q8_0"}),
        ("backend", model, {"backend": "reference"}),
    ):
        with opened(path, kv_disk=None, **options) as llm:
            expected[name], _ = answer(llm)
        with opened(path, **options) as llm:
            assert answer(llm) == (expected[name], 0)
    with opened(model) as llm:
        answer(llm)
    monkeypatch.setattr(kv_disk, "__version__", "0.0.next")
    with opened(model) as llm:
        assert answer(llm)[1] == 0


def test_a_changed_model_of_the_same_name_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    answers = []
    for seed in (0, 1):
        write_chat_model(path, seed=seed)
        with opened(path) as llm:
            answers.append(answer(llm))
    assert [cached for _, cached in answers] == [0, 0]
    assert answers[0][0] != answers[1][0]
    assert len(store.list_kv()) == 1  # the old one's are gone


def test_damage_costs_time_and_nothing_else(
    model: Path, store_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(model) as llm:
        expected, _ = answer(llm)
        size = llm.core.compiled.runner.block_bytes
    (blocks,) = files(store_home, "blocks")
    stride = -(-size // 4096) * 4096
    with open(blocks, "r+b") as raw:
        for n in (10, 20):
            raw.seek(n * stride + 5)
            raw.write(b"\\xff\\x00\\xff\\x01")
    with opened(model) as llm:
        assert answer(llm) == (expected, 160)
        assert tier_of(llm).damaged == 1
        assert len(caplog.records) == 1
        assert "computed again" in caplog.text
    with opened(model) as llm:  # the tenth has been written again; the twentieth is bad still
        assert answer(llm) == (expected, 320)
    with opened(model) as llm:
        assert answer(llm) == (expected, FULL)


@pytest.mark.parametrize("what", ["full", "unreadable", "no folder"])
def test_a_disk_that_does_not_work_is_no_error(
    model: Path, store_home: Path, what: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*args: object) -> int:
        raise OSError(5, "Input/output error")

    with opened(model, kv_disk=None) as plain:
        expected, _ = answer(plain)
    if what == "unreadable":
        with opened(model) as llm:
            answer(llm)
        monkeypatch.setattr(os, "preadv", fail)
    elif what == "full":
        monkeypatch.setattr(os, "pwrite", fail)
    else:
        store_home.mkdir(exist_ok=True)
        (store_home / "kv").write_text("in the way")
    caplog.clear()
    with opened(model) as llm:
        assert answer(llm) == (expected, 0)
        assert answer(llm) == (expected, FULL)  # from memory
    assert len(caplog.records) == 1
    assert "KV blocks" in caplog.text


def test_it_stays_within_its_limit(model: Path, store_home: Path) -> None:
    with opened(model, kv_disk="200KiB") as llm:
        block = llm.core.compiled.runner.block_bytes
        for seed in range(4):
            answer(llm, {"prompt_token_ids": [(seed * 17 + 3 * i) % 256 for i in range(300)]})
        until(lambda: tier_of(llm).blocks > 0)
        stats = tier_of(llm)
        assert 0 < stats.blocks * block <= stats.bytes <= 200 << 10
    assert store.list_kv()[0].bytes <= (200 << 10) + 4096  # and a description


def test_a_slow_disk_drops_blocks_and_holds_nobody_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_disk, "_MOST_QUEUED", 20_000)
    monkeypatch.setattr(kv_disk, "_CLOSE_SECONDS", 0.1)
    stuck = True
    real = os.pwrite

    def pwrite(*args: Any) -> int:
        while stuck:
            time.sleep(0.01)
        return real(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    llm = opened(model)
    answer(llm)
    assert tier_of(llm).written == 0
    assert tier_of(llm).dropped > 10
    stuck = False
    llm.close()
    llm.core._tier._thread.join(60)
    monkeypatch.undo()


def test_salts_are_kept_apart_over_restarts(model: Path) -> None:
    """Each tenant finds its own, and never another's: secrets that all begin alike."""
    secrets = {f"tenant {i}": [*range(64), *((i * 31 + j * j) % 256 for j in range(200))]
               for i in range(6)}  # fmt: skip

    async def ask(salts: dict[str, str]) -> dict[str, tuple[list[int], int]]:
        async with AsyncLLM(model, threads=1, kv_disk="64MiB", max_context=300) as llm:

            async def one(tenant: str) -> tuple[list[int], int]:
                prompt = {"prompt_token_ids": secrets[tenant]}
                stream = llm.generate(prompt, GREEDY, salt=salts[tenant], output="final")
                async for output in stream:
                    return list(output.outputs[0].token_ids), output.num_cached_tokens
                raise AssertionError

            answers = await asyncio.gather(*(one(tenant) for tenant in secrets))
            return dict(zip(secrets, answers, strict=True))

    first = asyncio.run(ask({tenant: tenant for tenant in secrets}))
    again = asyncio.run(ask({tenant: tenant for tenant in secrets}))
    swapped = asyncio.run(ask({tenant: f"not {tenant}" for tenant in secrets}))
    for tenant in secrets:
        assert first[tenant] == (again[tenant][0], 0)
        assert again[tenant][1] == 256
        assert swapped[tenant] == (first[tenant][0], 0)


def test_two_processes_do_not_disturb_each_other(model: Path) -> None:
    with opened(model) as a, opened(model) as b:
        expected, _ = answer(a)
        assert answer(b) == (expected, 0)
    with opened(model) as a, opened(model) as b:
        assert answer(a) == answer(b) == (expected, FULL)


def test_nonsense_is_refused_before_anything_is_loaded(model: Path) -> None:
    for value in ("lots", -1, "4 apples", "1e9"):
        with pytest.raises(ValueError, match=r"kv_disk=.* is no size"):
            opened(model, kv_disk=value)
    with pytest.raises(ValueError, match="kv_disk needs prefix_caching"):
        opened(model, prefix_caching=False)
    with pytest.raises(ValueError, match="too small: a block of 16 tokens takes"):
        opened(model, kv_disk=100)
    for nothing in (0, "off", None):
        with opened(model, kv_disk=nothing) as llm:
            assert llm.core.driver.engine.stats.tier is None
    assert store.list_kv() == []


def test_reading_waits_for_whoever_takes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is asked for, little of it is in memory beside the KV cache."""
    with opened(model) as llm:
        answer(llm)
        block = llm.core.compiled.runner.block_bytes
    monkeypatch.setattr(kv_disk, "_MOST_READY", 3 * block)
    with opened(model) as llm:
        tier = llm.core._tier
        names = list(tier._file._slots)
        fetch = tier.fetch(names)
        taken: list[np.ndarray] = []
        while (data := fetch.take()) is not None:
            assert len(data) <= 3
            taken += data
            tier.wait()
        assert len(taken) == len(names) > 30
        fetch.cancel()


# ---- the tier's thread, over a small file --------------------------------------------------------

BLOCK = 1000


def small_tier(slots: int, *there: int) -> kv_disk.DiskTier:
    """A tier of so many blocks, with those of some numbers in its file, in that order."""
    file = open_kv_file({"a": "b"}, ["/m"], block_bytes=BLOCK, limit=slots * (4096 + 64))
    assert file is not None
    for n in there:
        file.write(name(n), np.full(BLOCK, n, np.uint8))
    return kv_disk.DiskTier(file, BLOCK)


def name(n: int) -> bytes:
    return bytes([n]) * 32


def put(tier: kv_disk.DiskTier, n: int) -> None:
    tier.put(name(n), lambda data: data.fill(n))


def test_blocks_that_come_while_the_next_to_write_is_looked_up() -> None:
    class Met(dict[bytes, np.ndarray]):
        """The engine's thread puts a block, if it can, in the middle of the first look."""

        met = False

        def items(self) -> Any:
            def look() -> Iterator[tuple[bytes, np.ndarray]]:
                items = iter(super(Met, self).items())
                if not self.met:
                    self.met = True
                    engine.start()
                    engine.join(0.2)
                yield from items

            return look()

    tier = small_tier(8)
    tier._writes = Met()
    engine = threading.Thread(target=put, args=(tier, 2))
    put(tier, 1)
    until(lambda: tier.stats.written == 2)
    engine.join()
    tier.close()


def test_what_is_written_meanwhile_does_not_take_the_place_of_what_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_disk, "_MOST_READY", BLOCK)
    tier = small_tier(4, 1, 2, 3, 4)
    fetch = tier.fetch([name(1), name(2)])
    until(lambda: tier.stats.read == 1)  # the other one waits until this one is taken
    put(tier, 5)
    put(tier, 6)
    until(lambda: tier.stats.written == 2)
    taken: list[np.ndarray] = []
    while (data := fetch.take()) is not None:
        taken += data
        tier.wait()
    assert [int(data[0]) for data in taken] == [1, 2]
    fetch.cancel()
    tier.close()


def test_a_disk_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_disk, "_CLOSE_SECONDS", 0.1)
    stuck, works = threading.Event(), threading.Event()
    real = os.pwrite

    def pwrite(*args: Any) -> int:
        stuck.set()
        works.wait(60)
        return real(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    tier = small_tier(8)
    put(tier, 1)
    assert stuck.wait(60)
    tier.close()
    assert tier._thread.is_alive()
    works.set()
    tier._thread.join(60)


def test_a_disk_that_fails_is_told_of_though_blocks_were_dropped_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    tier = small_tier(8)
    with monkeypatch.context() as patch:
        patch.setattr(kv_disk, "_MOST_QUEUED", 0)
        put(tier, 1)
    put(tier, 2)
    put(tier, 3)
    until(lambda: tier.stats.dropped == 3)
    tier.close()
    assert len(caplog.records) == 1
    assert "cannot be kept" in caplog.text


def test_what_nobody_has_thought_of_ends_it_and_nothing_else(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread's end: told once, found nothing from then on, what is asked is computed."""
    with opened(model, kv_disk=None) as plain:
        expected, _ = answer(plain)
    with opened(model) as llm:
        answer(llm)

    def fail(*args: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(KVFile, "read", fail)
    other = {"prompt_token_ids": PROMPT["prompt_token_ids"][::-1]}
    with opened(model) as llm:
        tier = llm.core._tier
        names = list(tier._file._slots)
        assert tier.find(names) == len(names) > 0
        assert answer(llm) == (expected, 0)
        tier._thread.join(60)
        assert not tier._thread.is_alive()
        assert tier.find(names) == 0
        assert tier.fetch(names).take() is None
        before = tier_of(llm)
        answer(llm, other)
        assert tier_of(llm).dropped - before.dropped >= FULL // 16
        assert (tier_of(llm).written, tier_of(llm).blocks) == (before.written, 0)
    told = [record for record in caplog.records if "no longer kept" in record.message]
    assert len(told) == len(caplog.records) == 1
    monkeypatch.undo()
    with opened(model) as llm:  # the file is sound
        assert answer(llm)[0] == expected


def test_memory_that_is_short_is_for_requests(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(model, kv_disk=None) as plain:
        expected, _ = answer(plain)
    with opened(model) as llm:

        def none_left(*args: object) -> np.ndarray:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(kv_disk, "np", SimpleNamespace(empty=none_left, uint8=np.uint8))
            assert answer(llm) == (expected, 0)
        assert tier_of(llm).dropped > FULL // 16 - 1


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "tidemill-kv"]
