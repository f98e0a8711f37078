"""The models that are served: loaded when first asked for, replaced and unloaded while others run.

A model is a name with settings. While it is loaded it has a worker process; requests hold on to
the worker that they began with, so that a newer one can take its place: the old one is closed when
its last request has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tidemill.engine.base import Request
from tidemill.engine.params import SamplingParams
from tidemill.engine.pooling import Pooling
from tidemill.llm.loading import OpenModel, open_model
from tidemill.llm.outputs import OutputBuilder
from tidemill.llm.prompts import PreparedPrompt
from tidemill.server.admission import Admission
from tidemill.server.config import ModelConfig
from tidemill.server.errors import ApiError, ModelUnavailable
from tidemill.server.generation import Generation, Meter
from tidemill.server.prompting import Prompting
from tidemill.server.threads import on_own_thread
from tidemill.server.worker_process import WorkerProcess
from tidemill.store.base import ProgressEvent, StoreError

log = logging.getLogger("tidemill.server")

# Seconds before a worker that died is started again: at once, then longer and longer.
_RESTART_DELAYS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_WORKER_QUEUE = 1 << 16  # sequences; what may wait is decided in front of it
_STABLE_SECONDS = 60.0  # a worker that lived that long starts the delays anew

OnStage = Callable[[str, str, float], None]
"""Told (model, stage, how much of it is done) while models load."""


class LoadedModel:
    """A model with its worker, and the queue in front of it."""

    def __init__(
        self, config: ModelConfig, opened: OpenModel, worker: WorkerProcess, max_waiting: int,
        several_tenants: bool,
    ) -> None:  # fmt: skip
        self.config = config
        # Where nobody keeps a place for others, a few more than run at once: the engine finds the
        # next ones without asking.
        ahead = 0 if several_tenants else max(1, config.max_sequences // 8)
        self.admission = Admission(
            config.max_sequences + ahead, max_waiting, keeps_places=several_tenants
        )
        self.opened = opened
        self.worker = worker
        self.prompting = Prompting(opened, config.chat_template)
        self.loaded_at = time.time()
        self.last_used = time.monotonic()
        self.users = 0
        """Handlers that work with it now."""

    @contextmanager
    def in_use(self) -> Iterator[LoadedModel]:
        """While somebody works with the model it is not unloaded."""
        self.users += 1
        try:
            yield self
        finally:
            self.users -= 1
            self.last_used = time.monotonic()

    async def until_unused(self) -> None:
        while self.users:
            await asyncio.sleep(0.02)

    async def generate(
        self,
        request_id: str,
        prompt: PreparedPrompt,
        params: SamplingParams,
        *,
        priority: int,
        salt: str,
        arrival: float,
        seconds: float,
        meter: Meter,
        urgent: bool = False,
        pooling: Pooling | None = None,
    ) -> Generation:
        """Queue a request that came at ``arrival``; with ``pooling`` it is to be embedded. Raises
        RequestError, QueueFullError, ModelUnavailable."""
        request = Request(
            request_id,
            prompt.token_ids,
            params,
            priority,
            salt,
            continues_text=params.echo or not prompt.is_chat,
            urgent=urgent,
            pooling=pooling,
        )
        builder = OutputBuilder(
            request_id, prompt.text, prompt.token_ids, params, self.opened.tokenizer, arrival
        )
        mailbox = await self.worker.submit(request)
        return Generation(self.worker, request, mailbox, builder, seconds=seconds, meter=meter)


class Entry:
    """One served name: its settings, and what is loaded of it."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.created = int(time.time())
        self.model: LoadedModel | None = None
        self.loading: asyncio.Task[LoadedModel] | None = None
        self.awaited = 0
        """How many wait for it to be loaded."""
        self.deaths = 0
        self.unloaded = False
        """On purpose: it is loaded again when it is asked for."""
        self.error: str | None = None
        """Why the last load failed, if it did."""
        self.keep_alive: float | None = None
        """Seconds that it stays loaded unused, if a request has said so."""

    @property
    def state(self) -> str:
        if self.model is not None:
            return "loaded"
        return "unloaded" if self.loading is None else "loading"


