"""Whether two sides answered the same prompts alike: equally long, and in the same words.

Prompts are the same where seed and shapes are, number for number, but for later turns of
conversations, which have each side's own answers in them. Two engines with the same weights that
both choose the likeliest token say the same for a while, and part where two tokens are nearly as
likely: that is agreement, of which neither has more quality than the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.bench.compare.base import Side
from tidemill.bench.records import Record
from tidemill.bench.traces import TraceFile


class Answers(NamedTuple):
    """Of the prompts to which both sides had an answer: ``equally_long`` ones have as many tokens.
    Of ``texts`` that both kept, ``same``: in every word; ``agreed``: the mean share of the words
    before the first that differs."""

    pairs: int
    equally_long: int
    texts: int
    same: int
    agreed: float


def answers(a: Side, b: Side) -> Answers | None:
    """Of the first run of each side; None if they had no prompts in common, or count no tokens."""
    if not _same_prompts(a, b):
        return None
    ours, theirs = _by_prompt(a), _by_prompt(b)
    pairs = [(ours[index], theirs[index]) for index in ours if index in theirs]
    if not pairs:
        return None
    texts = []
    if all(side.first.target.extra.get("temperature") == 0 for side in (a, b)):
        texts = [_agreed(x.text, y.text) for x, y in pairs if x.text and y.text]
    return Answers(
        pairs=len(pairs),
        equally_long=sum(x.output_tokens == y.output_tokens for x, y in pairs),
        texts=len(texts),
        same=texts.count(1.0),
        agreed=sum(texts) / max(1, len(texts)),
    )


def told(found: Answers) -> Iterator[str]:
    """In sentences."""
    yield f"{found.equally_long} of {found.pairs} answers to the same prompts are equally long"
    if found.texts:
        yield (
            f"{found.same} of {found.texts} are the same in every word; on average the first "
            f"{found.agreed:.0%} of the words are (agreement, not quality)"
        )


def _same_prompts(a: Side, b: Side) -> bool:
    one, other = a.first, b.first
    traced = any(isinstance(result.scenario.load, TraceFile) for result in (one, other))
    return (
        one.seed == other.seed
        and one.scenario.shapes == other.scenario.shapes
        and one.scenario.api == other.scenario.api
        and (not traced or one.scenario.load == other.scenario.load)
    )


def _by_prompt(side: Side) -> dict[int, Record]:
    recording = side.recordings[0]
    return {
        record.index: record
        for record in ([] if recording is None else recording.records)
        if record.error is None and not record.turn and record.output_tokens is not None
    }


def _agreed(a: str, b: str) -> float:
    """The share of words up to the first that differs."""
    ours, theirs = a.split(), b.split()
    longest = max(len(ours), len(theirs))
    agreed = 0
    for x, y in zip(ours, theirs, strict=False):
        if x != y:
            break
        agreed += 1
    return agreed / longest if longest else 1.0
