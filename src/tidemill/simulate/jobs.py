"""Requests as the simulation knows them: how long they are and what they share, without tokens.

The engine names a KV block by a hash of all tokens up to its end. Here a block is named by its
place: within a beginning that prompts share by the beginning and its number, behind that by the
conversation and its number. Names are equal where tokens would be, and cost no hashing.
"""

from __future__ import annotations

import math
from array import array
from typing import Protocol

from tidemill.engine.sequence import Group, Sequence
from tidemill.records import dataclass

_NUMBERS = [i.to_bytes(4, "little") for i in range(4096)]


class Text(Protocol):
    """What the tokens of a prompt and of what follows it are, as far as the prefix cache cares."""

    def extend(self, names: list[bytes], n: int, block_size: int, sequence: Sequence) -> None:
        """Append to ``names`` until they are those of the first ``n`` blocks of ``sequence``."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """``parts`` that prompts share, each by its name and where it ends; who has one has all that
    were before it. Then such as only ``conversation`` has: its questions and answers so far, always
    from the same place on."""

    conversation: bytes
    parts: tuple[tuple[bytes, int], ...] = ()

    def extend(self, names: list[bytes], n: int, block_size: int, sequence: Sequence) -> None:
        for part, end in self.parts:
            # A block that lies in two parts is that of the later one, which implies the other.
            until = min(n, end // block_size)
            names += [part + _number(i) for i in range(len(names), until)]
        middle = len(names)
        if sequence.index == 0:
            names += [self.conversation + _number(i) for i in range(middle, n)]
            return
        own = self.conversation + b"#" + _number(sequence.index)
        prompt = sequence.n_prompt // block_size
        names += [(self.conversation if i < prompt else own) + _number(i) for i in range(middle, n)]


def _number(i: int) -> bytes:
    return _NUMBERS[i] if i < len(_NUMBERS) else i.to_bytes(4, "little")


class Job:
    """One request and what becomes of it. Times are virtual seconds.

    ``output_tokens`` are generated, of ``max_tokens`` that the engine must reckon with. ``key`` is
    equal where beginnings are, as far as routing cares. ``first`` and ``last``: when the first and
    the last token came (of the last sample to end), ``ended`` when the answer was over, or failed
    with ``error``. ``tries``: replicas that it was given to. ``counted``: it was due in the
    measured window. ``times``: of the tokens of sample 0, if they are to be kept.
    """

    __slots__ = (
        "cached_tokens", "conversation", "counted", "due", "ended", "error", "first", "group",
        "key", "last", "max_tokens", "n", "output_tokens", "priority", "prompt_tokens", "shape",
        "text", "times", "tries", "turn", "urgent",
    )  # fmt: skip

    def __init__(
        self, *, text: Text, prompt_tokens: int, output_tokens: int, max_tokens: int | None = None,
        due: float = 0.0, n: int = 1, priority: int = 0, urgent: bool = False,
        conversation: int = 0, turn: int = 0, shape: int = 0, key: bytes = b"",
        keep_times: bool = False,
    ) -> None:  # fmt: skip
        self.text = text
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.max_tokens = output_tokens if max_tokens is None else max_tokens
        self.due = due
        self.n = n
        self.priority = priority
        self.urgent = urgent
        self.conversation = conversation
        self.turn = turn
        self.shape = shape
        self.key = key
        self.times: array[float] | None = array("d") if keep_times else None
        self.counted = False
        self.tries = 0
        self.group: Group | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what has been computed: it begins again."""
        self.group = None
        self.first = self.last = self.ended = math.nan
        self.cached_tokens = 0
        self.error: str | None = None
        if self.times is not None:
            del self.times[:]


class Played(Sequence):
    """A sample without tokens. ``last``: when its last token came; NaN before the first."""

    __slots__ = ("job", "last")

    def __init__(self, group: Group, index: int, job: Job) -> None:
        super().__init__(group, index, None)
        self.job = job
        self.last = math.nan

    @property
    def to_come(self) -> int:
        """Tokens until it ends."""
        return self.n_prompt + self.job.output_tokens - len(self.tokens)

    def hash_blocks(self, n: int, block_size: int, model_id: str) -> list[bytes]:
        names = self.hashes
        if len(names) < n:
            self.job.text.extend(names, n, block_size, self)
        return names[:n]
