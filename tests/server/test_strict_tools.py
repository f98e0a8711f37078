"""Strict tools that the model is free to call: a call that it begins fits the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest

from support.serving import Server, serving
from support.tiny_chat_model import END_OF_TEXT, IM_START, TEMPLATE, VOCAB, write_chat_model
from tidemill.engine.errors import RequestError
from tidemill.llm.loading import open_model
from tidemill.server.tools.call_grammar import listed_calls, strict_calls
from tidemill.text.base import Tokenizer
from tidemill.text.grammar import Grammar
from tidemill.text.grammar_masks import GrammarCompiler

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Rome", "Paris"]}},
}
SCHEMAS: list[tuple[str, Any]] = [("weather", WEATHER), ("anything", {"type": "object"})]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = CALL.replace("weather", "anything").replace("Rome", "Berlin")


@pytest.fixture(scope="module")
def tokenizer(tiny_chat_model: Path) -> Tokenizer:
    return open_model(str(tiny_chat_model)).tokenizer


def accepted(tokenizer: Tokenizer, grammar: Grammar, text: str) -> tuple[str, bool]:
    """How much of ``text`` an answer may be, and whether it may end there."""
    compiler = GrammarCompiler(tokenizer)
    matcher = compiler.matcher(grammar)
    mask = np.zeros(compiler.mask_words, np.uint32)

    def allowed(token: int) -> bool:
        return bool(mask[token // 32] >> np.uint32(token % 32) & 1)

    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    for count, token in enumerate(ids):
        matcher.fill(mask)
        if not allowed(token):
            return tokenizer.decode(ids[:count], skip_special=False), False
        assert matcher.accept(token)
    matcher.fill(mask)
    return text, any(map(allowed, tokenizer.eos_ids))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", ""),
        ("Hi, ünï 😀\n\n{}", "Hi, ünï 😀\n\n{}"),
        (CALL, CALL),
        (f"So: {CALL}\n{OTHER} that was it <tool_c", f"So: {CALL}\n{OTHER} that was it <tool_c"),
        (CALL.replace("Rome", "Berlin"), CALL.split("Rome")[0]),
        (CALL.replace("weather", "whatever"), CALL.split("eather")[0]),
        ("<tool_call>Let me", "<tool_call>"),
        ("<tool_call></tool_call>", "<tool_call>"),
        (f"{CALL} <tool_call>\n\n\n", f"{CALL} <tool_call>\n"),
    ],
)
def test_text_is_free_and_a_call_is_not(tokenizer: Tokenizer, text: str, fits: str) -> None:
    grammar = strict_calls("hermes", SCHEMAS, {}, parallel=True)
    assert accepted(tokenizer, grammar, text) == (fits, text == fits)


def test_a_call_that_has_begun_cannot_be_left(tokenizer: Tokenizer) -> None:
    for parallel in (True, False):
        grammar = strict_calls("hermes", SCHEMAS, {}, parallel=parallel)
        begun = CALL.removesuffix("</tool_call>")
        assert accepted(tokenizer, grammar, begun) == (begun, False)


def test_what_follows_the_only_call_is_free(tokenizer: Tokenizer) -> None:
    grammar = strict_calls("hermes", SCHEMAS, {}, parallel=False)
    assert accepted(tokenizer, grammar, f"{CALL}<tool_call>x") == (f"{CALL}<tool_call>x", True)
    assert accepted(tokenizer, grammar, "<tool_call>x") == ("<tool_call>", False)


@pytest.mark.parametrize("parallel", [True, False])
def test_markers_that_are_control_tokens(tmp_path: Path, parallel: bool) -> None:
    """Control tokens of a tiny model, which end nothing there, stand for those of others."""
    path = write_chat_model(tmp_path / "tiny.gguf", control_prefix="<~")
    tokenizer = open_model(str(path)).tokenizer
    markers = {"<tool_call>": IM_START, "<think>": END_OF_TEXT}
    grammar = strict_calls("hermes", SCHEMAS, markers, parallel=parallel)
    call = CALL.replace("<tool_call>", "<~im_start|>")
    text = f"<~endoftext|>Hm.<~endoftext|>So:{call}<~endoftext|> ."
    assert accepted(tokenizer, grammar, text) == (text, True)
    broken = "<~endoftext|>Hm.<~im_start|>"
    assert accepted(tokenizer, grammar, f"{broken}x") == (broken, False)


def test_forms_that_cannot_be_kept_to() -> None:
    for form in ("qwen3_coder", "harmony", None):
        with pytest.raises(RequestError, match="strict") as caught:
            strict_calls(form, SCHEMAS, {}, parallel=True)
        assert caught.value.param == "tools"


def test_references_in_a_list_of_calls(tokenizer: Tokenizer) -> None:
    """Each schema's ``$ref`` leads into itself."""
    grammar = listed_calls([*SCHEMAS, ("more", WEATHER)], parallel=True)
    text = '[{"name": "more", "arguments": {"city": "Paris"}}]'
    assert accepted(tokenizer, grammar, text) == (text, True)
    assert accepted(tokenizer, grammar, text.replace("Paris", "Berlin"))[0].endswith('"city": "')


