from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from support.recordings import at_rates, measurement
from tidemill.bench.arrivals import Gamma
from tidemill.bench.reporting import curves, figures, latency, palette, starting, svg, timeline
from tidemill.bench.reporting.document import Picture
from tidemill.bench.reporting.runs import Shown, group
from tidemill.bench.result import Measurement
from tidemill.bench.traces import TraceFile

SVG = "{http://www.w3.org/2000/svg}"


def shown(*runs: Measurement) -> tuple[Shown, ...]:
    (only,) = group(runs)
    return only.every


def words_in(picture: Picture) -> str:
    return " ".join(
        "".join(node.itertext()) for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
    )


@pytest.fixture(scope="module")
def two() -> tuple[Shown, ...]:
    return shown(
        measurement(speed=2.0, failing=0.2, seconds=60.0),
        measurement(engine="llama.cpp", failing=0.2, seconds=60.0),
    )


def test_distributions_have_everybody_and_the_limit(two: tuple[Shown, ...]) -> None:
    made = latency.distributions("x", two)
    assert [picture.name for picture in made] == ["x_ttft", "x_tpot", "x_e2e"]
    for picture in made:
        assert {"tidemill", "llama.cpp"} <= set(words_in(picture).split())
        assert "p99" in picture.alt
    assert "SLO 1 s" in words_in(made[0])
    assert "SLO 100 ms" in words_in(made[1])
    assert "SLO" not in words_in(made[2])  # short-chat has no limit of E2E
    assert "the SLO is 1 s" in made[0].alt


def test_what_a_distribution_says_is_what_the_figures_say(two: tuple[Shown, ...]) -> None:
    for one in two:
        assert one.recording is not None
        assert one.result.summary is not None
        values = latency.latencies(one.recording, "ttft")
        for share, of in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            assert latency._at(values, of) == one.result.summary.latency["ttft"][share].value


def test_a_long_distribution_is_drawn_with_few_points() -> None:
    values = np.sort(np.random.default_rng(0).lognormal(size=100_000))
    x, y = latency._steps(values)
    assert len(x) == len(y) < 250
    assert (x[0], y[0]) == (values[0], 0)
    assert (x[-1], y[-1]) == (values[-1], 1)
    assert y == sorted(y)


def test_without_good_answers_there_is_no_distribution() -> None:
    assert latency.distributions("x", shown(measurement(failing=1.0))) == []


def test_a_timeline_counts_what_happened(two: tuple[Shown, ...]) -> None:
    requests, tokens = timeline.timelines("x", two)
    for one in two:
        assert one.recording is not None
        failed = sum(r.error is not None for r in one.recording.records)
        assert f"{one.label}: {len(one.recording.records)} requests" in requests.alt
        assert f"errors: {failed} http_503" in requests.alt
    assert "seconds of the measured window" in words_in(requests)
    assert "output tokens/s" in words_in(tokens)


def test_requests_in_flight_and_tokens_add_up() -> None:
    (one,) = shown(measurement("offline-batch"))
    assert one.recording is not None
    load = one.result.scenario.load
    at = np.linspace(0.1, one.recording.window.seconds - 0.1, 50)
    in_flight = timeline._in_flight(*timeline._moments(one.recording), at)
    assert set(in_flight) == {load.concurrency}  # type: ignore[union-attr]
    edges, rates = timeline._token_rates(one.recording)
    low, high = edges[0] + one.recording.window.opened, edges[-1] + one.recording.window.opened
    total = sum(low <= time <= high for r in one.recording.records for time in r.times)
    assert (rates * np.diff(edges)).sum() == pytest.approx(total)


def test_a_curve_marks_the_highest_rate_that_meets_the_slo() -> None:
    runs = [
        *at_rates([0.5, 1.0, 2.0, 4.0], engine="tidemill", speed=2.0, series="a"),
        *at_rates([0.5, 1.0, 2.0, 4.0], engine="llama.cpp", speed=0.1, series="b"),
    ]
    (only,) = group(runs)
    assert [len(points) for points in only.series] == [4, 4]
    slow, quick = only.series
    assert curves.highest_rate(slow) is None
    best = curves.highest_rate(quick)
    assert best is not None
    ttft, tpot = curves.rate_latency("x", only.series)
    assert f"{best:g}/s" in words_in(ttft).split()
    assert "tidemill at p99: 0.5/s" in ttft.alt
    assert f"tidemill meets the SLO up to {best:g}/s" in ttft.alt
    assert "llama.cpp meets the SLO" not in tpot.alt


