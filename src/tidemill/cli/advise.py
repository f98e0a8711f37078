"""``tidemill advise``: which engine, in which configuration, for a case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.blocks import echo_blocks, echo_json
from tidemill.cli.options import price_option, read_text

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping

    from tidemill.advise.advice import Advice
    from tidemill.advise.answers import Answers
    from tidemill.advise.evidence import Evidence
    from tidemill.advise.facts import Engine
    from tidemill.advise.flips import Flips
    from tidemill.advise.page import Report
    from tidemill.advise.scores import Dimension


@click.command()
@click.option(
    "--answers", "answers_file", metavar="FILE",
    help="Take the answers from a TOML file (-: stdin), and ask nothing.",
)  # fmt: skip
@click.option(
    "--write-answers", metavar="FILE",
    help="Keep the answers in a TOML file (-: stdout), with the questions in it; with - or "
    "--defaults there is no report.",
)  # fmt: skip
@click.option("--defaults", is_flag=True, help="Ask nothing: what is not answered is assumed.")
@click.option(
    "--weights", metavar="NAME=X,...",
    help="How much performance, cost and ecosystem count. [default: performance=0.4,cost=0.3,"
    "ecosystem=0.3]",
)  # fmt: skip
@price_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", is_flag=True, help="The report as Markdown.")
@click.option("--page", is_flag=True, help="Ask on a page in the browser, and answer there.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=0,
    help="Of the page, on this machine alone. [default: any free one]",
)  # fmt: skip
@click.option(
    "--check-facts", is_flag=True,
    help="Show when the facts were looked up; exits with 1 if some are too old.",
)  # fmt: skip
@click.option(
    "--max-age", type=click.IntRange(0, 36500), metavar="DAYS",
    help="Age from which a fact is old. [default: 180]",
)  # fmt: skip
def advise(
    answers_file: str | None,
    write_answers: str | None,
    defaults: bool,
    weights: str | None,
    prices: tuple[tuple[str, float], ...],
    as_json: bool,
    markdown: bool,
    page: bool,
    port: int,
    check_facts: bool,
    max_age: int | None,
) -> None:
    """Recommend an inference engine and its configuration, with reasons.

    Asks about load, hardware, operations, model, data, budget and stage, and judges twenty engines
    and components, Tidemill among them, by the same rules over dated, sourced facts. Nothing is
    downloaded or started.
    """
    if as_json and markdown:
        raise click.UsageError("--json or --markdown, not both")
    if page and (as_json or markdown or defaults or write_answers is not None or check_facts):
        raise click.UsageError("--page takes --answers, --weights, --max-age and --port only")
    if port and not page:
        raise click.UsageError("--port is for --page")
    from tidemill.advise.facts import MAX_AGE, load_engines

    engines = load_engines()
    limit = MAX_AGE if max_age is None else max_age
    if check_facts:
        _check_facts(engines, limit, as_json=as_json, markdown=markdown)
        return
    from tidemill.advise import scores

    try:
        shares = scores.WEIGHTS if weights is None else scores.parse_weights(weights)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--weights") from None
    candidates = tuple(id for id, engine in engines.items() if "component" not in engine.classes)
    from tidemill.advise import flips, report
    from tidemill.advise.advice import advise as advise_on
    from tidemill.advise.evidence import Evidence
    from tidemill.store import load_catalogue

    def decided(answers: Answers, shares: Mapping[Dimension, float]) -> tuple[Advice, Flips]:
        evidence = _evidence(dict(prices))
        advice = advise_on(
            answers, engines, today=_today(), evidence=evidence, weights=shares, max_age=limit,
            catalogue=load_catalogue(),
        )  # fmt: skip
        # A simulation for each of two hundred variations would cost minutes; the report says so.
        varied = Evidence(measured=evidence.measured)
        return advice, flips.find(answers, engines, varied, shares)

    if page:
        answers = _answers(answers_file, answers_file is None, candidates)
        _serve(
            answers, shares, candidates, lambda case, by: report.blocks(*decided(case, by)), port
        )
        return
    if write_answers not in (None, "-"):
        with open(str(write_answers), "ab"):  # can it be written? Better known before the questions
            pass
    answers = _answers(answers_file, defaults, candidates)
    if write_answers is not None:
        from tidemill.advise.answers import write

        if write_answers == "-":
            click.echo(write(answers), nl=False)
            return
        Path(write_answers).write_text(write(answers), "utf-8")
        if defaults and answers_file is None:
            click.echo(f"{write_answers}: written, to be filled in", err=True)
            return
    advice, found = decided(answers, shares)
    if as_json:
        echo_json(report.as_data(advice, found))
    else:
        echo_blocks(report.blocks(advice, found), markdown=markdown)


def _evidence(prices: Mapping[str, float]) -> Evidence:
    """What was measured here before, and what simulations say."""
    from tidemill.advise.evidence import Evidence
    from tidemill.bench.store import MissingDuckDB
    from tidemill.cli.bench_results import open_store
    from tidemill.cli.kept_results import KeptResults
    from tidemill.cli.simulated_sizing import SimulatedSizing

    try:
        measured = KeptResults(open_store().results())
    except MissingDuckDB as error:
        click.echo(f"tidemill: results that were measured are not used: {error}", err=True)
        measured = None
    return Evidence(measured=measured, sizing=SimulatedSizing(prices))


def _serve(
    answers: Answers,
    weights: Mapping[Dimension, float],
    engines: tuple[str, ...],
    report: Report,
    port: int,
) -> None:
    from tidemill.advise.page import application, serve

    def on_ready(url: str) -> None:
        click.echo(f"tidemill: the interview is at {url} (Ctrl-C ends it)", err=True)

    try:
        serve(application(answers, weights, engines, report), port, on_ready)
    except OSError as error:
        raise click.ClickException(
            f"port {port}: {error.strerror}; --port 0 takes any free one"
        ) from None


def _answers(path: str | None, defaults: bool, engines: tuple[str, ...]) -> Answers:
    """From a file, by default, or asked."""
    from tidemill.advise.answers import defaults as all_defaults
    from tidemill.advise.answers import read

    if path is not None:
        if path == "-":
            return read(read_text(sys.stdin, "stdin"), "stdin", engines)
        with open(path, encoding="utf-8") as file:
            return read(read_text(file, path), path, engines)
    if defaults:
        return all_defaults()
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask on: give --answers FILE (`tidemill advise --defaults "
            "--write-answers FILE` writes one to fill in), or --defaults"
        )
    from tidemill.cli.interview import Interview

    return Interview(engines).run()


def _check_facts(
    engines: Mapping[str, Engine], limit: int, *, as_json: bool, markdown: bool
) -> None:
    from tidemill.advise import report

    today = _today()
    stale = {
        engine.id: names for engine in engines.values() if (names := engine.stale(today, limit))
    }
    if as_json:
        echo_json(
            {
                "today": today,
                "max_age": limit,
                "engines": {
                    engine.id: {
                        name: {
                            "value": fact.value,
                            "complete": fact.complete,
                            "note": fact.note or None,
                            "source": fact.source.url,
                            "looked_up": fact.source.looked_up,
                        }
                        for name, fact in engine.facts.items()
                    }
                    for engine in engines.values()
                },
                "old": stale,
            }
        )
    else:
        echo_blocks(report.facts_blocks(engines, today, limit), markdown=markdown)
    if stale:
        raise SystemExit(1)


def _today() -> datetime.date:
    import datetime

    return datetime.datetime.now(datetime.UTC).date()
