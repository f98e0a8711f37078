"""What is asked: prompts of chosen lengths, with and without beginnings that others share.

Prompts are common short English words, each of them one token in most vocabularies, so that lengths
come out nearly as they are asked for with any model; how long they were is taken from the usage
that the endpoint reports. Prompt i of a workload is the same whenever it is made.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tidemill.bench.tasks import Task, Value

_WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their
if will up other about out many then them these so some her would make like him into time has
look two more write go see number no way could people my than first water been call who oil its
now find long down day did get come made may part over new sound take only little work know
place year live me back give most very after thing our just name good sentence man think say
great where help through much before line right too mean old any same tell boy follow came want
show also around form three small set put end does another well large must big even such because
turn here why ask went men read need land different home us move try kind hand picture again
change off play spell air away animal house point page letter mother answer found study still
learn should world high
""".split()  # noqa: SIM905

MAX_TOKENS = 2_000_000
"""Of a prompt's part, or an answer: no model has such a context."""

_MAX_WEIGHT = 1e9
_MAX_PAUSE = 1e6

_P90 = 1.2815515655446004  # standard deviations of a normal distribution below which 90 % lie


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="kind", forbid_unknown_fields=True):
    """Always ``tokens``."""

    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MAX_TOKENS:
            raise ValueError(f"tokens must be 1 to {MAX_TOKENS}, not {self.tokens}")

    @property
    def most(self) -> int:
        return self.tokens

    def scaled(self, factor: float) -> Fixed:
        return Fixed(_scaled(self.tokens, factor))

    def draw(self, rng: random.Random) -> int:
        return self.tokens


class Uniform(
    msgspec.Struct, frozen=True, tag="uniform", tag_field="kind", forbid_unknown_fields=True
):
    """From ``low`` to ``high``, both included, all as likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise ValueError(f"{self.low} to {self.high} is no range of lengths")

    @property
    def most(self) -> int:
        return self.high

    def scaled(self, factor: float) -> Uniform:
        return Uniform(_scaled(self.low, factor), _scaled(self.high, factor))

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


class LogNormal(
    msgspec.Struct, frozen=True, tag="lognormal", tag_field="kind", forbid_unknown_fields=True
):
    """A log-normal distribution by its median and 90th percentile, cut off at ``high``."""

    median: float
    p90: float
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p90 <= self.high <= MAX_TOKENS:
            raise ValueError(f"1 <= median <= p90 <= high <= {MAX_TOKENS} must hold")

    @property
    def most(self) -> int:
        return self.high

    def scaled(self, factor: float) -> LogNormal:
        median = max(1.0, self.median * factor)
        p90 = max(median, self.p90 * factor)
        return LogNormal(median, p90, max(math.ceil(p90), _scaled(self.high, factor)))

    def draw(self, rng: random.Random) -> int:
        sigma = math.log(self.p90 / self.median) / _P90
        return min(self.high, max(1, round(rng.lognormvariate(math.log(self.median), sigma))))


Lengths = Fixed | Uniform | LogNormal
_OUTPUT = Fixed(128)


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of request; lengths are in tokens.

    ``weight``: how often it comes, beside the other shapes. The first ``prefix`` tokens of a prompt
    are one of ``prefixes`` fixed beginnings, ``input`` is what follows them. ``output`` is how long
    the answer may be, and is, where the endpoint is told to ignore the end (``Endpoint.extra``).

    ``system``: the beginning is a message of the system, not part of the user's. ``turns``: so many
    requests are one conversation, each with all before it; the next is due ``pause`` seconds after
    an answer's end. ``tenant``: whose key it is sent with (``Endpoint.keys``). ``task`` follows
    the input, and has an answer that is checked.
    """

    name: str
    input: Lengths | None = None
    output: Lengths = _OUTPUT
    weight: float = 1.0
    prefix: int = 0
    prefixes: int = 1
    system: bool = False
    turns: int = 1
    pause: float = 0.0
    tenant: str = ""
    task: Task | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.prefix <= MAX_TOKENS:
            raise ValueError(f"shape {self.name!r}: prefix must be 0 to {MAX_TOKENS}")
        if not (0 < self.weight <= _MAX_WEIGHT) or self.prefixes < 1:
            raise ValueError(
                f"shape {self.name!r}: weight must be > 0, {_MAX_WEIGHT:g} at most, prefixes >= 1"
            )
        if self.input is None and self.task is None:
            raise ValueError(f"shape {self.name!r} needs an input, or a task")
        if not 1 <= self.turns <= 1000 or not (0 <= self.pause <= _MAX_PAUSE):
            raise ValueError(
                f"shape {self.name!r}: turns must be 1 to 1000, pause 0 to {_MAX_PAUSE:g} s"
            )
        if self.most > MAX_TOKENS:
            raise ValueError(
                f"shape {self.name!r}: prompts and answers of up to {self.most} tokens, all turns "
                f"together, are more than the {MAX_TOKENS} that any model has room for"
            )

    @property
    def most(self) -> int:
        """Tokens, about, of the longest prompt and its answer."""
        task = 0
        if self.task is not None:
            task = (len(self.task.template) + len(msgspec.json.encode(self.task.fields()))) // 2
        turn = task + (self.input.most if self.input else 0) + self.output.most
        return self.prefix + self.turns * turn

    def scaled(self, factor: float) -> Shape:
        """With all lengths so many times as long; those of a task are what they are."""
        return msgspec.structs.replace(
            self,
            input=None if self.input is None else self.input.scaled(factor),
            output=self.output if self.task is not None else self.output.scaled(factor),
            prefix=_scaled(self.prefix, factor) if self.prefix else 0,
        )


