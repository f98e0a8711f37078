"""What goes into the engine and what comes out: requests and events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tidemill.engine.histogram import Histogram
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.engine.step_time import StepCosts
from tidemill.records import dataclass

FinishReason = Literal["stop", "length", "abort"]

MAX_PREFILL_TOKENS = 256
"""Most prompt tokens, unless told otherwise, in a step in which other sequences decode."""

_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # as vLLM's
_STEP_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_MASK_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


class Constraint(Protocol):
    """Follows one answer and says which tokens may come next. Not used by two threads at once."""

    def copy(self) -> Constraint:
        """Another answer from here on."""
        ...

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set bit t % 32 of mask[t // 32] for each token t that may come next, clear the others.
        Where the answer may end these include the end tokens. May raise: the answer then fails."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False if it may not come here."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing but an end token may come."""
        ...


class Aside(Protocol):
    """Runs work beside the engine's own, on another thread, one piece after the other."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin ``work``; what comes back waits for its end and raises what it raised."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued ``params.n`` times, or to be embedded.

    ``priority``: smaller is served first; equals by arrival. ``salt`` separates the prefix cache:
    requests share cached blocks only under an equal salt. ``continues_text``: the output's text
    goes on from the prompt's (a raw completion), and is not one by itself (an answer in a chat).
    ``constraint``: what its answers must look like, at their start. ``urgent``: before others of
    its priority, and what runs waits while its prompt is computed (see scheduler.py). ``pooling``:
    the prompt's hidden states are pooled to a vector, which is all that comes of it; ``params`` are
    NO_OUTPUT then.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    salt: str = ""
    continues_text: bool = False
    constraint: Constraint | None = None
    urgent: bool = False
    pooling: Pooling | None = None


NO_OUTPUT = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability (natural, before temperature and filters) and 1-based rank."""

    token_id: int
    logprob: float
    rank: int


@dataclass(slots=True)  # made for every token, which takes three times as long where it is frozen
class TokenEvent:
    """A new token of sample ``index``. ``text`` is what may be shown now: it can be empty while
    bytes or a possible stop string are held back. ``logprobs`` has the token first, then the top
    ones asked for; None if none were asked for."""

    request_id: str
    index: int
    token_id: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Once per request, when its prompt has been computed. ``cached_tokens`` came from the prefix
    cache. ``logprobs`` (if asked for, as ``SamplingParams.prompt_scores`` says): one entry per
    prompt token, the token first, then the top ones; None for the first. ``started``: the time of
    the step that first worked on it."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    logprobs: Iterable[tuple[TokenLogprob, ...] | None] | None = None
    started: float | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingEvent:
    """What was asked for with ``Request.pooling``: ``vector``, float32 (d_model,), as it was
    pooled. It follows the PromptEvent, and a FinishEvent follows it."""

    request_id: str
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """Sample ``index`` ended. ``text`` flushes what was held back. ``stop_reason`` is the stop
    string or token id that ended it, None for the model's own end token or the length. The token
    that ended it has had a TokenEvent like any other, with no text.
    ``cumulative_logprob`` is given where logprobs or best_of asked for it. ``drafted_tokens`` were
    guessed ahead (see speculation.py), ``accepted_tokens`` of them were right."""

    request_id: str
    index: int
    reason: FinishReason
    text: str = ""
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The request failed and holds nothing any more; the others go on. ``refused``: because of what
    it asks for, so that it would fail again."""

    request_id: str
    message: str
    refused: bool = False


Event = TokenEvent | PromptEvent | EmbeddingEvent | FinishEvent | ErrorEvent


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    max_context: most tokens (prompt + output) of a sequence. max_batch_tokens: token budget of a
    step. max_prefill_tokens: most prompt tokens in a step in which other sequences decode, which
    bounds how long a prompt can hold up their next token. max_sequences: most sequences that run
    at once. max_waiting: most sequences queued.
    target_itl: seconds between two tokens of a sequence to aim at while others' prompts are
    computed: such a step then holds as many prompt tokens as are predicted to fit into that time,
    instead of max_prefill_tokens, but at least 16, so that prompts advance under any target.
    step_costs: what a step is thought to cost before any was measured.
    sampling_threads: threads that choose tokens when there are many to choose.
    max_draft: most tokens guessed ahead of a sequence; adaptive_drafts: only as many as pay.
    max_preemptions: a sequence preempted that often starts again only with all the KV blocks that
    it can ever need, and is then left alone. model_id: what names the model (and adapter) in the
    prefix cache. Raises ValueError for what makes no sense.
    """

    max_context: int
    max_batch_tokens: int = 512
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    max_sequences: int = 64
    max_waiting: int = 4096
    max_preemptions: int = 8
    target_itl: float | None = None
    step_costs: StepCosts | None = None
    sampling_threads: int = 1
    max_draft: int = 15
    adaptive_drafts: bool = True
    prefix_caching: bool = True
    model_id: str = ""

    def __post_init__(self) -> None:
        for name in ("max_context", "max_batch_tokens", "max_prefill_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"EngineConfig.{name} must be at least 1")
        if self.max_waiting < 1 or self.max_preemptions < 0:
            raise ValueError("EngineConfig.max_waiting must be at least 1, max_preemptions 0")
        if self.target_itl is not None and not 0 < self.target_itl < math.inf:
            raise ValueError("EngineConfig.target_itl must be a positive number of seconds")
        if self.max_draft < 1 or self.sampling_threads < 1:
            raise ValueError("EngineConfig.max_draft and sampling_threads must be at least 1")


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counters of blocks since the start; ``blocks`` and ``bytes`` are what the tier holds now.
    ``dropped`` could not be written, ``damaged`` not be read."""

    blocks: int = 0
    bytes: int = 0
    read: int = 0
    written: int = 0
    dropped: int = 0
    damaged: int = 0


@dataclass(slots=True)
class EngineStats:
    """Counters since the start and gauges of the moment; read by metrics and tests.

    ``queue_seconds`` adds up, over all ``started`` requests, the time from add() to the step that
    first worked on them. ``cached_blocks`` are those that nobody owns; ``free_blocks`` are neither
    owned nor cached. ``step_tokens`` and ``step_sequences`` tell how large steps were; a token
    that was guessed counts like any other. ``drafted_tokens`` were guessed ahead,
    ``accepted_tokens`` of them were right; ``speculation_error`` says why guessing was given up,
    if it was. ``restored_tokens`` came back from the ``tier``, which is None if there is none.
    ``mask_seconds``: what it took, for each token of an answer with a constraint, to find out which
    may come, beside the steps where there is a thread for it; ``constraint_seconds`` is what the
    steps themselves took for it, waiting and following the answers."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    failures: int = 0
    started: int = 0
    queue_seconds: float = 0.0
    step_tokens: Histogram = field(default_factory=lambda: Histogram(_STEP_TOKENS))
    step_sequences: Histogram = field(default_factory=lambda: Histogram(_STEP_SEQUENCES))
    mask_seconds: Histogram = field(default_factory=lambda: Histogram(_MASK_SECONDS))
    constraint_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    speculation_error: str | None = None
    restored_tokens: int = 0
    tier: TierStats | None = None
