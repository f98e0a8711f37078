"""What is asked: prompts of chosen lengths, with and without beginnings that others share.

Prompts are common short English words, each of them one token in most vocabularies, so that lengths
come out nearly as they are asked for with any model; how long they were is taken from the usage
that the endpoint reports. Prompt i of a workload is the same whenever it is made.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import msgspec

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

_P90 = 1.2815515655446004  # standard deviations of a normal distribution below which 90 % lie


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="kind"):
    """Always ``tokens``."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}")

    def draw(self, rng: random.Random) -> int:
        return self.tokens


class Uniform(msgspec.Struct, frozen=True, tag="uniform", tag_field="kind"):
    """From ``low`` to ``high``, both included, all as likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"{self.low} to {self.high} is no range of lengths")

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


class LogNormal(msgspec.Struct, frozen=True, tag="lognormal", tag_field="kind"):
    """A log-normal distribution by its median and 90th percentile, cut off at ``high``."""

    median: float
    p90: float
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p90 <= self.high:
            raise ValueError("1 <= median <= p90 <= high must hold")

    def draw(self, rng: random.Random) -> int:
        sigma = math.log(self.p90 / self.median) / _P90
        return min(self.high, max(1, round(rng.lognormvariate(math.log(self.median), sigma))))


Lengths = Fixed | Uniform | LogNormal


class Shape(msgspec.Struct, frozen=True):
    """One kind of request; lengths are in tokens.

    ``weight``: how often it comes, beside the other shapes. The first ``prefix`` tokens of a prompt
    are one of ``prefixes`` fixed beginnings, ``input`` is what follows them. ``output`` is how long
    the answer may be, and is, where the endpoint is told to ignore the end (``Endpoint.extra``).
    """

    name: str
    input: Lengths
    output: Lengths
    weight: float = 1.0
    prefix: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.weight < math.inf) or self.prefix < 0 or self.prefixes < 1:
            raise ValueError(f"shape {self.name!r}: weight > 0, prefix >= 0, prefixes >= 1")


class Prompt(NamedTuple):
    """What one request asks."""

    shape: str
    text: str
    max_tokens: int


class Workload(msgspec.Struct, frozen=True):
    """A mix of shapes. The prompts of two seeds have nothing in common."""

    shapes: tuple[Shape, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("a workload needs at least one shape")

    def prompt(self, index: int) -> Prompt:
        """The prompt of that number."""
        rng = random.Random(f"{self.seed} {index}")
        shape = rng.choices(self.shapes, [shape.weight for shape in self.shapes])[0]
        parts = []
        if shape.prefix:
            which = f"{self.seed} {shape.name} {rng.randrange(shape.prefixes)}"
            parts.append(_words(random.Random(which), shape.prefix))
        parts.append(_words(rng, shape.input.draw(rng)))
        return Prompt(shape.name, " ".join(parts), shape.output.draw(rng))


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))
