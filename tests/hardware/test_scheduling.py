from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from tidemill.hardware import scheduling
from tidemill.hardware.scheduling import wake_promptly


def _slice(thread: int) -> int | None:
    """In nanoseconds, as the kernel tells it; None where it does not."""
    file = Path(f"/proc/self/task/{thread}/sched")
    found = re.search(r"se\.slice\s*:\s*(\d+)", file.read_text()) if file.exists() else None
    return None if found is None else int(found[1])


def test_a_thread_that_asks_gets_short_slices_and_those_it_starts_do_not() -> None:
    slices: list[int | None] = []
    nice: list[int] = []
    works: list[bool] = []

    def begun_by_it() -> None:
        slices.append(_slice(threading.get_native_id()))

    def asking() -> None:
        slices.append(_slice(threading.get_native_id()))
        works.append(wake_promptly())
        slices.append(_slice(threading.get_native_id()))
        nice.append(os.getpriority(os.PRIO_PROCESS, 0))
        other = threading.Thread(target=begun_by_it)
        other.start()
        other.join()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=asking)
    thread.start()
    thread.join()
    assert nice == [before]  # it takes no more than its share
    if not works[0] or None in slices or slices[0] == slices[1]:
        pytest.skip("this kernel has no slices of a thread's own, or does not tell")
    usual, short, others = slices
    assert short == 100_000
    assert others == usual


@pytest.mark.parametrize("machine", ["riscv64", ""])
def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert wake_promptly() is False


def test_a_kernel_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_SYSCALLS", dict.fromkeys(("x86_64", "aarch64"), 99_999))
    assert wake_promptly() is False
