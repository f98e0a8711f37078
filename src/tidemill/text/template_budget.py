"""Limits on what a chat template may use. Templates come with model files and are not trusted."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tidemill.records import dataclass
from tidemill.text.errors import ChatTemplateError

_MAX_INT_BITS = 4096
_MAX_DEPTH = 64
_CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """seconds: processor time of the rendering thread (wall time would make a busy machine fail
    honest templates). source_chars: length of the template; the longest known have a quarter of
    that. value_chars and value_nodes: size of one value or of the output, work_chars: of all
    values together; these three grow with the input, which is not limited here."""

    seconds: float = 1.0
    source_chars: int = 64 << 10
    value_chars: int = 4 << 20
    value_nodes: int = 200_000
    work_chars: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes, characters and depth of a value seen as a tree (what is shared counts each time)."""

    nodes: int
    chars: int
    depth: int


class TemplateBudget:
    """What is left for one rendering. Every check raises ChatTemplateError when it is used up.

    Python cannot interrupt a running thread safely, so nothing is interrupted: the sandbox calls
    ``tick`` wherever a template could loop, and sizes are checked before an operation whose result
    could be much larger than its operands. What runs between two checks is then short.
    """

    def __init__(self, limits: TemplateLimits, inputs: Size) -> None:
        self._seconds = limits.seconds
        self._deadline = time.thread_time() + limits.seconds
        self.max_chars = limits.value_chars + 4 * inputs.chars
        self.max_nodes = limits.value_nodes + 4 * inputs.nodes + inputs.chars // 4
        self._work = limits.work_chars + 32 * inputs.chars + 64 * inputs.nodes

    def tick(self) -> None:
        if time.thread_time() > self._deadline:
            raise ChatTemplateError(
                f"the chat template ran for more than {self._seconds:g} s and was stopped"
            )

    def reserve(self, chars: int) -> None:
        """Account for text that is about to be made."""
        self._work -= chars
        if chars > self.max_chars or self._work < 0:
            raise ChatTemplateError("the chat template makes too much text and was stopped")

    def check(self, value: object) -> None:
        """Account for a value that an operation has given."""
        self.tick()
        if value is None or isinstance(value, bool | float):
            return
        if isinstance(value, str):
            self.reserve(len(value))
        elif isinstance(value, int):
            self.check_bits(value.bit_length())
        elif isinstance(value, list | tuple | dict):
            size = self.measure(value)
            self._work -= 8 * size.nodes
            self.reserve(0)

    def check_bits(self, bits: int) -> None:
        if bits > _MAX_INT_BITS:
            raise ChatTemplateError("the chat template computes with huge numbers and was stopped")

    def measure(self, value: object) -> Size:
        """The size of a value; raises if it is over the limits of one value."""
        return measure(value, self.max_nodes, self.max_chars)

    def text(self, value: Any) -> str:
        """``str(value)`` within the limits."""
        if not isinstance(value, str):
            self.check(value)
            value = str(value)
        self.reserve(len(value))
        return str(value)


def measure(value: object, max_nodes: int, max_chars: int) -> Size:
    """Walk a value as a tree, giving up at the limits (a small value can hold itself a billion
    times)."""
    nodes = chars = deepest = 0
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        nodes += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, _CONTAINERS):
            deepest = max(deepest, depth)
            nodes += len(item)
            if nodes <= max_nodes and depth <= _MAX_DEPTH:
                pending.extend((child, depth + 1) for child in item)
                if isinstance(item, dict):
                    pending.extend((child, depth + 1) for child in item.values())
        if nodes > max_nodes or chars > max_chars or deepest > _MAX_DEPTH:
            raise ChatTemplateError(
                "a value in the chat template is too large or nested too deeply"
            )
    return Size(nodes, chars, deepest)


_current: ContextVar[TemplateBudget] = ContextVar("template_budget")


def current_budget() -> TemplateBudget:
    """The budget of the rendering that runs in this thread."""
    return _current.get()


@contextmanager
def active(budget: TemplateBudget) -> Iterator[TemplateBudget]:
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)
