"""What is in a report, from the first line to the last."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.bench.reporting import appendix, scenarios, summary, words
from tidemill.bench.reporting.comparing import Comparisons
from tidemill.bench.reporting.document import Document
from tidemill.bench.reporting.runs import Group, group, who
from tidemill.bench.result import Measurement


def document(runs: Sequence[Measurement]) -> Document:
    """A report on runs; with none it says how to get some."""
    groups = group(runs)
    compared = [(one, Comparisons(one)) for one in groups]
    if not groups:
        return Document("Inference servers, measured", "Nothing was measured.", summary.nothing())
    return Document(
        "Inference servers, measured", _subtitle(groups),
        (
            *summary.blocks(compared),
            *(scenarios.section(*pair) for pair in compared),
            appendix.definitions([one for _, one in compared]),
            appendix.reproduction(groups),
            appendix.sources(groups),
        ),
    )  # fmt: skip


def _subtitle(groups: Sequence[Group]) -> str:
    """What it is about; without the time at which it was made, as the runs have their own."""
    every = [one for one_group in groups for one in one_group.every]
    targets = sorted({who(one.result) for one in every})
    whom = words.listed(targets) if len(targets) <= 4 else f"{len(targets)} targets"
    times = sorted(words.moment(one.result.when) for one in every)
    when = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    return (
        f"{whom}, on {words.count(len(groups), 'scenario')}: {words.count(len(every), 'run')}, "
        f"measured {when} UTC"
    )
