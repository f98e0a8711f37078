"""Runs the server: sockets, signals, the way up and the way down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from tidemill.hardware.energy import EnergyMeters
from tidemill.hardware.scheduling import wake_promptly
from tidemill.server.app import App
from tidemill.server.config import ConfigError, ServerConfig
from tidemill.server.connection import Connection
from tidemill.server.errors import ModelUnavailable
from tidemill.server.key_stores import open_key_store
from tidemill.server.keys import Keys
from tidemill.server.metrics import Metrics
from tidemill.server.models import Models, OnStage
from tidemill.server.service import Service
from tidemill.server.threads import started_threads
from tidemill.server.tracing import start_tracing
from tidemill.server.usage import UsageKeeper

log = logging.getLogger("tidemill.server")

_KEEP_ALIVE_SECONDS = 75  # an idle connection
_BACKLOG = 2048
_OTHER_FILES = 256  # beside connections
_THREADS = 6  # that look through requests beside the loop, which is seldom more than two at once
_STORE_SECONDS = 0.1  # the server stands still while another process writes its key database


def listen(config: ServerConfig) -> socket.socket:
    """The socket of ``host`` and ``port``. Raises ConfigError if it cannot be had, or may not:
    beyond this machine a server without keys would be anybody's."""
    if not config.insecure and config.api_key_file is None and not config.is_local:
        raise ConfigError(
            f"listening on {config.host} lets other machines use this server without a key; give "
            "--api-key-file, or --insecure if that is meant"
        )
    try:
        family, *_, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}"
        ) from None
    found.setblocking(False)
    # Connections inherit it. asyncio sets it only where a socket names its protocol, as those of
    # create_server do not, and then a stream's first tokens wait for a client's delayed ACK: 40 ms.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def serve(
    config: ServerConfig,
    *,
    on_stage: OnStage | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then let what runs end; a second signal ends it at once.

    ``on_ready`` is told the address once all models are loaded. Raises ConfigError, and
    ModelUnavailable if a model that is to be loaded at start cannot be.
    """
    keys = Keys(
        None
        if config.api_key_file is None
        else open_key_store(Path(config.api_key_file), patience=_STORE_SECONDS)
    )
    tracing = start_tracing(config, os.environ)
    _allow_files(config.max_connections + _OTHER_FILES)
    with listen(config) as socket_:
        models = Models(
            config.models,
            max_waiting=config.max_waiting,
            max_loaded=config.max_loaded,
            keep_alive=config.keep_alive_seconds,
            offline=config.offline,
            several_tenants=keys.needed,
            on_stage=on_stage,
        )
        service = Service(config, models, Metrics(models, EnergyMeters()), tracing)
        usage = UsageKeeper(service.quotas, keys.store)
        wake_promptly()  # or what it passes on would wait for the cores that compute
        try:
            asyncio.run(_Run(config, App(service, keys), usage, socket_, on_ready).run())
        finally:
            service.close()
            if tracing is not None:
                tracing.close()


def _allow_files(count: int) -> None:
    """Have so many files open at once, as far as the system lets us: shells and services begin with
    1024, which so many connections would use up."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        count = min(count, most)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))


class _Uvicorn(uvicorn.Server):
    """Signals are ``_Run``'s business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Run:
    """One life of a server."""

    def __init__(
        self, config: ServerConfig, app: App, usage: UsageKeeper, socket_: socket.socket,
        on_ready: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._app = app
        self._usage = usage
        self._socket = socket_
        self._on_ready = on_ready
        self._signals = 0
        self._told = asyncio.Event()
        self._hurried = asyncio.Event()

    async def run(self) -> None:
        config, models = self._config, self._app.service.models
        limits = {
            "stall_seconds": config.stall_seconds, "max_connections": config.max_connections,
        }  # fmt: skip
        http = _Uvicorn(
            uvicorn.Config(
                self._app,
                http=type("Connection", (Connection,), limits),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
                backlog=_BACKLOG,
            )
        )
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_on_loop_error)
        loop.set_default_executor(started_threads(_THREADS))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        serving = asyncio.ensure_future(http.serve(sockets=[self._socket]))
        idle = asyncio.ensure_future(models.unload_idle())
        watching = asyncio.ensure_future(self._app.service.metrics.watch())
        usage = asyncio.ensure_future(self._usage.run())
        try:
            loaded = asyncio.ensure_future(models.load_all())
            told = asyncio.ensure_future(self._told.wait())
            await asyncio.wait({loaded, told, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                loaded.result()
                self._on_ready(self._url())
                await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
            else:
                loaded.cancel()
            await self._drain()
        finally:
            idle.cancel()
            watching.cancel()
            usage.cancel()
            http.should_exit = True
            http.force_exit = self._hurried.is_set()
            await asyncio.gather(
                models.close(), serving, idle, watching, usage, return_exceptions=True
            )
            self._usage.save()

    def _on_signal(self) -> None:
        self._signals += 1
        self._told.set()
        if self._signals > 1:
            self._hurried.set()

    async def _drain(self) -> None:
        """Let what runs end, as long as it may; nothing new is taken on."""
        app = self._app
        app.service.draining = True
        if not app.active:
            return
        log.warning(
            "shutting down: %s %g s to end (a second signal ends what is left)",
            "1 request has" if app.active == 1 else f"{app.active} requests have",
            self._config.drain_seconds,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds):
                while app.active and not self._hurried.is_set():
                    await asyncio.sleep(0.02)
        if app.active:
            log.warning("what is left is cut off: %d of them", app.active)
            self._hurried.set()

    def _url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _on_loop_error(loop: object, context: dict[str, Any]) -> None:
    # asyncio's own handler also logs the objects, which can have a prompt in them.
    log.error("%s", context["message"], exc_info=context.get("exception"))


__all__ = ["ModelUnavailable", "listen", "serve"]
