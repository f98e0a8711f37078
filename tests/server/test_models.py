"""Models that come and go while they are loaded: no worker is left behind, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tidemill.server import models as models_module
from tidemill.server.config import ModelConfig
from tidemill.server.errors import ApiError
from tidemill.server.models import LoadedModel, Models


class Worker:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result("closed")


class Loaded:
    """What stands for a LoadedModel here."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.worker = Worker()
        self.users = 0

    async def until_unused(self) -> None: ...


class Workshop(Models):
    """Models whose workers are made when ``gate`` is open; ``made`` are all there ever were."""

    def __init__(self) -> None:
        super().__init__([ModelConfig(source="m")])
        self.gate = asyncio.Event()
        self.gate.set()
        self.made: list[Loaded] = []

    async def _start(self, config: ModelConfig) -> LoadedModel:
        await self.gate.wait()
        self.made.append(Loaded(config))
        return self.made[-1]  # type: ignore[return-value]

    def running(self) -> list[Loaded]:
        return [model for model in self.made if not model.worker.ended.done()]

    def served(self) -> list[object]:
        return [entry.model for entry in self if entry.model is not None]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def killed(models: Workshop) -> asyncio.Task[Any]:
    """A model is loaded, and its worker dies. What is going to start it again, after a pause."""
    await models.get("m")
    await settle()
    (restart,) = models._tasks
    models.made[-1].worker.ended.set_result("killed")
    await settle()
    assert not restart.done()
    return restart


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "_RESTART_DELAYS", (1.0,))


@pytest.mark.usefixtures("paused")
def test_a_model_comes_back_by_itself() -> None:
    async def main() -> None:
        models = Workshop()
        await (await killed(models))
        assert models.running() == models.served() == models.made[1:]
        assert len(models.made) == 2

    run(main())


@pytest.mark.usefixtures("paused")
def test_a_model_that_is_asked_for_before_it_is_started_again_is_loaded_once() -> None:
    async def main() -> None:
        models = Workshop()
        restart = await killed(models)
        await models.get("m")
        await restart
        assert models.running() == models.served() == models.made[1:]
        assert len(models.made) == 2

    run(main())


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("gone", ["unload", "remove"])
def test_a_model_that_is_given_up_is_not_started_again(gone: str) -> None:
    async def main() -> None:
        models = Workshop()
        restart = await killed(models)
        await getattr(models, gone)("m")
        await restart
        assert models.running() == models.served() == []

    run(main())


@pytest.mark.parametrize("first", ["load", "replacement"])
def test_a_replacement_while_the_old_one_is_loaded_is_what_stays(first: str) -> None:
    async def main() -> None:
        models = Workshop()
        models.gate.clear()
        asked: list[asyncio.Task[Any]] = []
        for what in (first, "replacement" if first == "load" else "load"):
            new = ModelConfig(source="new")
            work = models.get("m") if what == "load" else models.replace("m", new)
            asked.append(asyncio.ensure_future(work))
            await settle()
        models.gate.set()
        await asyncio.gather(*asked)
        await settle()
        (running,) = models.running()
        assert models.served() == [running]
        assert running.config.source == "new"

    run(main())


def test_who_waits_for_a_model_that_is_removed_is_told() -> None:
    async def main() -> None:
        models = Workshop()
        models.gate.clear()
        asked = asyncio.ensure_future(models.get("m"))
        replacing = asyncio.ensure_future(models.replace("m", ModelConfig(source="new")))
        await settle()
        await models.remove("m")
        models.gate.set()
        for waiting in (asked, replacing):
            with pytest.raises(ApiError) as caught:
                await waiting
            assert caught.value.status == 404
        assert models.running() == []

    run(main())