def test_a_rate_beyond_one_that_fails_does_not_count() -> None:
    points = shown(*at_rates([1.0, 2.0, 3.0], engine="tidemill", speed=4.0, series="a"))
    assert curves.highest_rate(points) == 3.0
    assert points[1].recording is not None
    for record in points[1].recording.records:
        record.error = "http_503"
    assert curves.highest_rate(points) == 1.0


def test_an_invalid_point_of_a_curve_is_said_to_be_one() -> None:
    points = shown(*at_rates([1.0, 2.0], engine="tidemill", speed=4.0, series="a"))
    summary = points[1].result.summary
    assert summary is not None
    summary.invalid = "sent late"
    ttft, _ = curves.rate_latency("x", [points])
    first, second = ttft.alt.split(", 2/s ")
    assert "(invalid)" not in first
    assert "(invalid)" in second


def test_a_trace_at_several_rates_is_a_curve() -> None:
    def replayed(run: Measurement) -> Measurement:
        load = run.result.scenario.load
        assert isinstance(load, Gamma)
        scenario = msgspec.structs.replace(
            run.result.scenario, load=TraceFile("t.csv").at(load.rate)
        )
        return run._replace(result=msgspec.structs.replace(run.result, scenario=scenario))

    rates = [1.0, 3.0, 2.0]
    points = shown(*map(replayed, at_rates(rates, engine="tidemill", speed=4.0, series="a")))
    assert curves.highest_rate(points) == 3.0
    ttft, _ = curves.rate_latency("x", [points])
    assert [word for word in ttft.alt.split() if word.endswith("/s")][:3] == ["1/s", "2/s", "3/s"]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1, 9), (2, 8), (1.5, 7)], [(1, 9), (2, 8)]),
        ([(1, 1), (2, 2)], [(2, 2)]),
        ([(1, 2), (2, 2)], [(2, 2)]),
        ([(1, 1), (1, 2)], [(1, 2)]),
        ([(1, 1), (1, 1)], [(1, 1)]),
        ([], []),
    ],
)
def test_the_front_is_what_nothing_beats(
    points: list[tuple[float, float]], front: list[tuple[float, float]]
) -> None:
    assert curves._front(points) == front


def test_invalid_runs_are_not_on_the_front(two: tuple[Shown, ...]) -> None:
    quick = measurement(speed=50.0)
    assert quick.result.summary is not None
    quick.result.summary.invalid = "late"
    picture = curves.pareto("x", shown(quick, measurement(engine="llama.cpp")))
    assert picture is not None
    tidemill = next(part for part in picture.alt.split(";") if "tidemill" in part)
    assert tidemill.rstrip(".").endswith(", invalid")
    assert "on the front" not in tidemill


def test_a_front_needs_two_and_their_cores() -> None:
    assert curves.pareto("x", shown(measurement())) is None
    assert curves.pareto("x", shown(measurement(), measurement(engine=None))) is None


def test_starts_are_bars_of_phases() -> None:
    runs = shown(measurement("cold-start"), measurement("cold-start", engine="llama.cpp"))
    picture = starting.bars("x", runs)
    assert picture is not None
    said = words_in(picture)
    for label in ("tidemill, cold", "tidemill, warm", "llama.cpp, cold", "llama.cpp, warm"):
        assert label in said
    assert starting.bars("x", shown(measurement())) is None


def test_phases_are_between_what_was_noted() -> None:
    noted = {"listening": 1.0, "ready": 1.5, "first_token": 4.0, "second": 9.0}
    assert starting.phases(noted) == {"listening": 1.0, "ready": 0.5, "first_token": 2.5}
    # An engine maps its model before its port answers, or after.
    early = starting.phases(noted | {"mapped": 0.25})
    assert list(early.items())[:2] == [("mapped", 0.25), ("listening", 0.75)]
    late = starting.phases(noted | {"mapped": 1.25})
    assert list(late.items())[:2] == [("listening", 1.0), ("mapped", 0.25)]


