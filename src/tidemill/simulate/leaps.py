"""Many decode steps at once, where they are alike: the scheduler's state as if each had been one.

A step in which every running sequence decodes one token and nobody else can begin changes little:
here and there a block is taken, or is full and can be shared. ``leap`` does that in the order in
which single steps would have done it, so that the two cannot be told apart (a test compares them).
"""

from __future__ import annotations

from array import array

from tidemill.engine.scheduler import GROWTH_FALL, GROWTH_LEAST, Scheduler

MOST = 64
"""Steps of a leap. What arrives amid one has it cut short, and the rest planned anew."""

_TOKENS = [array("i", bytes(4 * n)) for n in range(MOST + 1)]


class LeapingScheduler(Scheduler):
    """The engine's scheduler, without a window and slower tiers."""

    def alike(self, most: int) -> int:
        """How many of the next ``most`` steps are nothing but one more token for each running
        sequence, as far as the scheduler can tell; 0 if not even the next one is."""
        running = self.running
        if not running or self.brief:
            return 0
        if self.waiting and (
            self.table.free_slots or running[-1].order[0] > self.waiting[0].order[0]
        ):
            return 0
        lengths = [len(s.tokens) for s in running]
        for s, length in zip(running, lengths, strict=True):
            if length - s.computed != 1 or not s.group.prompt_done:
                return 0
        size, available = self.kv.block_size, self.kv.available
        rooms = [len(s.blocks) * size - length for s, length in zip(running, lengths, strict=True)]
        n = min(most, MOST)
        # In the last of n steps a sequence is n - 1 tokens longer than now.
        while n and sum(-((room + 1 - n) // size) for room in rooms if n > room + 1) > available:
            n //= 2
        return n

    def leap(self, n: int) -> None:
        """``n`` steps that are ``alike``, with what the engine does after each."""
        size = self.kv.block_size
        needs: list[tuple[int, int, int]] = []  # (step, 0 to take a block or 1 to share it, who)
        for i, sequence in enumerate(self.running):
            length = len(sequence.tokens)
            needs += [
                (step, 0, i) for step in range(len(sequence.blocks) * size + 1 - length, n, size)
            ]
            if self.prefix_caching:
                needs += [(step, 1, i) for step in range(-length % size, n, size)]
        needs.sort()
        for step, full, i in needs:
            sequence = self.running[i]
            if full:
                at = (len(sequence.tokens) + step) // size
                name = sequence.hash_blocks(at, size, self.model_id)[-1]
                self.kv.commit(sequence.blocks[at - 1], name)
            else:
                self.table.add_block(sequence, self.kv.allocate())
        tokens = _TOKENS[n]
        for sequence in self.running:
            sequence.tokens += tokens
            sequence.computed += n
        for _ in range(n):
            self._growth = max(self._growth * GROWTH_FALL, GROWTH_LEAST)
