"""``tidemill chat``: a conversation, in a terminal or line by line through a pipe."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from tidemill.cli.options import (
    MAX_TEXT,
    answer_context_option,
    engine_options,
    sampling_options,
    sampling_params,
    speculation_options,
    system_option,
    template_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemill.cli.conversation import Conversation

BLOCK = '"""'


@click.command()
@click.argument("model")
@system_option
@template_option
@sampling_options
@answer_context_option
@engine_options
@speculation_options
def chat(model: str, system: str | None, chat_template: str | None, **options: Any) -> None:
    """Talk with MODEL; /help in the conversation lists the commands.

    Enter sends, Alt-Enter starts a new line, Ctrl-C stops an answer, Ctrl-D leaves. Without
    a terminal, each line of stdin is a message, and a block of lines between triple quotes is one.
    """
    from tidemill.cli.conversation import Conversation
    from tidemill.cli.loading import load

    params = sampling_params(options)
    quiet = options["quiet"]
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with load(model, options, prefix_caching=True) as llm:
        if not llm.core.has_chat_template and chat_template is None:
            chat_template = llm.core.fitting_template()
            if chat_template is None:
                raise click.ClickException(
                    f"{model} has no chat template: choose one with --chat-template, or continue "
                    "plain text with `tidemill run --raw`"
                )
            print(
                f"{model} has no chat template: it may not have been trained on chats. Its "
                f"vocabulary is made for {chat_template}, which is used; --chat-template chooses "
                "another.",
                file=sys.stderr,
            )
        if not quiet:
            print(llm.core.compiled.describe_threads(), file=sys.stderr)
        conversation = Conversation(
            llm, params, system=system, template=chat_template, show_speed=not quiet
        )
        if interactive:
            if not quiet:
                print(
                    f"{model}, context {llm.core.max_context} tokens. /help lists the commands, "
                    "Ctrl-D leaves.",
                    file=sys.stderr,
                )
            _talk(conversation, _prompted(_history_file()))
        else:
            _talk(conversation, _lines(sys.stdin))


def _talk(conversation: Conversation, inputs: Iterator[str]) -> None:
    from tidemill.cli.conversation import CommandError

    for text in inputs:
        if text.startswith("/") and "\n" not in text:
            try:
                if not conversation.command(text):
                    return
            except CommandError as error:
                print(error, file=sys.stderr)
        else:
            conversation.ask(unquoted(text))


def unquoted(text: str) -> str:
    """The text without the triple quotes around a block."""
    text = text.strip()
    if text.startswith(BLOCK):
        text = text.removeprefix(BLOCK).removesuffix(BLOCK).strip("\n")
    return text


def _block_is_open(text: str) -> bool:
    text = text.strip()
    return text.startswith(BLOCK) and (len(text) < 2 * len(BLOCK) or not text.endswith(BLOCK))


def _lines(source: TextIO) -> Iterator[str]:
    """Messages from a pipe."""
    block: list[str] = []
    room = MAX_TEXT
    while line := source.readline(room + 1):
        if not block and not line.strip():
            continue
        room -= len(line)
        if room < 0:
            raise click.ClickException(
                f"a message has more than {MAX_TEXT >> 20} million characters"
            )
        block.append(line)
        goes_on = not line.rstrip().endswith(BLOCK) if len(block) > 1 else _block_is_open(line)
        if not goes_on:
            yield "".join(block).strip()
            block, room = [], MAX_TEXT
    if block:  # the input ended inside of a block
        yield "".join(block).strip()


def _prompted(history: Path | None) -> Iterator[str]:
    """Messages from a person: line editing, history, several lines."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        if _block_is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        ">>> ",
        multiline=True,
        prompt_continuation="... ",
        key_bindings=keys,
        history=InMemoryHistory() if history is None else FileHistory(str(history)),
        enable_history_search=True,
    )
    while True:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            print("(Ctrl-D leaves)", file=sys.stderr)
            continue
        except EOFError:
            return
        if text.strip() in ("exit", "quit"):  # what other prompts leave by
            return
        if text.strip():
            yield text.strip()


def _history_file() -> Path | None:
    """Where earlier inputs are kept, for this user's eyes only; None if it cannot be written."""
    from tidemill import store

    path = store.home() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return None
    return path
