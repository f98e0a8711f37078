"""Energy meters, in a /sys that is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.hardware.energy import EnergyMeters


class Machine:
    """Files below a root, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 100.0

    def put(self, name: str, value: object) -> None:
        path = self.root / "sys/class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def zone(self, zone: str, name: str, energy: int, most: int = 10**12) -> None:
        self.put(f"powercap/{zone}/name", name)
        self.put(f"powercap/{zone}/energy_uj", energy)
        self.put(f"powercap/{zone}/max_energy_range_uj", most)

    def meters(self) -> EnergyMeters:
        return EnergyMeters(self.root, lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def joules(meters: EnergyMeters) -> dict[str, float]:
    meters.read()
    return {meter.name: meter.joules for meter in meters.meters}


def test_a_machine_without_meters(machine: Machine) -> None:
    meters = machine.meters()
    assert (joules(meters), meters.unreadable) == ({}, [])


def test_rapl_counts_packages_and_memory_once(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 5_000_000)
    machine.zone("intel-rapl:0:0", "core", 1)  # part of the package
    machine.zone("intel-rapl:0:1", "dram", 7_000_000)
    machine.zone("intel-rapl:1", "package-1", 0)
    machine.zone("intel-rapl:2", "psys", 9)  # has the packages in it
    machine.zone("intel-rapl-mmio:0", "package-0", 5_000_000)  # the same once more
    meters = machine.meters()
    assert joules(meters) == {"package-0": 0, "package-0-dram": 0, "package-1": 0}
    machine.zone("intel-rapl:0", "package-0", 8_500_000)
    machine.zone("intel-rapl:0:1", "dram", 7_250_000)
    assert joules(meters) == {"package-0": 3.5, "package-0-dram": 0.25, "package-1": 0}


def test_a_counter_that_begins_anew(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 9_000_000, most=9_999_999)
    meters = machine.meters()
    machine.zone("intel-rapl:0", "package-0", 1_000_000, most=9_999_999)
    assert joules(meters) == {"package-0": 2.0}
    machine.zone("intel-rapl:0", "package-0", 0, most=9_999_999)
    assert joules(meters) == {"package-0": 11.0}


def test_a_counter_without_a_known_end_never_runs_backwards(machine: Machine) -> None:
    machine.put("hwmon/hwmon0/name", "amd_energy")
    machine.put("hwmon/hwmon0/energy1_input", 50_000_000)
    meters = machine.meters()
    machine.put("hwmon/hwmon0/energy1_input", 2_000_000)
    assert joules(meters) == {"amd_energy-hwmon0-energy1": 2.0}


def test_what_cannot_be_read_is_told(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 0)
    path = machine.root / "sys/class/powercap/intel-rapl:0/energy_uj"
    path.unlink()
    path.mkdir()  # also root cannot read that
    meters = machine.meters()
    assert (joules(meters), meters.unreadable) == ({}, [path])


def test_a_meter_that_fails_later_keeps_its_value(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 0)
    meters = machine.meters()
    machine.zone("intel-rapl:0", "package-0", 4_000_000)
    assert joules(meters) == {"package-0": 4.0}
    machine.put("powercap/intel-rapl:0/energy_uj", "no number")
    assert joules(meters) == {"package-0": 4.0}
    machine.zone("intel-rapl:0", "package-0", 5_000_000)
    assert joules(meters) == {"package-0": 5.0}


def test_sockets_of_amd_energy_without_their_cores(machine: Machine) -> None:
    machine.put("hwmon/hwmon2/name", "amd_energy")
    for i, label in ((1, "Ecore000"), (2, "Esocket0")):
        machine.put(f"hwmon/hwmon2/energy{i}_input", 0)
        machine.put(f"hwmon/hwmon2/energy{i}_label", label)
    meters = machine.meters()
    machine.put("hwmon/hwmon2/energy2_input", 3_000_000)
    assert joules(meters) == {"amd_energy-hwmon2-Esocket0": 3.0}


def test_power_is_added_up_over_time(machine: Machine) -> None:
    machine.put("hwmon/hwmon0/name", "coretemp")
    machine.put("hwmon/hwmon1/name", "ina226")
    machine.put("hwmon/hwmon1/power1_input", 2_000_000)
    meters = machine.meters()
    machine.now += 1
    machine.put("hwmon/hwmon1/power1_input", 4_000_000)
    assert joules(meters) == {"ina226-hwmon1": 3.0}
    machine.now += 3600  # nobody looked for an hour: nothing is known of it
    assert joules(meters) == {"ina226-hwmon1": 3.0}
    machine.now += 0.5
    assert joules(meters) == {"ina226-hwmon1": 5.0}


def test_a_board_s_supply_without_its_parts(machine: Machine) -> None:
    machine.put("hwmon/hwmon1/name", "ina3221")
    for i, label in ((1, "VDD_IN"), (2, "VDD_CPU_GPU_CV"), (3, "VDD_SOC")):
        machine.put(f"hwmon/hwmon1/in{i}_label", label)
        machine.put(f"hwmon/hwmon1/in{i}_input", 5000)
        machine.put(f"hwmon/hwmon1/curr{i}_input", 1000)
    meters = machine.meters()
    machine.now += 2
    assert joules(meters) == {"ina3221-hwmon1-VDD_IN": 10.0}


def test_a_battery_counts_while_it_is_discharged(machine: Machine) -> None:
    machine.put("power_supply/AC/type", "Mains")
    machine.put("power_supply/BAT0/type", "Battery")
    machine.put("power_supply/BAT0/status", "Discharging")
    machine.put("power_supply/BAT0/current_now", 500_000)
    machine.put("power_supply/BAT0/voltage_now", 12_000_000)
    machine.put("power_supply/mouse/type", "Battery")
    machine.put("power_supply/mouse/scope", "Device")
    machine.put("power_supply/mouse/power_now", 1)
    meters = machine.meters()
    machine.now += 1
    assert joules(meters) == {"battery-BAT0": 6.0}
    machine.put("power_supply/BAT0/status", "Charging")
    machine.now += 1
    assert joules(meters) == {"battery-BAT0": 6.0}
    machine.put("power_supply/BAT0/status", "Discharging")
    machine.now += 1
    joules(meters)
    machine.now += 1
    assert joules(meters) == {"battery-BAT0": 12.0}


def test_counters_come_before_what_is_less_exact(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 0)
    machine.put("power_supply/BAT0/type", "Battery")
    machine.put("power_supply/BAT0/power_now", 1)
    assert [meter.name for meter in machine.meters().meters] == ["package-0"]