# ---- through the server: a model that wants to begin calls all the time


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("calling") / "tiny.gguf"
    write_chat_model(path, marker="<tool_call>")
    with serving(str(path), "--name", "tiny", "--threads", "1") as found:
        yield found


EAGER = {"logit_bias": {str(VOCAB - 1): 100}, "stop": ["</tool_call>"], "max_tokens": 300}


def body(strict: bool | None, **more: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": "weather", "parameters": WEATHER}
    if strict is not None:
        function["strict"] = strict
    return {
        "model": "tiny", "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "function", "function": function}], **EAGER, **more,
    }  # fmt: skip


def test_a_call_of_the_models_own_fits(calling: Server) -> None:
    with openai.OpenAI(base_url=f"{calling.url}/v1", api_key="x", max_retries=0) as client:
        answer: Any = client.chat.completions.create(**body(True))
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
        assert answer.choices[0].finish_reason == "tool_calls"
        loose: Any = client.chat.completions.create(**body(False))
        assert loose.choices[0].message.content.startswith("<tool_call><tool_call>")
        # A form of the whole answer comes before that: there is no call in it.
        formed: Any = client.chat.completions.create(
            **body(True, extra_body={"guided_choice": ["a"]})
        )
        assert formed.choices[0].message.content == "a"
        assert formed.choices[0].message.tool_calls is None


def test_strict_in_other_apis(calling: Server) -> None:
    """They have no ``logit_bias``: that the schema is looked at shows by one that is none."""
    broken = {"type": "object", "properties": {"x": {"type": "nothing"}}}
    for strict, status in ((True, 400), (False, 200)):
        named = {"name": "f", "strict": strict}
        messages = [{"role": "user", "content": "x"}]
        for path, request in (
            ("/v1/chat/completions", {
                "messages": messages, "max_tokens": 1,
                "tools": [{"type": "function", "function": {**named, "parameters": broken}}],
            }),
            ("/v1/responses", {
                "input": "x", "max_output_tokens": 1,
                "tools": [{"type": "function", **named, "parameters": broken}],
            }),
            ("/v1/messages", {
                "messages": messages, "max_tokens": 1, "tools": [{**named, "input_schema": broken}],
            }),
        ):  # fmt: skip
            found, answer = calling.post(path, {"model": "tiny", **request})
            assert found == status, answer
            if status == 400:
                assert "tools" in json.dumps(answer)


def test_strict_that_is_neither(calling: Server) -> None:
    status, answer = calling.post("/v1/chat/completions", body("yes"))  # type: ignore[arg-type]
    assert (status, answer["error"]["param"]) == (400, "tools")


def test_a_form_of_calls_that_cannot_be_kept_to_is_told(tmp_path: Path) -> None:
    path = write_chat_model(
        tmp_path / "tiny.gguf",
        template=TEMPLATE + "{# <tool_call> <function= <parameter= #}"
        "{% if tools %}{{ tools | tojson }}{% endif %}",
    )
    with serving(str(path), "--name", "tiny", "--threads", "1") as server:
        status, answer = server.post("/v1/chat/completions", body(True))
        assert (status, answer["error"]["param"]) == (400, "tools"), answer
        assert server.post("/v1/chat/completions", body(None))[0] == 200
        status, answer = server.post("/v1/chat/completions", body(True, tool_choice="required"))
        assert status == 200, answer


def test_a_schema_for_an_anthropic_answer(calling: Server) -> None:
    with anthropic.Anthropic(base_url=calling.url, api_key="x", max_retries=0) as client:
        config: Any = {"format": {"type": "json_schema", "schema": WEATHER}}
        message: Any = client.messages.create(
            model="tiny", max_tokens=100, messages=[{"role": "user", "content": "x"}],
            output_config=config,
        )  # fmt: skip
        assert json.loads(message.content[0].text)["city"] in ("Rome", "Paris")
        for wrong in (
            {"effort": "high"}, {"format": {"type": "text"}}, {"format": {"type": "json_schema"}},
            {"format": {"type": "json_schema", "schema": {"type": "nothing"}}},
        ):  # fmt: skip
            with pytest.raises(anthropic.BadRequestError, match="output_config"):
                client.messages.create(
                    model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x"}],
                    output_config=wrong,  # type: ignore[arg-type]
                )  # fmt: skip
