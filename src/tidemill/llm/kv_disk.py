"""The engine's tier on disk: a thread that reads and writes KV blocks beside the steps."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tidemill import __version__
from tidemill.engine.base import TierStats
from tidemill.engine.kv_tier import Data
from tidemill.llm.loading import CompiledModel, origin_of
from tidemill.store.kv import KVFile, open_kv_file

log = logging.getLogger("tidemill")

# Bytes that wait to be written, and that were read and wait to be taken. The first is about three
# seconds of prompts of a small model; the second is what a step copies into place at most, which
# takes a few milliseconds.
_MOST_QUEUED = 64 << 20
_MOST_READY = 32 << 20
_WAIT_SECONDS = 0.1
_CLOSE_SECONDS = 5.0  # for what waits to be written
_GUESSED_RATE = 5e8  # bytes a second
_RATE_WEIGHT = 0.1  # of a new measurement of the rate
_RATE_HALF_LIFE = 60.0  # seconds after which a measured rate is believed half: disks recover


def open_tier(compiled: CompiledModel, limit: int) -> DiskTier | None:
    """The tier of a compiled model, of at most ``limit`` bytes; None, which is logged, if there can
    be none. Raises ValueError if ``limit`` is less than two blocks."""
    opened, runner = compiled.opened, compiled.runner
    if limit < 2 * runner.block_bytes:
        raise ValueError(
            f"kv_disk of {limit:,} bytes is too small: a block of {runner.kv.block_size} tokens "
            f"takes {runner.block_bytes:,}"
        )
    origin = origin_of(opened)
    if origin is None:  # its files have changed just now, and tell nothing for two seconds
        time.sleep(2.1)
        origin = origin_of(opened)
    try:
        if origin is None:
            raise OSError("the model's files are changing")
        file = open_kv_file(
            {
                "version": __version__,
                "model": origin.identity,
                "program": hashlib.sha256(repr(opened.model.program).encode()).hexdigest(),
                "kernels": runner.kv_identity,
                "kv": f"{runner.kv.dtype} {runner.kv.block_size}",
            },
            origin.files,
            block_bytes=runner.block_bytes,
            limit=limit,
        )
        if file is None:
            raise OSError("too many processes keep KV blocks of this model")
    except OSError as error:
        log.warning("%s: KV blocks are not kept on disk: %s", opened.name, error)
        return None
    return DiskTier(file, runner.block_bytes)


class _Fetch:
    """``tidemill.engine.kv_tier.KVFetch``"""

    def __init__(self, tier: DiskTier, names: Sequence[bytes]) -> None:
        self._tier = tier
        self.names = deque(names)
        self.ready: list[Data] = []

    def take(self) -> list[Data] | None:
        return self._tier._take(self)

    def cancel(self) -> None:
        self._tier._cancel(self)


class DiskTier:
    """``tidemill.engine.kv_tier.KVTier`` over a file. Reads come before writes.

    Nothing that the disk does is an error here: blocks that cannot be written are dropped, those
    that cannot be read are computed. Either is logged, the first time. The same goes for what ends
    the thread, if anything does: the tier has nothing and takes nothing then.
    """

    def __init__(self, file: KVFile, block_bytes: int) -> None:
        self._file = file
        self._block_bytes = block_bytes
        self._changed = threading.Condition()
        self._writes: dict[bytes, Data] = {}  # in order
        self._fetches: list[_Fetch] = []  # those that are not over
        self._closing: float | None = None  # when to end, whatever is left
        self._ended = False
        self._seconds_per_block = self._guess = block_bytes / _GUESSED_RATE
        self._measured_at = 0.0
        self._read = self._written = self._dropped = self._damaged = 0
        self._write_failed = False
        # A daemon: a program that forgets to close ends all the same.
        self._thread = threading.Thread(target=self._run, name="tidemill-kv", daemon=True)
        self._thread.start()

    # ---- for the engine

    @property
    def stats(self) -> TierStats:
        return TierStats(
            blocks=len(self._file),
            bytes=self._file.size,
            read=self._read,
            written=self._written,
            dropped=self._dropped,
            damaged=self._damaged,
        )

    def put(self, name: bytes, read: Callable[[Data], None]) -> None:
        with self._changed:
            if name in self._file or name in self._writes:
                return
            full = (len(self._writes) + 1) * self._block_bytes > _MOST_QUEUED
            try:
                data = None if full or self._ended else np.empty(self._block_bytes, np.uint8)
            except MemoryError:  # which is for requests, not for what they may need later
                data = None
            if data is None:
                self._dropped += 1
                return
            read(data)
            self._writes[name] = data
            self._changed.notify_all()

    def use(self, names: Sequence[bytes]) -> None:
        self._file.use(names)

    def find(self, names: Sequence[bytes]) -> int:
        with self._changed:  # what waits to be written is here as well
            return next(
                (i for i, n in enumerate(names) if n not in self._file and n not in self._writes),
                len(names),
            )

    def seconds(self, n: int) -> float:
        belief: float = 0.5 ** ((time.monotonic() - self._measured_at) / _RATE_HALF_LIFE)
        each = self._guess + belief * (self._seconds_per_block - self._guess)
        with self._changed:
            before = sum(len(fetch.names) for fetch in self._fetches)
        return (before + n) * each

    def fetch(self, names: Sequence[bytes]) -> _Fetch:
        fetch = _Fetch(self, names)
        self._file.use(names)  # or what is written meanwhile would take their places
        with self._changed:
            if self._ended:
                fetch.names.clear()
            self._fetches.append(fetch)
            self._changed.notify_all()
        return fetch

    def wait(self) -> None:
        # Half of what there is room for, so that the next half is read while this one is copied.
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._ready_bytes() * 2 >= _MOST_READY
                    or any(not fetch.names for fetch in self._fetches)
                ),
                _WAIT_SECONDS,
            )

    def close(self) -> None:
        """Write what waits, for some seconds at most, and end the thread. One that hangs on the
        disk is left behind: it has nothing of the runner's."""
        with self._changed:
            self._closing = time.monotonic() + _CLOSE_SECONDS
            self._changed.notify_all()
        self._thread.join(2 * _CLOSE_SECONDS)

    def _take(self, fetch: _Fetch) -> list[Data] | None:
        with self._changed:
            taken, fetch.ready = fetch.ready, []
            if not taken and not fetch.names:
                return None
            self._changed.notify_all()
            return taken

    def _cancel(self, fetch: _Fetch) -> None:
        with self._changed:
            fetch.names.clear()
            self._fetches.remove(fetch)
            self._changed.notify_all()

    def _ready_bytes(self) -> int:
        return sum(len(fetch.ready) for fetch in self._fetches) * self._block_bytes

    # ---- on the thread

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            log.exception("KV blocks are no longer kept on disk")
        with self._changed:
            self._ended = True
            self._dropped += len(self._writes)
            self._writes.clear()
            for fetch in self._fetches:
                fetch.names.clear()
            self._changed.notify_all()
        self._file.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                work = self._next()
                while work is None and self._closing is None:
                    self._changed.wait()
                    work = self._next()
            if work is None or (self._closing and time.monotonic() > self._closing):
                break
            work()

    def _next(self) -> Callable[[], None] | None:
        """What to do next, if there is anything to be done."""
        if self._closing is None and self._ready_bytes() + self._block_bytes <= max(
            _MOST_READY, self._block_bytes
        ):
            for fetch in self._fetches:
                if fetch.names:
                    return partial(self._read_one, fetch)
        if self._writes:
            return partial(self._write_one, *next(iter(self._writes.items())))
        return None

    def _read_one(self, fetch: _Fetch) -> None:
        started = time.monotonic()
        found: Data | None = None
        try:
            name = fetch.names[0]
            # Only this thread takes anything out of what waits to be written.
            found = self._writes.get(name)
            if found is None:
                data = np.empty(self._block_bytes, np.uint8)
                found = data if self._file.read(name, data) else None
        except IndexError:  # cancelled meanwhile
            return
        except (OSError, ValueError, MemoryError) as error:
            self._damaged += 1
            if self._damaged == 1:
                log.warning("kept KV blocks cannot be read and are computed again: %s", error)
        now = time.monotonic()
        with self._changed:
            if found is not None:
                self._read += 1
                self._seconds_per_block += _RATE_WEIGHT * (now - started - self._seconds_per_block)
                self._measured_at = now
            if found is not None and fetch.names:
                fetch.names.popleft()
                fetch.ready.append(found)
            else:
                fetch.names.clear()  # what follows is of no use without it
            self._changed.notify_all()

    def _write_one(self, name: bytes, data: Data) -> None:
        written = True
        try:
            self._file.write(name, data)
        except OSError as error:
            written = False
            if not self._write_failed:
                self._write_failed = True
                log.warning("KV blocks cannot be kept: %s", error)
        with self._changed:
            del self._writes[name]
            self._written += written
            self._dropped += not written
