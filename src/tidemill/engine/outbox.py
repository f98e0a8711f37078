"""Events on their way out of the engine, a step's together."""

from __future__ import annotations

from dataclasses import replace

from tidemill.engine.base import Event, FinishEvent, FinishReason, TokenEvent
from tidemill.engine.sequence import Group, Sequence


class Outbox:
    """What is to be told. Of samples that are ranked in the end (best_of) events wait in their
    group until it is known which of them count."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def add(self, event: Event) -> None:
        """Of a request, whatever becomes of its samples."""
        self._events.append(event)

    def tell(self, sequence: Sequence, event: TokenEvent | FinishEvent) -> None:
        """Of one sample."""
        held = sequence.group.held
        (self._events if held is None else held[sequence.index]).append(event)

    def finish(
        self, sequence: Sequence, reason: FinishReason, text: str, stop_reason: int | str | None
    ) -> None:
        """A sample has ended."""
        group = sequence.group
        total = sequence.cumulative_logprob if group.params.wants_logprobs else None
        self.tell(
            sequence,
            FinishEvent(
                group.request.id, sequence.index, reason, text, stop_reason, total,
                sequence.drafted, sequence.accepted,
            ),
        )  # fmt: skip

    def abort(self, group: Group) -> None:
        """A request was dropped: its samples end, as far as they had not been told to."""
        if group.held is not None:
            unfinished = list(range(group.params.n))
        else:
            done = {s.index for s in group.samples if s.finished}
            unfinished = [i for i in range(group.params.n_samples) if i not in done]
        self._events += [FinishEvent(group.request.id, i, "abort") for i in unfinished]

    def release_best(self, group: Group) -> None:
        """Tell of the n best samples, by mean log-probability per token, once all are done."""
        if group.held is None:
            return
        ranking = sorted(
            group.samples, key=lambda s: (-s.cumulative_logprob / max(1, s.n_output), s.index)
        )
        for index, sample in enumerate(ranking[: group.params.n]):
            self._events += [replace(event, index=index) for event in group.held[sample.index]]
