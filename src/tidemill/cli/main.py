"""The ``tidemill`` command: finds the subcommand, and turns errors into one line and a code.

Subcommands are imported when they are called, so that ``tidemill --help`` does not load NumPy and
the kernels.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import click

from tidemill import __version__
from tidemill.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# Exit codes: 1 an error, 2 wrong usage, and as a shell reports a death by signal, 128 + its number.
ERROR = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

# name -> where the click command is, what it does in a line
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("tidemill.cli.run:run", "Answer one prompt."),
    "chat": ("tidemill.cli.chat:chat", "Talk with a model."),
    "pull": ("tidemill.cli.store_commands:pull", "Download a model."),
    "list": ("tidemill.cli.store_commands:list_models", "List the models at hand."),
    "rm": ("tidemill.cli.store_commands:rm", "Remove a downloaded model."),
    "inspect": ("tidemill.cli.inspect:inspect", "Describe a model and the memory it needs."),
    "eval": ("tidemill.cli.evaluate:evaluate", "Measure a model's quality."),
    "bench": ("tidemill.cli.bench:bench", "Measure servers, and speed on this machine."),
    "calibrate": (
        "tidemill.cli.calibrate:calibrate",
        "Measure how long this machine takes, for simulate and size.",
    ),
    "hardware": (
        "tidemill.cli.hardware:hardware",
        "Show what is known of GPUs, boards and CPUs, with sources.",
    ),
    "simulate": ("tidemill.cli.simulate:simulate", "Predict what a deployment would do."),
    "size": ("tidemill.cli.size:size", "Find the cheapest deployment for a load and limits."),
    "advise": ("tidemill.cli.advise:advise", "Recommend an engine for a case, with reasons."),
    "serve": ("tidemill.cli.serve:serve", "Serve models over HTTP, with the OpenAI API."),
    "key": ("tidemill.cli.keys:key", "Make, show and change API keys for the server."),
    "doctor": ("tidemill.cli.doctor:doctor", "Describe this machine and what is missing."),
}

# What other tools call it -> what to type here
_ELSEWHERE = {
    "complete": "run",
    "delete": "rm",
    "download": "pull",
    "generate": "run",
    "help": "--help",
    "info": "inspect",
    "ls": "list",
    "perplexity": "eval perplexity",
    "remove": "rm",
    "show": "inspect",
    "version": "--version",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return cast("click.Command", getattr(importlib.import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _reader_may_leave():  # `tidemill --help | head` writes here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = _ELSEWHERE.get(name) or (near[0] if near else None)
            hint = f"; did you mean `tidemill {meant}`?" if meant else ""
            ctx.fail(f"no such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Where stdout's reader has gone (`tidemill run ... | head`), end as SIGPIPE ends a program;
    click would end with 1."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(BROKEN_PIPE) from None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    epilog="`tidemill COMMAND --help` says more. TIDEMILL_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="tidemill", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """LLM inference on your own machine.

    Try: tidemill run smollm2 "Why is the sky blue?"
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point; always ends by SystemExit."""
    if argv is None:
        _prepare_process()
    sys.exit(_flush(_run(argv)))


def _prepare_process() -> None:
    """Whatever the process was started with: three open streams that can take any text, and a
    SIGTERM that unwinds, so that the terminal, locks and child processes are left in order."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us (`>&-`)
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    # Input that is not text is an error here and now, in every locale; what a terminal or a file
    # of a small character set cannot hold is shown as `?`.
    cast("Any", sys.stdin).reconfigure(errors="strict")
    if sys.stdout.errors == "strict":
        cast("Any", sys.stdout).reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


def _run(argv: list[str] | None) -> int:
    """Run the command line; errors are shown. The exit code."""
    try:
        code: Any = cli.main(args=argv, prog_name="tidemill", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except SystemExit as end:
        code = end.code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "tidemill"
        complain(error.format_message(), hint=f"see `{command} --help`")
        return USAGE
    except click.ClickException as error:
        complain(error.format_message())
        return error.exit_code
    except Exception as error:
        if os.environ.get("TIDEMILL_DEBUG"):
            raise
        complain(describe(error))
        return ERROR
    return code if isinstance(code, int) else 0


def _flush(code: int) -> int:
    """Write out what is buffered; the exit code, which says so if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if code == 0:
            gone = isinstance(error, BrokenPipeError)
            code = BROKEN_PIPE if gone else ERROR
            if not gone:
                complain(describe(error))
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Python flushes once more at exit: what cannot be written must not fail again there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def describe(error: Exception) -> str:
    """One line for an error: expected kinds speak for themselves, others are named as bugs."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"the input is not valid {error.encoding} text (byte 0x{error.object[error.start]:02x}"
            f" does not fit: {error.reason}); convert it, for instance with iconv"
        )
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.filename}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            return f"the output cannot be written: {error.strerror}"
        return error.strerror
    if isinstance(error, (ValueError, MemoryError, OSError)) or type(error) is RuntimeError:
        return str(error) or type(error).__name__
    return (
        f"internal error: {type(error).__name__}: {error} "
        "(TIDEMILL_DEBUG=1 shows where; please report it)"
    )


def complain(message: str, hint: str | None = None) -> None:
    message = printable(message)  # it may quote a server or a file
    with contextlib.suppress(OSError):  # stderr may be full or gone; the exit code still tells
        print(f"tidemill: error: {message}", file=sys.stderr)
        if hint:
            print(f"tidemill: {hint}", file=sys.stderr)
