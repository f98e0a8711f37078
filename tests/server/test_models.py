"""Models that come and go while they are loaded: no worker is left behind, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tidemill.llm.loading import OpenModel
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
        self.last_used = 0.0
        self.unused = asyncio.Event()
        self.unused.set()

    async def until_unused(self) -> None:
        await self.unused.wait()


class Workshop(Models):
    """Models whose workers are made when ``gate`` is open; ``made`` are all there ever were, and
    ``most`` is how many there were at once, those included that are being made."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__([ModelConfig(source=name) for name in names or ("m",)], **options)
        self.gate = asyncio.Event()
        self.gate.set()
        self.made: list[Loaded] = []
        self.most = 0
        self._making = 0

    async def _open(self, config: ModelConfig) -> OpenModel:
        return None  # type: ignore[return-value]

    async def _start(self, config: ModelConfig, opened: OpenModel) -> LoadedModel:
        self._making += 1
        self.most = max(self.most, self._making + len(self.running()))
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self._making -= 1
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
    """A model is loaded, and its worker dies. What is going to start it again, after a pause; or
    has, where this process stood still meanwhile, which makes no difference to what is to hold."""
    await models.get("m")
    await settle()
    (restart,) = models._tasks
    models.made[-1].worker.ended.set_result("killed")
    await settle()
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


def test_what_is_being_loaded_is_unloaded_once_it_has_been() -> None:
    async def main() -> None:
        models = Workshop()
        models.gate.clear()
        asked = asyncio.ensure_future(models.get("m"))
        await settle()
        unloading = asyncio.ensure_future(models.unload("m"))
        await settle()
        assert not unloading.done()
        models.gate.set()
        await asyncio.gather(asked, unloading)
        assert models.running() == models.served() == []
        assert len(models.made) == 1

    run(main())


@pytest.mark.parametrize("max_loaded", [1, 2])
def test_no_more_are_loaded_than_may_be_however_many_come_at_once(max_loaded: int) -> None:
    async def main() -> None:
        models = Workshop("a", "b", "c", max_loaded=max_loaded)
        for _ in range(3):
            asked = [models.get(name) for name in ("a", "b", "c", "b")]
            await asyncio.gather(*asked)
        await models.add(ModelConfig(source="d"))
        assert models.most == max_loaded
        assert len(models.running()) == len(models.served()) == max_loaded

    run(main())


def test_who_is_in_use_makes_room_last() -> None:
    async def main() -> None:
        models = Workshop("a", "b", "c", max_loaded=2)
        used, idle = await models.get("a"), await models.get("b")
        used.users, idle.last_used = 1, 5.0
        await models.get("c")
        assert [model.config.name for model in models.running()] == ["a", "c"]

    run(main())


def test_names_stay_one_models_when_replacements_and_new_ones_come_at_once() -> None:
    async def main() -> None:
        models = Workshop("a", "b")
        models.gate.clear()
        alias = {"aliases": ["same"]}
        asked = [
            models.replace("a", ModelConfig(source="x", **alias)),
            models.replace("b", ModelConfig(source="y", **alias)),
            models.add(ModelConfig(source="same")),
        ]
        waiting = asyncio.gather(*asked, return_exceptions=True)
        await settle()
        models.gate.set()
        done = await waiting
        refused = [error for error in done if isinstance(error, ApiError)]
        assert [error.status for error in refused] == [409, 409]
        assert len(models.running()) == len(models.served()) == 1

    run(main())


def test_models_that_come_and_go_while_idle_ones_are_unloaded() -> None:
    """They are still unloaded after that."""

    async def main() -> None:
        models = Workshop("a", "b", keep_alive=0.01)
        first = await models.get("a")
        await models.get("b")
        first.unused.clear()
        watching = asyncio.ensure_future(models.unload_idle())
        while models.entry("a").model is not None:
            await asyncio.sleep(0.01)
        await models.remove("b")
        await models.add(ModelConfig(source="c"))
        first.unused.set()
        while models.running():
            await asyncio.sleep(0.01)
        assert not watching.done()
        watching.cancel()

    run(main())
