from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.model_texts import RECORDED, TOOLS, Recorded, cut, stream
from tidemill.server.tools import assemble, opens_reasoning, parser_for


def split(chunks: list[str], reasoning: str = "think", **options: bool) -> tuple[str, str]:
    message = assemble(stream(None, chunks, reasoning=reasoning, **options))
    return message.reasoning, message.content


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", False, "Hm.\n\nSo.", "Yes.\n"),
        ("\n <think>Hm.</think>Yes.", False, "Hm.", "Yes."),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("<think>\nHm.</think>Yes.", True, "Hm.", "Yes."),  # opened once more
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("<think>Hm, </thin", False, "Hm, </thin", ""),
        ("<think>\nHm.\n", False, "Hm.", ""),
        ("Hm.", True, "Hm.", ""),
        ("<thi", True, "<thi", ""),
        ("\n\n", True, "", ""),
        (" <thi", False, "", " <thi"),
        ("\nA <think>b</think>", False, "", "\nA <think>b</think>"),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        (" " * 100 + "<think>a</think>", False, "", " " * 100 + "<think>a</think>"),
        ("", False, "", ""),
    ],
)
def test_think_tags(text: str, inside: bool, reasoning: str, content: str) -> None:
    assert split([text], in_reasoning=inside) == (reasoning, content)
    assert split(list(text), in_reasoning=inside) == (reasoning, content)


def test_magistral() -> None:
    assert split(["[THINK]Hm.[/THI", "NK]Yes."], "magistral") == ("Hm.", "Yes.")


@settings(derandomize=True, max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "\n", " ", "a", "b" * 70]),
        max_size=10,
    ).map("".join),
    st.lists(st.integers(0, 1000), max_size=8),
    st.booleans(),
)
def test_every_chunking_gives_the_same(text: str, places: list[int], inside: bool) -> None:
    whole = split([text], in_reasoning=inside)
    assert split(cut(text, places), in_reasoning=inside) == whole
    assert split(list(text), in_reasoning=inside) == whole
    assert whole == simple(text, inside)
    thinking = {"reasoning": "think", "in_reasoning": inside}
    for chunks in ([text], list(text), cut(text, places)):
        assert found_within(Recorded("hermes", text, [], options=thinking), chunks) == whole[0]


def simple(text: str, inside: bool) -> tuple[str, str]:
    start = re.match(r"\s{0,64}<think>", text)
    if start is None and not inside:
        return "", text
    rest = text[start.end() :] if start else text
    thinking, _, content = rest.partition("</think>")
    return thinking.strip("\n"), content.lstrip("\n")


@pytest.mark.parametrize(
    ("prompt", "reasoning", "open"),
    [
        ("<｜User｜>Hi<｜Assistant｜><think>\n", "think", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "think", False),
        ("<|im_start|>assistant\n", "think", False),
        ("[INST]Hi[/INST][THINK]", "magistral", True),
        ("<think>", None, False),
    ],
)
def test_the_prompt_may_have_opened_it(prompt: str, reasoning: str | None, open: bool) -> None:
    assert opens_reasoning(prompt, reasoning) is open


def found_within(recorded: Recorded, chunks: list[str]) -> str:
    """What stands where the parser says that reasoning was."""
    parser = parser_for(recorded.format, TOOLS, **recorded.options)
    for chunk in chunks:
        parser.push(chunk)
    parser.finish()
    spans = parser.reasoning
    assert list(spans) == sorted(spans)
    return "".join(recorded.text[start:end] for start, end in spans).strip("\n")


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.format)
def test_where_reasoning_was(recorded: Recorded) -> None:
    for chunks in ([recorded.text], list(recorded.text)):
        assert found_within(recorded, chunks) == recorded.reasoning
