"""A report's section on one scenario: what was asked, the figures, the pictures."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.bench.report import describe
from tidemill.bench.reporting import comparing, curves, latency, starting, tables, timeline, words
from tidemill.bench.reporting.comparing import Comparisons
from tidemill.bench.reporting.document import Block, Bullets, Paragraph, Picture, Section, Terms
from tidemill.bench.reporting.runs import Group


def section(group: Group, comparisons: Comparisons) -> Section:
    return Section(f"scenario-{group.scenario}", group.scenario, tuple(_blocks(group, comparisons)))


def _blocks(group: Group, comparisons: Comparisons) -> Iterator[Block]:
    first = group.every[0].result.scenario
    _, *lines = describe(first).splitlines()
    about = words.clean(first.summary, longest=300)
    yield Paragraph(f"{about[:1].upper()}{about[1:]}.")
    terms = dict(_named(line) for line in lines) | {"SLO": words.limits(first.slo)}
    yield Terms(tuple(terms.items()))
    yield from pictures(group)
    if any(one.result.summary is not None for one in group.runs):
        yield tables.figures(group.runs)
    if (found := tables.starts(group.runs)) is not None:
        yield found
    yield from comparing.blocks(comparisons)
    yield from (tables.points(points) for points in group.series)
    for table in (tables.shapes(group.every), tables.errors(group.every)):
        if table is not None:
            yield table
    notes = dict.fromkeys(
        f"{one.title}: {words.clean(note, longest=400)}"
        for one in group.every
        for note in one.result.notes
    )
    if notes:
        yield Bullets(tuple(notes))


def _named(line: str) -> tuple[str, str]:
    name, _, what = line.strip().partition(" ")
    return f"{name[0].upper()}{name[1:]}", words.clean(what, longest=600)


def pictures(group: Group) -> Iterator[Picture]:
    name = group.scenario
    yield from curves.rate_latency(name, group.series)
    # Of a curve's points only those are drawn one by one that it is about.
    runs = group.runs
    yield from latency.distributions(name, runs)
    yield from timeline.timelines(name, runs)
    for picture in (
        curves.pareto(f"{name}_pareto", group.every), starting.bars(f"{name}_starts", runs)
    ):  # fmt: skip
        if picture is not None:
            yield picture
