"""``LLM``: prompts in, finished answers out; several prompts run as one batch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.core import Core, LoadOptions, Prepared
from tidemill.llm.embeddings import vector_of
from tidemill.llm.outputs import RequestOutput
from tidemill.llm.prompts import Conversation, PreparedPrompt, Prompt, as_conversations, as_list
from tidemill.text.base import Tokenizer

_OFFLINE_QUEUE = 1 << 20


class LLM:
    """A model in this process.

    >>> with LLM("smollm2") as llm:
    ...     for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=16)):
    ...         print(output.outputs[0].text)

    ``model`` is a path, ``hf://owner/repo``, ``pypi://package``, a URL or a catalogue name; the
    keyword arguments are those of ``LoadOptions``. Memory is checked before anything is
    allocated: InsufficientMemoryError shows the sum. May be used from several threads.
    """

    def __init__(
        self, model: str | os.PathLike[str] = "smollm2", **options: Unpack[LoadOptions]
    ) -> None:
        self._core = Core.load(model, options, max_waiting=_OFFLINE_QUEUE, interactive=False)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._core.tokenizer

    @property
    def core(self) -> Core:
        """The loaded model behind this: configuration, memory plan, engine."""
        return self._core

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Continue every prompt; the outputs are in the order of the prompts.

        A prompt is a string, {"prompt": str} or {"prompt_token_ids": [...]}. One SamplingParams
        is for all prompts, a list has one for each. Raises ValueError for anything invalid in
        any prompt or parameter, before anything runs. A request that fails later does
        not take the others with it: its output says so in ``error`` and in its finish_reason.
        On KeyboardInterrupt the requests are dropped, and the LLM can be used again.
        """
        return self._run(as_list(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of a list of conversations, as ``generate`` does.

        A message is {"role": ..., "content": ...}. ``chat_template``: a built-in
        template's name or Jinja source instead of the model's own.
        """
        prompts = [
            self._core.render_chat(
                conversation,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
            )
            for conversation in as_conversations(messages)
        ]
        return self._run(prompts, sampling_params, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = False,
    ) -> npt.NDArray[np.float32]:
        """A vector for every prompt: float32 (prompts, dimensions), in their order.

        It is made of the model's last hidden states, after the output norm: with ``pooling`` "mean"
        their mean over all tokens, with "last" that of the last token (None: what the model's file
        says, or "mean"). ``dimensions``: only so many of the first. ``normalize``: to length 1.
        A prompt that is too long is an error, unless ``truncate_prompt_tokens`` says how many of
        its first tokens to take (-1: as many as fit).
        Raises ValueError for anything invalid before anything runs, RuntimeError if a prompt
        failed later.
        """
        self._core.check_open()
        outputs = self._finish(
            [
                self._core.prepare_embedding(
                    prompt, pooling, dimensions=dimensions, truncate=truncate_prompt_tokens
                )
                for prompt in as_list(prompts)
            ],
            use_tqdm,
        )
        width = dimensions or self._core.compiled.opened.model.config.d_model
        vectors = [vector_of(o, dimensions=dimensions, normalize=normalize) for o in outputs]
        return np.stack(vectors) if vectors else np.empty((0, width), np.float32)

    def stream(
        self, prompt: Prompt | PreparedPrompt, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Continue one prompt and yield what is new after each step.

        Each RequestOutput has only the outputs with news, with their new text and tokens; the
        last one has ``finished`` set. Iterating raises ValueError for invalid input. Closing the
        iterator drops the request.
        """
        self._core.check_open()
        prepared = self._core.prepare(prompt, sampling_params or SamplingParams())
        self._core.submit(prepared)
        try:
            while True:
                # Steps made for others bring this request on as well, from other threads too.
                with self._core.driver.lock:
                    delta = prepared.builder.delta()
                if delta.outputs or delta.finished:
                    yield delta
                if delta.finished:
                    return
                with _InterruptsHeld():
                    self._core.driver.step()
        finally:
            self._drop([prepared])

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation as ``stream`` does. Raises ValueError if it has no template."""
        self._core.check_open()
        prompt = self._core.render_chat(messages, tools=tools, chat_template=chat_template)
        return self.stream(prompt, sampling_params)

    def close(self) -> None:
        """Free the model's memory and threads; idempotent."""
        self._core.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt | PreparedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        self._core.check_open()
        params = _per_prompt(sampling_params, len(prompts))
        requests = [
            self._core.prepare(prompt, p) for prompt, p in zip(prompts, params, strict=True)
        ]
        return self._finish(requests, use_tqdm)

    def _finish(self, requests: Sequence[Prepared], use_tqdm: bool) -> list[RequestOutput]:
        """Run requests together until all have ended."""
        ended: list[Prepared] = []
        try:
            with _progress_bar(len(requests), use_tqdm) as bar, _InterruptsHeld() as interrupts:
                for request in requests:
                    self._core.submit(request, partial(ended.append, request))
                    interrupts.let_through()
                while len(ended) < len(requests):
                    self._core.driver.step()
                    interrupts.let_through()
                    if bar is not None:
                        bar.update(len(ended) - bar.n)
        except BaseException:
            self._drop(requests)
            raise
        return [request.builder.snapshot() for request in requests]

    def _drop(self, requests: Sequence[Prepared]) -> None:
        with _InterruptsHeld():
            for prepared in requests:
                if not prepared.builder.finished:
                    self._core.driver.abort(prepared.request.id)


def _per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, n_prompts: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * n_prompts
    if isinstance(params, SamplingParams):
        return [params] * n_prompts
    if not isinstance(params, Iterable):
        raise ValueError(f"sampling_params must be SamplingParams or a list, not {params!r}")
    each = list(params)
    if len(each) != n_prompts:
        raise ValueError(f"{len(each)} sampling_params for {n_prompts} prompts")
    return each


class _InterruptsHeld:
    """Lets Ctrl-C wait until the block is done, or until ``let_through``: a step that is torn
    apart in the middle would leave the engine's books wrong."""

    def __init__(self) -> None:
        self._before: Callable[[int, FrameType | None], Any] | None = None
        self._held: list[FrameType | None] = []

    def __enter__(self) -> _InterruptsHeld:
        if threading.current_thread() is threading.main_thread():  # no other is ever interrupted
            before = signal.getsignal(signal.SIGINT)
            if callable(before):  # else it is ignored or not Python's: nothing would be raised here
                self._before = before
                signal.signal(signal.SIGINT, lambda _, frame: self._held.append(frame))
        return self

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGINT, before)
            held, self._held = self._held, []
            if held:
                before(signal.SIGINT, held[0])

    def let_through(self) -> None:
        """Do now what a Ctrl-C that waits would have done."""
        if self._held:
            self.__exit__()
            self.__enter__()


@contextmanager
def _progress_bar(total: int, wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc="Prompts", unit="prompt", dynamic_ncols=True) as bar:
        yield bar
