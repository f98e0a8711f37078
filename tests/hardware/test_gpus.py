"""What ``nvidia-smi`` prints, and a program that stands for it."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest

from support.waiting import until
from tidemill.hardware.gpus import GpuMonitor, parse, read_gpus

# Time, index, name, memory used, memory in all, utilisation and power, as it prints them with
# --format=csv,noheader,nounits.
TWO = """\
2026/11/30 17:30:00.125, 0, NVIDIA H100 80GB HBM3, 71432, 81559, 98, 612.43
2026/11/30 17:30:00.127, 1, NVIDIA H100 80GB HBM3, 4, 81559, 0, 70.12
"""
UNTOLD = "2026/11/30 17:30:00.125, 0, Orin (nvgpu), 812, 7620, [N/A], [Not Supported]"


def program(folder: Path, text: str) -> str:
    """Prints that, and goes on to do so where it is to loop."""
    path = folder / "nvidia-smi"
    (folder / "said").write_text(text)
    path.write_text(
        "#!/bin/sh\n"
        f"cat {folder}/said\n"
        'case "$*" in *--loop-ms*) while sleep 0.01; do '
        f"cat {folder}/said; done;; esac\n"
    )
    path.chmod(0o755)
    return str(path)


def test_a_line() -> None:
    reading = parse(TWO.splitlines()[0])
    assert reading is not None
    assert (reading.index, reading.name) == (0, "NVIDIA H100 80GB HBM3")
    assert (reading.memory_used, reading.memory_total) == (71432 << 20, 81559 << 20)
    assert (reading.busy, reading.watts) == (0.98, 612.43)


def test_a_time_is_one_of_the_monotonic_clock() -> None:
    now = datetime.datetime.now()
    line = f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03}, 0, A, 1, 2, 3, 4"
    reading = parse(line)
    assert reading is not None
    assert abs(reading.when - time.monotonic()) < 60


def test_what_a_gpu_does_not_tell() -> None:
    reading = parse(UNTOLD)
    assert reading is not None
    assert (reading.busy, reading.watts) == (None, None)
    assert reading.memory_used == 812 << 20


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "2026/11/30 17:30:00.125, 0, Orin (nvgpu), [N/A], [N/A], 0, 1",
        "yesterday, 0, A, 1, 2, 3, 4",
        "2026/11/30 17:30:00.125, x, A, 1, 2, 3, 4",
    ],
)
def test_lines_that_are_none(line: str) -> None:
    assert parse(line) is None


def test_all_gpus_once_and_again(tmp_path: Path) -> None:
    smi = program(tmp_path, TWO)
    assert [reading.index for reading in read_gpus(smi)] == [0, 1]
    monitor = GpuMonitor(smi)
    until(lambda: len(monitor.readings) >= 4)
    monitor.close()
    assert {reading.index for reading in monitor.readings} == {0, 1}


def test_a_machine_without() -> None:
    assert read_gpus("no-such-nvidia-smi") == []
    monitor = GpuMonitor("no-such-nvidia-smi")
    monitor.close()
    assert monitor.readings == []


def test_a_driver_that_is_not_there(tmp_path: Path) -> None:
    smi = program(tmp_path, "NVIDIA-SMI has failed: no driver\n")
    assert read_gpus(smi) == []
