"""``tidemill calibrate``: how long steps take on this machine, for ``simulate`` and ``size``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.options import kv_dtype_option, threads_option
from tidemill.cli.printable import printable

if TYPE_CHECKING:
    from tidemill.backends.base import KVDtype
    from tidemill.simulate.calibration import Calibration

_SHOWN_DECODES = (1, 4, 16, 64)
_SHOWN_PROMPTS = (16, 64, 256, 512)
_SHOWN_CONTEXT = 256


@click.command()
@click.argument("model", default="smollm2")
@threads_option
@kv_dtype_option
@click.option("--quick", is_flag=True, help="Under a minute, and less exact.")
@click.option(
    "--no-server", is_flag=True, help="Leave out what HTTP and tokenising add to the engine."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Where to write it. [default: the store's calibrations]",
)  # fmt: skip
@click.option("--list", "list_", is_flag=True, help="List the calibrations in the store, and end.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def calibrate(
    model: str,
    threads: int | None,
    kv_dtype: KVDtype,
    quick: bool,
    no_server: bool,
    out: Path | None,
    list_: bool,
    offline: bool,
    quiet: bool,
) -> None:
    """Measure how long steps of MODEL take on this machine.

    Steps of many kinds (prompts, decodes, both mixed; short and long contexts) are measured in
    random order, again and again, and a model of their times is fitted to three quarters of them.
    How far it is off for the others is its stated error. Takes about four minutes, in which the
    machine should have nothing else to do.
    """
    from tidemill.simulate import calibration as files

    if list_:
        _list()
        return
    if out is not None:
        with open(out, "ab"):  # can it be written? Better known now than in four minutes
            pass
    from tidemill.cli.progress import LoadProgress, status_line
    from tidemill.simulate.calibrate import calibrate as measure

    with (
        LoadProgress(model, quiet=quiet) as progress,
        status_line(quiet=quiet) as show,
    ):
        made = measure(
            model,
            threads=threads,
            kv_dtype=kv_dtype,
            quick=quick,
            server=not no_server,
            offline=offline or None,
            progress=progress.on_download,
            on_stage=progress.on_stage,
            on_phase=lambda phase, how_far: show(f"measuring {phase}: {how_far}"),
        )
    path = files.save(made, out)
    click.echo(report(made))
    click.echo(f"\nwritten to {path}")


def _list() -> None:
    from tidemill.simulate.calibration import folder, stored

    found = list(stored())
    if not found:
        click.echo(f"no calibrations in {folder()}; `tidemill calibrate` makes one")
    for path, made in found:
        words = (
            f"{made.made:%Y-%m-%d}  {made.model}, {made.threads} threads, {made.machine.cpu}, "
            f"error {made.fit.error.median:.1%} (95 %: {made.fit.error.p95:.1%})\n    {path}"
        )
        click.echo(printable(words))


def report(made: Calibration) -> str:
    """What was found, for a terminal."""
    from tidemill.simulate.analytic_error import distances
    from tidemill.simulate.shapes import load_shape

    error, noise = made.fit.error, made.fit.noise
    lines = [
        f"{made.model} ({', '.join(made.weights)}) on {made.machine.cpu}, {made.threads} threads",
        f"limits: memory {made.limits.bytes_per_second / 1e9:.1f} GB/s; products (G/s) "
        + ", ".join(f"{n} {r / 1e9:.0f}" for n, r in made.limits.products_per_second.items()),
        f"{len(made.points)} kinds of steps, each {min(p.repeats for p in made.points)} times or "
        "more",
        f"  spread of repeats: median {noise.median:.1%}, 95 % within {noise.p95:.1%}",
        f"  error for {error.steps} kinds that were not fitted: median {error.median:.1%}, 95 % "
        f"within {error.p95:.1%}, worst {error.worst:.1%}",
        "",
        *_steps(made),
    ]
    if made.served is not None:
        served = made.served
        lines += [
            "",
            f"the server adds {served.per_request * 1e3:.1f} ms to a request and "
            f"{served.per_prompt_token * 1e6:.1f} us for each token of its prompt, "
            f"{served.per_step * 1e3:.2f} ms to a step and {served.per_token * 1e3:.3f} ms to each "
            "of its tokens",
        ]
    found = distances(made, load_shape(made.model))
    lines += [
        "",
        "what would be computed from these limits alone, as of hardware that is not at hand:",
        *(f"  {kind:<8} {distance}" for kind, distance in found.items()),
    ]
    return "\n".join(lines)


def _steps(made: Calibration) -> list[str]:
    from tidemill.engine.step_time import attended
    from tidemill.simulate.base import StepWork
    from tidemill.simulate.calibration import step_table

    seconds = step_table(made, with_server=False).seconds
    context = _SHOWN_CONTEXT
    decodes = [
        (n, seconds(StepWork(0, 0, n, n * context, n)))
        for n in _SHOWN_DECODES
        if n <= made.engine.max_sequences
    ]
    prompts = [
        (n, seconds(StepWork(n, attended(0, n), 0, 0, 1)))
        for n in _SHOWN_PROMPTS
        if n <= made.engine.max_batch_tokens
    ]
    return [
        f"decodes behind {context} tokens: "
        + ", ".join(f"{n}: {s * 1e3:.1f} ms ({n / s:.0f}/s)" for n, s in decodes),
        "prompts: " + ", ".join(f"{n}: {s * 1e3:.1f} ms ({n / s:.0f}/s)" for n, s in prompts),
    ]
