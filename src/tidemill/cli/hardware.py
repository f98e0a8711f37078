"""``tidemill hardware``: what is known of accelerators and machines that are not at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.simulate.profiles import Figure, Hardware, Source

_UNITS = {
    "memory": (1e9, "GB"),
    "usable_memory": (0.01, "%"),
    "bandwidth": (1e9, "GB/s"),
    "link.bandwidth": (1e9, "GB/s each way"),
    "link.latency": (1e-6, "us"),
    "power": (1.0, "W"),
    "step": (1e-3, "ms"),
    "request": (1e-3, "ms"),
    "prompt_token": (1e-6, "us"),
    "band": (0.01, "%"),
}


@click.command()
@click.argument("name", required=False)
@click.option("--toml", is_flag=True, help="NAME's file itself, to make one of your own from.")
def hardware(name: str | None, toml: bool) -> None:
    """List the hardware that can be simulated and sized without having it, or show the figures of
    NAME (one of them, or a file NAME.toml of your own) with their sources."""
    from tidemill.simulate.profiles import hardware_names, load_hardware, profile_text

    if toml:
        if name is None:
            raise click.UsageError("--toml is for one NAME")
        click.echo(profile_text(name), nl=False)
        return
    if name is not None:
        click.echo(printable(describe(load_hardware(name))))
        return
    click.echo(f"  {'':<18}{'memory':>8}{'bandwidth':>12}{'BF16':>10}{'INT8':>10}{'power':>7}")
    for known in map(load_hardware, hardware_names()):
        rates = [known.flops.get(precision) for precision in ("bf16", "int8")]
        tera = "".join(f"{f'{r.value / 1e12:.4g} T' if r else '-':>10}" for r in rates)
        power = f"{known.power.value:.0f} W" if known.power else "-"
        click.echo(
            f"  {known.id:<18}{known.memory.value / 1e9:>5.0f} GB"
            f"{known.bandwidth.value / 1e9:>7.0f} GB/s{tera}{power:>7}"
        )
    click.echo("\nRates are operations per second without sparsity, by the type of the operands.")
    click.echo("`tidemill hardware NAME` shows where the figures are from.")


def describe(known: Hardware) -> str:
    """All figures of a profile, and what is assumed beside them."""
    from tidemill.simulate.profiles import assumptions

    general = assumptions()
    own = known.figures()
    assumed = {
        figure: value for figure, value in general.of(known).figures().items() if figure not in own
    }
    return "\n".join([
        f"{known.name}",
        *_lines(own, known.sources, known.price.currency if known.price else ""),
        "",
        f"assumed of every {'GPU' if known.kind == 'gpu' else 'CPU'}:",
        *_lines(assumed, general.sources),
    ])  # fmt: skip


def _lines(
    figures: Mapping[str, Figure], sources: Mapping[str, Source], currency: str = ""
) -> list[str]:
    lines = []
    for name, figure in figures.items():
        lines.append(f"  {name:<22}{_shown(name, figure.value, currency):<18}{figure.kind}")
        if figure.note:
            lines.append(f"      {figure.note}")
        if figure.source is not None:
            source = sources[figure.source]
            lines.append(f"      {source.url} ({source.looked_up})")
    return lines


def _shown(name: str, value: float, currency: str) -> str:
    if name.startswith("flops."):
        return f"{value / 1e12:.4g} TFLOP/s"
    if name.startswith("efficiency."):
        return f"{value:.0%}"
    if name == "price.hour":
        return f"{value:.5g} {currency}"
    unit, text = _UNITS.get(name, (1.0, ""))
    return f"{value / unit:.5g} {text}"
