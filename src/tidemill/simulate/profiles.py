"""Hardware that is not at hand: figures with a source each, read from ``hardware/*.toml``.

    name = "NVIDIA H200 SXM 141 GB"
    kind = "gpu"

    [sources.sheet]
    url = "https://..."
    looked_up = 2026-11-30

    [memory]
    value = 141e9
    kind = "data sheet"
    source = "sheet"

What no document states is marked as an assumption and says why; what follows from stated figures
says how. ``assumptions.toml`` beside this file has what is assumed of all hardware of a kind.
"""

from __future__ import annotations

import datetime
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

Precision = Literal["f32", "bf16", "fp8", "int8", "int4"]
Kind = Literal["gpu", "cpu"]
FigureKind = Literal["data sheet", "derived", "measured", "assumption"]

_FOLDER = Path(__file__).with_name("hardware")
_MOST_BYTES = 1 << 20  # of a file
_LONGEST_CURRENCY = 16
_LEAST, _MOST = 1e-18, 1e24  # what no figure of hardware is below or above, in any unit


class HardwareError(ValueError):
    """A profile does not fit the schema, or is not there; says which file, where, what to do."""


_Read = TypeVar("_Read", bound=msgspec.Struct)


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public document, and the day it was read."""

    url: str
    looked_up: datetime.date


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and where it is from. "data sheet": the maker's, as ``source`` has it. "derived":
    computed from what ``source`` states, as ``note`` says. "measured": here, as ``note`` says.
    "assumption": not stated anywhere, ``note`` says why it is thought so, ``source`` what supports
    it."""

    value: float
    kind: FigureKind
    source: str | None = None
    note: str = ""


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Between the devices of one machine. ``bandwidth``: bytes per second of a device in one
    direction; ``latency``: seconds until the first byte; ``devices``: how many are joined."""

    bandwidth: Figure
    latency: Figure
    devices: int


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a device for an hour."""

    hour: Figure
    currency: str


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the figures is reached: shares of ``bandwidth``, of ``flops`` in products and in the
    attention of prompts."""

    memory: Figure
    compute: Figure
    attention: Figure


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device: an accelerator, or a machine whose CPU computes.

    ``memory``: bytes. ``bandwidth``: bytes per second of that memory. ``flops``: operations per
    second without sparsity, a multiply-add counted as two, by the type of the operands. ``power``:
    watts at full load. ``efficiency``: where more is known than of its kind in general.
    """

    name: str
    kind: Kind
    sources: dict[str, Source]
    memory: Figure
    bandwidth: Figure
    flops: dict[Precision, Figure]
    power: Figure | None = None
    link: Link | None = None
    price: Price | None = None
    efficiency: Efficiency | None = None
    id: str = ""
    """The name of its file."""

    def rate(self, preferred: tuple[Precision, ...]) -> float:
        """Operations per second of the first of ``preferred`` that it has."""
        for precision in preferred:
            if precision in self.flops:
                return self.flops[precision].value
        raise HardwareError(f"{self.id or self.name} states no rate for any of {preferred}")

    def figures(self) -> dict[str, Figure]:
        """Every figure by what it is called in the file."""
        found = {"memory": self.memory, "bandwidth": self.bandwidth}
        found |= {f"flops.{name}": figure for name, figure in self.flops.items()}
        if self.power is not None:
            found["power"] = self.power
        if self.link is not None:
            found |= {"link.bandwidth": self.link.bandwidth, "link.latency": self.link.latency}
        if self.price is not None:
            found["price.hour"] = self.price.hour
        if self.efficiency is not None:
            found |= _efficiency_figures(self.efficiency)
        return found


class KindAssumptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all hardware of a kind and the engines that run on it.

    ``usable_memory``: share of the memory that weights and KV cache may take. ``step``: seconds
    that the engine adds to each step (scheduling, sampling, starting kernels); ``request`` and, for
    each token of the prompt, ``prompt_token``: before a request's first one (``FrontEnd``).
    ``band``: how far computed step times may be off, as a share.
    """

    efficiency: Efficiency
    usable_memory: Figure
    step: Figure
    request: Figure
    prompt_token: Figure
    band: Figure

    def figures(self) -> dict[str, Figure]:
        return {
            **_efficiency_figures(self.efficiency),
            "usable_memory": self.usable_memory, "step": self.step,
            "request": self.request, "prompt_token": self.prompt_token, "band": self.band,
        }  # fmt: skip


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[str, Source]
    gpu: KindAssumptions
    cpu: KindAssumptions

    def of(self, hardware: Hardware) -> KindAssumptions:
        return self.gpu if hardware.kind == "gpu" else self.cpu


def hardware_names() -> list[str]:
    """The profiles that come with Tidemill."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """A profile by its name, or from a file of one's own (``mine.toml``). Raises HardwareError."""
    path = _path(name)
    return _checked(_read(path, Hardware), path)


def profile_text(name: str) -> str:
    """The file itself of a profile that is sound. Raises HardwareError."""
    load_hardware(name)
    return _path(name).read_text("utf-8")


def _path(name: str) -> Path:
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    if name not in hardware_names():
        raise HardwareError(
            f"no hardware is called {name!r}; there are {', '.join(hardware_names())}, and "
            "files of your own (NAME.toml)"
        )
    return _FOLDER / f"{name}.toml"


@cache
def assumptions() -> Assumptions:
    path = Path(__file__).with_name("assumptions.toml")
    found = _read(path, Assumptions)
    for kind in (found.gpu, found.cpu):
        for name, figure in kind.figures().items():
            _check_figure(figure, found.sources, f"{path.name}: {name}")
    return found


def _read(path: Path, type_: type[_Read]) -> _Read:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise HardwareError(f"{path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise HardwareError(f"{path.name}: larger than {_MOST_BYTES >> 20} MiB")
    try:
        table = tomllib.loads(data.decode("utf-8-sig"))  # some editors write that mark
    except (ValueError, RecursionError) as error:
        raise HardwareError(f"{path.name}: not valid TOML: {error}") from None
    try:
        return msgspec.convert(table, type_)
    except msgspec.ValidationError as error:
        raise HardwareError(f"{path.name}: {_lowered(str(error))}") from None


def _checked(hardware: Hardware, path: Path) -> Hardware:
    if hardware.id:
        raise HardwareError(f"{path.name}: id is the name of the file, and not in it")
    if not hardware.flops:
        raise HardwareError(f"{path.name}: flops: at least one precision is needed")
    for name, figure in hardware.figures().items():
        _check_figure(figure, hardware.sources, f"{path.name}: {name}")
    for name, source in hardware.sources.items():
        if not source.url.startswith("https://"):
            raise HardwareError(f"{path.name}: sources.{name}: {source.url!r} is no https:// URL")
    if hardware.link is not None and hardware.link.devices < 2:
        raise HardwareError(f"{path.name}: link.devices: a link joins at least 2")
    if hardware.price is not None:
        currency = hardware.price.currency
        if not 1 <= len(currency) <= _LONGEST_CURRENCY or not currency.isprintable():
            raise HardwareError(f"{path.name}: price.currency: {currency!r} is no name such as EUR")
    if hardware.efficiency is not None:
        for name, figure in _efficiency_figures(hardware.efficiency).items():
            if figure.value > 1:
                raise HardwareError(f"{path.name}: {name} is a share, at most 1")
    return msgspec.structs.replace(hardware, id=path.stem)


def _check_figure(figure: Figure, sources: dict[str, Source], where: str) -> None:
    if not _LEAST <= figure.value <= _MOST:
        raise HardwareError(f"{where}: {figure.value} is not a number from {_LEAST:g} to {_MOST:g}")
    if figure.source is not None and figure.source not in sources:
        known = ", ".join(sources) or "none"
        raise HardwareError(f"{where}: source {figure.source!r} is not among [sources]: {known}")
    if figure.kind in ("data sheet", "derived") and figure.source is None:
        raise HardwareError(f"{where}: a figure of kind {figure.kind!r} names its source")
    if figure.kind != "data sheet" and not figure.note:
        raise HardwareError(f"{where}: a figure of kind {figure.kind!r} says why in its note")


def _efficiency_figures(efficiency: Efficiency) -> dict[str, Figure]:
    return {
        f"efficiency.{name}": getattr(efficiency, name)
        for name in ("memory", "compute", "attention")
    }


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
