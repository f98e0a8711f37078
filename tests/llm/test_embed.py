"""``LLM.embed`` and ``AsyncLLM.embed``: the model's hidden states as one vector a text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.batches import run_hidden
from tidemill import LLM, AsyncLLM, SamplingParams
from tidemill.backends import reference
from tidemill.backends.base import KVCacheSpec
from tidemill.engine.errors import ContextLengthError, RequestError
from tidemill.llm.embeddings import choose_pooling, fit_text

TEXTS = ["The sea is blue.", "a", "Ships sail over it, day after day, until they come home."]


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_chat_model), threads=1, max_batch_tokens=16) as found:
        yield found


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_the_pooled_states_of_the_reference(llm: LLM, pooling: Any) -> None:
    opened = llm.core.compiled.opened
    runner = reference.compile(opened.model, kv=KVCacheSpec(64, 8, "f32"), max_batch_tokens=256)
    found = llm.embed(TEXTS, pooling=pooling, normalize=False)
    assert found.shape == (3, opened.model.config.d_model)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        ids = llm.tokenizer.encode(text)
        states = run_hidden(runner, ids, [len(ids)])
        wanted = states.mean(axis=0) if pooling == "mean" else states[-1]
        # The keys and values of the one are kept in 16 bits.
        assert np.abs(vector - wanted).max() < 5e-3 * np.abs(wanted).max()


def test_a_text_has_the_same_vector_in_any_company_and_any_chunks(
    llm: LLM, tiny_chat_model: Path
) -> None:
    together = llm.embed(TEXTS)
    alone = np.concatenate([llm.embed(text) for text in TEXTS])
    assert np.array_equal(together, alone)
    with LLM(str(tiny_chat_model), threads=1, max_batch_tokens=512) as whole:
        assert np.array_equal(whole.embed(TEXTS), together)


def test_generation_goes_on_unchanged_beside_embeddings(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (alone,) = llm.generate("The sea", params)
    vector = llm.embed(TEXTS[2])
    stream = llm.stream("The sea", params)
    tokens = []
    for delta in stream:
        tokens += [t for out in delta.outputs for t in out.token_ids]
        if len(tokens) % 5 == 1:
            assert np.array_equal(llm.embed(TEXTS[2]), vector)
    assert tokens == alone.outputs[0].token_ids


def test_length_and_dimensions(llm: LLM) -> None:
    raw = llm.embed(TEXTS, normalize=False)
    assert np.allclose(np.linalg.norm(llm.embed(TEXTS), axis=1), 1, atol=1e-6)
    cut = llm.embed(TEXTS, dimensions=8)
    assert cut.shape == (3, 8)
    wanted = raw[:, :8] / np.linalg.norm(raw[:, :8], axis=1, keepdims=True)
    assert np.allclose(cut, wanted, atol=1e-6)
    assert np.array_equal(llm.embed(TEXTS, dimensions=8, normalize=False), raw[:, :8])
    assert llm.embed([]).shape == (0, raw.shape[1])
    assert llm.embed([], dimensions=3).shape == (0, 3)


def test_token_ids_are_taken_as_they_are(llm: LLM) -> None:
    ids = llm.tokenizer.encode(TEXTS[0])
    found = llm.embed([TEXTS[0], {"prompt_token_ids": ids}])
    assert np.array_equal(found[0], found[1])


def test_what_is_too_long_is_an_error_or_cut_off(tiny_chat_model: Path) -> None:
    with LLM(str(tiny_chat_model), threads=1, max_context=32) as llm:
        ids = (llm.tokenizer.encode(TEXTS[2]) * 32)[:40]
        long: Any = {"prompt_token_ids": ids}
        with pytest.raises(ContextLengthError, match="40 tokens, more than the context of 32"):
            llm.embed(["a", long])
        for truncate, kept in ((-1, 32), (32, 32), (7, 7), (1, 1)):
            wanted = llm.embed({"prompt_token_ids": ids[:kept]})
            assert np.array_equal(llm.embed(long, truncate_prompt_tokens=truncate), wanted)
        for wrong in (0, 33, -2, True, 1.5):
            with pytest.raises(RequestError, match="truncate_prompt_tokens"):
                llm.embed(long, truncate_prompt_tokens=wrong)


def test_an_end_token_stays_at_the_end_of_what_is_cut_off() -> None:
    options: Any = {"context": 4, "truncate": -1, "end_ids": {9}}
    assert list(fit_text([1, 2, 3, 4, 5, 9], **options)) == [1, 2, 3, 9]
    assert list(fit_text([1, 9, 3, 4, 5, 6], **options)) == [1, 9, 3, 4]
    assert list(fit_text([1, 2, 3, 9], **options)) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    "options",
    [{"dimensions": 0}, {"dimensions": 10**6}, {"dimensions": True}, {"pooling": "cls"},
     {"pooling": ["mean"]}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_an_error(llm: LLM, options: Any) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        llm.embed(TEXTS, **options)
    assert llm.embed(TEXTS).shape[0] == 3


@pytest.mark.parametrize(
    ("kind", "wanted"), [(0, "mean"), (1, "mean"), (3, "last"), (None, "mean")]
)
def test_the_files_own_way_of_pooling(kind: int | None, wanted: str) -> None:
    metadata = {"general.architecture": "qwen3"}
    if kind is not None:
        metadata |= {"qwen3.pooling_type": kind}
    checkpoint: Any = SimpleNamespace(metadata=metadata)
    assert choose_pooling(None, checkpoint) == wanted
    assert choose_pooling("last", checkpoint) == "last"


@pytest.mark.parametrize("kind", [2, 4, 99, "mean", [1], 1.5])
def test_a_way_of_pooling_that_there_is_not(kind: Any) -> None:
    metadata = {"general.architecture": "bert", "bert.pooling_type": kind}
    checkpoint: Any = SimpleNamespace(metadata=metadata)
    with pytest.raises(RequestError, match="not supported; ask for 'mean' or 'last'"):
        choose_pooling(None, checkpoint)
    assert choose_pooling("mean", checkpoint) == "mean"


def test_async(llm: LLM, tiny_chat_model: Path) -> None:
    wanted = llm.embed(TEXTS, dimensions=16)

    async def embed() -> list[np.ndarray]:
        async with AsyncLLM(str(tiny_chat_model), threads=1) as model:
            with pytest.raises(RequestError):
                await model.embed("a", dimensions=0)
            given_up = asyncio.ensure_future(model.embed("b " * 2000, truncate_prompt_tokens=-1))
            await asyncio.sleep(0)
            given_up.cancel()
            found = await asyncio.gather(*(model.embed(t, dimensions=16) for t in TEXTS))
            while model.core.driver.busy:  # its thread ends a step after it has told of it
                await asyncio.sleep(0.005)
            return list(found)

    assert np.array_equal(np.array(asyncio.run(embed())), wanted)
