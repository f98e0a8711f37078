"""Energy meters of the machine, as Linux shows them below ``/sys``.

In this order, the first kind that can be read is used; all of them measure the machine or its
processors, whoever uses them:

- RAPL counters of Intel's and AMD's processors (``class/powercap/intel-rapl:*``): packages, and
  memory where it is counted apart. Other zones are part of these, or have them in them.
- Energy counters of ``class/hwmon`` (``energy*_input``, as the amd_energy driver has them).
- Texas Instruments' INA sensors, which boards have on their supply (``class/hwmon``).
- A battery while it is discharged (``class/power_supply``).

What gives power and no energy is added up over time, so that all meters have to be read now and
then. Sources: the kernel's Documentation/power/powercap, /hwmon and /ABI/testing/sysfs-class-power.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemill.hardware.hostfiles import ROOT, read_int, read_text

# Between two readings of a power longer apart than this nothing is known of it.
_MOST_SECONDS = 60.0


class Meter:
    """``joules``: what it has counted from the first reading to the last one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.joules = 0.0

    def read(self, now: float) -> None:
        """Take a reading at ``now`` (seconds of a monotonic clock)."""
        raise NotImplementedError


class Counter(Meter):
    """A file with microjoules, which begins anew above ``most`` (None: never)."""

    def __init__(self, name: str, path: Path, most: int | None = None) -> None:
        super().__init__(name)
        self._path = path
        self._most = most
        self._last = read_int(path)

    def read(self, now: float) -> None:
        value = read_int(self._path)
        if value is None:
            return
        if self._last is not None:
            grown = value - self._last
            if grown < 0:  # it began anew; without a known end, all that is sure is what it has now
                grown = value if self._most is None else grown + self._most + 1
            self.joules += max(0, grown) / 1e6
        self._last = value


class Power(Meter):
    """Microwatts, added up over time. None is a power that is not known now."""

    def __init__(self, name: str, watts: Callable[[], float | None]) -> None:
        super().__init__(name)
        self._watts = watts
        self._last: tuple[float, float] | None = None

    def read(self, now: float) -> None:
        watts = self._watts()
        if watts is not None and self._last is not None:
            before, then = self._last
            if 0 < now - then <= _MOST_SECONDS:
                self.joules += (watts + before) / 2 * (now - then)
        self._last = None if watts is None else (watts, now)


class EnergyMeters:
    """The meters of this machine, all of one ``kind`` (empty: there are none). ``unreadable``:
    there is one, but this user may not read it."""

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        sys = root / "sys"
        self.unreadable: list[Path] = []
        self.meters: list[Meter] = []
        self.kind = ""
        self._clock = clock
        for kind, find in _KINDS.items():
            self.meters = list(find(sys, self.unreadable))
            if self.meters:
                self.kind = kind
                break
        self.read()

    def read(self) -> None:
        now = self._clock()
        for meter in self.meters:
            meter.read(now)


def _readable(path: Path, unreadable: list[Path]) -> bool:
    if read_int(path) is not None:
        return True
    if path.exists():
        unreadable.append(path)
    return False


def _folders(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def _chips(sys: Path) -> Iterator[tuple[Path, str]]:
    """Folders of hwmon with their drivers' names, which need not be unique."""
    for chip in _folders(sys / "class/hwmon", "hwmon*"):
        yield chip, read_text(chip / "name") or "unnamed"


def _rapl(sys: Path, unreadable: list[Path]) -> Iterator[Meter]:
    # Not intel-rapl-mmio:*, which shows the same packages once more.
    for zone in _folders(sys / "class/powercap", "intel-rapl:*"):
        name = read_text(zone / "name") or ""
        package = zone.name.split(":")[1]
        if name.startswith("package-"):
            label = name
        elif name == "dram":
            label = f"package-{package}-dram"
        else:
            continue
        path = zone / "energy_uj"
        if _readable(path, unreadable):
            yield Counter(label, path, read_int(zone / "max_energy_range_uj"))


def _hwmon_energy(sys: Path, unreadable: list[Path]) -> Iterator[Meter]:
    for chip, chip_name in _chips(sys):
        for path in _folders(chip, "energy*_input"):
            label = read_text(chip / path.name.replace("_input", "_label")) or path.name[:-6]
            if label.startswith("Ecore"):  # part of its socket
                continue
            if _readable(path, unreadable):
                yield Counter(f"{chip_name}-{chip.name}-{label}", path)


def _ina(sys: Path, unreadable: list[Path]) -> Iterator[Meter]:
    for chip, chip_name in _chips(sys):
        if not re.match(r"ina\d", chip_name):
            continue
        power = chip / "power1_input"
        if _readable(power, unreadable):
            yield Power(f"{chip_name}-{chip.name}", _microwatts(power))
            continue
        channels = {
            read_text(chip / f"in{i}_label") or f"channel{i}": i
            for i in (1, 2, 3)
            if _readable(chip / f"curr{i}_input", unreadable)
        }
        # Where a channel is the board's supply, the others are part of it.
        supply = [label for label in channels if re.search(r"(?i)(vdd|pom_5v|vin)_?in$", label)]
        for label in supply or channels:
            yield Power(f"{chip_name}-{chip.name}-{label}", _product(chip, channels[label]))


def _microwatts(path: Path) -> Callable[[], float | None]:
    return lambda: _scaled(read_int(path))


def _product(chip: Path, channel: int) -> Callable[[], float | None]:
    """Watts of a channel with millivolts and milliamperes."""

    def watts() -> float | None:
        volts = read_int(chip / f"in{channel}_input")
        amperes = read_int(chip / f"curr{channel}_input")
        return None if volts is None or amperes is None else abs(volts * amperes) / 1e6

    return watts


def _batteries(sys: Path, unreadable: list[Path]) -> Iterator[Meter]:
    for supply in _folders(sys / "class/power_supply", "*"):
        if read_text(supply / "type") != "Battery" or read_text(supply / "scope") == "Device":
            continue  # a mouse's battery is of scope Device
        if (supply / "power_now").exists() or (supply / "current_now").exists():
            yield Power(f"battery-{supply.name}", _discharge(supply))


def _discharge(supply: Path) -> Callable[[], float | None]:
    """Watts taken from a battery; None while it is charged, or full."""

    def watts() -> float | None:
        if read_text(supply / "status") != "Discharging":
            return None
        power = _scaled(read_int(supply / "power_now"))
        if power is None:
            amperes = _scaled(read_int(supply / "current_now"))
            volts = _scaled(read_int(supply / "voltage_now"))
            power = None if amperes is None or volts is None else amperes * volts
        return None if power is None else abs(power)

    return watts


def _scaled(millionths: int | None) -> float | None:
    return None if millionths is None else millionths / 1e6


_KINDS: dict[str, Callable[[Path, list[Path]], Iterator[Meter]]] = {
    "RAPL": _rapl, "hwmon": _hwmon_energy, "INA sensors": _ina, "battery": _batteries,
}  # fmt: skip
