"""Options that several commands share. Imports nothing heavy: ``run --help`` must be quick."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class Bytes(click.ParamType[int]):
    """A number of bytes: ``512MiB``, ``4G`` (binary units), ``1000000``."""

    name = "SIZE"
    _units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)(?:i?b)?", value.strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a size such as 512MiB or 4G", param, ctx)
        return int(float(match[1]) * self._units[match[2]])


def _stack(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


pre_tokenizer_option = click.option(
    "--pre-tokenizer",
    metavar="NAME",
    help="How text is split, for a GGUF file that does not say so, or wrongly.",
)


def engine_options(command: Command) -> Command:
    """How the model is loaded: context, threads, KV cache, backend."""
    return _stack(
        click.option(
            "-c",
            "--context",
            "max_context",
            type=click.IntRange(min=1),
            help="Most tokens of prompt and answer together. [default: the model's, at most 8192]",
        ),
        click.option(
            "-t",
            "--threads",
            type=click.IntRange(1, 1024),
            envvar="TIDEMILL_THREADS",
            help="Compute threads. [default: the cores that this process may use]",
        ),
        click.option(
            "--kv-dtype",
            type=click.Choice(["f16", "q8_0", "f32"]),
            default="f16",
            show_default=True,
            help="How the KV cache is stored.",
        ),
        click.option(
            "--backend",
            type=click.Choice(["cpu", "reference"]),
            default="cpu",
            show_default=True,
            help="What computes; `reference` is plain NumPy, slow, for comparison.",
        ),
        pre_tokenizer_option,
        click.option("--offline", is_flag=True, help="Never use the network."),
        click.option("-q", "--quiet", is_flag=True, help="No progress, no notes on stderr."),
    )(command)


def sampling_options(command: Command) -> Command:
    """How tokens are chosen; see ``tidemill.SamplingParams``."""
    number = click.FloatRange
    return _stack(
        click.option(
            "-n",
            "--max-tokens",
            type=click.IntRange(min=1),
            help="Most tokens of the answer. [default: what the context leaves]",
        ),
        click.option(
            "--temperature",
            type=number(min=0),
            default=0.7,
            show_default=True,
            help="0 always takes the likeliest token.",
        ),
        click.option(
            "--top-k",
            type=click.IntRange(min=-1),
            default=0,
            help="Only the K likeliest tokens. [default: off]",
        ),
        click.option(
            "--top-p",
            type=number(0, 1, min_open=True),
            default=0.95,
            show_default=True,
            help="Only the likeliest tokens that make up P together.",
        ),
        click.option(
            "--min-p",
            type=number(0, 1),
            default=0.0,
            help="Only tokens at least this likely, relative to the likeliest. [default: off]",
        ),
        click.option(
            "--typical-p", type=number(0, 1, min_open=True), default=1.0, help="[default: off]"
        ),
        click.option(
            "--repetition-penalty",
            type=number(min=0, min_open=True),
            default=1.0,
            help="[default: off]",
        ),
        click.option("--presence-penalty", type=number(-2, 2), default=0.0, help="[default: off]"),
        click.option("--frequency-penalty", type=number(-2, 2), default=0.0, help="[default: off]"),
        click.option("--seed", type=int, help="The same seed gives the same answer."),
        click.option("--stop", multiple=True, help="End the answer at this text; repeatable."),
        click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end token."),
    )(command)


def template_option(command: Command) -> Command:
    return click.option(
        "--chat-template",
        callback=_template,
        help="A built-in template's name, or a Jinja file, instead of the model's own.",
    )(command)


def _template(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A file's content; a name stays what it is (see ``ChatTemplate.for_tokenizer``)."""
    if value is None or not ("/" in value or value.endswith((".jinja", ".j2", ".txt"))):
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}") from None


SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos",
)  # fmt: skip
ENGINE = ("max_context", "threads", "kv_dtype", "backend", "pre_tokenizer")


def pick(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The named options out of all of a command's."""
    return {name: values[name] for name in names}
