"""The decision flow: from what a case is like to the classes of engine that it needs.

In the order of the guides that this follows: high peak concurrency and latency-sensitive, then a
high-throughput serving engine, with an optimisation component on top once a bottleneck has been
measured. The edge, or data that must stay local: a lightweight local engine. Validating a model, or
a small team: the same. Otherwise a serving engine, with room to grow. A case that is both central
and at the edge gets a plan for each.
"""

from __future__ import annotations

from typing import Literal

from tidemill.advise.answers import Answers
from tidemill.advise.facts import EngineClass
from tidemill.records import dataclass

Place = Literal["servers", "edge"]

# Requests in flight from which a case counts as one of high concurrency. A threshold of ours, not a
# measurement: with the advice it is said from which load on the decision would be another.
HIGH_CONCURRENCY = 32


@dataclass(frozen=True, slots=True)
class Traits:
    """What the flow asks of a case."""

    high_concurrency: bool
    latency_sensitive: bool
    bottleneck: bool
    central: bool
    edge: bool
    stays_local: bool
    validating: bool
    small_team: bool


@dataclass(frozen=True, slots=True)
class Part:
    """An engine to be chosen: of which class, and where it runs."""

    engine_class: EngineClass
    place: Place
    component: bool
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is needed: one part, or two for a hybrid."""

    parts: tuple[Part, ...]

    @property
    def hybrid(self) -> bool:
        return len(self.parts) > 1


def hardware_of(part: Part, answers: Answers) -> tuple[str, ...]:
    """The kinds of hardware at the part's place."""
    return answers.servers if part.place == "servers" else answers.edge


def gpus_of(part: Part, answers: Answers) -> int:
    """GPUs of one machine there; of the edge no number is asked."""
    return answers.gpus if part.place == "servers" else 0


def in_flight(part: Part, answers: Answers) -> int:
    """Requests at once that one instance has to take. In a hybrid a device at the edge has one
    user; the load that was answered is the servers'."""
    at_edge_of_hybrid = part.place == "edge" and bool(answers.servers)
    return 1 if at_edge_of_hybrid else answers.peak_concurrency


def traits(answers: Answers) -> Traits:
    """The case as the flow sees it."""
    return Traits(
        high_concurrency=answers.peak_concurrency >= HIGH_CONCURRENCY,
        latency_sensitive=answers.latency == "interactive",
        bottleneck=answers.bottleneck != "none",
        central=bool(answers.servers),
        edge=bool(answers.edge),
        stays_local=answers.stays_local,
        validating=answers.stage in ("trying", "tuning"),
        small_team=answers.operations != "dedicated",
    )


def choose(case: Traits) -> Plan:
    """The decision flow."""
    component = case.high_concurrency and case.latency_sensitive and case.bottleneck
    serving: EngineClass = "serving"
    local: EngineClass = "local"

    if case.central and case.edge:
        why = "the servers carry the load that the edge cannot"
        at_edge = "what runs at the edge has an engine of its own there"
        return Plan((Part(serving, "servers", component, why), Part(local, "edge", False, at_edge)))

    place: Place = "servers" if case.central else "edge"
    if case.high_concurrency and case.latency_sensitive:
        why = "many requests at once, and people wait for each"
        return Plan((Part(serving, place, component, why),))
    if case.edge:
        return Plan((Part(local, place, False, "it runs at the edge"),))
    if case.stays_local:
        return Plan((Part(local, place, False, "data must stay on your own machines"),))
    if case.validating:
        return Plan((Part(local, place, False, "what is to be shown first is the model"),))
    if case.small_team:
        return Plan((Part(local, place, False, "a small team keeps it running"),))
    return Plan((Part(serving, place, False, "a team for it, and room to grow"),))
