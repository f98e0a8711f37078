"""Processes as /proc has them: one that is made up, and this one."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import until
from tidemill.bench.processes import (
    born,
    cpu_seconds,
    family,
    lives,
    maps_any,
    proportional_bytes,
    resident_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

# A name can hold anything. The 14th to the 17th field are CPU time, the 22nd when it began.
STAT = (
    "7 (a) name) S 1 7 7 0 -1 4194560 1 0 0 0 200 100 40 10 20 0 3 0 98765 1000 50 18446744073 1 1"
)
ROLLUP = """\
5635db89f000-7ffe9eb59000 ---p 00000000 00:00 0                          [rollup]
Rss:                1684 kB
Pss:                 245 kB
Pss_Dirty:           112 kB
"""


def process(root: Path, **files: str) -> Path:
    folder = root / "proc/7"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return root


def test_times(tmp_path: Path) -> None:
    root = process(tmp_path, stat=STAT)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(7, root=root) == pytest.approx(300 * tick)
    assert cpu_seconds(7, ended=True, root=root) == pytest.approx(350 * tick)
    assert born(7, root) == 98765
    assert (cpu_seconds(8, root=root), born(8, root)) == (0.0, None)
    assert lives(7, 98765, root)
    assert not lives(7, 98764, root)  # another one by now
    assert not lives(8, None, root)
    (root / "proc/7/stat").write_text(STAT.replace("name) S", "name) Z"))
    assert not lives(7, 98765, root)


def test_memory(tmp_path: Path) -> None:
    root = process(tmp_path, stat=STAT, smaps_rollup=ROLLUP, statm="1000 421 3 4 5 6 7")
    assert proportional_bytes(7, root) == 245 << 10
    assert resident_bytes(7, root) == 421 * os.sysconf("SC_PAGE_SIZE")
    assert (proportional_bytes(8, root), resident_bytes(8, root)) == (0, 0)


def test_a_system_without_proportional_memory(tmp_path: Path) -> None:
    assert proportional_bytes(7, process(tmp_path, stat=STAT)) is None


def test_this_process(tmp_path: Path) -> None:
    me = os.getpid()
    shared, own = resident_bytes(me), proportional_bytes(me)
    assert own is not None
    assert 0 < own <= 2 * shared  # they are not read at the same moment
    file = tmp_path / "mapped"
    file.write_bytes(b"x")
    assert not maps_any([me], {str(file)})
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 1, prot=mmap.PROT_READ):
        assert maps_any([me], {"/other", str(file)})
        assert not maps_any([me], {str(file) + "x"})
    assert not maps_any([2**22 + 1], {str(file)})


def test_a_family_and_the_time_of_a_child_that_has_ended() -> None:
    program = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'sum(range(3_000_000))'])\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert family(parent.pid) == [parent.pid]
        assert cpu_seconds(parent.pid, ended=True) > cpu_seconds(parent.pid)
        assert parent.pid in family(os.getpid())
        birth = born(parent.pid)
        assert birth is not None
        assert birth >= (born(os.getpid()) or 0)
        parent.kill()
    until(lambda: born(parent.pid) != birth)
