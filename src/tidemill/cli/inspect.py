"""``tidemill inspect``: what a model is, and the memory that it will need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import kv_dtype_option, pre_tokenizer_option

if TYPE_CHECKING:
    from tidemill.backends.base import MemoryPlan
    from tidemill.llm.description import ModelDescription


@click.command()
@click.argument("model")
@click.option(
    "-c",
    "--context",
    type=click.IntRange(min=2),
    metavar="N",
    help="Tokens of each sequence. [default: the model's, at most 8192]",
)
@click.option(
    "-b",
    "--batch",
    type=click.IntRange(1, 65536),
    metavar="N",
    default=1,
    show_default=True,
    help="Sequences of that context at once.",
)
@kv_dtype_option
@click.option("--template", is_flag=True, help="Print the chat template and nothing else.")
@pre_tokenizer_option
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def inspect(
    model: str,
    context: int | None,
    batch: int,
    kv_dtype: Any,
    template: bool,
    pre_tokenizer: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Describe MODEL and the memory that a context and a batch of sequences will need.

    Reads the description only: weights are neither loaded nor checked.
    """
    from tidemill.cli.progress import LoadProgress
    from tidemill.hardware import available_memory, usable_cores
    from tidemill.llm.description import describe_model, plan_model
    from tidemill.llm.loading import open_model

    with LoadProgress(model) as progress:
        opened = open_model(
            model,
            max_context=context,
            pre_tokenizer=pre_tokenizer,
            offline=offline or None,
            progress=progress.on_download,
            on_stage=progress.on_stage,
        )
    description = describe_model(opened)
    if template:
        if description.chat_template is None:
            raise click.ClickException(f"{model} has no chat template")
        click.echo(description.chat_template)
        return
    context = opened.max_context
    plan = plan_model(
        opened, context=context, sequences=batch, kv_dtype=kv_dtype, threads=usable_cores()
    )
    available = available_memory()
    if as_json:
        import json

        memory = {
            "context": context,
            "sequences": batch,
            "kv_dtype": kv_dtype,
            "weights_bytes": plan.weights,
            "mapped_bytes": plan.mapped,
            "kv_bytes": plan.kv,
            "scratch_bytes": plan.scratch,
            "total_bytes": plan.total,
            "available_bytes": available,
            "fits": available is None or plan.total <= available,
        }
        click.echo(json.dumps({**_facts(description), "memory": memory}, indent=2))
        return
    _print_description(description)
    _print_memory(plan, context, batch, kv_dtype, available)


def _facts(description: ModelDescription) -> dict[str, Any]:
    from dataclasses import asdict

    facts = asdict(description)
    facts["bits_per_weight"] = description.bits_per_weight
    for group, fact in zip(description.groups, facts["groups"], strict=True):
        fact["bits_per_weight"] = group.bits_per_weight
    return facts


def _print_description(d: ModelDescription) -> None:
    eos = ", ".join(str(token) for token in d.eos_ids) or "none"
    template = f"yes, {len(d.chat_template):,} characters (--template)" if d.chat_template else "no"
    config = ", ".join(
        f"{value:g} {what}" if isinstance(value, float) else f"{value} {what}"
        for what, value in (
            ("layers", d.config["n_layers"]),
            ("wide", d.config["d_model"]),
            ("heads", d.config["n_heads"]),
            ("KV heads", d.config["n_kv_heads"]),
            ("per head", d.config["head_dim"]),
        )
    )
    if d.config.get("n_experts"):
        config += f", {d.config['n_experts_used']} of {d.config['n_experts']} experts"
    rows = [
        ("model", d.title or d.name),
        ("file", f"{d.path} ({d.format}, {_megabytes(d.file_bytes)})"),
        ("architecture", f"{d.architecture}: {config}"),
        ("parameters", f"{_count(d.parameters)}, {d.bits_per_weight:.2f} bits per weight"),
        ("context", f"{d.context_length:,} tokens"),
        ("tokenizer", f"{d.tokenizer}, {d.vocab_size:,} tokens, BOS {d.bos_id}, ends with {eos}"),
        ("chat template", template),
    ]
    for name, value in rows:
        click.echo(f"{name:<14} {value}")
    click.echo("\ntensors")
    width = max(len(group.name) for group in d.groups)
    for group in d.groups:
        types = ", ".join(f"{n} x {kind}" if n > 1 else kind for kind, n in group.types.items())
        click.echo(
            f"  {group.name:<{width}}  {_count(group.parameters):>8}  "
            f"{_megabytes(group.bytes):>10}  {group.bits_per_weight:5.2f} bits  {types}"
        )


def _print_memory(
    plan: MemoryPlan, context: int, batch: int, kv_dtype: str, available: int | None
) -> None:
    what = "1 sequence" if batch == 1 else f"{batch} sequences"
    click.echo(f"\nmemory for {what} of {context:,} tokens, KV cache in {kv_dtype}")
    for name, value in (
        ("weights", plan.weights),
        ("KV cache", plan.kv),
        ("scratch", plan.scratch),
        ("total", plan.total),
    ):
        note = "  (mapped from the store: shared, and the system can take it back)"
        mapped = note if name == "weights" and plan.mapped else ""
        click.echo(f"  {name:<9} {_megabytes(value):>12}{mapped}")
    if available is not None:
        verdict = "fits" if plan.total <= available else "does not fit"
        click.echo(f"  available {_megabytes(available):>12}  ({verdict})")


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"


def _count(n: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)
