"""``options`` of a request as sampling parameters, with Ollama's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.errors import ApiError, check_only

# What clients may send, and which values mean what happens here anyway. How a model is loaded is
# the server's settings, not a request's. Anything else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "tfs_z": (None, 1),
    "mirostat": (None, 0),
    "penalize_newline": (None, True),
    "numa": (None, False),
    "num_batch": (None,),
    "num_gpu": (None, 0, -1),
    "main_gpu": (None, 0),
    "low_vram": (None, False),
    "f16_kv": (None, True),
    "logits_all": (None, False),
    "vocab_only": (None, False),
    "use_mmap": (None, True),
    "use_mlock": (None, False),
    "embedding_only": (None, False),
    "num_thread": (None, 0),
}
# Ollama's name of a sampling parameter -> the engine's, where they differ.
_NAMES = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The options. A field without a value is Ollama's default, but for ``repeat_penalty``, which
    is off: here it is over the whole context, where 1.1 would be far stronger than over the last
    64 tokens. ``num_keep`` is about contexts that are shifted, which these are not;
    ``mirostat_tau`` and ``mirostat_eta`` are about mirostat, which is off."""

    num_predict: int | None = None
    num_ctx: int | None = None
    num_keep: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None

    # Understood, but only at the values of _ONLY.
    tfs_z: Any = None
    mirostat: Any = None
    penalize_newline: Any = None
    numa: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    embedding_only: Any = None
    num_thread: Any = None

    def sampling(self, logprobs: int | None) -> SamplingParams:
        """How to sample. Raises ApiError or RequestError, which name the option at fault."""
        check_only(self, _ONLY, "options.")
        penalty = 1.0 if self.repeat_penalty is None else self.repeat_penalty
        if self.repeat_last_n == 0:  # over no tokens
            penalty = 1.0
        elif self.repeat_last_n not in (None, -1) and penalty != 1.0:
            raise ApiError(
                400,
                "options.repeat_last_n: the penalty is over the whole context here; leave it out, "
                "or say -1",
                param="options.repeat_last_n",
                code="unsupported_parameter",
            )
        given: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
        for name in (
            "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty",
            "frequency_penalty", "stop",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                given[name] = value
        limit = self.num_predict
        try:
            return SamplingParams(
                max_tokens=None if limit is None or limit <= 0 else limit,
                seed=None if self.seed == -1 else self.seed,
                repetition_penalty=penalty,
                logprobs=logprobs,
                **given,
            )
        except RequestError as error:
            raise _renamed(error) from None

    def context(self, served: int) -> int:
        """The context that is asked for. Raises RequestError if that is more than is served."""
        context = served if self.num_ctx is None else self.num_ctx
        if not 0 < context <= served:
            raise RequestError(
                f"options.num_ctx is {context}; this model is served with a context of {served} "
                "tokens, which the server's settings can change (max_context)",
                param="options.num_ctx",
            )
        return context

    def fit(self, params: SamplingParams, prompt_tokens: int, served: int) -> SamplingParams:
        """``params`` for a prompt of that many tokens, kept to the context of ``num_ctx``
        where that is smaller than what is ``served``. Raises RequestError, ContextLengthError."""
        context = self.context(served)
        if context == served:
            return params
        room = context - prompt_tokens
        wanted = params.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ContextLengthError(
                f"the prompt has {prompt_tokens} tokens and up to {wanted or 1} are to be "
                f"generated (num_predict), together more than options.num_ctx, {context}"
            )
        return replace(params, max_tokens=room) if wanted is None else params


def _renamed(error: RequestError) -> RequestError:
    """The error with the name that the client knows."""
    name = next((k for k, v in _NAMES.items() if v == error.param), error.param)
    return RequestError(f"options.{name}: {error}", param=f"options.{name}")
