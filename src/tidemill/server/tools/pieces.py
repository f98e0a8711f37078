"""What a model's text is taken apart into, piece by piece as it comes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tidemill.records import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking, without the markers around it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins. ``index`` counts the answer's calls from 0; ``id`` names the call in
    the tool's answer to it."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Content | Reasoning | CallBegin | CallArguments

Span = tuple[int, int]
"""A part of a text: the numbers of its first character and of the first one after it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call. ``arguments`` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """An answer taken apart. Texts are empty where there is none."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]


def call_id() -> str:
    """A name for a call."""
    return f"call_{os.urandom(12).hex()}"


def assemble(pieces: Iterable[Piece]) -> Message:
    """The message that ``pieces`` make together."""
    content: list[str] = []
    reasoning: list[str] = []
    begun: list[CallBegin] = []
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegin(index):
                begun.append(piece)
                arguments[index] = []
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = (ToolCall(c.id, c.name, "".join(arguments[c.index])) for c in begun)
    return Message("".join(content), "".join(reasoning), tuple(calls))


def join(pieces: list[Piece]) -> list[Piece]:
    """``pieces`` with neighbours of one kind put together."""
    if len(pieces) < 2:
        return pieces.copy()
    joined: list[Piece] = []
    texts: list[str] = []  # of the last one of ``joined``, so that many small ones cost no more

    def close() -> None:
        if not joined or not texts:
            return
        text = "".join(texts)
        match joined[-1]:
            case Content():
                joined[-1] = Content(text)
            case Reasoning():
                joined[-1] = Reasoning(text)
            case CallArguments(index):
                joined[-1] = CallArguments(index, text)
        texts.clear()

    for piece in pieces:
        if isinstance(piece, CallBegin):
            close()
            joined.append(piece)
            continue
        last = joined[-1] if joined else None
        same = type(last) is type(piece) and getattr(last, "index", 0) == getattr(piece, "index", 0)
        if not same:
            close()
            joined.append(piece)
        texts.append(piece.text)
    close()
    return joined
