"""Threads = min(quota, affinity mask, physical cores), on made-up machines and on this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.hardware import core_budget, usable_cores
from tidemill.hardware.cores import whole_cores

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw shared:6 - cgroup cgroup rw,memory\n"
)


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(root: Path, siblings: list[str]) -> Path:
    """A machine with one CPU per entry, which names its SMT siblings."""
    put(root, "sys/devices/system/cpu/online", f"0-{len(siblings) - 1}\n")
    for cpu, shared in enumerate(siblings):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", shared + "\n")
    return root


def eight_cores(root: Path) -> Path:
    return machine(root, [str(cpu) for cpu in range(8)])


def test_smt_siblings_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    budget = core_budget(root, affinity=set(range(8)))
    assert (budget.online, budget.allowed, budget.physical, budget.usable) == (8, 8, 4, 4)
    assert budget.quota is None


def test_affinity_mask_with_both_siblings_of_one_core_is_one_core(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert core_budget(root, affinity={1, 5}).usable == 1
    assert core_budget(root, affinity={1, 2, 5}).usable == 2


def test_old_kernels_name_siblings_differently(tmp_path: Path) -> None:
    for cpu in range(4):
        put(
            tmp_path,
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            "0-1" if cpu < 2 else "2-3",
        )
    assert core_budget(tmp_path, affinity={0, 1, 2, 3}).usable == 2


def test_unknown_topology_counts_every_allowed_cpu(tmp_path: Path) -> None:
    assert core_budget(tmp_path, affinity={3, 4, 5}).usable == 3


def test_v2_quota_of_the_own_group(tmp_path: Path) -> None:
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V2_MOUNT)
    put(root, "proc/self/cgroup", "0::/user.slice/app.service\n")
    put(root, "sys/fs/cgroup/user.slice/app.service/cpu.max", "300000 100000\n")
    budget = core_budget(root, affinity=set(range(8)))
    assert budget.quota == 3.0
    assert budget.usable == 3
    assert budget.explain() == (
        "3 = min of 8 physical cores, 8 of 8 logical CPUs allowed, CPU quota 3"
    )


def test_v2_the_tightest_ancestor_binds(tmp_path: Path) -> None:
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V2_MOUNT)
    put(root, "proc/self/cgroup", "0::/pods/pod1/box\n")
    put(root, "sys/fs/cgroup/pods/pod1/box/cpu.max", "max 100000\n")
    put(root, "sys/fs/cgroup/pods/pod1/cpu.max", "200000 100000\n")
    put(root, "sys/fs/cgroup/pods/cpu.max", "600000 100000\n")
    assert core_budget(root, affinity=set(range(8))).quota == 2.0


def test_v2_in_a_container_with_its_own_namespace(tmp_path: Path) -> None:
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V2_MOUNT)
    put(root, "proc/self/cgroup", "0::/\n")
    put(root, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    budget = core_budget(root, affinity=set(range(8)))
    assert (budget.quota, budget.usable) == (1.5, 1)


def test_v1_quota_and_a_group_outside_of_the_mount(tmp_path: Path) -> None:
    # Docker without a cgroup namespace: the container's group is what is mounted.
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V1_MOUNTS.replace("0:27 / ", "0:27 /docker/abc "))
    put(root, "proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert core_budget(root, affinity=set(range(8))).quota == 4.0
    put(root, "proc/self/cgroup", "4:cpu,cpuacct:/somewhere/else\n")
    assert core_budget(root, affinity=set(range(8))).quota == 4.0


def test_v1_minus_one_is_no_quota(tmp_path: Path) -> None:
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V1_MOUNTS)
    put(root, "proc/self/cgroup", "4:cpu,cpuacct:/a/b\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n")
    assert core_budget(root, affinity=set(range(8))).quota is None
    put(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    budget = core_budget(root, affinity=set(range(8)))
    assert (budget.quota, budget.usable) == (0.5, 1)


@pytest.mark.parametrize("text", ["", "max", "nonsense 5", "100000 0", "-5 100000", "1 x"])
def test_damaged_quota_files_are_no_quota(tmp_path: Path, text: str) -> None:
    root = eight_cores(tmp_path)
    put(root, "proc/self/mountinfo", V2_MOUNT + "garbage\n- - -\n")
    put(root, "proc/self/cgroup", "garbage\n0::/x/../../y\n")
    put(root, "sys/fs/cgroup/cpu.max", text)
    assert core_budget(root, affinity=set(range(8))).usable == 8


@pytest.mark.parametrize(
    ("quota", "threads"),
    [(0.1, 1), (1.0, 1), (1.5, 1), (1.75, 2), (2.0, 2), (3.8, 4), (3.5, 3), (64.0, 64)],
)
def test_fractional_quotas(quota: float, threads: int) -> None:
    assert whole_cores(quota) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux affinity masks")
def test_usable_cores_under_taskset() -> None:
    cpu = min(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    assert taskset, "taskset (util-linux) is needed by this test"
    code = (
        "from tidemill.hardware import core_budget; b = core_budget(); print(b.allowed, b.usable)"
    )
    done = subprocess.run(
        [taskset, "-c", str(cpu), sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "1"]
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
