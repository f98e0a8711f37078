"""Saves what tenants have used, where their keys are kept, and learns what other servers gave."""

from __future__ import annotations

import asyncio
import logging
import time

from tidemill.server.config import ConfigError
from tidemill.server.keys import KeyStore
from tidemill.server.quotas import Quotas

log = logging.getLogger("tidemill.server")

SAVE_SECONDS = 1.0
"""So much is forgotten at most when the server is killed."""


class UsageKeeper:
    """Brings ``quotas`` and ``store`` to the same numbers; without a store, none are kept."""

    def __init__(self, quotas: Quotas, store: KeyStore | None) -> None:
        self._quotas = quotas
        self._store = store
        self._trouble = ""
        """What the log has been told of last, so as to be told once."""

    def save(self) -> None:
        usage = self._quotas.unsaved()
        day = self._quotas.day(time.monotonic())
        try:
            totals = {} if self._store is None else self._store.add_usage(usage, day)
        except ConfigError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("what tenants have used is not saved: %s", error)
            return
        self._trouble = ""
        self._quotas.note_saved(usage, totals)

    async def run(self) -> None:
        """Until it is cancelled; ``save`` once more then, when all requests have ended."""
        while True:
            self.save()
            await asyncio.sleep(SAVE_SECONDS)
