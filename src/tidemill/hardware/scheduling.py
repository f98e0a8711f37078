"""How soon a thread that wakes gets a core, where all of them compute."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress

_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_RESET_ON_FORK = 0x01
_SLICE = 100_000  # nanoseconds, the shortest that there is


class _Attributes(ctypes.Structure):
    """``struct sched_attr`` of Linux, as of its first version (sched_setattr(2))."""

    _fields_ = [
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32), ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64), ("period", ctypes.c_uint64),
    ]  # fmt: skip


def wake_promptly() -> bool:
    """Let this thread run as soon as it wakes, for the little that it does then. Whether that works
    here.

    Else it waits until the thread that computes has had its slice, which the scheduler looks at
    every few milliseconds: a token that has to pass three processes is late by as many. A thread
    that asks for short slices comes before those with longer ones (Linux 6.12, "EEVDF scheduler" in
    its documentation); it gets no more time than its share. Threads and processes that it starts
    do not inherit that.
    """
    number = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes), flags=_RESET_ON_FORK, runtime=_SLICE,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
    )  # fmt: skip
    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0)
    return False
