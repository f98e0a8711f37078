"""Which kinds of steps a calibration measures: sizes far and near, alone and mixed."""

from __future__ import annotations

from tidemill.records import dataclass

_PROMPTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_DECODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
_CONTEXTS = (32, 256, 1024, 4096)
_MIXED_DECODES = (1, 4, 8, 16, 32)
_MIXED_PROMPTS = (16, 64, 128, 256)
_SEVERAL = ((2, 128), (4, 32), (4, 128), (8, 32), (16, 16))
_SLACK = 64  # tokens that a sequence may grow by while a step is prepared and measured


@dataclass(frozen=True, slots=True)
class Case:
    """A step of ``decodes`` sequences behind about ``context`` tokens each, and of ``prompts``
    prompts, of which ``new`` tokens each are computed behind ``past`` others; ``ends``: these are
    their last."""

    decodes: int = 0
    context: int = 0
    prompts: int = 0
    new: int = 0
    past: int = 0
    ends: bool = True

    @property
    def tokens(self) -> int:
        """Of KV cache that it needs, about."""
        return self.decodes * (self.context + _SLACK) + self.prompts * (self.past + self.new + 1)


@dataclass(frozen=True, slots=True)
class Room:
    """An engine's limits; ``kv_tokens`` fit into its KV cache."""

    max_context: int
    max_sequences: int
    max_batch_tokens: int
    max_prefill_tokens: int
    kv_tokens: int

    def has(self, case: Case) -> bool:
        longest = max(case.context + _SLACK, case.past + case.new + 1)
        chunk = self.max_prefill_tokens if case.decodes else self.max_batch_tokens
        return (
            case.tokens <= 0.9 * self.kv_tokens
            and longest <= self.max_context
            and case.decodes + case.prompts <= self.max_sequences
            and case.prompts * case.new <= chunk
            and case.decodes + case.prompts * case.new <= self.max_batch_tokens
            # The chunks before it are as long as they can be; it comes when they are done.
            and case.past % chunk == 0
            and (case.ends or case.new == chunk)
        )


def cases(room: Room, *, quick: bool = False) -> list[Case]:
    """The steps to measure within ``room``; ``quick``: every third."""
    batch, chunk = room.max_batch_tokens, room.max_prefill_tokens
    prompts = [Case(prompts=1, new=n) for n in _PROMPTS]
    behind = [
        Case(prompts=1, new=n, past=past * batch)
        for past in (1, 3, 7)
        for n in (16, 64, 256, batch)
    ]
    unfinished = [Case(prompts=1, new=batch, past=n * batch, ends=False) for n in (0, 1, 3)]
    several = [Case(prompts=k, new=n) for k, n in _SEVERAL]
    decodes = [Case(decodes=n, context=context) for n in _DECODES for context in _CONTEXTS]
    mixed = [
        Case(decodes=k, context=context, prompts=1, new=n)
        for k in _MIXED_DECODES
        for n in _MIXED_PROMPTS
        for context in _CONTEXTS[:2]
    ]
    mixed += [
        Case(decodes=k, context=256, prompts=1, new=chunk, past=past * chunk, ends=False)
        for k in (2, 8)
        for past in (0, 4)
    ]
    groups = [prompts, behind, unfinished, several, decodes, mixed]
    chosen: list[Case] = []
    for group in groups:
        possible = [case for case in group if room.has(case)]
        # Both ends are measured in any case: a fit says nothing of what lies beyond.
        chosen += [*possible[:-1:3], *possible[-1:]] if quick else possible
    return chosen
