"""Speculative decoding: several tokens of a sequence in one step, none of them changed by it.

A proposer guesses the next k tokens. The step computes the last known token and the k guesses,
with logits for each, and the sampler then goes through the rows as if each had been a step of its
own: with the same penalties, bias and uniform number, which is a function of (seed, stream,
position) alone. It goes on from one row to the next while the token that it chose is the guess.
So the output is the one without speculation, bit for bit where the runner's rows do not depend on
what else is in the batch; and a guess is accepted with the probability that the model gives it,
which is as much as any exact rule can (Leviathan, Kalman and Matias 2023, "Fast inference from
transformers via speculative decoding", where a deterministic guess is accepted with p).

How many tokens to guess is decided per sequence and step, for the most tokens per second: a guess
is worth its chance of being accepted, and costs what the step-time model says of one more token.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from tidemill.engine.scheduler import Scheduler
from tidemill.engine.sequence import Sequence
from tidemill.engine.step_time import StepTimeModel, Work
from tidemill.engine.table import Span

MAX_DRAFT = 15
"""The most tokens guessed at once: with the known one they fill two tiles of eight rows."""

_FADE = 0.95  # of what is known of a sequence's acceptance, per guess tested
_FADE_ALL = 0.995  # the same for all sequences together
_BELIEF = 3.0  # guesses that what is believed is worth: of others for a sequence, at first for all
_MARGIN = 1.15  # a guess must pay by this factor: its price is an estimate
_FIRST_WAIT, _LAST_WAIT = 8, 64  # steps between guesses made only to see whether they pay again


class Proposer(Protocol):
    """Guesses tokens. Guesses are for confirmed tokens (``sequence.tokens``) only, which never
    change but grow; what was guessed before and not accepted has left no trace there."""

    def kinds(self, sequences: Seq[Sequence]) -> list[int]:
        """What kind of guess there would be for each: kinds differ in how often they are right,
        which is learned for each. 0: none."""
        ...

    def first_rate(self, kind: int) -> float:
        """The share of guesses of ``kind`` that are right, as long as nothing is known of it."""
        ...

    def propose(self, sequences: Seq[Sequence], lengths: Seq[int]) -> list[list[int]]:
        """At most ``lengths`` tokens for each of ``sequences``, all of which had a kind in the
        last call of ``kinds``."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """``sequence`` has ended. It may never have been seen."""
        ...


class _Counts:
    """Fading numbers of guesses tested and accepted, by kind."""

    __slots__ = ("_counts", "_fade")

    def __init__(self, fade: float) -> None:
        self._fade = fade
        self._counts: dict[int, tuple[float, float]] = {}

    def add(self, kind: int, tested: int, accepted: int) -> None:
        old_tested, old_accepted = self._counts.get(kind, (0.0, 0.0))
        keep = self._fade**tested
        self._counts[kind] = (old_tested * keep + tested, old_accepted * keep + accepted)

    def rate(self, kind: int, belief: float, weight: float) -> float:
        """The share accepted, where ``belief`` counts as ``weight`` guesses."""
        tested, accepted = self._counts.get(kind, (0.0, 0.0))
        return (accepted + belief * weight) / (tested + weight)


class _Record:
    """What is known of one sequence: its acceptance, and when to guess again after it did not
    pay. ``wait``: steps until then; ``pause``: how long the next wait is."""

    __slots__ = ("counts", "pause", "wait")

    def __init__(self) -> None:
        self.counts = _Counts(_FADE)
        self.pause = _FIRST_WAIT
        self.wait = 0


class Speculator:
    """Decides how many tokens to guess for whom, and learns from what became of them.

    Not ``adaptive``: as many as may be for everyone, whenever there is a guess.
    """

    def __init__(
        self,
        proposer: Proposer,
        step_time: StepTimeModel,
        *,
        max_draft: int = MAX_DRAFT,
        adaptive: bool = True,
    ) -> None:
        self.proposer = proposer
        self.drafted = 0
        self.accepted = 0
        self._step_time = step_time
        self._max_draft = max_draft
        self._adaptive = adaptive
        self._all = _Counts(_FADE_ALL)
        self._records: dict[Sequence, _Record] = {}
        self._draft_seconds = 0.0

    def draft(self, spans: list[Span], scheduler: Scheduler, clock: Callable[[], float]) -> None:
        """Extend decodes of ``spans`` by guesses where that pays and ``scheduler`` has room."""
        tokens = rows = 0
        for span in spans:
            tokens += span.n
            rows += span.n if span.sequence.wants_prompt_logprobs else 1
        started = clock()
        chosen = self._lengths(
            spans,
            Work(tokens, 0, rows),
            room=min(scheduler.max_batch_tokens - tokens, scheduler.max_logit_rows - rows),
            seconds=scheduler.seconds_left,
        )
        for span in chosen:
            span.wanted = scheduler.make_room(span.sequence, span.wanted)
        chosen = [span for span in chosen if span.wanted]
        if chosen:
            self._propose(chosen)
            self._took(clock() - started, sum(len(s.drafts) for s in chosen))

    def _lengths(self, spans: list[Span], work: Work, *, room: int, seconds: float) -> list[Span]:
        """Choose the decodes of ``spans`` to guess for, and set their ``wanted`` and ``kind``.

        ``work`` is what the step has to compute, its context not counted. ``room``: how many more
        tokens with logits it may have. ``seconds``: how much longer it may take.
        """
        price = self._step_time.next_token(0) + self._draft_seconds
        before = self._step_time.seconds(work)
        if self._adaptive and before < _MARGIN * work.tokens * price:
            return []  # with so many tokens in the step not even a sure guess would pay
        able = [span for span in spans if room > 0 and span.may_draft]
        sequences = [span.sequence for span in able]
        for span, kind in zip(able, self.proposer.kinds(sequences), strict=True):
            span.kind = kind
        able = [span for span in able if span.kind]
        if not able:
            return []
        if not self._adaptive:
            for span in able:
                sequence = span.sequence
                span.wanted = min(self._max_draft, room, sequence.room - 1)
                room -= span.wanted
            return [span for span in able if span.wanted > 0]
        context = sum(s.n * s.sequence.computed + s.n * (s.n + 1) // 2 for s in spans)
        before = self._step_time.seconds(Work(work.tokens, context, work.rows))
        self._allot(able, work.tokens, before, room, before + seconds)
        return [span for span in able if span.wanted or self._probes(span, room)]

    def _allot(
        self, able: list[Span], tokens: float, before: float, room: int, most: float
    ) -> None:
        """Guess by guess, the one with the best chance per second first, while the step's tokens
        per second rise."""
        queue: list[tuple[float, int, float, float]] = []
        for i, span in enumerate(able):
            sequence = span.sequence
            rate = self._rate(sequence, span.kind)
            price = self._step_time.next_token(len(sequence.tokens)) + self._draft_seconds
            queue.append((-rate / price, i, rate, price))
        heapq.heapify(queue)
        while queue and room:
            value, i, chance, price = heapq.heappop(queue)
            if -value * before < _MARGIN * tokens or before + price > most:
                break
            span = able[i]
            span.wanted += 1
            room -= 1
            tokens += chance
            before += price
            if span.wanted < min(self._max_draft, span.sequence.room - 1):
                chance *= self._rate(span.sequence, span.kind)
                heapq.heappush(queue, (-chance / price, i, chance, price))

    def _rate(self, sequence: Sequence, kind: int) -> float:
        belief = self._all.rate(kind, self.proposer.first_rate(kind), _BELIEF)
        record = self._records.get(sequence)
        return belief if record is None else record.counts.rate(kind, belief, _BELIEF)

    def _probes(self, span: Span, room: int) -> bool:
        """Whether to guess a single token although that does not seem to pay: now and then, and
        ever more rarely, since a text may start to repeat what it has."""
        record = self._record(span.sequence)
        record.wait -= 1
        if record.wait > 0 or not room:
            return False
        record.wait = record.pause
        record.pause = min(2 * record.pause, _LAST_WAIT)
        span.wanted = 1
        return True

    def _propose(self, spans: list[Span]) -> None:
        """Give each of ``spans`` its drafts, at most as many as it wants."""
        drafts = self.proposer.propose([s.sequence for s in spans], [s.wanted for s in spans])
        for span, draft in zip(spans, drafts, strict=True):
            span.drafts = draft[: span.wanted]
            span.n = 1 + len(span.drafts)

    def _took(self, seconds: float, drafts: int) -> None:
        """Proposing ``drafts`` tokens took ``seconds``."""
        if drafts and seconds >= 0:
            each = seconds / drafts
            old = self._draft_seconds
            self._draft_seconds = each if old == 0 else old + 0.1 * (min(each, 4 * old) - old)

    def settle(self, span: Span, accepted: int, *, ended: bool) -> None:
        """``accepted`` of the span's drafts were right. With ``ended`` the sequence ended there,
        and the guess after them was not put to the test."""
        tested = accepted + (not ended and accepted < len(span.drafts))
        self.drafted += len(span.drafts)
        self.accepted += accepted
        self._all.add(span.kind, tested, accepted)
        if ended:
            return
        record = self._record(span.sequence)
        record.counts.add(span.kind, tested, accepted)
        if accepted:
            record.pause = _FIRST_WAIT

    def _record(self, sequence: Sequence) -> _Record:
        record = self._records.get(sequence)
        if record is None:
            record = self._records[sequence] = _Record()
        return record

    def forget(self, sequence: Sequence) -> None:
        self._records.pop(sequence, None)
        self.proposer.forget(sequence)