class Prompt(NamedTuple):
    """What one request asks. ``history``: the questions before it, with their answers.
    ``fields``: what else is in its body. ``drawn``: of its task."""

    shape: Shape
    text: str
    max_tokens: int
    system: str = ""
    history: tuple[tuple[str, str], ...] = ()
    fields: Mapping[str, Any] | None = None
    drawn: Mapping[str, Value] | None = None


class Part(NamedTuple):
    """The first ``tokens`` of a text of that name, which prompts share."""

    name: str
    tokens: int


class Size(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one recorded request (``traces.py``): of its prompt, which begins with ``parts``,
    and of its answer."""

    input: int
    output: int
    parts: tuple[Part, ...] = ()

    @property
    def prefix(self) -> int:
        return sum(part.tokens for part in self.parts)


class PromptSizes(NamedTuple):
    """How long a prompt is, without its words. ``parts``: what it shares with others; ``words``
    follow them, and then ``task``."""

    shape: Shape
    parts: tuple[Part, ...]
    words: int
    task: str
    max_tokens: int


class Workload(msgspec.Struct, frozen=True):
    """A mix of shapes. The prompts of two seeds have nothing in common.

    If there are ``recorded`` sizes, they take the place of the shape's lengths and prefix: request
    i has the (i - 1)th of them, as request 0 comes before all others (``run.py``). A closed loop
    can ask for more than there are, and gets them with other words.
    """

    shapes: tuple[Shape, ...]
    seed: int = 0
    recorded: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("a workload needs at least one shape")

    def prompt(self, index: int, history: tuple[tuple[str, str], ...] = ()) -> Prompt:
        """The prompt of that number; with a history the one that follows it."""
        if self.recorded:
            return self._sized(index)
        shape, shared, rng = self._begin(index, len(history))
        prefix = _text(shared)
        parts = [prefix] if prefix and not shape.system and not history else []
        if shape.input is not None:
            parts.append(_words(rng, shape.input.draw(rng)))
        fields = drawn = None
        if shape.task is not None:
            drawn = shape.task.draw(rng)
            parts.append(shape.task.text(drawn))
            fields = shape.task.fields()
        system = prefix if shape.system else ""
        length = shape.output.draw(rng)
        return Prompt(shape, " ".join(parts), length, system, history, fields, drawn)

    def sizes(self, index: int, turn: int = 0) -> PromptSizes:
        """Of the prompt of that number; of its conversation's, the one after ``turn`` others."""
        if self.recorded:
            size, shared = self._recorded(index)
            words = size.input - size.prefix
            return PromptSizes(self.shapes[0], shared, words, "", size.output)
        shape, shared, rng = self._begin(index, turn)
        words, task = 0, ""
        if shape.input is not None:
            words = shape.input.draw(rng)
            _skip_words(rng, words)
        if shape.task is not None:
            task = shape.task.text(shape.task.draw(rng))
        return PromptSizes(shape, shared, words, task, shape.output.draw(rng))

    def _begin(self, index: int, turn: int) -> tuple[Shape, tuple[Part, ...], random.Random]:
        """Of which shape it is, what it begins with, and what the rest is drawn from."""
        rng = random.Random(f"{self.seed} {index}")
        shape = rng.choices(self.shapes, [shape.weight for shape in self.shapes])[0]
        shared: tuple[Part, ...] = ()
        if shape.prefix:
            which = rng.randrange(shape.prefixes)
            shared = (Part(f"{self.seed} {shape.name} {which}", shape.prefix),)
        if turn:
            rng = random.Random(f"{self.seed} {index} {turn}")
        return shape, shared, rng

    def _recorded(self, index: int) -> tuple[Size, tuple[Part, ...]]:
        """Of a trace, with what it begins with; after its last request comes its first again."""
        size = self.recorded[max(0, index - 1) % len(self.recorded)]
        return size, tuple(Part(f"{self.seed} {name}", tokens) for name, tokens in size.parts)

    def _sized(self, index: int) -> Prompt:
        rng = random.Random(f"{self.seed} {index}")
        size, shared = self._recorded(index)
        own = _words(rng, size.input - size.prefix)
        return Prompt(self.shapes[0], f"{_text(shared)} {own}".strip(), size.output)


def _text(parts: tuple[Part, ...]) -> str:
    return " ".join(_beginning(part) for part in parts)


# Making the words of a long beginning again for every request would hold up the load.
@functools.lru_cache(maxsize=4096)
def _beginning(part: Part) -> str:
    return _words(random.Random(part.name), part.tokens)


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def _skip_words(rng: random.Random, count: int) -> None:
    """As if so many had been drawn: each takes a random number of two 32-bit words."""
    rng.getrandbits(64 * count)
