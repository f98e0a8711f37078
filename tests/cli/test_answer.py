"""What is shown of an answer, and what is summed up."""

from __future__ import annotations

import io

import pytest

from tidemill.cli.answer import Answer, describe_speed
from tidemill.llm import CompletionOutput, RequestMetrics, RequestOutput


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def delta(text: str, tokens: int, **metrics: float) -> RequestOutput:
    done = "finished_time" in metrics
    sample = CompletionOutput(0, text, [1] * tokens, finish_reason="length" if done else None)
    return RequestOutput(
        "r", None, [1, 2, 3], [sample], done, RequestMetrics(10.0, **metrics), num_cached_tokens=2
    )


def test_control_characters_reach_files_and_not_terminals() -> None:
    text = "a\x1b]0;title\x07b\x9b31m\tc\nd\x00e\x7f"
    for out, shown in ((io.StringIO(), text), (Screen(), "a]0;titleb31m\tc\nde")):
        answer = Answer(out)
        answer.add(delta(text, 1))
        assert out.getvalue() == shown
        assert answer.text == text


def test_the_line_is_ended_once() -> None:
    for text, shown in (("a", "a\n"), ("a\n", "a\n"), ("", "")):
        out = io.StringIO()
        answer = Answer(out)
        answer.add(delta(text, 1))
        answer.end()
        assert out.getvalue() == shown


def test_speed_leaves_the_first_token_to_ttft() -> None:
    answer = Answer(None)
    answer.add(delta("a", 1, first_token_time=12.0, last_token_time=12.0))
    answer.add(delta("b", 4, first_token_time=12.0, last_token_time=14.0, finished_time=14.0))
    summary = answer.summary()
    assert summary["text"] == "ab"
    assert summary["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "cached_tokens": 2,
    }  # fmt: skip
    assert summary["timings"] == {"ttft_s": 2.0, "tokens_per_s": 2.0}
    assert describe_speed(summary) == (
        "[3 prompt tokens (2 cached), 5 generated, first after 2.00 s, 2.0 tok/s, cut at the "
        "length limit]"
    )


def test_one_token_has_no_rate() -> None:
    answer = Answer(None)
    answer.add(delta("a", 1, first_token_time=12.0, last_token_time=12.0, finished_time=12.0))
    assert answer.summary()["timings"]["tokens_per_s"] is None
    with pytest.raises(ValueError, match="no answer"):
        Answer(None).summary()
