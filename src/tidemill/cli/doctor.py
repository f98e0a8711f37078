"""``tidemill doctor``: what this machine has, what Tidemill makes of it, and what is missing."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tidemill.cli.options import Number

# Extras of the package -> (what they are for, the packages that they bring)
_EXTRAS = {
    "fsspec": ("models from s3:// and other fsspec URLs", ("fsspec", "s3fs")),
    "otel": (
        "traces of `tidemill serve`",
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    ),
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option(
    "--seconds",
    type=Number(0.05, 30),
    metavar="X",
    default=0.5,
    show_default=True,
    help="How long to measure memory bandwidth.",
)
@click.option(
    "--check-packed",
    is_flag=True,
    help="Read all packed weights and compare them with their checksums; damaged ones are removed.",
)
def doctor(as_json: bool, seconds: float, check_packed: bool) -> None:
    """Describe this machine, what Tidemill uses of it, and what to do about what is missing.

    Memory bandwidth is measured now; the rest is read from the operating system. Exits with 1 if
    something is wrong that keeps models from running.
    """
    report = examine(seconds, check_packed=check_packed)
    if as_json:
        import json

        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if any(finding["severity"] == "error" for finding in report["findings"]):
        raise SystemExit(1)


def examine(seconds: float, *, check_packed: bool = False) -> dict[str, Any]:
    """Everything that ``doctor`` tells, as plain data."""
    findings: list[dict[str, str]] = []
    report: dict[str, Any] = {"version": _versions()}
    try:
        importlib.import_module("tidemill._native")
        native = True
    except ImportError as error:
        native = False
        findings.append(
            _finding(
                "error",
                f"the native kernels cannot be loaded ({error})",
                "reinstall: pip install --force-reinstall tidemill, or `make native` in a checkout",
            )
        )
    from tidemill.hardware import core_budget, measure_bandwidth, memory_budget

    report["cpu"] = _cpu(findings) if native else None
    cores = core_budget()
    report["cores"] = {
        "logical": cores.online,
        "allowed": cores.allowed,
        "physical": cores.physical,
        "quota": cores.quota,
        "threads": cores.usable,
        "why": cores.explain(),
    }
    memory = memory_budget()
    report["memory"] = {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "bound_by": memory.explain(),
        "cgroup_limit_bytes": memory.cgroup_limit,
    }
    if memory.available is not None and memory.available < 512 << 20:
        findings.append(
            _finding(
                "warning",
                f"only {memory.available >> 20} MiB of memory are available",
                "close other programs, or raise the container's memory limit",
            )
        )
    if native:
        try:
            measured = measure_bandwidth(seconds)
            report["bandwidth"] = {
                "bytes_per_second": measured.bytes_per_second,
                "threads": measured.threads,
                "working_set_bytes": measured.working_set,
                "source": f"measured: streaming read for {seconds:g} s",
            }
        except MemoryError:
            report["bandwidth"] = None
    report["energy"] = _energy()
    report["extras"] = _extras()
    report["store"] = _store(findings)
    report["packed"] = _packed(findings, check=check_packed and native)
    report["findings"] = findings
    return report


def _versions() -> dict[str, str]:
    import platform

    import numpy

    from tidemill import __version__

    return {
        "tidemill": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "system": platform.platform(),
    }


def _cpu(findings: list[dict[str, str]]) -> dict[str, Any]:
    from dataclasses import asdict

    from tidemill import _native
    from tidemill.hardware import cpu_info

    info = cpu_info()
    try:
        kernels = _native.isa_name()
    except RuntimeError as error:  # TIDEMILL_ISA asks for what this CPU cannot run
        findings.append(_finding("error", str(error), "unset TIDEMILL_ISA"))
        kernels = "none"
    if kernels == "portable":
        findings.append(
            _finding(
                "warning",
                "the portable kernels are in use: many times slower than vector ones",
                "unset TIDEMILL_ISA if it is set; otherwise this CPU (or virtual machine) lacks "
                "AVX2 or NEON with dot products: choose another CPU type for the machine",
            )
        )
    return {**asdict(info), "kernels": kernels, "kernels_possible": _native.available_isas()}


def _energy() -> dict[str, Any]:
    from tidemill.hardware.energy import EnergyMeters

    found = EnergyMeters()
    return {
        "meters": [meter.name for meter in found.meters],
        "unreadable": [str(path) for path in found.unreadable],
    }


def _is_there(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False


def _extras() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "installed": all(map(_is_there, packages)),
            "for": purpose,
            "get": f"pip install 'tidemill[{name}]'",
        }
        for name, (purpose, packages) in _EXTRAS.items()
    ]


def _store(findings: list[dict[str, str]]) -> dict[str, Any]:
    import os
    import shutil

    from tidemill import store

    home = store.home()
    # The folder is made by the first download; until then its nearest existing parent counts.
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    if not existing.is_dir():
        findings.append(
            _finding(
                "warning",
                f"the model store {home} cannot be a folder: {existing} is a file",
                "set TIDEMILL_HOME to a folder",
            )
        )
    elif not writable:
        findings.append(
            _finding(
                "warning",
                f"the model store {home} cannot be written to",
                "set TIDEMILL_HOME to a folder that can",
            )
        )
    elif free < 1 << 30:
        findings.append(
            _finding(
                "warning",
                f"only {free >> 20} MiB are free where models are stored ({home})",
                "remove models (`tidemill rm`), or set TIDEMILL_HOME to a larger disk",
            )
        )
    return {
        "home": str(home),
        "free_bytes": free,
        "writable": writable,
        "offline": store.is_offline(),
        "models": [
            {"name": model.name, "bytes": model.bytes, "path": str(model.path)}
            for model in store.list_models()
        ],
    }


def _packed(findings: list[dict[str, str]], *, check: bool) -> dict[str, Any]:
    from tidemill import store

    limit: int | None = None
    try:
        limit = store.packed_limit()
    except store.StoreError as error:
        findings.append(_finding("error", str(error), "correct or unset it"))
    files = store.list_packed()
    damaged = []
    if check:
        from tidemill.backends.cpu.packed import check_packed
        from tidemill.store.packed import discard_packed

        for file in files:
            if part := check_packed(file):
                discard_packed(file.path)
                damaged.append({"path": str(file.path), "part": part})
                findings.append(
                    _finding(
                        "warning",
                        f"packed weights of {file.header.sources[0]} were damaged (at {part})",
                        "nothing: they are removed, and the next start packs them again; if it "
                        "happens more than once, check the disk",
                    )
                )
    return {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "limit_bytes": limit,
        "checked": check,
        "damaged": damaged,
    }


def _finding(severity: str, what: str, todo: str) -> dict[str, str]:
    return {"severity": severity, "what": what, "do": todo}


def _print(report: dict[str, Any]) -> None:
    versions = report["version"]
    _row("tidemill", f"{versions['tidemill']} (Python {versions['python']}, {versions['system']})")
    cpu = report["cpu"]
    if cpu is not None:
        _row("CPU", f"{cpu['model']} ({cpu['architecture']}), {cpu['numa_nodes']} NUMA node(s)")
        caches = [
            f"L{c['level']}{c['kind'][0] if c['kind'] != 'unified' else ''} "
            f"{c['count']} x {c['size'] >> 10} KiB"
            for c in cpu["caches"]
        ]
        _row("caches", ", ".join(caches) or "unknown")
        _row("features", " ".join(cpu["features"]) or "none known")
        others = [name for name in cpu["kernels_possible"] if name != cpu["kernels"]]
        _row(
            "kernels", cpu["kernels"] + (f" (possible too: {', '.join(others)})" if others else "")
        )
    _row("threads", report["cores"]["why"])
    memory = report["memory"]
    if memory["available_bytes"] is not None:
        total = f" of {_gigabytes(memory['total_bytes'])}" if memory["total_bytes"] else ""
        _row(
            "memory",
            f"{_gigabytes(memory['available_bytes'])} available{total} ({memory['bound_by']})",
        )
    bandwidth = report.get("bandwidth")
    if bandwidth:
        _row(
            "bandwidth",
            f"{bandwidth['bytes_per_second'] / 1e9:.1f} GB/s over {bandwidth['threads']} thread(s) "
            f"({bandwidth['source']})",
        )
    _row("energy", _meters(report["energy"]))
    for extra in report["extras"]:
        state = "installed" if extra["installed"] else f"not installed: {extra['get']}"
        _row(f"extra {extra['name']}", f"{state} (for {extra['for']})")
    where = report["store"]
    offline = ", offline" if where["offline"] else ""
    _row("model store", f"{where['home']} ({_gigabytes(where['free_bytes'])} free{offline})")
    names = [f"{m['name']} ({m['bytes'] / 1e6:.0f} MB)" for m in where["models"]]
    _row("models", ", ".join(names) or "none yet: tidemill pull smollm2")
    packed = report["packed"]
    limit = packed["limit_bytes"]
    bound = "off" if limit == 0 else f"at most {_gigabytes(limit)}" if limit else "limit unknown"
    checked = f", {packed['files'] - len(packed['damaged'])} sound" if packed["checked"] else ""
    _row("packed weights", f"{packed['files']} ({_gigabytes(packed['bytes'])}, {bound}{checked})")
    if not report["findings"]:
        click.echo("\nNothing is missing.")
    for finding in report["findings"]:
        click.echo(f"\n{finding['severity']}: {finding['what']}\n  -> {finding['do']}")


def _meters(energy: dict[str, list[str]]) -> str:
    if energy["meters"]:
        return ", ".join(energy["meters"])
    if energy["unreadable"]:
        paths = " ".join(energy["unreadable"])
        return f"there are meters that this user may not read (as root: chmod a+r {paths})"
    return "no meter"


def _row(name: str, value: str) -> None:
    click.echo(f"{name:<14} {value}")


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
