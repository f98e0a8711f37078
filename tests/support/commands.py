"""Command lines of ``tidemill`` in texts: found, and parsed as the real one does."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import cast

import click

from tidemill.cli.main import cli

_OPERATOR = re.compile(r"[|&;<>]+")


def tidemill_calls(line: str) -> Iterator[list[str]]:
    """The arguments of every ``tidemill`` in a shell command line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    call: list[str] | None = None
    skip = False
    for word in [*lexer, ";"]:
        if skip:  # the file of a redirection
            skip = False
        elif _OPERATOR.fullmatch(word):
            skip = word[0] in "<>"
            if call is not None and not skip:
                yield call
                call = None
        elif call is not None:
            call.append(word)
        elif word == "tidemill":
            call = []


def parse(arguments: Sequence[str]) -> None:
    """Parse a whole command line as the real one does, and run nothing."""
    command, rest, path = cast("click.Command", cli), list(arguments), "tidemill"
    context: click.Context | None = None
    with contextlib.suppress(click.exceptions.Exit):  # --help
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            context = click.Context(command, parent=context, info_name=path)
            path, command, rest = command.resolve_command(context, rest)
        command.make_context(path, rest, parent=context)
