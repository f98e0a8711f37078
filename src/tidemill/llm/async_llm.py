"""``AsyncLLM``: the engine in a thread of its own, answers as asynchronous streams."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from tidemill.engine.base import Event
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.core import Core, LoadOptions, Prepared
from tidemill.llm.embeddings import vector_of
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        mailbox = _Mailbox(asyncio.get_running_loop())
        await self._engine.submit(prepared, mailbox)
        try:
            while not builder.finished:
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


class _Mailbox:
    """Events on their way from the engine's thread to one stream.

    Taking empties it, so that what piles up behind a slow reader is read in one go; it holds at
    most the events of one request, whose number its max_tokens bounds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: list[tuple[Sequence[Event], float]] = []
        self._arrived = asyncio.Event()

    def post(self, events: Sequence[Event], now: float) -> None:
        """Called in the event loop's thread."""
        self._posted.append((events, now))
        self._arrived.set()

    async def take(self) -> list[tuple[Sequence[Event], float]]:
        """All that has arrived; waits for something to arrive."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("a stream is read in the event loop in which it was begun")
        await self._arrived.wait()
        self._arrived.clear()
        posted, self._posted = self._posted, []
        return posted


@dataclass(frozen=True, slots=True)
class _Submit:
    """A request on its way to the engine's thread; ``accepted`` tells the stream how it went."""

    prepared: Prepared
    mailbox: _Mailbox
    accepted: asyncio.Future[None]

    def settle(self, error: Exception | None) -> None:
        """Called in the event loop's thread; the stream may have been cancelled meanwhile."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)


class _EngineThread:
    """Steps the engine while there is work, and sleeps while there is none.

    Requests come in and are dropped between steps. Events go out once per step and event loop,
    because waking a loop from another thread is what costs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._commands: deque[_Submit | str] = deque()  # a string: drop that request
        self._wake = threading.Condition()
        self._stopping = False
        self._mailboxes: dict[str, _Mailbox] = {}
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        # A daemon: a program that forgets to close ends all the same (see AsyncLLM).
        self._thread = threading.Thread(target=self._run, name="tidemill-engine", daemon=True)
        self._thread.start()

    async def submit(self, prepared: Prepared, mailbox: _Mailbox) -> None:
        """Queue a request; raises what the engine says of it (ValueError)."""
        accepted: asyncio.Future[None] = mailbox.loop.create_future()
        self._send(_Submit(prepared, mailbox, accepted))
        try:
            await accepted
        except asyncio.CancelledError:
            self.abort(prepared.request.id)
            raise

    def abort(self, request_id: str) -> None:
        with suppress(RuntimeError):  # closed meanwhile: everything has been dropped
            self._send(request_id)

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: _Submit | str) -> None:
        with self._wake:
            if self._stopping:
                raise RuntimeError("this model has been closed")
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        reason = "the model was closed while this request ran"
        try:
            while self._obey():
                self._core.driver.step()
                self._send_out()
        except Exception as error:  # a bug of ours: nobody may be left waiting for ever
            log.exception("the engine's thread failed")
            reason = f"the engine's thread failed: {type(error).__name__}: {error}"
        with self._wake:
            self._stopping = True
            left, self._commands = self._commands, deque()
        for command in left:
            if isinstance(command, _Submit):
                self._post(command.mailbox.loop, command.settle, RuntimeError(reason))
        self._core.driver.close(reason)
        self._send_out()

    def _obey(self) -> bool:
        """Carry out what was asked for; wait while there is nothing to do. False: stop."""
        with self._wake:
            while not (self._commands or self._stopping or self._core.driver.busy):
                self._wake.wait()
            if self._stopping:
                return False
            commands, self._commands = self._commands, deque()
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
            self._post(mailbox.loop, command.settle, error)
        else:
            self._mailboxes[request.id] = mailbox
            self._post(mailbox.loop, command.settle, None)

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
