"""What chat and completion requests have in common: how tokens are chosen, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams
from tidemill.server.errors import check_only
from tidemill.server.openai.structured import FormatFields

# What other servers' clients may send, and which values mean what happens here anyway. Anything
# else is an error, not silence.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "functions": (None,),
    "function_call": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "truncate_prompt_tokens": (None,),
    "include_stop_str_in_output": (None, False),
    "spaces_between_special_tokens": (None, True),
    "return_tokens_as_token_ids": (None, False),
    "documents": (None,),
    "mm_processor_kwargs": (None,),
}
_ONLY_OF_STREAMS: Mapping[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SamplingFields(FormatFields, forbid_unknown_fields=True, kw_only=True):
    """The fields that both kinds of request have. ``user``, ``safety_identifier`` and ``metadata``
    say something about the caller, ``prompt_cache_key`` and ``prompt_cache_retention`` ask for what
    is done anyway: they change nothing."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, Any] | None = None

    # Extensions, with the names that other servers gave them.
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int | None = None

    # Understood, but only at the values of _ONLY.
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    service_tier: Any = None
    store: Any = None
    suffix: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    truncate_prompt_tokens: Any = None
    include_stop_str_in_output: Any = None
    spaces_between_special_tokens: Any = None
    return_tokens_as_token_ids: Any = None
    documents: Any = None
    mm_processor_kwargs: Any = None

    def check(self) -> None:
        """Raises ApiError or RequestError for what is known but not served at this value."""
        check_only(self, _ONLY)
        if self.stream_options is not None:
            check_only(self.stream_options, _ONLY_OF_STREAMS, "stream_options.")
            if not self.stream:
                raise RequestError("stream_options is only for streams", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "prompt_logprobs come with whole answers, not with streams", param="prompt_logprobs"
            )

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def names(self, prompt: str) -> Mapping[str, str]:
        """What the engine's ``prompt`` and ``grammar`` are called here: without a field of its own,
        an answer's form is that of a call. For ``renaming``."""
        return {"prompt": prompt, "grammar": [*self.format_fields, "tools"][0]}

    def params(self, max_tokens: int | None, **more: Any) -> SamplingParams:
        """How to sample. Raises RequestError that names the parameter at fault."""
        given = {
            name: value
            for name in (
                "n", "best_of", "temperature", "top_p", "seed", "presence_penalty",
                "frequency_penalty", "logit_bias", "top_k", "min_p", "typical_p",
                "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos",
                "skip_special_tokens", "prompt_logprobs",
            )
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        if self.stop is not None:
            given["stop"] = self.stop
        if "stop_token_ids" in given:
            given["stop_token_ids"] = tuple(given["stop_token_ids"])
        return SamplingParams(max_tokens=max_tokens, grammar=self.grammar(), **given, **more)
