"""``AsyncLLM``: the engine in a thread of its own, answers as asynchronous streams."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import Event
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.commands import Commands
from tidemill.llm.core import Core, LoadOptions, Prepared
from tidemill.llm.embeddings import vector_of
from tidemill.llm.mailbox import Mailbox
from tidemill.llm.outputs import RequestOutput
from tidemill.llm.prompts import Conversation, PreparedPrompt, Prompt
from tidemill.records import dataclass
from tidemill.text.base import Tokenizer

log = logging.getLogger("tidemill")

_SERVING_QUEUE = 4096

OutputKind = Literal["cumulative", "delta", "final"]


class AsyncLLM:
    """A model that serves many streams at once.

    >>> llm = AsyncLLM("smollm2")
    >>> async for output in llm.generate("Once upon a time", SamplingParams(), output="delta"):
    ...     print(output.outputs[0].text, end="")

    Options are those of ``LLM``. Construction loads the model and blocks; in a running
    event loop use ``await asyncio.to_thread(AsyncLLM, name)``. All methods may be used from
    several event loops.

    A stream that is left (``break``, cancellation, ``aclose``) drops its request before the next
    step. A consumer that is slow holds nobody up: what it has not taken yet is handed to it as one
    output when it comes back.
    """

    def __init__(
        self, model: str | os.PathLike[str] = "smollm2", **options: Unpack[LoadOptions]
    ) -> None:
        self._core = Core.load(model, options, max_waiting=_SERVING_QUEUE, interactive=True)
        self._engine = _EngineThread(self._core)
        # Also when it is forgotten, and before the interpreter ends: a thread that is still in
        # native code then can bring the process down.
        self._close = weakref.finalize(self, _close, self._engine, self._core)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._core.tokenizer

    @property
    def core(self) -> Core:
        """The loaded model behind this: configuration, memory plan, engine."""
        return self._core

    def generate(
        self,
        prompt: Prompt | PreparedPrompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        output: OutputKind = "cumulative",
        priority: int = 0,
        salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt; yields a RequestOutput whenever there is something new.

        ``output``: "cumulative" has everything so far each time (as in vLLM), "delta" only what
        is new (outputs without news are left out), "final" is yielded once, at the end.
        The last one has ``finished`` set. ``request_id`` is the caller's own name for it.
        ``priority``: smaller is served first. ``salt`` separates prefix caches. Iterating raises
        ValueError for invalid input; a failure in flight ends the stream with ``error`` set.
        """
        params = sampling_params or SamplingParams()

        def prepare() -> Prepared:
            return self._core.prepare(
                prompt, params, request_id=request_id, priority=priority, salt=salt
            )

        return self._stream(prepare, output)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        request_id: str | None = None,
        output: OutputKind = "cumulative",
        priority: int = 0,
        salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation, as ``generate`` does."""
        params = sampling_params or SamplingParams()

        def prepare() -> Prepared:
            prompt = self._core.render_chat(
                messages,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
            )
            return self._core.prepare(
                prompt, params, request_id=request_id, priority=priority, salt=salt
            )

        return self._stream(prepare, output)

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        request_id: str | None = None,
        priority: int = 0,
        salt: str = "",
    ) -> npt.NDArray[np.float32]:
        """The vector of one prompt, float32 (dimensions,), as ``LLM.embed`` makes it."""

        def prepare() -> Prepared:
            return self._core.prepare_embedding(
                prompt, pooling, dimensions=dimensions, truncate=truncate_prompt_tokens,
                request_id=request_id, priority=priority, salt=salt,
            )  # fmt: skip

        async with aclosing(self._stream(prepare, "final")) as stream:
            output = await anext(stream)
        return vector_of(output, dimensions=dimensions, normalize=normalize)

    async def aclose(self) -> None:
        """Drop all requests, whose streams end with an error, and free the model; idempotent."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """``aclose`` for callers without an event loop."""
        self._close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _stream(
        self, prepare: Callable[[], Prepared], output: OutputKind
    ) -> AsyncGenerator[RequestOutput, None]:
        self._core.check_open()
        if output not in ("cumulative", "delta", "final"):
            raise ValueError(f"output must be 'cumulative', 'delta' or 'final', not {output!r}")
        # Rendering and tokenising a long prompt takes a while: not in the event loop's thread.
        prepared = await asyncio.to_thread(prepare)
        builder = prepared.builder
        mailbox = Mailbox(prepared.request.params.n)
        await self._engine.submit(prepared, mailbox)
        try:
            while not mailbox.done:
                for events, now in await mailbox.take():
                    builder.push(events, now)
                if output == "delta":
                    delta = builder.delta()
                    if delta.outputs or delta.finished:
                        yield delta
                elif output == "cumulative" or builder.finished:
                    yield builder.snapshot()
        finally:
            if not builder.finished:
                self._engine.abort(prepared.request.id)


def _close(engine: _EngineThread, core: Core) -> None:
    engine.stop()
    core.close()


@dataclass(frozen=True, slots=True)
class _Submit:
    """A request on its way to the engine's thread."""

    prepared: Prepared
    mailbox: Mailbox