# ---- as SVG


def test_pictures_have_names_and_words_and_no_colours_of_their_own(two: tuple[Shown, ...]) -> None:
    first, *_ = latency.distributions("x", two)
    root = ElementTree.fromstring(first.svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == first.alt
    colours = set(re.findall(r"#[0-9a-f]{3,6}\b", first.svg, re.IGNORECASE))
    assert colours <= {"#000000"}, colours
    assert "var(--muted)" in first.svg
    assert "width" not in root.attrib
    assert len(first.svg) < 25_000


def test_ids_are_of_their_picture_alone(two: tuple[Shown, ...]) -> None:
    made = [*latency.distributions("x", two), *timeline.timelines("x", two)]
    ids = [found for picture in made for found in re.findall(r' id="([^"]+)"', picture.svg)]
    assert len(ids) == len(set(ids))
    for picture in made:
        own = set(re.findall(r' id="([^"]+)"', picture.svg))
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture.svg))
        assert used <= own


def test_a_picture_as_a_file_brings_its_colours(two: tuple[Shown, ...]) -> None:
    first, *_ = latency.distributions("x", two)
    text = svg.as_file(first.svg)
    ElementTree.fromstring(text)
    assert "--ink:" in text
    assert "prefers-color-scheme:dark" in text


def test_the_same_runs_give_the_same_picture(two: tuple[Shown, ...]) -> None:
    once, again = (
        [*latency.distributions("x", two), *timeline.timelines("x", two)] for _ in range(2)
    )
    assert once == again


def test_labels_that_would_be_formulas_are_text() -> None:
    picture = latency.distributions("x", shown(measurement(engine=r"$\frac{<b>&amp;$")))[0]
    assert r"$\frac{<b>&amp;$" in words_in(picture)


def test_long_labels_keep_what_tells_them_apart() -> None:
    ids = [f"short-chat-tidemill-smollm2-gguf-1130-{end}" for end in ("1827-tq5", "1857-pyy")]
    runs = [measurement(id=id, seed=i) for i, id in enumerate(ids)]
    (picture, *_) = latency.distributions("x", shown(*runs))
    said = words_in(picture)
    assert "tidemill (short…ll-smollm2-gguf-1130-1827-tq5)" in said
    assert "1857-pyy)" in said
    assert figures.short("a" * 46) == "a" * 46
    assert len(figures.short("a" * 47)) == 46


@pytest.mark.parametrize(("low", "high"), [(1e-5, 1e-5), (0.02, 0.021), (0.001, 300.0), (0, 0)])
def test_axes_of_seconds_have_a_few_ticks(low: float, high: float) -> None:
    ticks = figures._ticks(*figures._room(low, high))
    assert 2 <= len(ticks) <= 6


# ---- colours


def luminance(colour: str) -> float:
    """By WCAG 2.2."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(colours: dict[str, str]) -> None:
    for name, colour in colours.items():
        least = {"ink": 7.0, "muted": 4.5, "limit": 4.5, "good": 4.5, "bad": 4.5, "accent": 4.5}
        if name.startswith("series") or name in least:
            assert contrast(colour, colours["paper"]) >= least.get(name, 3.0), name


def test_both_papers_have_all_colours() -> None:
    assert palette.LIGHT.keys() == palette.DARK.keys()


def test_an_engine_has_one_colour_whoever_is_beside_it() -> None:
    alone = palette.looks([("llama.cpp", "llama.cpp")])
    among = palette.looks(
        [("a", "a"), ("b", "b"), ("llama.cpp", "llama.cpp"), ("tidemill", "tidemill")]
    )
    assert alone["llama.cpp"].colour == among["llama.cpp"].colour
    assert len({look.colour for look in among.values()}) == 4
    two = palette.looks([("tidemill 1", "tidemill"), ("tidemill 2", "tidemill")])
    assert two["tidemill 1"].colour == two["tidemill 2"].colour
    assert two["tidemill 1"].dash != two["tidemill 2"].dash
    assert two["tidemill 1"].marker != two["tidemill 2"].marker
