"""``tidemill bench``: how fast servers are, and how close this machine is to its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli.bench_engines import engines
from tidemill.cli.bench_report import report
from tidemill.cli.bench_results import compare, results, rm
from tidemill.cli.bench_scenarios import list_scenarios, run, selftest, show
from tidemill.cli.bench_search import curve, search
from tidemill.cli.blocks import echo_json
from tidemill.cli.options import Numbers, threads_option

if TYPE_CHECKING:
    from tidemill.backends.base import Batch
    from tidemill.backends.cpu import CpuRunner

_BLOCK = 16


@click.group("bench", invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure inference servers, and speed on this machine."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _command in (
    run, search, curve, list_scenarios, show, engines, results, compare, report, rm, selftest,
):  # fmt: skip
    bench.add_command(_command)


@bench.command("kernel", short_help="Each operation's time against what the machine can do.")
@click.argument("model", default="smollm2")
@click.option(
    "--prompt", type=click.IntRange(1, 8192), default=512, show_default=True,
    help="Tokens of the prompt step.",
)  # fmt: skip
@click.option(
    "--streams", type=Numbers(click.IntRange(1, 1024)), default="1,8,32", show_default=True,
    help="Sequences of each decode step.",
)  # fmt: skip
@click.option(
    "--context", type=click.IntRange(0, 131072), default=64, show_default=True,
    help="Tokens before each decode step.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=5, show_default=True,
    help="Repetitions of each step.",
)  # fmt: skip
@threads_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def kernel(
    model: str,
    prompt: int,
    streams: tuple[int, ...],
    context: int,
    rounds: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Each operation's time in a forward step of MODEL, against this machine's limits.

    A step's limit is the longer of what its bytes take at the measured memory bandwidth and what
    its multiply-adds take at the measured rate of the vector units (the roofline). The time is
    that of one thread, waiting for the others included. Run it on an otherwise idle machine.
    """
    from tidemill.backends import cpu
    from tidemill.backends.base import KVCacheSpec
    from tidemill.backends.cpu.roofline import measure_ceilings, watch, weight_types
    from tidemill.cli.profile import ceilings_line, describe, describe_ceilings, table
    from tidemill.cli.progress import LoadProgress
    from tidemill.hardware import usable_cores
    from tidemill.llm.loading import open_model

    threads = threads or usable_cores()
    with LoadProgress(model, quiet=as_json) as progress:
        opened = open_model(model, progress=progress.on_download, on_stage=progress.on_stage)
    blocks_each = -(-(context + 1) // _BLOCK)
    n_blocks = max(max(streams) * blocks_each, -(-prompt // _BLOCK))
    runner = cpu.compile(
        opened.model,
        kv=KVCacheSpec(n_blocks, _BLOCK),
        max_batch_tokens=max(prompt, *streams),
        max_logit_rows=max(streams),
        threads=threads,
    )
    ceilings = measure_ceilings(weight_types(opened.model), threads)
    limits = describe_ceilings(ceilings)
    steps = [(f"prompt of {prompt} tokens", _batch(runner, 1, prompt, 0))]
    steps += [
        (f"decode, {n} stream(s), context {context}", _batch(runner, n, 1, context))
        for n in streams
    ]
    results = []
    if not as_json:
        click.echo(ceilings_line(limits))
    for title, batch in steps:
        runner.forward(batch)  # pages and caches
        with watch(runner) as profile:
            for _ in range(rounds):
                runner.forward(batch)
        result = {"step": title, **describe(profile, opened.model, ceilings)}
        results.append(result)
        if not as_json:
            rate = result["tokens"] / result["seconds"]
            click.echo(f"\n{title}: {rate:.0f} tokens/s, {result['of_bound']:.0%} of the limit")
            click.echo(table(result))
    runner.close()
    if as_json:
        echo_json({"model": model, "limits": limits, "steps": results})


def _batch(runner: CpuRunner, n: int, new: int, past: int) -> Batch:
    """``n`` sequences with ``new`` random tokens each behind ``past`` others."""
    import numpy as np

    from tidemill.backends.cpu.roofline import uniform_batch

    tokens = np.random.default_rng(0).integers(0, runner.vocab_size, n * new).astype(np.int32)
    return uniform_batch(tokens, n, past, _BLOCK, -(-(past + new) // _BLOCK))
