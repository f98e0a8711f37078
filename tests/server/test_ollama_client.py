"""Ollama's client: what it sends is understood, what it gets is what OpenAI's gets."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import ollama
import pytest

from support.serving import Server, by_key, openai_text, serving, until, write_keys
from support.tiny_chat_model import TEMPLATE, write_chat_model

# The tiny model's greedy answer to this does not repeat itself.
SYSTEM = "x"
QUESTION = "Sing a song, please!"
MESSAGES: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
GREEDY: Any = {"temperature": 0, "num_predict": 24}
# Greedily, this one goes on and on.
ENDLESS: Any = [{"role": "user", "content": "What is the sea?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    text = openai_text(server, MESSAGES)
    assert text
    return text


@pytest.fixture(scope="module")
def prompt_tokens(server: Server) -> int:
    return int(server.post("/tokenize", {"model": "tiny", "messages": MESSAGES})[1]["count"])


def refusal(caught: pytest.ExceptionInfo[ollama.ResponseError]) -> tuple[int, str]:
    return caught.value.status_code, caught.value.error


def test_a_chat_is_that_of_the_openai_api(
    client: ollama.Client, expected: str, prompt_tokens: int
) -> None:
    answer = client.chat("tiny", MESSAGES, options=GREEDY)
    assert (answer.message.role, answer.message.content) == ("assistant", expected)
    assert (answer.model, answer.done, answer.done_reason) == ("tiny", True, "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (prompt_tokens, 24)
    durations = (answer.load_duration, answer.prompt_eval_duration, answer.eval_duration)
    assert all(d is not None and d > 0 for d in durations)
    assert answer.total_duration is not None
    assert answer.total_duration >= sum(d or 0 for d in durations)


def test_a_chat_in_lines_is_the_whole_in_pieces(client: ollama.Client, expected: str) -> None:
    *parts, last = client.chat("tiny", MESSAGES, options=GREEDY, stream=True)
    assert parts  # one, if the reader was slower than the model
    assert "".join(part.message.content or "" for part in parts) == expected
    assert not any(part.done for part in parts)
    assert all(part.eval_count is None for part in parts)
    assert (last.message.content, last.done, last.done_reason) == ("", True, "length")
    assert last.eval_count == 24


def test_generate_is_a_chat_of_one_question(
    client: ollama.Client, expected: str, prompt_tokens: int
) -> None:
    answer = client.generate("tiny", QUESTION, system=SYSTEM, options=GREEDY)
    assert (answer.response, answer.done_reason) == (expected, "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (prompt_tokens, 24)
    *parts, last = client.generate("tiny", QUESTION, system=SYSTEM, options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in parts) == expected
    assert (last.response, last.done, last.eval_count) == ("", True, 24)


def test_streams_are_the_default_and_are_lines_of_json(server: Server, expected: str) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "options": GREEDY}
    status, headers, data = server.request("POST", "/api/chat", body)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    *parts, last, end = data.decode().split("\n")
    assert end == ""
    assert "".join(json.loads(part)["message"]["content"] for part in parts) == expected
    assert json.loads(last)["done"] is True


def test_a_raw_prompt_goes_without_the_template(client: ollama.Client, server: Server) -> None:
    body = {"model": "tiny", "prompt": "Once upon", "temperature": 0, "max_tokens": 12}
    wanted = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    options = {"temperature": 0, "num_predict": 12}
    assert client.generate("tiny", "Once upon", raw=True, options=options).response == wanted
    with pytest.raises(ollama.ResponseError, match="raw") as caught:
        client.generate("tiny", "x", raw=True, system="y")
    assert caught.value.status_code == 400


def test_an_answer_that_has_been_begun_goes_on(client: ollama.Client, server: Server) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "The song"}]
    ids = server.post("/tokenize", {"model": "tiny", "messages": MESSAGES})[1]["tokens"]
    more = {"model": "tiny", "prompt": "The song", "add_special_tokens": False}
    ids += server.post("/tokenize", more)[1]["tokens"]
    body = {"model": "tiny", "prompt": ids, "temperature": 0, "max_tokens": 8}
    wanted = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    answer = client.chat("tiny", begun, options={"temperature": 0, "num_predict": 8})
    assert answer.message.content == wanted


def test_stop_strings_end_the_answer(client: ollama.Client, expected: str) -> None:
    stop = expected[5:8]
    answer = client.chat("tiny", MESSAGES, options={**GREEDY, "stop": ["@@@@", stop]})
    assert answer.message.content == expected[: expected.index(stop)]
    assert answer.done_reason == "stop"


def test_options_mean_what_they_mean_in_the_openai_api(
    client: ollama.Client, server: Server
) -> None:
    for ours, theirs in (
        ({"seed": 7}, {"seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.9}),
        (
            {"seed": 7, "temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
            {"seed": 7, "temperature": 1.2, "min_p": 0.1},
        ),
        (
            {"temperature": 0, "repeat_penalty": 1.5, "presence_penalty": 1.0},
            {"repetition_penalty": 1.5, "presence_penalty": 1.0},
        ),
        (
            {"temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": 0, "frequency_penalty": 1},
            {"frequency_penalty": 1.0},
        ),
        ({"temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": -1, "num_keep": 4},
         {"repetition_penalty": 1.5}),
    ):  # fmt: skip
        answer = client.chat("tiny", MESSAGES, options={**ours, "num_predict": 24})
        assert answer.message.content == openai_text(server, MESSAGES, **theirs)


def test_logprobs(client: ollama.Client, server: Server) -> None:
    body = {
        "model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 24,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    wanted = server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]

    def scores(entries: Any) -> list[Any]:
        return [
            (e.token, e.logprob, [(t.token, t.logprob) for t in e.top_logprobs or ()])
            for e in entries or ()
        ]

    expected = [
        (e["token"], e["logprob"], [(t["token"], t["logprob"]) for t in e["top_logprobs"]])
        for e in wanted
    ]
    options: Any = {"logprobs": True, "top_logprobs": 2, "options": GREEDY}
    assert scores(client.chat("tiny", MESSAGES, **options).logprobs) == expected
    streamed = client.chat("tiny", MESSAGES, stream=True, **options)
    assert [s for part in streamed for s in scores(part.logprobs)] == expected


def test_a_smaller_context_is_kept_to(
    client: ollama.Client, server: Server, prompt_tokens: int
) -> None:
    room = 200
    body = {"model": "tiny", "messages": ENDLESS, "temperature": 0, "max_tokens": room}
    wanted = server.post("/v1/chat/completions", body)[1]
    assert wanted["usage"]["completion_tokens"] > 24
    context = wanted["usage"]["prompt_tokens"] + room
    answer = client.chat("tiny", ENDLESS, options={"temperature": 0, "num_ctx": context})
    assert answer.message.content == wanted["choices"][0]["message"]["content"]
    assert answer.done_reason == wanted["choices"][0]["finish_reason"]
    for options in (
        {"num_ctx": prompt_tokens},
        {"num_ctx": prompt_tokens + 10, "num_predict": 11},
        {"num_ctx": 10**6},
        {"num_ctx": 0},
    ):
        with pytest.raises(ollama.ResponseError, match="num_ctx") as caught:
            client.chat("tiny", MESSAGES, options=options)
        assert caught.value.status_code == 400


def test_without_a_limit_an_answer_ends_with_the_context(
    client: ollama.Client, server: Server
) -> None:
    body = {"model": "tiny", "messages": ENDLESS, "temperature": 0}
    wanted = server.post("/v1/chat/completions", body)[1]
    answer = client.chat("tiny", ENDLESS, options={"temperature": 0, "num_predict": -1})
    assert answer.message.content == wanted["choices"][0]["message"]["content"]
    assert answer.done_reason == wanted["choices"][0]["finish_reason"]
    assert answer.eval_count == wanted["usage"]["completion_tokens"]


def test_what_changes_nothing_is_taken(client: ollama.Client, expected: str) -> None:
    harmless = {
        "num_gpu": 0, "num_thread": 0, "low_vram": False, "use_mmap": True, "mirostat": 0,
        "mirostat_tau": 5.0, "tfs_z": 1.0, "penalize_newline": True, "seed": -1,
    }  # fmt: skip
    answer = client.chat(
        "tiny:latest", MESSAGES, tools=[], think=False, format="", keep_alive=-1,
        options={**GREEDY, **harmless},
    )  # fmt: skip
    assert answer.message.content == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"format": "xml"}, "format"),
        ({"format": {"type": "nothing"}}, "format"),
        ({"think": True}, "think"),
        ({"think": "high"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"truncate": True}, "truncate"),
        ({"shift": True}, "shift"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"options": {"no_such_thing": 1}}, "options.no_such_thing"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"top_k": "many"}}, "options.top_k"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"num_gpu": 99}}, "options.num_gpu"),
        ({"options": {"num_thread": 4}}, "options.num_thread"),
        ({"options": {"stop": [""]}}, "options.stop"),
        ({"options": {"num_predict": 10**6}}, "context"),
    ],
)
@pytest.mark.parametrize("path", ["chat", "generate"])
def test_what_cannot_be_is_refused_by_name(
    server: Server, path: str, options: dict[str, Any], named: str
) -> None:
    asked: Any = {"messages": MESSAGES} if path == "chat" else {"prompt": "x"}
    status, body = server.post(f"/api/{path}", {"model": "tiny", **asked, **options})
    assert status == 400
    assert list(body) == ["error"]
    assert named in body["error"]


@pytest.mark.parametrize(
    ("path", "options", "named"),
    [
        ("generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("generate", {"prompt": "x", "context": [1, 2]}, "context"),
        ("generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("generate", {"prompt": "x", "width": 64}, "width"),
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ("chat", {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0]"),
        ("chat", {"messages": [{"role": "user", "content": "x", "new": 1}]}, "new"),
        ("chat", {"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
        ("show", {"model": "tiny", "verbose": True}, "verbose"),
        ("show", {"model": "tiny", "options": {"temperature": 1}}, "options"),
        ("show", {}, "model"),
    ],
)
def test_what_only_some_requests_have(
    server: Server, path: str, options: dict[str, Any], named: str
) -> None:
    body = options if path == "show" else {"model": "tiny", **options}
    status, answer = server.post(f"/api/{path}", body)
    assert status == 400
    assert named in answer["error"]


def test_an_unknown_model_is_404(client: ollama.Client) -> None:
    for ask in (
        partial(client.chat, "llama-none", MESSAGES),
        partial(client.generate, "llama-none", "x"),
        partial(client.show, "llama-none"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        status, said = refusal(caught)
        assert status == 404
        assert "'llama-none' not found" in said
        assert "tiny" in said


def test_what_there_is_not_is_404_in_ollamas_form(client: ollama.Client, server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="/api/pull") as caught:
        client.pull("tiny")
    assert caught.value.status_code == 404
    status, headers, data = server.request("GET", "/api/chat")
    assert (status, headers["allow"]) == (405, "POST")
    assert "POST" in json.loads(data)["error"]
    status, body = server.post("/api/chat", b"{")
    assert (status, list(body)) == (400, ["error"])


def test_the_models_that_there_are(client: ollama.Client, server: Server) -> None:
    (model,) = client.list().models
    assert model.model == "tiny:latest"
    assert model.size is not None
    assert model.size > 0
    assert len(model.digest or "") == 64
    assert model.details is not None
    assert model.details.format == "gguf"
    shown = client.show("tiny")
    assert shown.details == model.details
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modified_at == model.modified_at
    assert "im_start" in (shown.template or "")
    info: Any = shown.modelinfo
    family = info["general.architecture"]
    assert family == model.details.family
    (served,) = server.get("/v1/models")[1]["data"]
    assert info[f"{family}.context_length"] >= served["max_model_len"]
    assert info["general.parameter_count"] > 0
    assert info["tokenizer.ggml.tokens"] is None
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.size, loaded.digest) == (model.model, model.size, model.digest)
    assert loaded.context_length == served["max_model_len"]
    assert loaded.size_vram == 0


def test_the_version_is_one_of_ollamas(server: Server) -> None:
    status, body = server.get("/api/version")
    assert status == 200
    assert [int(part) for part in body["version"].split(".")] >= [0, 6, 4]


def test_nothing_asked_only_loads(client: ollama.Client) -> None:
    loaded = client.generate("tiny")
    assert (loaded.response, loaded.done, loaded.done_reason) == ("", True, "load")
    assert client.chat("tiny", []).done_reason == "load"


def test_how_long_a_model_stays(tiny_chat_model: Path, tmp_path: Path) -> None:
    """With keys, and a model that is not loaded: its description is there all the same."""
    keys = tmp_path / "keys.toml"
    write_keys(keys, "the-key", "other", **{"the-key": "admin = true"})
    options = ("--name", "tiny", "--threads", "1", "--api-key-file", str(keys))
    with serving(str(tiny_chat_model), *options) as guarded:
        with pytest.raises(ollama.ResponseError) as caught:
            ollama.Client(host=guarded.url).chat("tiny", MESSAGES)
        assert caught.value.status_code == 401
        assert "key" in caught.value.error
        client = ollama.Client(host=guarded.url, headers={"Authorization": "Bearer the-key"})
        (loaded,) = client.ps().models
        assert loaded.expires_at is not None
        assert loaded.expires_at.year == 9999
        assert client.chat("tiny", MESSAGES, options=GREEDY, keep_alive="1h").done
        (loaded,) = client.ps().models
        assert loaded.expires_at is not None
        assert loaded.expires_at.year < 9999
        assert client.generate("tiny", keep_alive=0).done_reason == "unload"
        until(lambda: not client.ps().models)
        (known,) = client.list().models
        assert known.size == loaded.size
        assert client.show("tiny").capabilities == ["completion", "tools"]
        with pytest.raises(ollama.ResponseError, match="tiny"):
            client.show("nothing")
        assert not client.ps().models
        assert client.chat("tiny", MESSAGES, options=GREEDY).eval_count == 24
        (loaded,) = client.ps().models  # what was said before the unloading holds no more
        assert loaded.expires_at is not None
        assert loaded.expires_at.year == 9999
        assert client.generate("tiny", keep_alive="30m").done_reason == "load"
        assert client.chat("tiny", MESSAGES, options=GREEDY, keep_alive="-1m").eval_count == 24
        (loaded,) = client.ps().models
        assert loaded.expires_at is not None
        assert loaded.expires_at.year == 9999
        # It is one model for all, so that others have no say in this.
        other = ollama.Client(host=guarded.url, headers=by_key("other"))
        for nothing in (
            partial(other.generate, "tiny", keep_alive=0),
            partial(other.chat, "tiny", [], keep_alive=0),
            partial(other.embed, "tiny", [], keep_alive=0),
        ):
            with pytest.raises(ollama.ResponseError, match="admin") as caught:
                nothing()
            assert caught.value.status_code == 403
        assert other.chat("tiny", MESSAGES, options=GREEDY, keep_alive=0).eval_count == 24
        assert other.embed("tiny", "x", keep_alive=0).embeddings
        (loaded,) = client.ps().models
        assert loaded.expires_at is not None
        assert loaded.expires_at.year == 9999


def test_what_models_can_do(tmp_path: Path) -> None:
    """As Ollama tells it, so that clients offer each for what it is good for."""
    thinking = TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    models = {
        "plain": write_chat_model(tmp_path / "plain.gguf", template=None),
        "chat": write_chat_model(tmp_path / "chat.gguf"),
        "thinking": write_chat_model(tmp_path / "thinking.gguf", template=thinking),
        "vectors": write_chat_model(tmp_path / "vectors.gguf", pooling=gguf.PoolingType.LAST),
    }
    config = tmp_path / "serve.toml"
    config.write_text(
        "".join(f'[[models]]\nsource = "{path}"\npreload = false\n' for path in models.values())
    )
    with serving("--config", str(config)) as server:
        client = ollama.Client(host=server.url)
        assert {name: client.show(name).capabilities for name in models} == {
            "plain": ["completion"],
            "chat": ["completion", "tools"],
            "thinking": ["completion", "tools", "thinking"],
            "vectors": ["embedding"],
        }


def test_others_models_are_not_told_of(tiny_chat_model: Path, tmp_path: Path) -> None:
    config, keys = tmp_path / "serve.toml", tmp_path / "keys.toml"
    config.write_text(
        f'api_key_file = "{keys}"\n' + "".join(
            f'[[models]]\nsource = "{tiny_chat_model}"\nname = "{name}"\npreload = false\n'
            for name in ("open", "secret")
        )
    )  # fmt: skip
    write_keys(keys, "all", "some", some='models = ["open"]')
    with serving("--config", str(config)) as server:

        def said(method: str, path: str, body: Any = None, key: str = "some") -> str:
            headers = {"anthropic-version": "2023-06-01"} if path.endswith("?anthropic") else {}
            return server.request(method, path, body, {**headers, **by_key(key)})[2].decode()

        for method, path, body in (
            ("POST", "/api/show", {"model": "none"}),
            ("POST", "/api/chat", {"model": "none", "messages": MESSAGES}),
            ("POST", "/api/embed", {"model": "none", "input": "x"}),
            ("POST", "/v1/chat/completions", {"model": "none", "messages": MESSAGES}),
            ("POST", "/v1/messages", {"model": "none", "messages": MESSAGES[1:], "max_tokens": 1}),
            ("GET", "/v1/models/none", None),
            ("GET", "/v1/models/none?anthropic", None),
            ("GET", "/v1/models", None),
            ("GET", "/api/tags", None),
            ("GET", "/api/ps", None),
            ("GET", "/health/ready", None),
            ("GET", "/metrics", None),
        ):
            assert "secret" not in said(method, path, body)
            if path != "/api/ps":
                assert "secret" in said(method, path, body, "all")
        assert server.get("/health/ready") == (200, {"status": "ok", "models": {}})
        for path in ("/v1/chat/completions", "/api/chat"):
            body = {"model": "secret", "messages": MESSAGES}
            assert server.request("POST", path, body, by_key("some"))[0] == 403
