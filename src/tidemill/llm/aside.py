"""A thread beside the engine's, for what can be done while a forward step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class AsideThread:
    """``tidemill.engine.base.Aside`` on one thread, which is started when first needed."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tidemill-aside")
        return self._executor.submit(work).result

    def close(self) -> None:
        """End the thread, once it has done what it was given."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
