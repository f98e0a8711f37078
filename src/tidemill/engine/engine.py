"""The engine: requests in, events out, one forward step at a time.

Pure: it does no I/O, starts no thread and reads no clock; one thread drives it. A request that
fails takes nobody with it: a step that raises is repeated sequence by sequence, which finds the
one at fault, and logits that are not finite end only the request whose row they are.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Runner
from tidemill.engine.base import (
    Aside,
    EmbeddingEvent,
    EngineConfig,
    EngineStats,
    ErrorEvent,
    Event,
    FinishReason,
    PromptEvent,
    Request,
    TokenEvent,
)
from tidemill.engine.checks import checked_prompt
from tidemill.engine.constrained import Constrained
from tidemill.engine.errors import ConstraintError, QueueFullError, RequestError
from tidemill.engine.kv_blocks import KVBlocks
from tidemill.engine.kv_tier import KVTier, TieredKV
from tidemill.engine.outbox import Outbox
from tidemill.engine.output import OutputText
from tidemill.engine.sampling import STATUS_MESSAGES, Choice, Sampler
from tidemill.engine.scheduler import BRIEF_SECONDS, Scheduler
from tidemill.engine.sequence import Group, Sequence
from tidemill.engine.speculation import Proposer, Speculator
from tidemill.engine.step_time import StepTimeModel, Work
from tidemill.engine.table import SequenceTable, Span
from tidemill.text.base import Tokenizer
from tidemill.text.detokenize import TokenTexts


class Engine:
    """Continues prompts on ``runner``.

    Without a tokenizer events carry no text, and stop strings are refused. ``entropy`` seeds the
    streams of requests that bring no seed of their own (None: from the operating system, once).
    ``proposer`` guesses tokens ahead, which changes no output (see speculation.py). ``clock``
    (seconds) times the steps, so that chunks and guesses fit the machine; without one, they go by
    ``EngineConfig.step_costs``. ``aside`` runs what can be done while a forward step runs. ``tier``
    keeps KV blocks beyond memory (see kv_tier.py); it is not closed here.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer | None,
        config: EngineConfig,
        *,
        entropy: int | None = None,
        proposer: Proposer | None = None,
        clock: Callable[[], float] | None = None,
        aside: Aside | None = None,
        tier: KVTier | None = None,
    ) -> None:
        if tier is not None and not config.prefix_caching:
            raise ValueError("keeping KV blocks beyond memory needs EngineConfig.prefix_caching")
        kv = runner.kv
        self.config = config
        self.max_context = min(config.max_context, kv.n_blocks * kv.block_size)
        """The most tokens (prompt + output) that a sequence can really have."""
        self._runner = runner
        self._tokenizer = tokenizer
        self._texts = None if tokenizer is None else TokenTexts(tokenizer)
        self._vocab_size = runner.vocab_size
        self._eos_ids = frozenset(
            i for i in (tokenizer.eos_ids if tokenizer else ()) if 0 <= i < runner.vocab_size
        )
        max_batch_tokens = min(config.max_batch_tokens, runner.max_batch_tokens)
        # Every running sequence may want a row, and the logits of it, in one step.
        n_slots = min(config.max_sequences, runner.max_logit_rows, max_batch_tokens)
        self._table = SequenceTable(n_slots, self.max_context, kv.block_size, max_batch_tokens)
        self._kv = KVBlocks(kv.n_blocks, kv.block_size)
        self.step_time = StepTimeModel(config.step_costs)
        self._clock = clock
        self._aside = aside
        self._forwards = 0  # tried in this step
        self._work: Work | None = None  # of the last one that succeeded
        self._tiered: TieredKV | None = None
        if tier is not None:
            self._tiered = TieredKV(tier, runner, self._kv, self.step_time)
        self._scheduler = Scheduler(
            self._kv,
            self._table,
            max_batch_tokens=max_batch_tokens,
            max_prefill_tokens=config.max_prefill_tokens,
            max_logit_rows=runner.max_logit_rows,
            max_preemptions=config.max_preemptions,
            prefix_caching=config.prefix_caching,
            model_id=config.model_id,
            step_time=self.step_time,
            target_itl=config.target_itl,
            # With a prefix cache the beginning of one sequence may be that of another one to come.
            window=None if config.prefix_caching else runner.window,
            forget_blocks=runner.forget_blocks,
            tiered=self._tiered,
        )
        self._speculator: Speculator | None = None
        if proposer is not None:
            self._speculator = Speculator(
                proposer,
                self.step_time,
                max_draft=config.max_draft,
                adaptive=config.adaptive_drafts,
            )
        self._sampler = Sampler(self._table, runner.vocab_size, config.sampling_threads)
        self._groups: dict[str, Group] = {}
        self._outbox = Outbox()
        self._arrivals = 0
        self._brief_until = -math.inf
        self._entropy = int.from_bytes(os.urandom(16), "little") if entropy is None else entropy
        self._stats = EngineStats()

    # ---- requests in ---------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """Queue ``request``. Raises RequestError if it can never be served (ContextLengthError
        if it is too long), QueueFullError if too many wait; nothing is held then."""
        if request.id in self._groups:
            raise RequestError(f"a request with the id {request.id!r} is running", param="id")
        prompt = checked_prompt(
            request, vocab_size=self._vocab_size, max_context=self.max_context,
            has_tokenizer=self._tokenizer is not None,
        )  # fmt: skip
        if len(self._scheduler.waiting) >= self.config.max_waiting:
            raise QueueFullError(
                f"{len(self._scheduler.waiting)} requests are waiting already; try again later"
            )
        params = request.params
        self._arrivals += 1
        seed = params.seed
        if seed is None:
            fresh = hashlib.sha256(f"stream {self._entropy} {self._arrivals}".encode()).digest()
            seed = int.from_bytes(fresh[:8], "little")
        group = Group(
            request,
            prompt,
            (2 * int(request.priority) + (not request.urgent), self._arrivals),
            len(prompt) + params.most_tokens(self.max_context - len(prompt)),
            seed % 2**64,
            self._eos_ids,
            now,
        )
        self._groups[request.id] = group
        self._scheduler.add(self._sample(group))
        if request.urgent:
            self._brief_until = max(self._brief_until, now + BRIEF_SECONDS)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state; its blocks are free at once and the next step gives
        a FinishEvent for each of its samples. False if the id is unknown (or has ended)."""
        group = self._groups.get(request_id)
        if group is None:
            return False
        self._close(group)
        self._outbox.abort(group)
        return True

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do or to tell."""
        return bool(self._outbox or self._scheduler.running or self._scheduler.waiting)

    @property
    def stats(self) -> EngineStats:
        speculator = self._speculator
        tiered = self._tiered
        return replace(
            self._stats,
            restored_tokens=tiered.restored_tokens if tiered else 0,
            tier=tiered.tier.stats if tiered else None,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            free_blocks=self._kv.free,
            cached_blocks=self._kv.cached,
            step_tokens=self._stats.step_tokens.copy(),
            step_sequences=self._stats.step_sequences.copy(),
            mask_seconds=self._stats.mask_seconds.copy(),
            preemptions=self._scheduler.preemptions,
            drafted_tokens=speculator.drafted if speculator else 0,
            accepted_tokens=speculator.accepted if speculator else 0,
        )

    def _sample(self, group: Group) -> Sequence:
        """The next sample of ``group``, fresh."""
        text = None
        if self._tokenizer is not None and self._texts is not None:
            text = OutputText(self._tokenizer, self._texts, group.request)
        constrained = None
        if (constraint := group.request.constraint) is not None:
            clock = self._clock or (lambda: 0.0)
            constrained = Constrained(constraint, self._vocab_size, self._stats, clock)
        sequence = Sequence(group, len(group.samples), text, constrained)
        group.samples.append(sequence)
        return sequence

    # ---- one step ------------------------------------------------------------------------------

    def step(self, now: float) -> list[Event]:
        """Run one forward step, if anything can run, and give what happened since the last."""
        if self._tiered is not None:
            self._tiered.advance(now)
        clock = self._clock
        started = 0.0 if clock is None else clock()
        self._scheduler.brief = now < self._brief_until
        spans = self._scheduler.schedule()
        if not spans and self._tiered is not None and self._tiered.restoring:
            self._tiered.tier.wait()
        if spans:
            self._stats.steps += 1
            for span in spans:
                group = span.sequence.group
                if group.started is None:
                    group.started = now
                    self._stats.started += 1
                    self._stats.queue_seconds += max(0.0, now - group.arrival)
            if self._speculator is not None:
                started += self._draft(self._speculator, spans)
            self._stats.step_tokens.add(sum(span.n for span in spans))
            self._stats.step_sequences.add(len(spans))
            self._forwards = 0
            self._run(spans)
            if clock is not None and self._forwards == 1 and self._work is not None:
                self.step_time.observe(self._work, clock() - started)
            self._work = None
        return self._outbox.take()

    def _draft(self, speculator: Speculator, spans: list[Span]) -> float:
        """Extend decodes by guesses where that pays; the seconds that it took. Where the guessing
        itself fails, it is given up: nothing depends on it."""
        clock = self._clock or (lambda: 0.0)
        started = clock()
        try:
            speculator.draft(spans, self._scheduler, clock)
        except Exception as error:
            for span in spans:
                span.drop_drafts()
            self._speculator = None
            self._stats.speculation_error = f"guessing tokens failed: {error!r}"
        return clock() - started

    def _run(self, spans: list[Span]) -> None:
        """Compute ``spans``; if that raises, one by one, so that only the culprit fails."""
        try:
            logits = self._forward(spans)
            rows, sequences = [], []
            for span in spans:
                sequence = span.sequence
                if (
                    span.last_row >= 0
                    and sequence.may_grow
                    and (sequence.constrained is None or self._has_mask(sequence))
                ):
                    rows.append(span.last_row)
                    sequences.append(sequence)
            choices = self._sampler.sample(logits, rows, sequences)
        except Exception as error:
            drafted = any(span.drafts for span in spans)
            for span in spans:
                span.drop_drafts()
            if len(spans) == 1 and not drafted:
                self._fail(spans[0].sequence.group, f"the forward step failed: {error!r}")
                return
            for span in spans:
                if span.sequence.slot >= 0:  # its request may have failed with another sample
                    self._run([span])
            return
        for span in spans:
            if span.sequence.slot < 0:  # its request has failed just now
                continue
            span.sequence.drafted += len(span.drafts)
            self._scheduler.commit(span.sequence, span.n - len(span.drafts))
        for span in spans:
            group = span.sequence.group
            if not group.prompt_done and not group.closed:
                try:
                    choices += self._prompt(span, logits)
                except Exception as error:
                    self._fail(group, f"the step after the prompt failed: {error!r}")
        self._accept(choices)
        if self._speculator is not None:
            self._accept_drafts(self._speculator, [s for s in spans if s.drafts], logits)

    @staticmethod
    def _begin_masks(aside: Aside, spans: list[Span]) -> None:
        """Begin to find out what may come after ``spans``, where that is constrained."""
        for span in spans:
            if span.last_row >= 0 and (constrained := span.sequence.constrained) is not None:
                constrained.begin(aside)

    def _has_mask(self, sequence: Sequence) -> bool:
        """Whether a token can be chosen for ``sequence``: it is open what comes next, or known
        what may. If its constraint fails, so does its request, and no other."""
        if sequence.constrained is None:
            return True
        if sequence.group.closed:
            return False
        try:
            sequence.constrained.mask()
        except Exception as error:
            self._fail(sequence.group, f"the answer's grammar failed: {error}", refused=True)
            return False
        return True

    def _forward(self, spans: list[Span]) -> npt.NDArray[np.float32]:
        batch = self._table.batch(spans)
        if self._aside is not None:
            self._begin_masks(self._aside, spans)
        self._forwards += 1
        logits = self._runner.forward(batch)
        if self._clock is not None:
            self._work = Work(len(batch.tokens), self._table.context, len(batch.logit_rows))
        if logits.shape != (len(batch.logit_rows), self._vocab_size):
            raise RuntimeError(f"the runner gave logits of shape {logits.shape}")
        return logits

    def _prompt(self, span: Span, logits: npt.NDArray[np.float32]) -> list[Choice]:
        """Go on with a request whose prompt was not complete before this step. When it is now,
        the other samples start from it, and this gives their first tokens."""
        sequence, group = span.sequence, span.sequence.group
        params = group.params
        if span.first_row >= 0 and (status := self._sampler.score_prompt(span, logits)):
            self._fail(group, STATUS_MESSAGES[status])
            return []
        if sequence.pool is not None:
            sequence.pool.add(self._runner.hidden()[slice(*span.hidden)])
        if sequence.computed < sequence.n_prompt:
            return []
        group.prompt_done = True
        self._stats.prompt_tokens += sequence.n_prompt
        self._stats.cached_prompt_tokens += group.cached_tokens
        scores = None if params.prompt_scores is None else tuple(group.prompt_logprobs)
        group.prompt_logprobs.clear()
        self._outbox.add(
            PromptEvent(
                group.request.id, sequence.n_prompt, group.cached_tokens, scores, group.started
            )
        )
        if sequence.pool is not None:
            self._finish_embedding(sequence, sequence.pool.vector())
            return []
        others = [self._sample(group) for _ in range(params.n_samples - 1)]
        if not sequence.may_grow:
            for sample in (sequence, *others):
                self._finish(sample, "length")
            return []
        copies = [self._scheduler.fork(sequence, sample) for sample in others]
        forked = [s for s in others if s.slot >= 0 and self._has_mask(s)]
        choices = self._sampler.sample(logits, [span.last_row] * len(forked), forked)
        if pairs := [copy for copy in copies if copy is not None]:
            self._runner.copy_blocks(pairs)
        return choices

    def _accept(self, choices: list[Choice]) -> None:
        """Append chosen tokens to their sequences, tell of them, and end what has ended."""
        for choice in choices:
            if choice.token < 0:
                self._fail(choice.sequence.group, STATUS_MESSAGES[-choice.token])
        for choice in choices:
            group = choice.sequence.group
            if group.closed:
                continue
            self._table.append(choice.sequence, choice.token)
            self._stats.generated_tokens += 1
            try:
                self._accept_one(choice)
            except ConstraintError as error:
                self._fail(group, f"the answer's grammar failed: {error}", refused=True)
            except Exception as error:
                self._fail(group, f"turning tokens into text failed: {error!r}")

    def _accept_one(self, choice: Choice) -> None:
        sequence, token = choice.sequence, choice.token
        group, output = sequence.group, sequence.text
        sequence.cumulative_logprob += choice.logprob
        text = ""
        stop: int | str | None = None
        ended = token in group.end_ids
        if ended:
            stop = None if token in group.eos_ids else token
        elif output is not None:
            text, stop = output.push(token, may_stop=len(sequence.tokens) >= group.least)
            ended = stop is not None
        if sequence.constrained is not None and not ended:
            ended = sequence.constrained.accept(token)
        event = TokenEvent(group.request.id, sequence.index, token, text, choice.logprobs)
        self._outbox.tell(sequence, event)
        if ended or not sequence.may_grow:
            tail = ""
            if output is not None and not isinstance(stop, str):
                tail, found = output.flush()
                if found is not None:
                    ended, stop = True, found
            self._finish(sequence, "stop" if ended else "length", tail, stop)

    def _accept_drafts(
        self, speculator: Speculator, spans: list[Span], logits: npt.NDArray[np.float32]
    ) -> None:
        """Go on with the sequences of ``spans`` while the token chosen last is the one guessed: it
        has been computed with them, so the next can be chosen. Token after token, as if each had
        been a step of its own."""
        depth = 0
        while spans:
            going = []
            for span in spans:
                sequence = span.sequence
                ended = sequence.slot < 0  # or failed with another sample of its request
                right = depth < len(span.drafts) and not ended
                right = right and sequence.tokens[-1] == span.drafts[depth]
                if right:
                    self._scheduler.commit(sequence, 1)
                    sequence.accepted += 1
                    if self._has_mask(sequence):
                        going.append(span)
                        continue
                    ended = True
                speculator.settle(span, depth, ended=ended)
            if not going:
                return
            rows = [span.last_row + 1 + depth for span in going]
            try:
                choices = self._sampler.sample(logits, rows, [span.sequence for span in going])
            except Exception:
                # Nothing is lost: what is wrong, if it stays so, fails in the sequences' next step.
                for span in going:
                    speculator.settle(span, depth + 1, ended=True)
                return
            self._accept(choices)
            spans = going
            depth += 1

    # ---- ends ----------------------------------------------------------------------------------

    def _finish(
        self, sequence: Sequence, reason: FinishReason, text: str = "",
        stop_reason: int | str | None = None,
    ) -> None:  # fmt: skip
        group = sequence.group
        self._forget(sequence)
        sequence.finished = True
        self._outbox.finish(sequence, reason, text, stop_reason)
        if len(group.samples) == group.params.n_samples and all(s.finished for s in group.samples):
            self._close(group)
            self._outbox.release_best(group)

    def _finish_embedding(self, sequence: Sequence, vector: npt.NDArray[np.float32]) -> None:
        if not np.isfinite(vector).all():
            self._fail(sequence.group, "the model's hidden states are not finite numbers")
            return
        self._outbox.add(EmbeddingEvent(sequence.group.request.id, vector))
        self._finish(sequence, "stop")

    def _fail(self, group: Group, message: str, *, refused: bool = False) -> None:
        if not group.closed:
            self._close(group)
            self._stats.failures += 1
            self._outbox.add(ErrorEvent(group.request.id, message, refused))

    def _close(self, group: Group) -> None:
        """Free all that ``group`` holds and forget it."""
        for sequence in group.samples:
            if not sequence.finished:
                self._forget(sequence)
        group.closed = True
        del self._groups[group.request.id]

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if self._speculator is not None:
            self._speculator.forget(sequence)
