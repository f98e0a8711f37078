"""A conversation in the terminal: its messages, its settings, the commands that change them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tidemill.cli.answer import Answer, describe_speed
from tidemill.cli.options import read_text
from tidemill.engine.params import SamplingParams
from tidemill.llm import ContextLengthError

if TYPE_CHECKING:
    from tidemill.llm import LLM, RequestOutput

HELP = '''\
Enter sends, Alt-Enter (or Esc, then Enter) starts a new line; """ begins and ends a block of lines.
Ctrl-C stops an answer, Ctrl-D leaves.
  /reset             forget the conversation
  /system [TEXT]     set the system message and forget the conversation; without TEXT: none
  /set               show the sampling settings
  /set NAME VALUE    change one of them, as in: /set temperature 0
  /save FILE         write the conversation as JSON
  /load FILE         continue one that was saved
  /quit              leave'''

_DEFAULTS = SamplingParams()
_SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "seed": int,
}
_OFF = ("off", "none", "default")


class CommandError(ValueError):
    """A command was not understood or could not be carried out; the message is for the user."""


class Conversation:
    """Messages to and fro, streamed to ``out``; ``notes`` is where remarks go."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        *,
        system: str | None = None,
        template: str | None = None,
        out: TextIO | None = None,
        notes: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
        show_speed: bool = True,
    ) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._template = template
        self._out = out or sys.stdout
        self._notes = notes
        self._show_speed = show_speed
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> None:
        """One turn. What an interrupted answer had reached stays in the conversation; a turn that
        cannot be answered leaves it as it was."""
        self.messages.append({"role": "user", "content": text})
        answer = Answer(self._out)
        interrupted = False
        try:
            with closing(self._stream()) as stream:
                for delta in stream:
                    answer.add(delta)
        except KeyboardInterrupt:
            interrupted = True
        except ContextLengthError as error:
            del self.messages[-1]
            self._notes(
                f"{error}. /reset starts a new conversation; `tidemill chat --context N` gives "
                "more room where the model has it."
            )
            return
        except ValueError as error:  # a chat template can refuse a message
            del self.messages[-1]
            self._notes(f"error: {error}")
            return
        answer.end()
        if answer.error:
            del self.messages[-1]
            self._notes(f"error: {answer.error}")
            return
        if answer.text or not interrupted:
            self.messages.append({"role": "assistant", "content": answer.text})
        else:
            del self.messages[-1]
        if interrupted:
            self._notes("[stopped]")
        elif self._show_speed:
            self._notes(describe_speed(answer.summary()))

    def command(self, line: str) -> bool:
        """Carry out a line that starts with a slash; False means to leave.

        Raises CommandError.
        """
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if name in ("/quit", "/exit", "/bye"):
            return False
        match name:
            case "/help" | "/?":
                self._notes(HELP)
            case "/reset":
                self.reset()
                self._notes("The conversation is forgotten.")
            case "/system":
                self._system = rest or None
                self.reset()
                self._notes("The system message is set." if rest else "There is no system message.")
            case "/set":
                self._set(rest)
            case "/save":
                self._save(rest)
            case "/load":
                self._load(rest)
            case _:
                raise CommandError(
                    f"there is no command {name}; /help lists them. To send text that starts with "
                    'a slash, put it between """'
                )
        return True

    def _stream(self) -> Generator[RequestOutput, None, None]:
        return self._llm.stream_chat(self.messages, self._params, chat_template=self._template)

    def _set(self, rest: str) -> None:
        if not rest:
            for name in _SETTINGS:
                value = getattr(self._params, name)
                self._notes(f"  {name} {'off' if value is None else value}")
            return
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if name not in _SETTINGS:
            raise CommandError(f"there is no setting {name}; there are {', '.join(_SETTINGS)}")
        if not value:
            raise CommandError(f"give a value, as in: /set {name} {getattr(_DEFAULTS, name)}")
        if value in _OFF:
            parsed = None if name == "max_tokens" else getattr(_DEFAULTS, name)
        else:
            kind = _SETTINGS[name]
            try:
                parsed = kind(value)
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                raise CommandError(f"{name} cannot be {value}: {wanted} is needed") from None
        try:
            change: dict[str, Any] = {name: parsed}
            self._params = dataclasses.replace(self._params, **change)
        except ValueError as error:
            raise CommandError(f"{name} cannot be {value}: {error}") from None
        self._notes(f"  {name} {'off' if parsed is None else parsed}")

    def _save(self, rest: str) -> None:
        path = _file(rest, "/save")
        try:
            path.write_text(
                json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n",
                encoding="utf-8",
            )
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}") from None
        self._notes(f"{len(self.messages)} messages are in {path}.")

    def _load(self, rest: str) -> None:
        path = _file(rest, "/load")
        try:
            with path.open(encoding="utf-8") as file:
                content = json.loads(read_text(file, str(path)))
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from None
        except click.ClickException as error:
            raise CommandError(error.format_message()) from None
        except (ValueError, RecursionError):
            raise CommandError(f"{path} is not JSON") from None
        messages = content.get("messages") if isinstance(content, dict) else None
        if not isinstance(messages, list) or not all(_is_message(entry) for entry in messages):
            raise CommandError(f'{path} is not a conversation: {{"messages": [...]}} is needed')
        self.messages = [{"role": m["role"], "content": m["content"]} for m in messages]
        first = self.messages[0] if self.messages else {}
        self._system = first.get("content") if first.get("role") == "system" else None
        self._notes(f"{len(self.messages)} messages from {path}.")


def _file(name: str, command: str) -> Path:
    if not name:
        raise CommandError(f"give a file, as in: {command} talk.json")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who has no account here
        raise CommandError(f"there is no home folder for {name}") from None


def _is_message(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("role"), str)
        and isinstance(entry.get("content"), str)
    )
