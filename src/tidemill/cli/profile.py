"""Tables of where the time of a step goes, for ``bench kernel`` and ``run --profile``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tidemill.backends.cpu import CpuRunner
    from tidemill.backends.cpu.roofline import Ceilings, Line, Profile
    from tidemill.llm.loading import CompiledModel
    from tidemill.models import Model

_LEAST_SHARE = 0.005  # lines below it are added up


def watch_steps(compiled: CompiledModel) -> AbstractContextManager[Profile]:
    """Watches the steps of a model on the cpu backend."""
    from tidemill.backends.cpu.roofline import watch

    return watch(cast("CpuRunner", compiled.runner))


def steps_report(profile: Profile, compiled: CompiledModel) -> dict[str, Any]:
    """What was watched, as plain data, with the limits of this machine, which are measured now."""
    from tidemill.backends.cpu.roofline import measure_ceilings, weight_types

    model = compiled.opened.model
    ceilings = measure_ceilings(weight_types(model), compiled.threads)
    return {"limits": describe_ceilings(ceilings), **describe(profile, model, ceilings)}


def report_text(report: dict[str, Any]) -> str:
    """A report of ``steps_report`` for a terminal."""
    of_bound = f", {report['of_bound']:.0%} of the limit" if report["of_bound"] else ""
    return (
        f"{ceilings_line(report['limits'])}\n"
        f"{report['steps']} steps, {report['tokens']} tokens, {report['seconds']:.2f} s{of_bound}\n"
        f"{table(report)}"
    )


def describe(profile: Profile, model: Model, ceilings: Ceilings) -> dict[str, Any]:
    """One profile as plain data: what was run, and a row for each kind of operation."""
    lines = profile.lines(model, ceilings)
    total = sum(line.seconds for line in lines)
    bound = sum(line.bound for line in lines)
    return {
        "steps": len(profile.batches),
        "tokens": profile.tokens,
        "seconds": total,
        "bound_seconds": bound,
        "of_bound": bound / total if total else None,
        "ops": [_row(line, total) for line in lines],
    }


def describe_ceilings(ceilings: Ceilings) -> dict[str, Any]:
    return {
        "threads": ceilings.threads,
        "bytes_per_second": ceilings.bytes_per_second,
        "products_per_second": {
            type_.name: rate for type_, rate in ceilings.products_per_second.items()
        },
    }


def ceilings_line(limits: dict[str, Any]) -> str:
    products = ", ".join(
        f"{name} {rate / 1e9:.0f}" for name, rate in limits["products_per_second"].items()
    )
    return (
        f"limits of this machine, {limits['threads']} thread(s): memory "
        f"{limits['bytes_per_second'] / 1e9:.1f} GB/s; products (G/s) {products}"
    )


def table(described: dict[str, Any]) -> str:
    """The rows of one profile for a terminal."""
    out = [
        f"  {'time':>9}  share  {'Gprod/s':>8}  {'GB/s':>6}  of limit  {'bound by':<11}operation"
    ]
    small = [op for op in described["ops"] if op["share"] < _LEAST_SHARE]
    for op in described["ops"]:
        if op not in small:
            out.append(_line(op))
    if small:
        seconds = sum(op["seconds"] for op in small)
        share = sum(op["share"] for op in small)
        out.append(f"  {_time(seconds)}  {share:5.1%}{'':40}{len(small)} others")
    return "\n".join(out)


def _row(line: Line, total: float) -> dict[str, Any]:
    return {
        "name": line.name,
        "seconds": line.seconds,
        "share": line.seconds / total if total else 0.0,
        "products": line.products,
        "bytes": line.bytes,
        "bound_seconds": line.bound,
        "bound_by": line.bound_by or None,
        "of_bound": line.bound / line.seconds if line.bound and line.seconds else None,
    }


def _line(op: dict[str, Any]) -> str:
    head = f"  {_time(op['seconds'])}  {op['share']:5.1%}"
    if op["of_bound"] is None:
        return f"{head}{'':40}{op['name']}"
    return (
        f"{head}  {op['products'] / op['seconds'] / 1e9:8.1f}  "
        f"{op['bytes'] / op['seconds'] / 1e9:6.2f}  {op['of_bound']:8.0%}  "
        f"{op['bound_by']:<11}{op['name']}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:6.2f} ms" if seconds < 10 else f"{seconds:6.2f} s "
