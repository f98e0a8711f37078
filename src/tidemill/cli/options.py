"""Options that several commands share. Imports nothing heavy: ``run --help`` must be quick."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from tidemill.engine.params import SamplingParams

Command = TypeVar("Command", bound=Callable[..., Any])
N = TypeVar("N", int, float)


# Most characters of a text that is read: far over any context, far under a machine's memory.
MAX_TEXT = 1 << 26


class Number(click.FloatRange):
    """A finite number in a range; `float` itself also takes nan and inf."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Numbers(click.ParamType[tuple[N, ...]]):
    """Several of ``each``, with commas between: ``1,8,32``."""

    name = "N,N,..."

    def __init__(self, each: click.ParamType[N]) -> None:
        self._each: click.ParamType[N] = each

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[N, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._each.convert(part.strip(), param, ctx) for part in value.split(","))


def named_numbers(text: str, kinds: Mapping[str, Callable[[str], N]]) -> dict[str, N]:
    """The numbers of ``ttft=0.5,tpot=0.05``. Raises ValueError for a name that is not among
    ``kinds`` or is there twice, and for what is no number of its kind."""
    numbers: dict[str, N] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in kinds or name in numbers:
            raise ValueError(f"{name!r} is not expected here")
        numbers[name] = kinds[name](number)
    return numbers


class Text(click.ParamType[str]):
    """Text in the locale's encoding: other bytes of an argument arrive as lone surrogates."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            import sys

            encoding = sys.getfilesystemencoding()
            self.fail(f"not valid {encoding} text (LC_ALL says how it is encoded)", param, ctx)
        return str(value)


class Price(click.ParamType[tuple[str, float]]):
    """``h100-sxm=2.5/h``: of a device for an hour, in any currency."""

    name = "NAME=X/h"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).partition("=")
        try:
            price = float(number.removesuffix("/h"))
            if not (name and equals and 0 < price < 1e9):
                raise ValueError
        except ValueError:
            self.fail(f"{value!r} is not like h100-sxm=2.5/h", param, ctx)
        return name, price


def read_text(source: TextIO, what: str) -> str:
    """All of ``source``, bounded. Raises ClickException if it is longer."""
    text = source.read(MAX_TEXT + 1)
    if len(text) > MAX_TEXT:
        raise click.ClickException(f"{what} has more than {MAX_TEXT >> 20} million characters")
    return text


def _stack(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


system_option = click.option("-s", "--system", type=Text(), help="System message.")
kv_dtype_option = click.option(
    "--kv-dtype",
    type=click.Choice(["f16", "q8_0", "f32"]),
    default="f16",
    show_default=True,
    help="How the KV cache is stored.",
)
pre_tokenizer_option = click.option(
    "--pre-tokenizer",
    metavar="NAME",
    help="How text is split, for a GGUF file that does not say so, or wrongly.",
)


def context_option(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "-c", "--context", "max_context", type=click.IntRange(min=2), metavar="N", help=help_text
    )


answer_context_option = context_option(
    "Most tokens of prompt and answer together. [default: the model's, at most 8192]"
)


threads_option = click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    envvar="TIDEMILL_THREADS",
    show_envvar=True,
    help="Compute threads. [default: the cores that this process may use]",
)

front_end_option = click.option(
    "--front-end",
    type=Number(min=0, max=1e6),
    metavar="MS",
    help="What a request takes before its first step (HTTP, template, tokenizer), in ms, in place "
    "of what was measured, or is thought of hardware that is not at hand.",
)
price_option = click.option(
    "--price", "prices", type=Price(), multiple=True,
    help="Of a device for an hour, in any currency; repeatable. [default: the profile's, if any]",
)  # fmt: skip


def engine_options(command: Command) -> Command:
    """How the model is loaded: threads, KV cache, backend."""
    return _stack(
        threads_option,
        kv_dtype_option,
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


def speculation_options(command: Command) -> Command:
    """What guesses tokens ahead; see ``LoadOptions``."""
    return _stack(
        click.option(
            "--speculative",
            type=click.Choice(["auto", "lookup", "off"]),
            help="Guess tokens from what prompt and answer have said before, which changes no "
            "answer: as far as it pays, always, or never. [default: auto]",
        ),
        click.option(
            "--draft-model",
            metavar="MODEL",
            help="A smaller model of the same vocabulary that guesses tokens instead.",
        ),
    )(command)


def sampling_options(command: Command) -> Command:
    """How tokens are chosen; see ``tidemill.SamplingParams``."""
    return _stack(
        click.option(
            "-n",
            "--max-tokens",
            type=click.IntRange(min=1),
            metavar="N",
            help="Most tokens of the answer. [default: until the model ends it, or the context "
            "is full]",
        ),
        click.option(
            "--temperature",
            type=Number(0, 100),
            metavar="X",
            default=0.7,
            show_default=True,
            help="Over 1 more varied, under 1 less; 0 always takes the likeliest token.",
        ),
        click.option(
            "--top-k",
            type=click.IntRange(min=-1),
            metavar="K",
            default=0,
            help="Only the K likeliest tokens. [default: off]",
        ),
        click.option(
            "--top-p",
            type=Number(0, 1, min_open=True),
            metavar="P",
            default=0.95,
            show_default=True,
            help="Only the likeliest tokens that make up P together.",
        ),
        click.option(
            "--min-p",
            type=Number(0, 1),
            metavar="P",
            default=0.0,
            help="Only tokens at least P times as likely as the likeliest. [default: off]",
        ),
        click.option(
            "--typical-p",
            type=Number(0, 1, min_open=True),
            metavar="P",
            default=1.0,
            help="Only the tokens closest to the expected surprise (entropy) that make up P "
            "together. [default: off]",
        ),
        click.option(
            "--repetition-penalty",
            type=Number(0.01, 100),
            metavar="X",
            default=1.0,
            help="Over 1: tokens of prompt and answer become less likely again, by this factor; "
            "1.1 is mild. [default: off]",
        ),
        click.option(
            "--presence-penalty",
            type=Number(-2, 2),
            metavar="X",
            default=0.0,
            help="Taken from the logit of each token that the answer has. [default: off]",
        ),
        click.option(
            "--frequency-penalty",
            type=Number(-2, 2),
            metavar="X",
            default=0.0,
            help="The same, times how often the answer has it. [default: off]",
        ),
        click.option("--seed", type=int, metavar="N", help="The same seed gives the same answer."),
        click.option(
            "--stop", type=Text(), multiple=True, help="End the answer at this text; repeatable."
        ),
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
        with open(value, encoding="utf-8") as file:
            return read_text(file, value)
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}") from None
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a UTF-8 text file") from None


SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos",
)  # fmt: skip
ENGINE = ("max_context", "threads", "kv_dtype", "backend", "pre_tokenizer")
SPECULATION = ("speculative", "draft_model")


def sampling_params(options: dict[str, Any]) -> SamplingParams:
    """Raises UsageError for values that are possible one by one, but out of the engine's range."""
    from tidemill.engine.params import SamplingParams

    try:
        return SamplingParams(**pick(options, SAMPLING))
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context(silent=True)) from None


def pick(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The named options out of all of a command's."""
    return {name: values[name] for name in names}
