"""Speculation through LLM: the same answers, options that are refused, counts that add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tiny_chat_model import write_chat_model
from tidemill import LLM, SamplingParams
from tidemill.llm import RequestOutput
from tidemill.llm.draft import vocabulary_difference

PROMPTS = ["the cat the cat the cat the", "One two three. One two three. One", "x"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.7, top_p=0.9, seed=3, max_tokens=60, ignore_eos=True, logprobs=0),
    SamplingParams(temperature=0.2, seed=1, max_tokens=60, n=2, repetition_penalty=1.1, stop="q"),
]


@pytest.fixture(scope="module")
def plain(tiny_chat_model: Path) -> list[RequestOutput]:
    with LLM(str(tiny_chat_model), threads=1, speculative="off") as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm.core.driver.engine.stats.drafted_tokens == 0
        return outputs


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("draft") / "draft.gguf", seed=1)


@pytest.fixture(params=["lookup", "auto", "draft", "draft of other weights"])
def options(
    request: pytest.FixtureRequest, tiny_chat_model: Path, other_model: Path
) -> Iterator[dict[str, str]]:
    if request.param.startswith("draft"):
        path = tiny_chat_model if request.param == "draft" else other_model
        yield {"draft_model": str(path)}
    else:
        yield {"speculative": request.param}


def test_text_ids_and_logprobs_are_bit_equal(
    tiny_chat_model: Path, plain: list[RequestOutput], options: dict[str, str]
) -> None:
    with LLM(str(tiny_chat_model), threads=1, **options) as llm:  # type: ignore[arg-type]
        together = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate(p, q)[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]
        stats = llm.core.driver.engine.stats
    for outputs in (together, alone):
        for output, expected in zip(outputs, plain, strict=True):
            assert output.error is None
            assert [o.text for o in output.outputs] == [o.text for o in expected.outputs]
            assert [o.token_ids for o in output.outputs] == [o.token_ids for o in expected.outputs]
            assert [o.logprobs for o in output.outputs] == [o.logprobs for o in expected.outputs]
            reasons = [(o.finish_reason, o.stop_reason) for o in output.outputs]
            assert reasons == [(o.finish_reason, o.stop_reason) for o in expected.outputs]
    assert stats.speculation_error is None
    assert stats.drafted_tokens == sum(o.metrics.drafted_tokens for o in together + alone)
    assert stats.accepted_tokens == sum(o.metrics.accepted_tokens for o in together + alone)
    if "speculative" not in options or options["speculative"] == "lookup":
        assert stats.drafted_tokens > 0


def test_what_makes_no_sense_is_refused(tiny_chat_model: Path) -> None:
    with pytest.raises(ValueError, match="speculative must be 'off', 'lookup' or 'auto'"):
        LLM(str(tiny_chat_model), speculative="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draft_model needs speculative='auto', not 'lookup'"):
        LLM(str(tiny_chat_model), speculative="lookup", draft_model=str(tiny_chat_model))
    with pytest.raises(ValueError, match="target_itl must be more than 0"):
        LLM(str(tiny_chat_model), target_itl=0)


def test_a_draft_model_of_another_vocabulary_is_refused(
    tiny_chat_model: Path, tmp_path: Path
) -> None:
    other = write_chat_model(tmp_path / "other.gguf", control_prefix="<~")
    with pytest.raises(ValueError, match=r"token 256 is '<\|endoftext\|>' in one and '<~endo"):
        LLM(str(tiny_chat_model), draft_model=str(other))


class Words:
    def __init__(self, *tokens: bytes) -> None:
        self.tokens = tokens
        self.vocab_size = len(tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]


def test_rows_that_no_token_stands_for_make_no_difference() -> None:
    a, padded, longer = Words(b"x", b"y"), Words(b"x", b"y", b"", b""), Words(b"x", b"y", b"z")
    assert vocabulary_difference(a, padded) is None  # type: ignore[arg-type]
    assert vocabulary_difference(padded, a) is None  # type: ignore[arg-type]
    difference = vocabulary_difference(a, longer)  # type: ignore[arg-type]
    assert difference == "token 2 is not there in one and 'z' in the other"
