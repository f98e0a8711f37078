"""The state of requests inside the engine: a group per request, a sequence per sample."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import FinishEvent, Request, TokenEvent, TokenLogprob
from tidemill.engine.constrained import Constrained
from tidemill.engine.kv_blocks import block_hash, root_hash
from tidemill.engine.output import OutputText
from tidemill.engine.pooling import Pool

Order = tuple[int, int, int]
Bias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Token ids, and what to add to their logits."""


class Group:
    """One request: what its samples share.

    ``order`` sorts requests by priority, urgency, then arrival. ``least`` and ``limit`` are how
    many tokens, with the prompt, a sample must and may come to. ``end_ids`` end it, those of them
    in ``eos_ids`` without a stop reason. ``bias`` is added to its logits, ``early_bias`` until it
    has ``least`` tokens (that also forbids what would end it); None where there is nothing to add.
    ``biased``: whether there ever is. ``scored``: whether log-probabilities are wanted. ``held``
    keeps the events of samples whose ranking is not known before all are done (best_of); None
    where events go out at once.
    """

    __slots__ = (
        "arrival", "bias", "biased", "cached_tokens", "closed", "early_bias", "end_ids", "eos_ids",
        "held", "least", "limit", "order", "params", "prompt", "prompt_done", "prompt_logprobs",
        "request", "samples", "scored", "seed", "started",
    )  # fmt: skip

    def __init__(
        self, request: Request, prompt: array[int], order: tuple[int, int], limit: int, seed: int,
        eos_ids: frozenset[int], arrival: float,
    ) -> None:  # fmt: skip
        params = request.params
        self.request = request
        self.params = params
        self.prompt = prompt
        self.order = order
        self.least = len(prompt) + params.min_tokens
        self.limit = limit
        self.seed = seed
        self.arrival = arrival
        self.started: float | None = None
        self.closed = False
        self.prompt_done = False
        self.cached_tokens = 0
        self.prompt_logprobs: list[tuple[TokenLogprob, ...] | None] = []
        self.samples: list[Sequence] = []
        self.held: list[list[TokenEvent | FinishEvent]] | None = (
            [[] for _ in range(params.n_samples)] if params.ranks_samples else None
        )
        self.eos_ids = frozenset() if params.ignore_eos else eos_ids
        self.end_ids = self.eos_ids | frozenset(params.stop_token_ids)
        self.scored = params.wants_logprobs
        forbidden = sorted(self.end_ids) if params.min_tokens else []
        self.bias = _bias(params.logit_bias, [])
        self.early_bias = _bias(params.logit_bias, forbidden)
        self.biased = self.early_bias is not None


class Sequence:
    """One sample: the prompt and what has been generated, and where its KV is.

    tokens: prompt, then output. constrained: what these must look like, None if that is open.
    computed: how many of them have their KV in ``blocks``.
    limit: its group's. hashes: the names of its full blocks, as far as known.
    slot: its row in the SequenceTable while it runs, else -1. reserved: ``blocks`` has all that
    it can ever need, so it is never preempted. restoring: it waits for blocks from a slower tier
    (see kv_tier.py). turn: the brief step that it last took part in.
    drafted, accepted: tokens guessed for it, and those that were right. pool: where its hidden
    states go if it is to be embedded; averaged: if those of all its tokens do, so that none may
    come from the prefix cache, nor are they worth a place there: the next text is another one.
    """

    __slots__ = (
        "accepted", "averaged", "blocks", "computed", "constrained", "cumulative_logprob",
        "drafted", "finished", "group", "hashes", "index", "limit", "n_prompt", "order", "pool",
        "preemptions", "reserved", "restoring", "slot", "text", "tokens", "turn",
    )  # fmt: skip

    def __init__(
        self, group: Group, index: int, text: OutputText | None,
        constrained: Constrained | None = None,
    ) -> None:  # fmt: skip
        self.group = group
        self.constrained = constrained
        self.index = index
        self.order: Order = (*group.order, index)
        self.tokens = group.prompt[:]
        self.n_prompt = len(self.tokens)
        self.limit = group.limit
        self.text = text
        pooling = group.request.pooling
        self.pool = None if pooling is None else Pool(pooling)
        self.averaged = pooling == "mean"
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.computed = 0
        self.slot = -1
        self.preemptions = 0
        self.reserved = False
        self.restoring = False
        self.turn = 0
        self.cumulative_logprob = 0.0
        self.finished = False
        self.drafted = 0
        self.accepted = 0

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def urgent(self) -> bool:
        return self.group.request.urgent

    @property
    def may_grow(self) -> bool:
        return len(self.tokens) < self.limit

    @property
    def room(self) -> int:
        """How many more tokens it may have."""
        return self.limit - len(self.tokens)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the logits of all its prompt tokens are still to be reported."""
        group = self.group
        return not group.prompt_done and self.index == 0 and group.params.prompt_scores is not None

    @property
    def bias(self) -> Bias | None:
        """What to add to the logits for the next token."""
        group = self.group
        return group.early_bias if len(self.tokens) < group.least else group.bias

    def hash_blocks(self, n: int, block_size: int, model_id: str) -> list[bytes]:
        """The names of its first ``n`` blocks, all of which must be full of known tokens."""
        hashes = self.hashes
        while len(hashes) < n:
            start = len(hashes) * block_size
            parent = hashes[-1] if hashes else root_hash(model_id, self.group.request.salt)
            hashes.append(block_hash(parent, self.tokens[start : start + block_size].tobytes()))
        return hashes[:n]


def _bias(added: Mapping[int, float], forbidden: list[int]) -> Bias | None:
    """What adds ``added`` and makes ``forbidden`` impossible; None if that is nothing."""
    if not added and not forbidden:
        return None
    values = [*added.values(), *[-math.inf] * len(forbidden)]
    return np.array([*added, *forbidden], np.int32), np.array(values, np.float32)
