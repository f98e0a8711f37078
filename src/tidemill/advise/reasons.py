"""Why an engine was chosen, in plain words."""

from __future__ import annotations

from tidemill.advise.advice import Candidate, Choice
from tidemill.advise.answers import Answers
from tidemill.advise.facts import CLASSES, FORMATS, HARDWARE
from tidemill.advise.flow import hardware_of

# Scores nearer than this say nothing about which of two is better.
TIE = 0.03


def of(choice: Choice, answers: Answers) -> list[str]:
    """From the class to the engine, and against the next best."""
    part = choice.part
    found = [f"Class: {CLASSES[part.engine_class]}, because {part.why}."]
    chosen = choice.chosen
    if chosen is None:
        return [*found, "Every engine known fails a rule; see below what rejected each."]
    engine = chosen.engine
    if choice.proven:
        runs = [
            HARDWARE[kind] for kind in hardware_of(part, answers) if engine.has("hardware", kind)
        ]
        reads = FORMATS[answers.format]
        how = "reads" if engine.has("formats", answers.format) else "takes the model converted from"
        found.append(
            f"{engine.name} passes every rule: it runs on {', '.join(runs)}, {how} {reads}, and it "
            f"has the architecture {answers.architecture}."
        )
    else:
        found.append(
            f"No engine passes every rule by what is known. {engine.name} comes nearest: no rule "
            "rejects it, and this has to be found out first: "
            + "; ".join(verdict.reason for verdict in chosen.verdicts) + "."
        )  # fmt: skip
    ranked = [c for c in choice.ranked(chosen.status) if c is not chosen]
    if ranked:
        found.append(_against(chosen, ranked[0]))
    elif choice.proven:
        found.append("No other engine passes every rule.")
    return found


def _against(chosen: Candidate, other: Candidate) -> str:
    assert chosen.score is not None
    assert other.score is not None
    ahead, behind = _differences(chosen, other), _differences(other, chosen)
    text = (
        f"Next best: {other.engine.name}, {other.score.total:.2f} against {chosen.score.total:.2f}."
    )
    if ahead:
        text += f" For {chosen.engine.name} speaks: {', '.join(ahead)}."
    if behind:
        text += f" For {other.engine.name}: {', '.join(behind)}."
    if chosen.score.total - other.score.total < TIE:
        text += " So near that only a measurement can tell them apart."
    return text


def _differences(one: Candidate, other: Candidate) -> list[str]:
    """What ``one`` is known to have, and ``other`` is not."""
    assert one.score is not None
    assert other.score is not None
    found = []
    for name, share in one.score.shares.items():
        if share.basis.startswith("measured"):
            found.append(f"{name} {share.basis}")
            continue
        theirs = {c.text: c.met for c in other.score.shares[name].criteria}
        found += [c.text for c in share.criteria if c.met and not theirs.get(c.text)]
    return found
