"""What one HTTP request was given: for its line in the log, the metrics and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import OutputBuilder, RequestMetrics, RequestOutput
from tidemill.records import dataclass


def generated(output: RequestOutput, params: SamplingParams) -> list[int]:
    """Tokens of each answer; those of an echoed prompt are none of it."""
    echoed = len(output.prompt_token_ids) if params.echo else 0
    return [max(0, len(out.token_ids) - echoed) for out in output.outputs]


def queue_seconds(times: RequestMetrics, now: float) -> float:
    """How long it waited until it was worked on, or until ``now``."""
    begun = times.first_scheduled_time or times.first_token_time or now
    return max(0.0, begun - times.arrival_time)


@dataclass(slots=True)
class Account:
    """``model`` and ``params`` of a request that asks a model, and what became of each of its
    prompts."""

    model: str = ""
    params: SamplingParams | None = None
    builders: list[OutputBuilder] = field(default_factory=list)

    @property
    def outputs(self) -> Sequence[RequestOutput]:
        return [builder.output for builder in self.builders]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(output.prompt_token_ids) for output in self.outputs)

    @property
    def cached_tokens(self) -> int:
        return sum(output.num_cached_tokens for output in self.outputs)

    @property
    def generated_tokens(self) -> int:
        if self.params is None:
            return 0
        return sum(sum(generated(output, self.params)) for output in self.outputs)

    @property
    def size(self) -> int:
        """About how many tokens, log-probabilities and numbers of vectors there are to tell."""
        if self.params is None:
            return 0
        each, of_prompt = 1 + (self.params.logprobs or 0), 1 + (self.params.prompt_logprobs or 0)
        return sum(
            each * sum(len(out.token_ids) for out in output.outputs)
            + of_prompt * len(output.prompt_logprobs or ())
            + (0 if output.embedding is None else output.embedding.size)
            for output in self.outputs
        )

    @property
    def finish_reasons(self) -> list[str]:
        """Of each answer; one that was given up is an "abort"."""
        return [o.finish_reason or "abort" for output in self.outputs for o in output.outputs]

    @property
    def time_to_first_token(self) -> float | None:
        found = [output.metrics.time_to_first_token for output in self.outputs]
        return min((seconds for seconds in found if seconds is not None), default=None)

    def line(self, now: float) -> dict[str, Any]:
        """For the log: how much, how long (in seconds), how it ended; never any text."""
        if not self.model:
            return {}
        said: dict[str, Any] = {"model": self.model}
        if not self.builders:
            return said
        said |= {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.generated_tokens,
            "cached_tokens": self.cached_tokens,
            "queue": round(max(queue_seconds(o.metrics, now) for o in self.outputs), 4),
        }
        if (ttft := self.time_to_first_token) is not None:
            said["ttft"] = round(ttft, 4)
        return said | {"finish": ",".join(dict.fromkeys(self.finish_reasons))}

    def texts(self) -> dict[str, Any]:
        """The prompts and the answers: only for those who have asked for them. A prompt that came
        as token ids is those."""
        whole = [builder.snapshot() for builder in self.builders]
        if not whole:
            return {}
        return {
            "prompts": [o.prompt_token_ids if o.prompt is None else o.prompt for o in whole],
            "answers": [out.text for o in whole for out in o.outputs],
        }
