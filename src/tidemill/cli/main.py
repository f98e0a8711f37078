"""The ``tidemill`` command: finds the subcommand, and turns errors into one line and a code.

Subcommands are imported when they are called, so that ``tidemill --help`` does not load NumPy and
the kernels.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn, cast

import click

from tidemill import __version__

# Exit codes: 1 an error, 2 wrong usage, and as a shell reports a death by signal, 128 + its number.
ERROR = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

# name -> where the click command is, what it does in a line
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("tidemill.cli.run:run", "Answer one prompt."),
    "chat": ("tidemill.cli.chat:chat", "Talk with a model."),
    "pull": ("tidemill.cli.store_commands:pull", "Download a model."),
    "list": ("tidemill.cli.store_commands:list_models", "List the models at hand."),
    "rm": ("tidemill.cli.store_commands:rm", "Remove a downloaded model."),
    "inspect": ("tidemill.cli.inspect:inspect", "Describe a model and the memory it needs."),
    "eval": ("tidemill.cli.evaluate:evaluate", "Measure a model's quality."),
    "doctor": ("tidemill.cli.doctor:doctor", "Describe this machine and what is missing."),
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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # before click sees it, which makes it exit code 1
            leave_broken_pipe()
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"no such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`tidemill COMMAND --help` says more. TIDEMILL_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="tidemill", message="%(prog)s %(version)s")
def cli() -> None:
    """LLM inference on your own machine.

    Try: tidemill run smollm2 "Why is the sky blue?"
    """


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point; always ends by SystemExit."""
    try:
        code: Any = cli.main(args=argv, prog_name="tidemill", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "tidemill"
        complain(error.format_message(), hint=f"see `{command} --help`")
        sys.exit(USAGE)
    except click.ClickException as error:
        complain(error.format_message())
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("TIDEMILL_DEBUG"):
            raise
        complain(describe(error))
        sys.exit(ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def leave_broken_pipe() -> NoReturn:
    """The reader has gone (`tidemill run ... | head`): end as a program that SIGPIPE ended."""
    # Python flushes stdout once more at exit, which must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)


def describe(error: Exception) -> str:
    """One line for an error: expected kinds speak for themselves, others are named as bugs."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (ValueError, MemoryError, OSError)) or type(error) is RuntimeError:
        return str(error) or type(error).__name__
    return (
        f"internal error: {type(error).__name__}: {error} "
        "(TIDEMILL_DEBUG=1 shows where; please report it)"
    )


def complain(message: str, hint: str | None = None) -> None:
    print(f"tidemill: error: {message}", file=sys.stderr)
    if hint:
        print(f"tidemill: {hint}", file=sys.stderr)