class _EngineThread:
    """Steps the engine while there is work, and sleeps while there is none.

    Requests come in and are dropped between steps. Events go out once per step and event loop,
    because waking a loop from another thread is what costs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._commands: Commands[_Submit | str] = Commands()  # a string: drop that request
        self._mailboxes: dict[str, Mailbox] = {}
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        # A daemon: a program that forgets to close ends all the same (see AsyncLLM).
        self._thread = threading.Thread(target=self._run, name="tidemill-engine", daemon=True)
        self._thread.start()

    async def submit(self, prepared: Prepared, mailbox: Mailbox) -> None:
        """Queue a request; raises what the engine says of it (ValueError)."""
        if not self._commands.put(_Submit(prepared, mailbox)):
            raise RuntimeError("this model has been closed")
        try:
            await mailbox.accepted
        except asyncio.CancelledError:
            self.abort(prepared.request.id)
            raise

    def abort(self, request_id: str) -> None:
        self._commands.put(request_id)  # if it is closed, everything has been dropped

    def stop(self) -> None:
        self._commands.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        reason = "the model was closed while this request ran"
        try:
            while self._obey():
                self._core.driver.step()
                self._send_out()
        except Exception as error:  # a bug of ours: nobody may be left waiting for ever
            log.exception("the engine's thread failed")
            reason = f"the engine's thread failed: {type(error).__name__}: {error}"
        for command in self._commands.drain():
            if isinstance(command, _Submit):
                mailbox = command.mailbox
                self._post(mailbox.loop, mailbox.settle, RuntimeError(reason))
        self._core.driver.close(reason)
        self._send_out()

    def _obey(self) -> bool:
        """Carry out what was asked for; wait while there is nothing to do. False: stop."""
        commands = self._commands.take(wait=not self._core.driver.busy)
        if commands is None:
            return False
        for command in commands:
            if isinstance(command, str):
                self._mailboxes.pop(command, None)
                self._core.driver.abort(command)
            else:
                self._start(command)
        self._send_out()
        return True

    def _start(self, command: _Submit) -> None:
        request, mailbox = command.prepared.request, command.mailbox

        def inbox(events: Sequence[Event], now: float) -> None:
            self._post(mailbox.loop, mailbox.post, events, now)

        def done() -> None:
            self._mailboxes.pop(request.id, None)

        try:
            self._core.driver.submit(request, inbox, on_end=done)
        except Exception as error:
            self._post(mailbox.loop, mailbox.settle, error)
        else:
            self._mailboxes[request.id] = mailbox
            self._post(mailbox.loop, mailbox.settle)

    def _post(
        self, loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object
    ) -> None:
        self._outgoing.setdefault(loop, []).append(partial(call, *args))

    def _send_out(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for loop, calls in outgoing.items():
            try:
                loop.call_soon_threadsafe(_call_all, calls)
            except RuntimeError:  # the loop has been closed with its streams: nobody listens
                for request_id, mailbox in list(self._mailboxes.items()):
                    if mailbox.loop is loop:
                        del self._mailboxes[request_id]
                        self._core.driver.abort(request_id)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
