"""Embeddings over real sockets: the official clients, every form of input, limits, fairness."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest

from support.serving import Server, begin_request, serving, until
from tidemill import LLM

TEXTS = ["The sea is blue.", "a", "Ships sail over it."]


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_chat_model), threads=1) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def vectors(answer: Any) -> np.ndarray:
    return np.array([item.embedding for item in answer.data], np.float32)


def test_the_official_sdk_gets_the_vectors_of_the_python_api(
    client: openai.OpenAI, llm: LLM
) -> None:
    answer = client.embeddings.create(model="tiny", input=TEXTS)
    assert np.array_equal(vectors(answer), llm.embed(TEXTS))
    assert [item.index for item in answer.data] == [0, 1, 2]
    tokens = sum(len(llm.tokenizer.encode(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert answer.model == "tiny"
    short = client.embeddings.create(model="tiny", input=TEXTS, dimensions=8, user="u")
    assert np.array_equal(vectors(short), llm.embed(TEXTS, dimensions=8))


def test_base64_and_floats_are_the_same_numbers(server: Server) -> None:
    body = {"model": "tiny", "input": TEXTS}
    _, floats = server.post("/v1/embeddings", body)
    _, coded = server.post("/v1/embeddings", {**body, "encoding_format": "base64"})
    for plain, packed in zip(floats["data"], coded["data"], strict=True):
        found = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
        assert np.array_equal(found, np.array(plain["embedding"], np.float32))
    assert coded["usage"] == floats["usage"]


def test_texts_and_token_ids_alone_and_in_lists(server: Server, llm: LLM) -> None:
    ids = [llm.tokenizer.encode(text) for text in TEXTS]
    wanted = llm.embed(TEXTS)
    for given, rows in ((TEXTS[0], [0]), (ids[0], [0]), (ids, [0, 1, 2]), ([TEXTS[1]], [1]),
                        ([ids[2], TEXTS[0]], [2, 0])):  # fmt: skip
        status, answer = server.post("/v1/embeddings", {"model": "tiny", "input": given})
        assert status == 200, answer
        found = [item["embedding"] for item in answer["data"]]
        assert np.array_equal(np.array(found, np.float32), wanted[rows])


def test_pooling_and_length_may_be_chosen(server: Server, llm: LLM) -> None:
    body = {"model": "tiny", "input": TEXTS[2], "pooling": "last", "normalize": False}
    _, answer = server.post("/v1/embeddings", body)
    found = np.array(answer["data"][0]["embedding"], np.float32)
    assert np.array_equal(found, llm.embed(TEXTS[2], pooling="last", normalize=False)[0])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [2**40]}, "input"),
        ({"input": None}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 10**6}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"pooling": "cls"}, "pooling"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 10**9}, "truncate_prompt_tokens"),
        ({"task": "query"}, "task"),
        ({"stream": True}, "stream"),
    ],
    ids=str,
)
def test_what_cannot_be_is_400_and_named(server: Server, changes: Any, param: str) -> None:
    status, answer = server.post("/v1/embeddings", {"model": "tiny", "input": "a", **changes})
    assert status == 400, answer
    assert answer["error"]["param"].split("[")[0] == param
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_text_that_is_too_long(server: Server, llm: LLM) -> None:
    context = llm.core.max_context
    ids = (llm.tokenizer.encode(TEXTS[2]) * context)[: context + 1]
    body = {"model": "tiny", "input": [[1, 2, 3], ids]}
    status, answer = server.post("/v1/embeddings", body)
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == "input"
    status, answer = server.post("/v1/embeddings", {**body, "truncate_prompt_tokens": 9})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 3 + 9
    found = np.array(answer["data"][1]["embedding"], np.float32)
    assert np.array_equal(found, llm.embed({"prompt_token_ids": ids[:9]})[0])


def test_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="none", input="a")


def test_many_texts_leave_room_for_others_and_are_all_answered(server: Server, llm: LLM) -> None:
    texts = [f"{i} ships" for i in range(300)]
    connection = begin_request(server, "/v1/embeddings", {"model": "tiny", "input": texts})
    with connection:
        body = {"model": "tiny", "prompt": "The sea", "max_tokens": 4, "temperature": 0}
        status, _ = server.post("/v1/completions", body)
        assert status == 200
    until(server.idle)
    status, answer = server.post("/v1/embeddings", {"model": "tiny", "input": texts})
    assert status == 200
    found = np.array([item["embedding"] for item in answer["data"]], np.float32)
    assert np.array_equal(found, llm.embed(texts))


def test_a_client_that_leaves_frees_the_engine(server: Server, llm: LLM) -> None:
    def computed() -> float:
        return server.metric("vllm:prompt_tokens_total")

    before, text = computed(), [5] * llm.core.max_context
    connection = begin_request(server, "/v1/embeddings", {"model": "tiny", "input": [text] * 2000})
    until(lambda: computed() > before)
    connection.close()
    until(server.idle)
    assert computed() - before < 2000 * len(text)


def test_metrics_count_texts(server: Server) -> None:
    server.post("/v1/embeddings", {"model": "tiny", "input": "a"})
    until(server.idle)  # also what other tests have left
    names = ("vllm:request_prompt_tokens_count", "vllm:e2e_request_latency_seconds_count")
    before = [server.metric(name) for name in names]
    stopped = server.metric("vllm:request_success_total", finished_reason="stop")
    server.post("/v1/embeddings", {"model": "tiny", "input": TEXTS})
    assert [server.metric(name) for name in names] == [n + 3 for n in before]
    assert server.metric("vllm:request_success_total", finished_reason="stop") == stopped + 3


# ---- Ollama's API


def test_ollamas_client(server: Server, llm: LLM) -> None:
    client = ollama.Client(host=server.url)
    answer = client.embed("tiny:latest", TEXTS, keep_alive=-1, options={"temperature": 0})
    assert np.array_equal(np.array(answer.embeddings, np.float32), llm.embed(TEXTS))
    assert answer.prompt_eval_count == sum(len(llm.tokenizer.encode(text)) for text in TEXTS)
    assert answer.total_duration > 0
    one = client.embed("tiny", TEXTS[0], dimensions=8)
    assert np.array_equal(np.array(one.embeddings, np.float32), llm.embed(TEXTS[0], dimensions=8))
    old = client.embeddings("tiny", TEXTS[0])
    wanted = llm.embed(TEXTS[0], normalize=False)[0]
    assert np.array_equal(np.array(old.embedding, np.float32), wanted)


def test_ollama_cuts_off_what_is_too_long_unless_told_not_to(server: Server, llm: LLM) -> None:
    text = TEXTS[2] * 3
    ids = llm.tokenizer.encode(text)
    assert len(ids) > 5
    body = {"model": "tiny", "input": text, "options": {"num_ctx": 5}}
    status, answer = server.post("/api/embed", body)
    assert status == 200, answer
    assert answer["prompt_eval_count"] == 5
    wanted = llm.embed({"prompt_token_ids": ids[:5]})
    assert np.array_equal(np.array(answer["embeddings"], np.float32), wanted)
    status, answer = server.post("/api/embed", {**body, "truncate": False})
    assert status == 400
    assert "context of 5" in answer["error"]


def test_ollamas_requests_without_a_text_load_the_model(server: Server) -> None:
    assert server.post("/api/embed", {"model": "tiny"})[1]["embeddings"] == []
    assert server.post("/api/embed", {"model": "tiny", "input": []})[1]["embeddings"] == []
    assert server.post("/api/embeddings", {"model": "tiny"}) == (200, {"embedding": []})


@pytest.mark.parametrize(
    ("path", "changes", "name"),
    [
        ("/api/embed", {"input": ["a", ""]}, "input"),
        ("/api/embed", {"input": ["a"] * 2049}, "input"),
        ("/api/embed", {"input": [[1]]}, "input"),
        ("/api/embed", {"dimensions": 10**6}, "dimensions"),
        ("/api/embed", {"options": {"num_ctx": 10**6}}, "num_ctx"),
        ("/api/embed", {"options": {"mirostat": 1}}, "mirostat"),
        ("/api/embed", {"options": {"top_p": 7}}, "top_p"),
        ("/api/embed", {"keep_alive": "soon"}, "keep_alive"),
        ("/api/embed", {"prompt": "a"}, "prompt"),
        ("/api/embeddings", {"prompt": ["a"]}, "prompt"),
        ("/api/embeddings", {"dimensions": 3}, "dimensions"),
    ],
    ids=str,
)
def test_what_ollamas_api_cannot_have_is_named(
    server: Server, path: str, changes: Any, name: str
) -> None:
    text = {"prompt": "a"} if path == "/api/embeddings" else {"input": "a"}
    status, answer = server.post(path, {"model": "tiny", **text, **changes})
    assert status == 400, answer
    assert name in answer["error"]


# ---- keys and quotas


def test_keys_and_quotas_hold_for_embeddings(tiny_chat_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"sk-a").hexdigest()
    keys.write_text(f'[[tenants]]\nname = "a"\nsha256 = ["{digest}"]\ntokens_per_minute = 40\n')
    with serving(
        str(tiny_chat_model), "--name", "tiny", "--threads", "1", "--api-key-file", str(keys)
    ) as server:
        body = {"model": "tiny", "input": [[5] * 30]}
        assert server.post("/v1/embeddings", body)[0] == 401
        headers = {"Authorization": "Bearer sk-a"}
        assert server.post("/v1/embeddings", body, headers=headers)[0] == 200
        status, answer = server.post("/v1/embeddings", body, headers=headers)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
