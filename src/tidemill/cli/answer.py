"""One streamed answer: shown as it comes, and summed up at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tidemill.llm import RequestOutput


# C0 and C1 controls but tab and newline, and DEL: what a model says must not move the cursor, set
# the window's title or put text into the clipboard of whoever reads it.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


class Answer:
    """Gathers the deltas of one answer and writes their text to ``echo``, if given (to a terminal
    without control characters)."""

    def __init__(self, echo: TextIO | None) -> None:
        self._echo = echo
        self._controls = _CONTROLS if echo is not None and echo.isatty() else {}
        self._last: RequestOutput | None = None
        self._texts: list[str] = []
        self._tokens = 0
        self._finish: tuple[str | None, int | str | None] = (None, None)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def error(self) -> str | None:
        return self._last.error if self._last is not None else None

    def add(self, delta: RequestOutput) -> None:
        self._last = delta
        for output in delta.outputs:
            self._tokens += len(output.token_ids)
            self._finish = (output.finish_reason, output.stop_reason)
            if output.text:
                self._texts.append(output.text)
                if self._echo is not None:
                    self._echo.write(output.text.translate(self._controls))
                    self._echo.flush()

    def end(self) -> None:
        """End the line: a prompt should not stick to the answer."""
        if self._echo is not None and self._texts and not self._texts[-1].endswith("\n"):
            self._echo.write("\n")
            self._echo.flush()

    def summary(self) -> dict[str, Any]:
        """Text, token counts and times (seconds of wall clock, measured in this process)."""
        if self._last is None:
            raise ValueError("there is no answer yet")
        metrics = self._last.metrics
        rate = None
        if self._tokens > 1 and metrics.first_token_time and metrics.last_token_time:
            # The first token comes out of the prompt's step: its time is TTFT's, not decoding's.
            decoding = metrics.last_token_time - metrics.first_token_time
            rate = (self._tokens - 1) / decoding if decoding > 0 else None
        n_prompt = len(self._last.prompt_token_ids)
        return {
            "text": self.text,
            "finish_reason": self._finish[0],
            "stop_reason": self._finish[1],
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": self._tokens,
                "total_tokens": n_prompt + self._tokens,
                "cached_tokens": self._last.num_cached_tokens,
            },
            "timings": {"ttft_s": metrics.time_to_first_token, "tokens_per_s": rate},
        }


def describe_speed(summary: dict[str, Any]) -> str:
    """The line after an answer: how many tokens, how fast."""
    usage, timings = summary["usage"], summary["timings"]
    cached = f" ({usage['cached_tokens']} cached)" if usage["cached_tokens"] else ""
    parts = [f"{usage['prompt_tokens']} prompt tokens{cached}"]
    parts.append(f"{usage['completion_tokens']} generated")
    if timings["ttft_s"] is not None:
        parts.append(f"first after {timings['ttft_s']:.2f} s")
    if timings["tokens_per_s"] is not None:
        parts.append(f"{timings['tokens_per_s']:.1f} tok/s")
    if summary["finish_reason"] == "length":
        parts.append("cut at the length limit")
    return f"[{', '.join(parts)}]"
