"""``tidemill eval``: how good a model is, in numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TextIO

import click

from tidemill.cli.options import ENGINE, context_option, engine_options, pick, read_text


@click.group("eval", invoke_without_command=True)
@click.pass_context
def evaluate(ctx: click.Context) -> None:
    """Measure a model's quality."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@evaluate.command("perplexity", short_help="Perplexity on a text, as llama-perplexity defines it.")
@click.argument("model")
@click.option(
    "-f",
    "--file",
    "text_file",
    type=click.File(encoding="utf-8"),
    required=True,
    help="The text; `-` reads stdin.",
)
@click.option("--stride", type=click.IntRange(min=1), help="Overlapping windows, this far apart.")
@click.option("--chunks", "max_chunks", type=click.IntRange(min=1), help="Only this many chunks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@context_option("Tokens of a chunk. [default: 512]")
@engine_options
def perplexity(
    model: str,
    text_file: TextIO,
    stride: int | None,
    max_chunks: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Perplexity of MODEL on a text, as llama-perplexity of llama.cpp defines it.

    The text is cut into chunks of --context tokens ; of each chunk the second half is
    scored. One newline at the end of the text is dropped, as there.
    """
    from tidemill.cli.progress import LoadProgress, status_line
    from tidemill.llm.perplexity import DEFAULT_WINDOW, model_perplexity

    text = read_text(text_file, "the text").removesuffix("\n")
    engine = pick(options, ENGINE)
    context = engine.pop("max_context") or DEFAULT_WINDOW
    with (
        LoadProgress(model, quiet=options["quiet"]) as progress,
        status_line(quiet=options["quiet"]) as show,
    ):
        result = model_perplexity(
            model,
            text,
            context=context,
            stride=stride,
            max_chunks=max_chunks,
            offline=options["offline"] or None,
            progress=progress.on_download,
            on_stage=progress.on_stage,
            on_chunk=lambda done, of, value: show(f"chunk {done} of {of}: {value:.4f}"),
            **engine,
        )
    if as_json:
        import json

        click.echo(json.dumps({"model": model, **asdict(result)}, indent=2))
        return
    click.echo(
        f"perplexity {result.perplexity:.4f} +/- {result.uncertainty:.5f} "
        f"({result.scored_tokens} of {result.text_tokens} tokens scored, {result.chunks} chunks of "
        f"{result.context})"
    )
