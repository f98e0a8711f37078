"""What is known of a run afterwards: a record of every request, and of the run itself."""

from __future__ import annotations

import msgspec

from tidemill.bench.tasks import Verdict

MIN_SECONDS = 0.001
"""Of a window, and of the time that a request may take: it is to be divided by."""


class Record(msgspec.Struct):
    """One request. Times are seconds of the monotonic clock.

    ``due``: when it was to be sent; ``sent``: when it was; ``times``: when each piece of its text
    came; ``ended``: when the answer was over. Numbers of tokens are the endpoint's own, None where
    it told none that can be. ``error`` is None, or of which kind (``stream.Answer``); ``detail``
    says more.
    ``warmup``: it was due before the measured window. ``index`` is the conversation's number, of
    which this was turn ``turn``. ``verdict``: of an answer that was checked.
    """

    index: int
    shape: str
    due: float
    sent: float
    ended: float
    times: list[float]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    detail: str = ""
    warmup: bool = False
    turn: int = 0
    asked: int = 0
    """Tokens that the answer could have."""
    verdict: Verdict | None = None
    text: str = ""
    """Of the answer, if it was to be kept."""

    @property
    def tokens(self) -> int:
        """Of its answer; counted in pieces where the endpoint tells nothing."""
        return len(self.times) if self.output_tokens is None else self.output_tokens


class Window(msgspec.Struct, frozen=True):
    """The part of a run that is measured, in seconds of the monotonic clock."""

    opened: float
    closed: float

    @property
    def seconds(self) -> float:
        return self.closed - self.opened


class Recording(msgspec.Struct):
    """A run. Every request that was begun has its record.

    ``client_cpu``: seconds of CPU time that this load generator took within the window; ``watched``
    those of the processes that it was told to watch, by their ids.
    """

    records: list[Record]
    window: Window
    client_cpu: float
    watched: dict[int, float] = {}

    @property
    def due(self) -> list[Record]:
        """The requests that were due in the window, in that order: those that count."""
        window = self.window
        found = [r for r in self.records if window.opened <= r.due < window.closed]
        return sorted(found, key=lambda record: record.due)
