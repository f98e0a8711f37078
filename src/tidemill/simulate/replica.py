"""One engine in virtual time: its own scheduler, KV blocks and sequences; steps last what a
``StepTime`` says.

It does what ``Engine.step`` does, without a model: tokens come after as many steps, in the same
order, and blocks are taken, shared and given back at the same moments (a test drives both with
random requests and compares all times, preemptions and cached tokens).

A replica tells when something happens next (``at``): either steps end (``ending``), or the next
ones may begin. Whoever drives it calls ``end`` and ``begin`` then, and at equal times hands in
what has arrived between the two, as the engine takes requests in between steps.
"""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import cast

from tidemill.engine.base import EngineConfig, Request
from tidemill.engine.kv_blocks import KVBlocks
from tidemill.engine.params import SamplingParams
from tidemill.engine.scheduler import BRIEF_SECONDS
from tidemill.engine.sequence import Group
from tidemill.engine.step_time import StepTimeModel, attended
from tidemill.engine.table import Slots, Span
from tidemill.records import dataclass
from tidemill.simulate.base import ReplicaSpec, StepWork
from tidemill.simulate.jobs import Job, Played
from tidemill.simulate.leaps import MOST, LeapingScheduler

_USUAL = EngineConfig(max_context=1)  # what it has unless told otherwise

OnGap = Callable[[float, int], None]
"""Told of seconds between two tokens, and of how many sequences there were so many."""


@dataclass(slots=True)
class Usage:
    """What a replica did, in seconds and tokens. ``busy``: computing steps, ``prompts``: such with
    prompts in them. ``running``, ``blocks``: sequences, and KV blocks that they own, times seconds.
    Seconds in which someone waited: ``no_slot`` for a place; while there was one, ``behind`` the
    prompts of others, and else for memory (``no_memory``)."""

    busy: float = 0.0
    prompts: float = 0.0
    running: float = 0.0
    blocks: float = 0.0
    no_slot: float = 0.0
    behind: float = 0.0
    no_memory: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Steps:
    """Those that are being computed: when they began and when each ends. ``spans``: of a single
    step; None where they are decodes that are all alike. ``prompts``: whether there are any."""

    began: float
    ends: list[float]
    spans: list[Span] | None
    prompts: bool


