"""Memory limits, CPU description and the bandwidth measurement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill import _native
from tidemill.hardware import Cache, cpu_info, measure_bandwidth, memory_budget
from tidemill.hardware.hostfiles import parse_cpu_list, parse_size

GIB = 1 << 30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 5 kB\nMemAvailable: {8 * GIB // 1024} kB\n"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_without_limits_is_what_the_kernel_says(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    budget = memory_budget(tmp_path)
    assert (budget.total, budget.available) == (16 * GIB, 8 * GIB)
    assert budget.explain() == "free memory of the machine"


def test_v2_memory_limit_of_an_ancestor_counts_cache_as_free(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/mountinfo", V2_MOUNT)
    put(tmp_path, "proc/self/cgroup", "0::/pod/box\n")
    put(tmp_path, "sys/fs/cgroup/pod/box/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.max", f"{4 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.current", f"{3 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    budget = memory_budget(tmp_path)
    assert budget.cgroup_limit == 4 * GIB
    assert budget.available == 3 * GIB
    assert "control group" in budget.explain()


def test_v2_memory_high_binds_like_a_limit(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/mountinfo", V2_MOUNT)
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    put(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/memory.high", f"{GIB}\n")
    put(tmp_path, "sys/fs/cgroup/memory.current", "0\n")
    assert memory_budget(tmp_path).available == GIB


def test_v1_memory_limit(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(
        tmp_path,
        "proc/self/mountinfo",
        "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    put(tmp_path, "proc/self/cgroup", "5:memory:/job\n")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{2 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{GIB}\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.stat", f"total_inactive_file {GIB // 2}\n")
    budget = memory_budget(tmp_path)
    assert (budget.cgroup_limit, budget.available) == (2 * GIB, GIB + GIB // 2)


def test_address_space_limit_binds() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from tidemill.hardware import memory_budget\n"
        "b = memory_budget(); print(b.rlimit_available < 3 << 30, b.available <= 3 << 30)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "True"]


def test_cpu_description_of_a_made_up_machine(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor: 1\n")
    put(tmp_path, "sys/devices/system/node/online", "0-1\n")
    for cpu in range(4):
        cache = f"sys/devices/system/cpu/cpu{cpu}/cache"
        put(tmp_path, f"{cache}/index0/level", "1")
        put(tmp_path, f"{cache}/index0/type", "Data")
        put(tmp_path, f"{cache}/index0/size", "32K")
        put(tmp_path, f"{cache}/index0/shared_cpu_list", "0-1" if cpu < 2 else "2-3")
        put(tmp_path, f"{cache}/index3/level", "3")
        put(tmp_path, f"{cache}/index3/type", "Unified")
        put(tmp_path, f"{cache}/index3/size", "16M")
        put(tmp_path, f"{cache}/index3/shared_cpu_list", "0-3")
    info = cpu_info(tmp_path)
    assert info.model == "Some CPU @ 2 GHz"
    assert info.numa_nodes == 2
    assert info.caches == (Cache(1, "data", 32 << 10, 2), Cache(3, "unified", 16 << 20, 1))


def test_arm_cpus_are_named_by_part_and_board(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0b\n")
    put(tmp_path, "sys/firmware/devicetree/base/model", "Raspberry Pi 5\0")
    assert cpu_info(tmp_path).model == "arm64 0x41 part 0xd0b (Raspberry Pi 5)"


def test_native_features_agree_with_the_kernel() -> None:
    text = Path("/proc/cpuinfo").read_text()
    line = next((x for x in text.splitlines() if x.startswith(("flags", "Features"))), None)
    if line is None:
        pytest.skip("this kernel lists no CPU flags")
    flags = set(line.partition(":")[2].split())
    # The kernel lists a flag only if it lets programs use it, as the native probe must.
    interesting = {
        "ssse3", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi2", "avx_vnni", "avx512f", "avx512dq",
        "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
        "amx_int8", "amx_bf16", "asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16",
    }  # fmt: skip
    assert set(_native.cpu_features()) & interesting == flags & interesting


def test_bandwidth_is_measured_with_the_threads_asked_for() -> None:
    result = measure_bandwidth(seconds=0.02, threads=2)
    assert result.threads == 2
    assert result.bytes_per_second > 0
    assert result.working_set >= 2 << 20


@pytest.mark.parametrize(("threads", "seconds"), [(0, 0.1), (-1, 0.1), (1, 0.0), (1, 1e9)])
def test_bandwidth_arguments_are_checked(threads: int, seconds: float) -> None:
    with pytest.raises(ValueError):
        measure_bandwidth(seconds=seconds, threads=threads)


def test_bandwidth_of_impossible_buffers_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        _native.read_bandwidth(1 << 61, 2, 0.01)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("3-1,x,2-", {2}),
        ("0-999999999", set()),
    ],
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "size"), [("32K", 32768), ("1M", 1 << 20), ("77", 77), ("", None), ("xK", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size