class Models:
    """All served models by name."""

    def __init__(
        self,
        configs: list[ModelConfig],
        *,
        max_waiting: int = 512,
        max_loaded: int | None = None,
        keep_alive: float | None = None,
        offline: bool = False,
        several_tenants: bool = False,
        on_stage: OnStage | None = None,
    ) -> None:
        """``several_tenants``: there may be more than one, so that none gets all places."""
        self._entries: dict[str, Entry] = {}
        self._names: dict[str, str] = {}  # also aliases
        for config in configs:
            self._enter(config)
        self._max_waiting = max_waiting
        self._max_loaded = max_loaded
        self._keep_alive = keep_alive
        self._offline = offline
        self._several_tenants = several_tenants
        self._on_stage = on_stage
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._one_load = asyncio.Lock()
        """Held while a model takes memory: each plans it by what is free then, and counts those
        that are loaded."""

    # ---- asking

    def __iter__(self) -> Iterator[Entry]:
        """As there are now: some may come and go while these are gone through."""
        return iter([*self._entries.values()])

    def has(self, name: str) -> bool:
        """Whether a model is served by that name."""
        return name in self._names

    def entry(self, name: str) -> Entry:
        """Raises ApiError 404 for a name that is not served."""
        known = self._names.get(name)
        if known is None:
            raise ApiError(
                404, f"the model {name!r} is not served here", param="model",
                code="model_not_found",
            )  # fmt: skip
        return self._entries[known]

    @property
    def ready(self) -> bool:
        """Whether requests can be served now: what is to be loaded at start has been, and is not
        just being started again."""
        return all(e.model is not None for e in self if e.config.preload and not e.unloaded)

    async def get(self, name: str) -> LoadedModel:
        """The model, loaded now if need be: by one load, however many ask, which goes on when
        they leave. Raises ApiError 404, ModelUnavailable."""
        entry = self.entry(name)
        while True:
            if entry.model is not None:
                return entry.model
            loading = self._load(entry)
            entry.awaited += 1
            try:
                await asyncio.wait({loading})
            finally:
                entry.awaited -= 1
            if loading.cancelled():  # it was removed, or the server ends
                entry = self.entry(name)
            else:
                loading.result()

    # ---- changing

    async def load_all(self) -> None:
        """Load what is to be loaded at start. Raises ModelUnavailable."""
        for entry in self:
            if entry.config.preload:
                await self.get(entry.config.name)

    async def unload(self, name: str) -> None:
        """Free the model's memory once its requests have ended; new ones load it anew. One that is
        being loaded is unloaded when it has been."""
        entry = self.entry(name)
        if entry.model is None and entry.loading is not None:
            await asyncio.wait({entry.loading})
        model, entry.model = entry.model, None
        entry.unloaded, entry.keep_alive = True, None
        if model is not None:
            await self._retire(model)

    async def add(self, config: ModelConfig) -> None:
        """Serve another model, once it is loaded. Raises ApiError 409 if one of its names is
        taken, ModelUnavailable."""
        self._check_names(config, None)
        opened = await self._open(config)
        async with self._one_load:
            self._check_names(config, None)  # another may have come meanwhile
            await self._make_room(None)
            model = await self._start(config, opened)
            self._enter(config)
            self._put(self._entries[config.name], model)

    async def replace(self, name: str, config: ModelConfig) -> None:
        """Serve ``config`` under ``name``: requests that have begun end on the old model, from
        then on they go to the new one. If the new one cannot be loaded nothing changes. Raises
        ApiError 409 if one of its names is another model's, ModelUnavailable."""
        entry = self.entry(name)
        config.name = entry.config.name
        self._check_names(config, entry)
        opened = await self._open(config)
        async with self._one_load:
            fresh = await self._start(config, opened)
            try:  # whether it is still there, and nobody else has its names
                if self.entry(name) is not entry:
                    raise ApiError(409, f"{name!r} was replaced meanwhile", code="name_taken")
                self._check_names(config, entry)
            except ApiError:
                await fresh.worker.close()
                raise
            old = entry.model
            for alias in entry.config.aliases:
                self._names.pop(alias, None)
            entry.config = config
            for alias in config.aliases:
                self._names[alias] = config.name
            self._put(entry, fresh)
        if old is not None:
            self._spawn(self._end_unused(old))

    async def remove(self, name: str) -> None:
        """Serve a model no longer, under none of its names; waits until its requests have ended.
        Raises ApiError 404."""
        entry = self.entry(name)
        for known in (entry.config.name, *entry.config.aliases):
            self._names.pop(known, None)
        del self._entries[entry.config.name]
        if entry.loading is not None:
            entry.loading.cancel()
        model, entry.model = entry.model, None
        if model is not None:
            await self._retire(model)

    async def close(self) -> None:
        self._closed = True
        for task in [*self._tasks, *(e.loading for e in self if e.loading is not None)]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        models = [e.model for e in self if e.model is not None]
        await asyncio.gather(*(m.worker.close() for m in models))

    def keep_alive(self, name: str, seconds: float) -> None:
        """Keep the model, if it is loaded, for so long when nobody uses it (infinite: for ever)
        instead of what the settings say, which hold again once it has been unloaded. A pinned one
        stays anyway. Raises ApiError 404."""
        entry = self.entry(name)
        if entry.model is not None:
            entry.keep_alive = seconds

    def seconds_left(self, entry: Entry) -> float:
        """After how long a loaded model is unloaded if nobody uses it from now on."""
        keep = self._keep_alive if entry.keep_alive is None else entry.keep_alive
        if keep is None or entry.config.pinned or entry.model is None:
            return math.inf
        idle = 0.0 if entry.model.users else time.monotonic() - entry.model.last_used
        return keep - idle

    async def unload_idle(self) -> None:
        """Unload what nobody has used for a while; runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(1.0, (self._keep_alive or 2.0) / 2))
            for entry in self:
                if entry.model is None or entry.model.users or self.seconds_left(entry) > 0:
                    continue
                log.info("unloading %s, idle", entry.config.name)
                await self.unload(entry.config.name)

    def _check_names(self, config: ModelConfig, own: Entry | None) -> None:
        for name in (config.name, *config.aliases):
            taken = self._names.get(name)
            if taken is not None and self._entries[taken] is not own:
                raise ApiError(
                    409, f"a model is called {name!r} already", param="name", code="name_taken"
                )

    def _put(self, entry: Entry, model: LoadedModel) -> None:
        """``model`` is what ``entry`` serves from now on."""
        entry.model = model
        entry.error, entry.unloaded = None, False
        self._spawn(self._revive(entry, model))

    def _enter(self, config: ModelConfig) -> None:
        self._entries[config.name] = Entry(config)
        for name in (config.name, *config.aliases):
            self._names[name] = config.name

    def _load(self, entry: Entry) -> asyncio.Task[LoadedModel]:
        if self._closed:
            raise ModelUnavailable("the server is shutting down")
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._loaded(entry))
            # A failure that nobody waits for any more is in entry.error and the log.
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.loading

    async def _loaded(self, entry: Entry) -> LoadedModel:
        try:
            opened = await self._open(entry.config)
            async with self._one_load:
                if entry.model is not None:  # replaced meanwhile
                    return entry.model
                await self._make_room(entry)
                model = await self._start(entry.config, opened)
                self._put(entry, model)
                return model
        except ModelUnavailable as error:
            entry.error = str(error)
            log.error("%s", error)
            raise
        finally:
            entry.loading = None

    async def _make_room(self, wanted: Entry | None) -> None:
        """Unload the model that has been idle for longest, where there are too many."""
        if self._max_loaded is None:
            return
        while True:
            loaded = [e for e in self if e.model is not None and e is not wanted]
            if len(loaded) < self._max_loaded:
                return
            candidates = [e for e in loaded if not e.config.pinned]
            if not candidates:
                raise ModelUnavailable(
                    f"{self._max_loaded} models may be loaded (max_loaded), and those that are "
                    "are pinned"
                )
            oldest = min(candidates, key=_in_use)
            if oldest.awaited and oldest.loading is None:
                await asyncio.sleep(0)  # it has just been loaded, and they are about to use it
                continue
            log.info("unloading %s to make room for another", oldest.config.name)
            await self.unload(oldest.config.name)

    async def _open(self, config: ModelConfig) -> OpenModel:
        """The model's files, fetched if need be. Raises ModelUnavailable."""
        log.info("%s: loading", config.name)
        given_up = False

        def go_on(event: ProgressEvent) -> None:
            if given_up:
                raise StoreError("nobody waits for this model any more")

        with _telling(config):
            try:
                return await on_own_thread(
                    partial(
                        open_model,
                        config.source,
                        max_context=config.max_context,
                        pre_tokenizer=config.pre_tokenizer,
                        offline=self._offline or None,
                        progress=go_on,
                    )
                )
            finally:
                given_up = True

    async def _start(self, config: ModelConfig, opened: OpenModel) -> LoadedModel:
        """Raises ModelUnavailable."""

        def on_stage(stage: str, fraction: float) -> None:
            if self._on_stage is not None:
                self._on_stage(config.name, stage, fraction)

        with _telling(config):
            # The first long text takes a tokenizer most of a second: not that of a request.
            warming = asyncio.ensure_future(
                asyncio.to_thread(opened.tokenizer.encode, "much text " * 1000)
            )
            options = {**config.load_options(), "max_waiting": _WORKER_QUEUE}
            worker = await WorkerProcess.start(opened.path, options, on_stage)
        log.info("%s: loaded in process %d; %s", config.name, worker.pid, worker.info["threads"])
        try:
            await warming
            return LoadedModel(config, opened, worker, self._max_waiting, self._several_tenants)
        except BaseException:
            await worker.close()
            raise

    async def _revive(self, entry: Entry, model: LoadedModel) -> None:
        """Start a model again whose worker has died."""
        born = time.monotonic()
        reason = await asyncio.shield(model.worker.ended)
        if entry.model is not model or self._closed:
            return  # it was unloaded or replaced
        entry.model = None
        entry.deaths = 0 if time.monotonic() - born > _STABLE_SECONDS else entry.deaths
        delay = _RESTART_DELAYS[min(entry.deaths, len(_RESTART_DELAYS) - 1)]
        entry.deaths += 1
        log.error("%s: %s", entry.config.name, reason)
        await asyncio.sleep(delay)
        if self._closed or entry.unloaded or self._entries.get(entry.config.name) is not entry:
            return
        try:
            await self.get(entry.config.name)  # which somebody may have loaded meanwhile
        except (ApiError, ModelUnavailable):
            return  # it was removed, or the next request tries again

    async def _retire(self, model: LoadedModel) -> None:
        """End a model's worker once it is unused: also if whoever waits for that leaves, as nobody
        else has the model any more."""
        await asyncio.shield(self._spawn(self._end_unused(model)))

    async def _end_unused(self, model: LoadedModel) -> None:
        await model.until_unused()
        await model.worker.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _in_use(entry: Entry) -> tuple[bool, float]:
    """For sorting: who is used, or was last, comes last."""
    return (bool(entry.model.users), entry.model.last_used) if entry.model else (False, 0.0)


@contextmanager
def _telling(config: ModelConfig) -> Iterator[None]:
    """What keeps a model from being loaded is told with its name: as ModelUnavailable."""
    try:
        yield
    except (OSError, MemoryError, ValueError, ModelUnavailable) as error:
        raise ModelUnavailable(f"{config.name} cannot be loaded: {error}") from error
