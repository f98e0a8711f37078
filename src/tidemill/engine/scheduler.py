"""What runs in the next step: token-budget continuous batching over paged KV.

A step first gives every running sequence that has a single token to compute (a decode) its row,
then fills the budget with prompt chunks of running sequences, then admits waiting ones, in order
of priority and arrival. Since every decode takes part in every step, and a step in which others
decode holds at most ``max_prefill_tokens`` prompt tokens, the time between two tokens of a
sequence is bounded by that of one such step, however long the prompts are that arrive. With a
``target_itl`` the bound is that time itself: the prompt tokens of such a step are those that the
step-time model expects to fit into it, and at least LEAST_CHUNK.

Urgent requests (of somebody who hardly uses the engine while others fill it) wait for one step at
most, and for a short one: their prompts are computed in steps of their own, in which what runs
pauses, never two such steps in a row while it could go on. And while urgent requests keep coming
(``brief``), a step takes no longer than BRIEF single decodes would: the decodes take turns, those
first that have waited for longest. That costs at most about a third of the throughput, since a
step's fixed cost is then a third of it.

KV memory: a sequence gets the blocks of all its known tokens when it is admitted; only decodes
need more later. Where none is left, the last sequence in order gives its blocks up and waits to
be computed again ("preemption by recomputation"): it keeps its tokens and often finds its own
blocks in the prefix cache. Two rules keep that rare and bounded. Admission leaves room for the
growth to expect of what runs: a share of what it may still generate, which rises with each
preemption and falls slowly without. And a sequence that has been preempted ``max_preemptions``
times comes back only when all the blocks it can ever need are free, which are then its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from math import inf
from operator import attrgetter

from tidemill.engine.kv_blocks import KVBlocks
from tidemill.engine.kv_tier import TieredKV
from tidemill.engine.sequence import Sequence
from tidemill.engine.step_time import StepTimeModel, Work
from tidemill.engine.table import Slots, Span
from tidemill.records import dataclass

_ORDER = attrgetter("order")

GROWTH_AT_START = 0.3  # share of the tokens still allowed that a sequence is expected to generate
GROWTH_LEAST = 0.05
GROWTH_RISE = 0.2  # per preemption
GROWTH_FALL = 0.998  # factor per step
LOOKAHEAD = 1024  # tokens ahead that the estimate cares about
LEAST_CHUNK = 16  # prompt tokens of a step, whatever the target

BRIEF_SECONDS = 60.0  # how long steps stay brief after an urgent request: a pause for thought
BRIEF = 3.0  # length of a brief step, in those of a single decode
LEAST_BRIEF = 4  # decodes and prompt tokens of a brief step, whatever it takes
HEAD_START = 8  # steps for which an urgent decode seems to have waited longer than it has


@dataclass(slots=True)
class _Budget:
    """What is left of a step: tokens, logit rows, seconds; ``least`` tokens may be taken when the
    seconds are gone."""

    tokens: int
    rows: int
    seconds: float = inf
    least: int = 0


class Scheduler:
    """Owns the order of sequences, their slots and their blocks; knows nothing of tokens."""

    def __init__(
        self, kv: KVBlocks, table: Slots, *, max_batch_tokens: int,
        max_prefill_tokens: int, max_logit_rows: int, max_preemptions: int,
        prefix_caching: bool, model_id: str, step_time: StepTimeModel,
        target_itl: float | None = None, window: int | None = None,
        forget_blocks: Callable[[list[int]], None] = lambda _: None,
        tiered: TieredKV | None = None,
    ) -> None:  # fmt: skip
        """``forget_blocks`` is told of blocks that no token's ``window`` will reach any more;
        ``tiered`` keeps computed blocks beyond memory."""
        self.kv = kv
        self.table = table
        self.max_batch_tokens = max_batch_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.max_logit_rows = max_logit_rows
        self.max_preemptions = max_preemptions
        self.prefix_caching = prefix_caching
        self.model_id = model_id
        self.step_time = step_time
        self.target_itl = target_itl
        self.window = window
        self.forget_blocks = forget_blocks
        self.tiered = tiered
        self.brief = False
        """Whether urgent requests keep coming, so that steps have to be short."""
        self.seconds_left = inf
        """What the step last scheduled leaves of the target."""
        self.running: list[Sequence] = []  # both in order
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self._growth = GROWTH_AT_START
        self._turn = 0  # brief steps so far
        self._paused = False  # whether decodes sat out the last step

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_ORDER)

    def remove(self, sequence: Sequence) -> None:
        """Forget ``sequence`` in whatever state, and free what it holds."""
        if sequence.slot >= 0:
            self._stop(sequence)
        else:
            _discard(self.waiting, sequence)

    def schedule(self) -> list[Span]:
        """The spans of the next step; empty if nothing can run."""
        self.seconds_left = inf
        if self.waiting:
            self._make_way()
        if self.brief and (spans := self._urgent_prompts()):
            return spans
        preemptions = self.preemptions
        spans = self._decodes()
        calm = self.preemptions == preemptions
        if calm:
            self._growth = max(self._growth * GROWTH_FALL, GROWTH_LEAST)
        if self.waiting or len(spans) < len(self.running) or self._target < inf:
            self._add_prompts(spans, self._budget(spans), admit=calm)
        return spans

    def _urgent_prompts(self) -> list[Span]:
        """Those that are computed while what runs pauses, as it has not just done."""
        self._paused = not self._paused and any(not s.urgent for s in self.running)
        spans: list[Span] = []
        if self._paused:
            budget = _Budget(
                min(self.max_prefill_tokens, self.max_batch_tokens), self.max_logit_rows
            )
            # Not for a class after that of something that runs.
            self._add_prompts(spans, budget, admit=True, last=self.running[0].order[0] & ~1)
            self._paused = bool(spans)
        return spans

    def _add_prompts(
        self, spans: list[Span], budget: _Budget, *, admit: bool, last: float = inf
    ) -> None:
        """Add the prompts that ``budget`` has room for, up to order ``last``."""
        for sequence in self.running:
            if (
                len(sequence.tokens) - sequence.computed > 1
                and budget.tokens > 0
                and sequence.order[0] <= last
            ):
                self._add_prompt(sequence, budget, spans)
        while (
            admit
            and self.waiting
            and self.waiting[0].order[0] <= last
            and self._has_room(budget)
            and self._admit(self.waiting[0])
        ):
            sequence = self.waiting.pop(0)
            insort(self.running, sequence, key=_ORDER)
            self._add_prompt(sequence, budget, spans)
        self.seconds_left = budget.seconds

    def _add_prompt(self, sequence: Sequence, budget: _Budget, spans: list[Span]) -> None:
        if not sequence.restoring and (n := self._chunk(sequence, budget)):
            spans.append(Span(sequence, n))

    def make_room(self, sequence: Sequence, n: int) -> int:
        """How many of ``n`` tokens beyond the known ones ``sequence`` has KV blocks for, after
        giving it such as nobody needs now: a guess is worth no preemption."""
        size = self.kv.block_size
        length = len(sequence.tokens) + n
        while length > len(sequence.blocks) * size and self.kv.available > len(self.running):
            self.table.add_block(sequence, self.kv.allocate())
        return min(n, len(sequence.blocks) * size - len(sequence.tokens))

    def commit(self, sequence: Sequence, n: int) -> None:
        """``n`` more tokens of ``sequence`` are computed: its full blocks can be shared now."""
        before = sequence.computed
        sequence.computed = before + n
        if self.prefix_caching:
            size = self.kv.block_size
            first, last = before // size, sequence.computed // size
            if last > first and not sequence.averaged:
                hashes = sequence.hash_blocks(last, size, self.model_id)
                for i in range(first, last):
                    self.kv.commit(sequence.blocks[i], hashes[i])
                if self.tiered is not None:
                    self.tiered.save(sequence.blocks[first:last], hashes[first:last])
        if self.window is not None:
            self._leave_behind(sequence, before)

    def fork(self, parent: Sequence, child: Sequence) -> tuple[int, int] | None:
        """Start ``child``, which has the same tokens, on the blocks of ``parent``, whose prompt
        is computed. Gives the (source, destination) of a partial last block to copy, if any.
        Where there is no room the child waits and is computed on its own: its ``slot`` tells.
        """
        size = self.kv.block_size
        full, partial = divmod(parent.computed, size)
        child.hashes = parent.hashes[:]
        no_room = not self.table.free_slots or (partial and not self.kv.available)
        if no_room or not self.max_preemptions:  # then it may only start with all that it needs
            self.add(child)
            return None
        child.blocks = parent.blocks[:full]
        self.kv.share(child.blocks)
        child.computed = parent.computed
        copy = None
        if partial:
            child.blocks.append(self.kv.allocate())
            copy = (parent.blocks[full], child.blocks[full])
        self._enter(child)
        insort(self.running, child, key=_ORDER)
        return copy

    def _leave_behind(self, sequence: Sequence, before: int) -> None:
        """Forget the blocks that were within the window of the next token when ``before`` tokens
        were computed, and no longer are."""
        assert self.window is not None
        reach = self.window - 1  # it sees itself and so many positions before it
        size = self.kv.block_size
        first, last = (max(0, n - reach) // size for n in (before, sequence.computed))
        # Of a shared block nobody knows here how far its other owners are.
        passed = [block for block in sequence.blocks[first:last] if self.kv.is_sole(block)]
        if passed:
            self.forget_blocks(passed)

    def _decodes(self) -> list[Span]:
        spans: list[Span] = []
        size = self.kv.block_size
        chosen = self._in_turn() if self.brief else None
        i = 0
        while i < len(self.running):  # preempting shortens the list behind i
            sequence = self.running[i]
            length = len(sequence.tokens)
            if (
                length - sequence.computed == 1
                and (chosen is None or sequence in chosen)
                and (length <= len(sequence.blocks) * size or self._grow(sequence))
            ):
                spans.append(Span(sequence, 1))
            if sequence.slot >= 0:
                i += 1
        return spans

    def _in_turn(self) -> set[Sequence]:
        """The decodes of a brief step: as many as fit into it, or into its half where prompts are
        to be computed too. Each takes part again before others have done so HEAD_START times more
        often, whatever is urgent."""
        self._turn += 1
        ready = [s for s in self.running if len(s.tokens) - s.computed == 1]
        ready.sort(key=lambda s: s.turn - HEAD_START * s.urgent)
        seconds = self._target / (2 if self._prompts_wait() else 1)
        seconds -= self.step_time.seconds(Work(0, 0, 0))
        chosen: set[Sequence] = set()
        for sequence in ready:
            seconds -= self.step_time.next_token(sequence.computed)
            if seconds < 0 and len(chosen) >= LEAST_BRIEF:
                break
            sequence.turn = self._turn
            chosen.add(sequence)
        return chosen

    def _prompts_wait(self) -> bool:
        """Whether there are prompts to compute, and memory for them."""
        if any(len(s.tokens) - s.computed > 1 and not s.restoring for s in self.running):
            return True
        if not self.waiting or not self.table.free_slots:
            return False
        hit, fresh = self._demand(self.waiting[0])
        return self._fits(self.waiting[0], hit, fresh, self.running)

    @property
    def _target(self) -> float:
        """Seconds that a step in which others go on may take."""
        target = inf if self.target_itl is None else self.target_itl
        if self.brief:
            target = min(target, BRIEF * self.step_time.seconds(Work(1, 1, 1)))
        return target

    def _grow(self, sequence: Sequence) -> bool:
        """Give ``sequence`` one more block, at the cost of those after it; False if it was the
        last one itself, which then waits."""
        while not self.kv.available:
            victim = next(s for s in reversed(self.running) if not s.reserved)
            self._preempt(victim)
            if victim is sequence:
                return False
        self.table.add_block(sequence, self.kv.allocate())
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._stop(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self._growth = min(self._growth + GROWTH_RISE, 1.0)
        victim.computed = 0
        if not victim.group.prompt_done:
            victim.group.prompt_logprobs.clear()
        if victim.pool is not None:
            victim.pool.clear()
        self.add(victim)

    def _stop(self, sequence: Sequence) -> None:
        _discard(self.running, sequence)
        if self.tiered is not None:
            if sequence.restoring:
                self.tiered.stop(sequence)
            self.tiered.tier.use(sequence.hashes)
        self.table.leave(sequence)
        self.kv.release(sequence.blocks)
        sequence.blocks = []

    def _budget(self, decodes: list[Span]) -> _Budget:
        """What ``decodes``, which are to run first, leave for prompts."""
        n = len(decodes)
        budget = _Budget(self.max_batch_tokens - n, self.max_logit_rows - n)
        if not n and not self.brief:
            return budget
        target = self._target
        if target == inf or not self.step_time.measured:
            budget.tokens = min(budget.tokens, self.max_prefill_tokens)
        if target < inf:
            context = n + sum(span.sequence.computed for span in decodes)
            budget.seconds = target / (1 + self.step_time.tail)
            budget.seconds -= self.step_time.seconds(Work(n, context, n))
            budget.least = LEAST_BRIEF if self.brief else LEAST_CHUNK
        return budget

    def _has_room(self, budget: _Budget) -> bool:
        """Whether there is any room for a sequence that has not begun."""
        in_time = budget.least > 0 or self.step_time.most_tokens(0, budget.seconds) > 0
        return budget.tokens > 0 and budget.rows > 0 and in_time

    def _chunk(self, sequence: Sequence, budget: _Budget) -> int:
        """How many tokens of ``sequence`` to compute; takes them out of ``budget``."""
        start = sequence.computed
        pending = len(sequence.tokens) - start
        scored = sequence.wants_prompt_logprobs
        n = min(pending, budget.tokens)
        if budget.seconds < inf:
            fitting = self.step_time.most_tokens(start, budget.seconds, all_rows=scored)
            n = min(n, max(fitting, budget.least))
        if scored:
            n = min(n, budget.rows)
        elif n == pending and not budget.rows:
            n -= 1
        rows = n if scored else int(n == pending)
        if budget.seconds < inf:
            budget.seconds -= self.step_time.chunk(start, n, rows)
            budget.least = max(0, budget.least - n)
        budget.tokens -= n
        budget.rows -= rows
        return n

    def _make_way(self) -> None:
        """Preempt less urgent sequences for a more urgent one that waits, if that lets it run."""
        if not self.running:
            return
        head = self.waiting[0]
        priority = head.order[0]
        if self.running[-1].order[0] <= priority:
            return
        victims = [s for s in self.running if s.order[0] > priority and not s.reserved]
        others = [s for s in self.running if s.order[0] <= priority or s.reserved]
        hit, fresh = self._demand(head)
        if self.table.free_slots and self._fits(head, hit, fresh, self.running):
            return
        gain = sum(len(s.blocks) for s in victims)
        if victims and self._fits(head, hit, fresh, others, gain):
            while not (self.table.free_slots and self._fits(head, hit, fresh, self.running)):
                if not victims:
                    return  # blocks that the victims share with others were counted as a gain
                self._preempt(victims.pop())
                hit, fresh = self._demand(head)

    def _admit(self, sequence: Sequence) -> bool:
        """Start ``sequence`` if there is a slot, and KV for it and the growth of the others."""
        if not self.table.free_slots:
            return False
        hit, fresh = self._demand(sequence)
        if not self._fits(sequence, hit, fresh, self.running):
            return False
        absent = self._names(sequence)[len(hit) :]
        tiered = self.tiered if absent else None
        if tiered is not None and tiered.is_coming(absent[0]):
            return False
        self.kv.share(hit)
        sequence.blocks = hit + [self.kv.allocate() for _ in range(fresh)]
        sequence.computed = len(hit) * self.kv.block_size
        sequence.reserved = sequence.preemptions >= self.max_preemptions
        if not sequence.group.prompt_done:
            sequence.group.cached_tokens = sequence.computed
        self._enter(sequence)
        if tiered is not None:
            tiered.restore(sequence, absent)
        return True

    def _enter(self, sequence: Sequence) -> None:
        self.table.enter(sequence)
        sequence.turn = self._turn  # behind those that wait for theirs

    def _names(self, sequence: Sequence) -> list[bytes]:
        """The names of those of its blocks that need not be computed if they are known."""
        if not self.prefix_caching or sequence.wants_prompt_logprobs or sequence.averaged:
            return []
        size = self.kv.block_size
        # The last token is always computed, since its logits or hidden state are needed.
        return sequence.hash_blocks((len(sequence.tokens) - 1) // size, size, self.model_id)

    def _demand(self, sequence: Sequence) -> tuple[list[int], int]:
        """The cached blocks that ``sequence`` can start on, and how many more it needs."""
        hit = self.kv.match(self._names(sequence))
        every = sequence.preemptions >= self.max_preemptions
        length = sequence.limit if every else len(sequence.tokens)
        return hit, -(-length // self.kv.block_size) - len(hit)

    def _fits(
        self, sequence: Sequence, hit: list[int], fresh: int, beside: list[Sequence], gain: int = 0
    ) -> bool:
        """Whether there are blocks for ``sequence`` beside others and what they will need."""
        growth = self._expected_growth([*beside, sequence]) if beside else 0
        return fresh + self.kv.unowned(hit) + growth <= self.kv.available + gain

    def _expected_growth(self, sequences: list[Sequence]) -> int:
        """Blocks that ``sequences`` are expected to need beyond those of their known tokens."""
        tokens = 0
        for sequence in sequences:
            if not sequence.reserved:
                group = sequence.group
                copies = 1 if group.prompt_done else group.params.n_samples
                tokens += copies * min(sequence.limit - len(sequence.tokens), LOOKAHEAD)
        return int(self._growth * tokens / self.kv.block_size)


def _discard(ordered: list[Sequence], sequence: Sequence) -> None:
    i = bisect_left(ordered, sequence.order, key=_ORDER)
    if i < len(ordered) and ordered[i] is sequence:
        del ordered[i]
