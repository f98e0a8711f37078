"""The machine: usable cores, memory that is really free, CPU features, memory bandwidth.

Linux on x86-64 and arm64 is read in full from ``/proc`` and ``/sys``; on macOS what ``sysctl``
tells is used, and elsewhere unknown facts are ``None`` or empty.
"""

from tidemill.hardware.bandwidth import Bandwidth, measure_bandwidth
from tidemill.hardware.cores import CoreBudget, core_budget, usable_cores
from tidemill.hardware.cpu import Cache, CpuInfo, cpu_info
from tidemill.hardware.memory import MemoryBudget, available_memory, memory_budget

__all__ = [
    "Bandwidth",
    "Cache",
    "CoreBudget",
    "CpuInfo",
    "MemoryBudget",
    "available_memory",
    "core_budget",
    "cpu_info",
    "measure_bandwidth",
    "memory_budget",
    "usable_cores",
]