class Replica:
    """``on_gap`` is told of the gaps between tokens of jobs that do not keep their times."""

    def __init__(
        self,
        spec: ReplicaSpec,
        *,
        on_gap: OnGap = lambda seconds, n: None,
        prefix_caching: bool = True,
        max_preemptions: int = _USUAL.max_preemptions,
        max_waiting: int = _USUAL.max_waiting,
    ) -> None:
        self.spec = spec
        self.usage = Usage()
        self._on_gap = on_gap
        self._prefix_caching = prefix_caching
        self._max_preemptions = max_preemptions
        self._max_waiting = max_waiting
        self._max_context = min(spec.max_context, spec.n_blocks * spec.block_size)
        self._seconds = spec.step_time.seconds
        self._start()

    def _start(self) -> None:
        """With an empty engine."""
        spec = self.spec
        self.at = math.inf
        self.ending = False
        n_slots = min(spec.max_sequences, spec.max_batch_tokens)
        self._kv = KVBlocks(spec.n_blocks, spec.block_size)
        self._slots = Slots(n_slots)
        self._scheduler = LeapingScheduler(
            self._kv, self._slots,
            max_batch_tokens=spec.max_batch_tokens, max_prefill_tokens=spec.max_prefill_tokens,
            max_logit_rows=n_slots, max_preemptions=self._max_preemptions,
            prefix_caching=self._prefix_caching, model_id="", step_time=StepTimeModel(),
        )  # fmt: skip
        self._steps: _Steps | None = None
        self._inbox: list[tuple[Job, bool]] = []  # with whether it is to be aborted
        self._ended: list[Job] = []
        self._arrivals = 0
        self._brief_until = -math.inf

    # ---- from outside

    def submit(self, job: Job, now: float) -> None:
        """Hand ``job`` to the engine, which takes it in before the next step."""
        self._inbox.append((job, False))
        self._interrupt(now)

    def abort(self, job: Job, now: float) -> None:
        self._inbox.append((job, True))
        self._interrupt(now)

    def _interrupt(self, now: float) -> None:
        """Have the steps that have not begun wait for what came at ``now``."""
        if self.at == math.inf:
            self.at = now
        elif self._steps is not None:
            ends = self._steps.ends
            # The first has begun; each other one begins where the one before it ends.
            del ends[bisect_left(ends, now, 0, len(ends) - 1) + 1 :]
            self.at = ends[-1]

    def begin(self) -> list[Job]:
        """At ``at``: take in what has arrived, and begin the next steps, if there is anything to
        do. Gives the jobs that ended without: refused ones, and aborted ones."""
        now = self.at
        for job, abort in self._inbox:
            if abort:
                self._abort(job, now)
            else:
                self._take_in(job, now)
        self._inbox.clear()
        scheduler = self._scheduler
        scheduler.brief = now < self._brief_until
        if n := scheduler.alike(MOST):
            running = cast("list[Played]", scheduler.running)
            n = min(n, min([sequence.to_come for sequence in running]))
            self._steps = self._decodes(now, n)
        elif spans := self._schedule():
            work = _work(spans)
            ends = [now + self._seconds(work)]
            self._steps = _Steps(now, ends, spans, prompts=work.prompt_tokens > 0)
        self.ending = self._steps is not None
        self.at = math.inf if self._steps is None else self._steps.ends[-1]
        return self._take_ended()

    def end(self) -> list[Job]:
        """At ``at``: the steps have been computed. Gives the jobs that ended with them."""
        steps = self._steps
        assert steps is not None
        self._note(steps)
        if steps.spans is None:
            self._leap(steps)
        else:
            self._step(steps.spans, steps.ends[0])
        self._steps = None
        self.ending = False
        if not (self._scheduler.running or self._scheduler.waiting or self._inbox):
            self.at = math.inf
        return self._take_ended()

    def drop(self) -> None:
        """Forget everything, as a process that is killed."""
        self._start()

    def _take_ended(self) -> list[Job]:
        ended, self._ended = self._ended, []
        return ended

    # ---- what the engine does with requests

    def _take_in(self, job: Job, now: float) -> None:
        limit = job.prompt_tokens + job.max_tokens
        if limit > self._max_context:
            self._end_job(job, now, "too_long")
        elif len(self._scheduler.waiting) >= self._max_waiting:
            self._end_job(job, now, "queue_full")
        else:
            self._arrivals += 1
            order = (2 * job.priority + (not job.urgent), self._arrivals)
            prompt = array("i", bytes(4 * job.prompt_tokens))
            request = _request(job.n, job.priority, job.urgent)
            job.group = Group(request, prompt, order, limit, 0, frozenset(), now)
            self._scheduler.add(_sample(job, job.group))
            if job.urgent:
                self._brief_until = max(self._brief_until, now + BRIEF_SECONDS)

    def _abort(self, job: Job, now: float) -> None:
        if (group := job.group) is None:
            return  # it has ended, or never begun
        for sequence in group.samples:
            if not sequence.finished:
                self._scheduler.remove(sequence)
        self._end_job(job, now, job.error or "abort")

    def _end_job(self, job: Job, now: float, error: str | None = None) -> None:
        job.ended = now
        job.error = error
        if (group := job.group) is not None:
            group.closed = True
            group.samples = []  # which lead back to the group and the job
            job.group = None
        self._ended.append(job)

    # ---- steps

    def _schedule(self) -> list[Span]:
        before = self._scheduler.preemptions
        spans = self._scheduler.schedule()
        self.usage.preemptions += self._scheduler.preemptions - before
        return spans

    def _decodes(self, now: float, n: int) -> _Steps:
        """``n`` steps in which all that runs decodes."""
        running = self._scheduler.running
        count = len(running)
        context = sum([len(sequence.tokens) for sequence in running])
        seconds = self._seconds
        ends = []
        end = now
        for _ in range(n):
            end += seconds(StepWork(0, 0, count, context, count))
            ends.append(end)
            context += count
        return _Steps(now, ends, None, prompts=False)

    def _leap(self, steps: _Steps) -> None:
        ends = steps.ends
        n = len(ends)
        self._scheduler.leap(n)
        running = cast("list[Played]", list(self._scheduler.running))
        self.usage.output_tokens += n * len(running)
        first, last = ends[0], ends[-1]
        stamps = None
        counted = 0
        for sequence in running:
            job = sequence.job
            if job.times is not None:
                if sequence.index == 0:
                    stamps = stamps or array("d", ends)
                    job.times += stamps
            elif job.counted:
                self._on_gap(first - sequence.last, 1)
                counted += 1
            sequence.last = last
            if not sequence.to_come:
                self._finish(sequence, last)
        if counted:
            for i in range(1, n):
                self._on_gap(ends[i] - ends[i - 1], counted)

    def _step(self, spans: list[Span], now: float) -> None:
        """What the engine does after the forward step ``spans``."""
        scheduler = self._scheduler
        for span in spans:
            scheduler.commit(span.sequence, span.n)
        chosen = [
            cast("Played", span.sequence)
            for span in spans
            if span.sequence.may_grow and span.sequence.computed == len(span.sequence.tokens)
        ]
        for span in spans:
            sequence = cast("Played", span.sequence)
            if not sequence.group.prompt_done and sequence.computed >= sequence.n_prompt:
                chosen += self._prompt_done(sequence, now)
        for sequence in chosen:
            self._token(sequence, now)

    def _prompt_done(self, sequence: Played, now: float) -> list[Played]:
        """Start the other samples of a request whose prompt is computed; gives them."""
        job, group = sequence.job, sequence.group
        group.prompt_done = True
        job.cached_tokens = group.cached_tokens
        self.usage.prompt_tokens += sequence.n_prompt
        self.usage.cached_tokens += group.cached_tokens
        others = [_sample(job, group) for _ in range(job.n - 1)]
        if not sequence.may_grow:
            for sample in (sequence, *others):
                self._finish(sample, now)
            return []
        for sample in others:
            self._scheduler.fork(sequence, sample)
        return [sample for sample in others if sample.slot >= 0]

    def _token(self, sequence: Played, now: float) -> None:
        job = sequence.job
        sequence.tokens.append(0)
        self.usage.output_tokens += 1
        if math.isnan(job.first):
            job.first = now
        if job.times is not None:
            if sequence.index == 0:
                job.times.append(now)
        elif job.counted and not math.isnan(sequence.last):
            self._on_gap(now - sequence.last, 1)
        sequence.last = now
        if not sequence.to_come:
            self._finish(sequence, now)

    def _finish(self, sequence: Played, now: float) -> None:
        self._scheduler.remove(sequence)
        sequence.finished = True
        job, group = sequence.job, sequence.group
        if len(group.samples) == job.n and all(sample.finished for sample in group.samples):
            job.last = sequence.last
            self._end_job(job, now)

    def _note(self, steps: _Steps) -> None:
        """Add what is used while ``steps`` are computed; blocks as they are at their end."""
        usage = self.usage
        seconds = steps.ends[-1] - steps.began
        usage.steps += len(steps.ends)
        usage.busy += seconds
        if steps.prompts:
            usage.prompts += seconds
        usage.running += seconds * len(self._scheduler.running)
        usage.blocks += seconds * (self._kv.n_blocks - self._kv.available)
        if self._scheduler.waiting:
            if not self._slots.free_slots:
                usage.no_slot += seconds
            elif steps.prompts:
                usage.behind += seconds
            else:
                usage.no_memory += seconds


def _sample(job: Job, group: Group) -> Played:
    sequence = Played(group, len(group.samples), job)
    group.samples.append(sequence)
    return sequence


@functools.lru_cache(maxsize=256)
def _request(n: int, priority: int, urgent: bool) -> Request:
    """What the scheduler reads of a request; lengths are the job's."""
    return Request("", (), SamplingParams(n=n), priority=priority, urgent=urgent)


def _work(spans: list[Span]) -> StepWork:
    """A span of one token counts as a decode: that is what it costs."""
    prompt_tokens = prompt_context = decodes = decode_context = rows = 0
    for span in spans:
        start, n = span.sequence.computed, span.n
        if n == 1:
            decodes += 1
            decode_context += start + 1
        else:
            prompt_tokens += n
            prompt_context += attended(start, n)
        rows += start + n == len(span.sequence.tokens)
    return StepWork(prompt_tokens, prompt_context, decodes, decode_context, rows)
