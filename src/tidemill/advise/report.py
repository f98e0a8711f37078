"""The advice as a report."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.advise import reasons
from tidemill.advise.advice import Advice, Candidate, Choice
from tidemill.advise.answers import in_words
from tidemill.advise.facts import CLASSES, MAX_AGE, Engine
from tidemill.advise.flips import Decision, Flip, Flips
from tidemill.advise.questions import QUESTIONS
from tidemill.advise.scores import DIMENSIONS
from tidemill.presentation.document import Bars, Block, Bullets, Command, Heading, Paragraph, Table

_PLACES = {"servers": "on the servers", "edge": "at the edge"}


def blocks(advice: Advice, flips: Flips) -> list[Block]:
    """The whole report."""
    made: list[Block] = [Heading("Which inference engine, for this case", 1), _summary(advice)]
    for choice in advice.choices:
        made += _choice(advice, choice)
    made += _flips(advice, flips)
    made += _numbers(advice)
    made += _answers(advice)
    made += _sources(advice)
    return made


def _summary(advice: Advice) -> Paragraph:
    named = [
        f"{_named(choice.chosen)} {_PLACES[choice.part.place]}"
        f" ({CLASSES[choice.part.engine_class]})"
        for choice in advice.choices
    ]
    kind = "A hybrid: " if advice.plan.hybrid else "Recommended: "
    return Paragraph(kind + ", and ".join(named) + ".")


def _named(candidate: Candidate | None) -> str:
    if candidate is None:
        return "no engine that is known"
    doubt = "" if candidate.status == "qualified" else " (unproven)"
    return candidate.engine.name + doubt


def _choice(advice: Advice, choice: Choice) -> Iterator[Block]:
    place = _PLACES[choice.part.place]
    yield Heading(f"{_named(choice.chosen)}, {place}")
    if choice.chosen is not None:
        engine = choice.chosen.engine
        yield Paragraph(f"{engine.summary} {engine.homepage}")
    yield Bullets(tuple(reasons.of(choice, advice.answers)))
    yield from _commands(choice)
    yield from _components(choice)
    yield from _scores(advice, choice)
    yield from _others(choice)
    if choice.risks:
        yield Heading("Risks", 3)
        yield Bullets(choice.risks)
    yield Heading("What to measure next", 3)
    for step in choice.steps:
        yield Bullets((step.text,))
        if step.command:
            yield Command(step.command)


def _commands(choice: Choice) -> Iterator[Block]:
    made = choice.commands
    yield Heading("Configuration", 3)
    if made is None:
        yield Paragraph("There is no command for it: it is a library, or no engine was found.")
        return
    yield Command(made.install)
    if made.prepare:
        yield Command("\n".join(made.prepare))
    if made.start:
        yield Command(made.start)
    told = f"It answers at {made.url}." if made.url else ""
    source = f"The options are from {made.source}."
    yield Paragraph(" ".join(text for text in (told, made.note, source) if text))


def _components(choice: Choice) -> Iterator[Block]:
    if not choice.part.component:
        return
    yield Heading("Optimisation component", 3)
    fit = [c.engine.name for c in choice.components if c.status == "qualified"]
    if fit:
        yield Paragraph(
            f"For the measured bottleneck: {' or '.join(fit)}. The command above has the first."
        )
    else:
        yield Paragraph("None is known to fit both the bottleneck and the engine.")
    yield Table(
        ("component", "status", "why"),
        tuple(
            (c.engine.name, c.status, "; ".join(v.reason for v in c.verdicts) or c.engine.summary)
            for c in choice.components
        ),
    )


def _scores(advice: Advice, choice: Choice) -> Iterator[Block]:
    scored = [c for c in choice.candidates if c.score is not None]
    if not scored:
        return
    weights = ", ".join(f"{name} {advice.weights[name]:g}" for name in DIMENSIONS)
    yield Heading(f"Scores (weights: {weights})", 3)
    yield Bars(
        ("engine", "total", *DIMENSIONS),
        tuple(
            (_named(c), (c.score.total, *(c.score.shares[name].value for name in DIMENSIONS)))
            for c in scored
            if c.score is not None
        ),
    )
    chosen = choice.chosen
    if chosen is not None and chosen.score is not None:
        lines = []
        for name in DIMENSIONS:
            # The scores of the others may come from something else: a measurement is said.
            bases = {c.engine.name: c.score.shares[name].basis for c in scored if c.score}
            common = bases.pop(chosen.engine.name)
            differs = [f"{n}: {basis}" for n, basis in bases.items() if basis != common]
            lines.append(f"{name} is from {'; '.join([common, *differs])}")
            met = {True: "yes", False: "no", None: "not known"}
            criteria = chosen.score.shares[name].criteria
            lines.append(
                f"{name} of {chosen.engine.name}: "
                + ", ".join(f"{c.text}: {met[c.met]}" for c in criteria)
            )
        yield Bullets(tuple(lines))


def _others(choice: Choice) -> Iterator[Block]:
    others = [c for c in choice.candidates if c is not choice.chosen]
    yield Heading("The others, and why not", 3)
    rows = []
    for c in others:
        if c.status == "qualified":
            assert c.score is not None
            why = f"passes every rule; its score is {c.score.total:.2f}"
        elif c.status == "unproven":
            why = "not rejected, but open: " + "; ".join(v.reason for v in c.verdicts)
        else:
            why = "; ".join(f"{v.rule}: {v.reason}" for v in c.verdicts)
        rows.append((c.engine.name, c.status, why))
    yield Table(("engine", "status", "rule or number"), tuple(rows))


def _flips(advice: Advice, flips: Flips) -> Iterator[Block]:
    yield Heading("What would change the decision")
    sizes = [c.size for choice in advice.choices for c in choice.candidates if c.size is not None]
    yield Paragraph(
        f"Found by deciding {flips.tried} variations of the answers, one changed at a time."
        + (" Sizes and costs were not computed for these." if sizes else "")
    )
    if flips.flips:
        yield Table(
            ("answer", "now", "changed to", "then"),
            tuple(
                (key, before, after + (f", with {with_it}" if with_it else ""), _decided(decision))
                for key, before, after, with_it, decision in _grouped(flips.flips)
            ),
        )
    else:
        yield Paragraph("Nothing did.")
    yield Paragraph(f"No change by itself: {', '.join(flips.without_effect)}.")


def _grouped(flips: tuple[Flip, ...]) -> list[tuple[str, str, str, str, Decision]]:
    """Values of one answer that lead to the same decision, in one row."""
    groups: dict[tuple[str, str, str, Decision], list[str]] = {}
    for flip in flips:
        key = (flip.key, flip.before, flip.with_it, flip.decision)
        groups.setdefault(key, []).append(flip.after)
    return [
        (key, before, " or ".join(after), with_it, decision)
        for (key, before, with_it, decision), after in groups.items()
    ]


def _decided(decision: Decision) -> str:
    return "; ".join(f"{engine} ({what})" for what, engine in decision)


def _numbers(advice: Advice) -> Iterator[Block]:
    yield Heading("Numbers, and where they come from")
    rows = []
    for choice in advice.choices:
        for name, number in choice.numbers.items():
            figure = f"{number.value:.4g} {number.unit}"
            row = (name, figure, number.origin, number.source)
            if row not in rows:
                rows.append(row)
    if rows:
        yield Table(("figure", "value", "origin", "source"), tuple(rows))
    if advice.absent:
        yield Paragraph("Not there, and so not used:")
        yield Bullets(advice.absent)


def _answers(advice: Advice) -> Iterator[Block]:
    yield Heading("The answers")
    assumed = set(advice.answers.assumed)
    yield Table(
        ("answer", "value"),
        tuple(
            (q.key, in_words(advice.answers.get(q)) + (" (assumed)" if q.key in assumed else ""))
            for q in QUESTIONS
        ),
    )


def _sources(advice: Advice) -> Iterator[Block]:
    yield Heading("Sources")
    for engine in _chosen(advice):
        yield Paragraph(f"{engine.name}:")
        yield Bullets(tuple(f"{s.url} (looked up {s.looked_up})" for s in engine.sources()))
    if advice.stale:
        named = [
            f"{engine.name} ({', '.join(advice.stale[engine.id])})"
            for engine in _chosen(advice)
            if engine.id in advice.stale
        ]
        others = len(advice.stale) - len(named)
        told = [f"of {' and '.join(named)}"] if named else []
        told += [f"of {others} other engines"] if others else []
        yield Paragraph(
            f"Old facts, to be looked up again: {', and '.join(told)}. "
            "`tidemill advise --check-facts` shows them."
        )


def _chosen(advice: Advice) -> list[Engine]:
    found = {c.chosen.engine.id: c.chosen.engine for c in advice.choices if c.chosen is not None}
    return list(found.values())


# ---- as data -----------------------------------------------------------------------------------


def as_data(advice: Advice, flips: Flips) -> dict[str, Any]:
    """The same for programs, as JSON takes it."""
    return {
        "answers": {q.key: advice.answers.get(q) for q in QUESTIONS},
        "assumed": advice.answers.assumed,
        "weights": dict(advice.weights),
        "hybrid": advice.plan.hybrid,
        "parts": [_part(advice, choice) for choice in advice.choices],
        "flips": {
            "tried": flips.tried,
            "found": [
                {
                    "answer": flip.key,
                    "now": flip.before,
                    "changed_to": flip.after,
                    "with": flip.with_it or None,
                    "then": [{"part": what, "engine": engine} for what, engine in flip.decision],
                }
                for flip in flips.flips
            ],
            "without_effect": flips.without_effect,
        },
        "absent": advice.absent,
        "stale": advice.stale,
    }


def _part(advice: Advice, choice: Choice) -> dict[str, Any]:
    made = choice.commands
    return {
        "class": choice.part.engine_class,
        "place": choice.part.place,
        "engine": choice.chosen.engine.id if choice.chosen else None,
        "proven": choice.proven,
        "component": choice.component.engine.id if choice.component else None,
        "reasons": reasons.of(choice, advice.answers),
        "commands": None
        if made is None
        else {
            "install": made.install,
            "prepare": made.prepare,
            "start": made.start,
            "url": made.url,
            "note": made.note,
            "source": made.source,
        },
        "candidates": [_candidate(c) for c in choice.candidates],
        "components": [_candidate(c) for c in choice.components],
        "risks": choice.risks,
        "numbers": {
            name: {"value": n.value, "unit": n.unit, "origin": n.origin, "source": n.source}
            for name, n in choice.numbers.items()
        },
        "next": [{"text": step.text, "command": step.command or None} for step in choice.steps],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    score = candidate.score
    return {
        "engine": candidate.engine.id,
        "status": candidate.status,
        "why": [{"rule": v.rule, "reason": v.reason} for v in candidate.verdicts],
        "score": None
        if score is None
        else {
            "total": score.total,
            **{
                name: {
                    "value": share.value,
                    "basis": share.basis,
                    "criteria": {c.text: c.met for c in share.criteria},
                }
                for name, share in score.shares.items()
            },
        },
    }


# ---- the age of facts --------------------------------------------------------------------------


def facts_blocks(
    engines: Mapping[str, Engine], today: datetime.date, max_age: int = MAX_AGE
) -> list[Block]:
    """What is known of each engine, when it was looked up, and what is old."""
    rows = []
    for engine in engines.values():
        ages = [fact.source.age(today) for fact in engine.facts.values()]
        stale = engine.stale(today, max_age)
        rows.append(
            (
                engine.id,
                str(len(engine.facts)),
                str(max(ages, default=0)),
                f"old: {', '.join(stale)}" if stale else "all within the limit",
            )
        )
    total = sum(len(engine.facts) for engine in engines.values())
    stale_total = sum(len(engine.stale(today, max_age)) for engine in engines.values())
    return [
        Paragraph(
            f"{len(engines)} engines, {total} facts, {stale_total} looked up more than {max_age} "
            f"days before {today}."
        ),
        Table(("engine", "facts", "oldest, days", "state"), tuple(rows)),
    ]
