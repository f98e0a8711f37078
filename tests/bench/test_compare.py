from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from support import runs
from tidemill.bench.arrivals import Closed
from tidemill.bench.compare import CompareError, Comparison, Figure, Side, compare, words
from tidemill.bench.compare.verdicts import KINDS
from tidemill.bench.measures import LATENCIES, Slo, summarise
from tidemill.bench.records import Recording
from tidemill.bench.resources import Cost, Density, Memory, Resources
from tidemill.bench.result import Machine, Measured, Result
from tidemill.bench.scenario import load
from tidemill.bench.starts import Start
from tidemill.bench.statistics import Estimate

One = tuple[Result, Recording | None]
SEEDS = range(20)


def side(*pairs: One) -> Side:
    return Side("label", [result for result, _ in pairs], [recording for _, recording in pairs])


def figure(found: Comparison, name: str) -> Figure:
    return next(figure for figure in found.figures if figure.name == name)


def changed(run: One, share: float = 1.0, **fields: object) -> One:
    """A run with other fields in a share of its records, evenly spread."""
    result, recording = run
    assert recording is not None
    records = [
        msgspec.structs.replace(record, **fields)
        if int((i + 1) * share + 1e-9) > int(i * share + 1e-9)
        else record
        for i, record in enumerate(recording.records)
    ]
    recording = msgspec.structs.replace(recording, records=records)
    result = msgspec.structs.replace(result, summary=summarise(recording, result.slo))
    return result, recording


# ---- one run each


def test_a_fifth_faster_is_found() -> None:
    inside = 0
    for seed in range(12):
        a, b = runs.run(150, seed=2 * seed), runs.run(150, seed=2 * seed + 1, factor=0.8)
        found = compare(side(a), side(b))
        for name in LATENCIES:
            median = figure(found, f"{name} p50")
            assert median.verdict == "better", (seed, name)
            assert median.effect is not None
            assert median.effect < -0.15
        change = figure(found, "ttft p50").change
        assert not isinstance(change, float)
        inside += change.low <= 0.8 <= change.high
    assert inside >= 10
    assert figure(compare(side(b), side(a)), "e2e p50").verdict == "worse"


def test_two_samples_of_one_distribution_are_not_told_apart() -> None:
    verdicts = []
    for seed in SEEDS:
        a, b = (runs.run(120, seed=1000 + 2 * seed + side) for side in (0, 1))
        found = compare(side(a), side(b))
        verdicts += [figure(found, f"{n} {s}").verdict for n in LATENCIES for s in ("p50", "p90")]
    same = verdicts.count("not distinguishable") / len(verdicts)
    assert 0.9 <= same < 1  # a test that never errs would not tell anything either


def test_a_run_is_not_better_than_itself() -> None:
    run = runs.run(600)
    found = compare(side(run), side(run))
    assert {f.verdict for f in found.figures} == {"not distinguishable"}
    assert {f.effect for f in found.figures} == {None, 0.0}
    assert found.alarms == []


def test_of_the_same_requests_only_what_differs_counts() -> None:
    """Answers of very different lengths hide a difference of a tenth, unless each is compared with
    its own."""

    def run(seed: int, factor: float) -> One:
        result, made = runs.run(100, seed=seed)
        records = []
        for record in made.records:
            tokens = 2 + record.index**2 % 97
            times = [record.due + factor * (0.1 + 0.02 * i) for i in range(tokens)]
            records.append(
                msgspec.structs.replace(record, times=times, output_tokens=tokens, asked=tokens)
            )
        recording = msgspec.structs.replace(made, records=records)
        summary = summarise(recording, result.slo)
        return msgspec.structs.replace(result, seed=seed, summary=summary), recording

    a, same, other = run(0, 1.0), run(0, 0.9), run(1, 0.9)
    paired = compare(side(a), side(same))
    assert figure(paired, "e2e p50").verdict == "better"
    assert figure(paired, "answer length").change == Estimate(1, 1, 1)
    assert any("the same requests" in note for note in paired.notes)
    alone = compare(side(a), side(other))
    assert figure(alone, "e2e p50").verdict == "not distinguishable"
    assert not any("the same requests" in note for note in alone.notes)
    # Of independent requests pairs are as good as any.
    first, second = runs.run(150, seed=1), runs.run(150, seed=2)
    widths = []
    for seed in (0, 1):
        second[0].seed = seed
        change = figure(compare(side(first), side(second)), "ttft p50").change
        assert isinstance(change, Estimate)
        widths.append(change.high - change.low)
    assert widths[0] == pytest.approx(widths[1], rel=0.4)


def test_rates_and_shares() -> None:
    a = runs.run(600)
    b = changed(runs.run(600, seed=1), share=0.1, error="http_500", times=[])
    found = compare(side(a), side(b))
    rate = figure(found, "output rate")
    assert rate.verdict == "worse"
    assert (rate.a, rate.b) == pytest.approx((8.0, 7.2), rel=0.01)
    errors = figure(found, "errors")
    assert (errors.is_ratio, errors.change, errors.verdict) == (False, errors.change, "worse")
    assert errors.b == pytest.approx(0.1)
    assert figure(found, "goodput").verdict == "worse"
    assert figure(found, "SLO attained").verdict == "worse"
    assert any(
        "B has MORE failed requests (failed: A 0 of 600, B 60 of" in said for said in found.alarms
    )
    back = compare(side(b), side(a))
    assert back.alarms[0].startswith("A has MORE failed requests")


def test_no_goodput_at_all_is_a_difference_not_a_ratio() -> None:
    a, b = runs.run(100), runs.run(100, seed=1, factor=10.0)
    goodput = figure(compare(side(a), side(b)), "goodput")
    assert (goodput.is_ratio, goodput.verdict) == (False, "worse")


def test_percentiles_need_requests_beyond_them() -> None:
    found = compare(side(runs.run(60)), side(runs.run(60, seed=1, factor=0.5)))
    assert figure(found, "ttft p90").verdict == "better"
    assert figure(found, "ttft p99").verdict is None
    assert figure(found, "ttft p99").why == "60 of 500 requests"
    assert isinstance(figure(found, "ttft p99").change, float)


# ---- repeats


def repeats(count: int, seed: int, factor: float = 1.0) -> Side:
    """Runs that differ from each other by about a tenth."""
    rng = random.Random(seed)
    return side(
        *(
            runs.run(40, seed=rng.randrange(10**6), factor=factor * rng.lognormvariate(0, 0.1))
            for _ in range(count)
        )
    )


def test_with_repeats_it_is_runs_that_are_compared() -> None:
    """Between runs that differ, the requests of one run each see differences that are none."""
    by_requests, by_runs = [], []
    for seed in range(10):
        a, b = repeats(3, seed), repeats(3, seed + 500)
        by_runs.append(figure(compare(a, b), "e2e p50").verdict)
        single = [Side("one", s.results[:1], s.recordings[:1]) for s in (a, b)]
        by_requests.append(figure(compare(*single), "e2e p50").verdict)
    same = "not distinguishable"
    assert by_runs.count(same) >= 9
    assert by_requests.count(same) <= 7


def test_repeats_find_what_is_larger_than_their_spread() -> None:
    found = compare(repeats(4, 1), repeats(4, 2, factor=0.5))
    assert {figure(found, f"{n} p99").verdict for n in ("ttft", "e2e")} == {"better"}
    assert not any("one run each" in note for note in found.notes)
    one = compare(repeats(1, 1), repeats(4, 2, factor=0.3))
    assert figure(one, "e2e p50").verdict == "better"


def test_runs_that_are_no_repeats_are_refused() -> None:
    a, b = runs.run(50), runs.run(50)
    b[0].scenario = msgspec.structs.replace(b[0].scenario, load=Closed(4))
    with pytest.raises(CompareError, match="no repeats of one run: the scenario's load changed"):
        compare(side(a, b), side(a))
    c = runs.run(50)
    c[0].target = Measured(url="http://other/v1", model="m")
    with pytest.raises(CompareError, match="another target"):
        compare(side(a), side(a, c), force=True)
    d = runs.run(50)
    d[0].target = msgspec.structs.replace(d[0].target, arguments=["--context", "9"])
    with pytest.raises(CompareError, match="started with other arguments or threads"):
        compare(side(a), side(a, d))


# ---- fair?


def test_what_was_not_asked_the_same_is_refused() -> None:
    a, b = runs.run(50), runs.run(50)
    b[0].scenario = msgspec.structs.replace(b[0].scenario, load=Closed(4))
    with pytest.raises(CompareError, match="the scenario's load changed"):
        compare(side(a), side(b))
    found = compare(side(a), side(b), force=True)
    assert found.alarms[0] == "not asked the same: the scenario's load changed"
    other = runs.result("rag"), None
    with pytest.raises(CompareError, match="the scenarios are short-chat and rag"):
        compare(side(a), side(other))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("slo", Slo(ttft=9), "the SLO differs, ttft=0.5 and ttft=9: no goodput"),
        ("machine", Machine("Other CPU", "x86_64", 2, 1 << 30, "Linux 6", "3.11"),
         "the machine differs, cpu: Some CPU and Other CPU"),
        ("seed", 5, "seeds, and so the prompts differ: 0 and 5"),
        ("target", Measured(url="", model="gemma3", engine="tidemill", threads=2),
         "names of the models differ: smollm2 and gemma3"),
        ("target", Measured(url="", model="smollm2", engine="tidemill", threads=1),
         "threads of the engine differ: 2 and 1"),
        ("target", Measured(url="", model="smollm2", engine="tidemill", threads=2,
                            arguments=["--kv-dtype", "q8 0"]),
         "--engine-args differ: none and --kv-dtype 'q8 0'"),
    ],
)  # fmt: skip
def test_what_else_differs_is_said(field: str, value: object, said: str) -> None:
    a, b = runs.run(120), runs.run(120, seed=1)
    setattr(b[0], field, value)
    found = compare(side(a), side(b))
    assert found.warnings == [said]
    assert ("goodput" in {f.name for f in found.figures}) == (field != "slo")


def test_few_requests_lengths_and_counting_are_said() -> None:
    a = runs.run(40)
    b = changed(runs.run(40, seed=1), prompt_tokens=30, output_tokens=None)
    said = " ".join(compare(side(a), side(b)).warnings)
    assert "A has only 40 good answers" in said
    assert "prompts differ: 20 and 30 tokens" in said
    assert "B does not count tokens" in said


def test_an_invalid_run_is_an_alarm() -> None:
    a, b = runs.run(50), runs.run(50)
    late = changed(b, sent=2000.0)
    assert any("B is INVALID: " in said for said in compare(side(a), side(late)).alarms)


def test_shorter_answers_are_an_alarm() -> None:
    a, b = runs.run(200), runs.run(200, seed=1, factor=0.7, tokens=6)
    found = compare(side(a), side(b))
    assert figure(found, "answer length").verdict == "different"
    (said,) = found.alarms
    assert said.startswith("B's answers are 25% SHORTER (8.0 and 6.0 tokens on average)")
    (said,) = compare(side(b), side(a)).alarms
    assert "33% LONGER" in said


def test_answers_of_other_lengths_are_an_alarm_even_if_their_mean_is_the_same() -> None:
    a = runs.run(200)
    b = changed(changed(a, share=0.5, output_tokens=4), share=0.25, output_tokens=12)
    found = compare(side(a), side(b))
    assert found.answers == ["100 of 200 answers to the same prompts are equally long"]
    assert found.alarms == [
        "100 of 200 answers to the same prompts are NOT EQUALLY LONG: speeds are not of the same "
        "work"
    ]
    assert compare(side(a), side(a)).answers == [
        "200 of 200 answers to the same prompts are equally long"
    ]


def test_a_model_that_ends_its_answers_may_end_each_of_them_where_it_likes() -> None:
    a, b = runs.run(100), changed(runs.run(100), share=0.5, output_tokens=9)
    b = changed(b, share=0.25, output_tokens=7)
    for run in (a, b):
        run[0].scenario = load("json-extraction")
    found = compare(side(a), side(b), force=True)
    assert "50 of 100 answers to the same prompts are equally long" in found.answers[0]
    assert not any("EQUALLY" in alarm for alarm in found.alarms)


def test_greedy_answers_that_were_kept_are_compared_word_for_word() -> None:
    a, b = (changed(runs.run(10), text="the sky is  blue") for _ in range(2))
    b = changed(b, share=0.5, text="the sky is grey today")
    for result, _ in (a, b):
        result.target = msgspec.structs.replace(result.target, extra={"temperature": 0})
    said = compare(side(a), side(b)).answers[1]
    # Three of five words in half of them.
    assert said == (
        "5 of 10 are the same in every word; on average the first 80% of the words are (agreement, "
        "not quality)"
    )
    b[0].target = msgspec.structs.replace(b[0].target, extra={})  # drawn, not chosen
    assert len(compare(side(a), side(b)).answers) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"scenario": load("short-chat").scaled(2)},
        {"scenario": msgspec.structs.replace(load("short-chat"), api="completions")},
    ],
)
def test_other_prompts_have_no_answers_in_common(change: dict[str, Any]) -> None:
    a, b = runs.run(20), runs.run(20)
    for field, value in change.items():
        setattr(b[0], field, value)
    assert compare(side(a), side(b), force=True).answers == []


def test_later_turns_and_failed_ones_are_no_answers_to_the_same_prompt() -> None:
    a = runs.run(20)
    b = changed(changed(runs.run(20), share=0.25, turn=1), share=0.2, error="timeout")
    (said,) = compare(side(a), side(b)).answers
    assert said.endswith("of 12 answers to the same prompts are equally long")


def test_fewer_right_answers_are_an_alarm() -> None:
    def checked(seed: int, wrong: int) -> One:
        run = changed(runs.run(100, seed=seed), verdict="right")
        return changed(run, share=wrong / 100, verdict="wrong")

    found = compare(side(checked(0, 5)), side(checked(1, 25)))
    assert figure(found, "right answers").verdict == "worse"
    (said,) = found.alarms
    assert said.startswith("B has FEWER right answers (not right: A 5 of 100, B 25 of 100; ")
    assert compare(side(checked(0, 5)), side(checked(1, 7))).alarms == []


# ---- figures without records


def test_of_figures_alone_intervals_are_made_of_intervals() -> None:
    a, b = runs.run(300), runs.run(300, seed=1, factor=0.8)
    found = compare(side((a[0], None)), side((b[0], None)))
    exact = compare(side(a), side(b))
    for name in ("ttft p50", "e2e p90"):
        one, other = figure(found, name), figure(exact, name)
        assert (one.verdict, one.a, one.b) == ("better", other.a, other.b)
        assert one.change.low == pytest.approx(other.change.low, abs=0.05)  # type: ignore[union-attr]
    assert figure(found, "output rate").why == "one value each"
    assert figure(found, "SLO attained").verdict is not None
    assert any("B has figures but no records" in said for said in found.warnings)


def test_resources_have_one_value_each() -> None:
    a, b = runs.run(100), runs.run(100, seed=1)
    for (result, _), peak in ((a, 1 << 30), (b, 1 << 29)):
        result.resources = Resources(
            memory=Memory("PSS", peak, peak), density=Density(per_core_given=4.0, per_watt=2.0),
            cost=Cost(hour=1.0, includes="machine", output=5.0),
        )  # fmt: skip
    found = compare(side(a), side(b))
    memory = figure(found, "memory")
    assert memory.change == pytest.approx(0.5)
    assert (memory.verdict, memory.why) == (None, "one value each")
    assert figure(found, "energy per token").a == pytest.approx(0.5)
    assert figure(found, "cost per 10^6 tokens").change == pytest.approx(1)
    assert figure(found, "output per core").a == pytest.approx(4)
    said = words.text(found)
    assert "1.00 GiB" in said


def test_cold_starts_are_repeats_of_themselves() -> None:
    def starts(factor: float) -> One:
        times = [(1.0, 1.1, 0.95), (0.4, 0.42, 0.41)]
        return (
            runs.result(
                "cold-start",
                starts=[
                    Start(cold, 0.0, 0.1, factor * t, factor * (t + 0.1), 0.1)
                    for cold, found in zip((True, False), times, strict=True)
                    for t in found
                ],
            ),
            None,
        )

    found = compare(side(starts(1.0)), side(starts(0.5)))
    assert figure(found, "cold first token").verdict == "better"
    assert figure(found, "cold first token").b == pytest.approx(0.5 * 1.115, rel=0.01)
    assert figure(found, "warm listening").verdict == "not distinguishable"
    assert figure(found, "warm first token").change.value == pytest.approx(0.5)  # type: ignore[union-attr]
    assert found.warnings == found.notes == found.alarms == []


def test_every_figure_has_a_place_in_the_table() -> None:
    a = changed(runs.run(100), verdict="right")
    assert {f.name for f in compare(side(a), side(a)).figures} <= set(KINDS)


# ---- words


def test_as_text_and_markdown() -> None:
    a, b = runs.run(120), runs.run(120, seed=1, factor=0.5, tokens=4)
    found = compare(side(a), side(b))
    said = words.text(found)
    lines = said.splitlines()
    assert lines[0] == "short-chat: B against A"
    assert lines[1] == "  A  tidemill 1 · smollm2 · label (1 run)"
    assert lines[3].startswith("  !! B's answers are 50% SHORTER")
    (ttft,) = [line for line in lines if line.startswith("  TTFT p50")]
    assert "better" in ttft
    assert "large" in ttft
    (p99,) = [line for line in lines if line.startswith("  TTFT p99")]
    assert p99.endswith("- (120 of 500 requests)")
    assert "note: one run each" in said
    table = [line for line in words.markdown(found).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(found.figures)
    assert {line.count("|") for line in table} == {7}
    assert "> **B's answers are 50% SHORTER" in words.markdown(found)


def test_names_are_not_taken_for_markdown() -> None:
    result, recording = runs.run(120)
    evil = "<img src=x onerror=alert(1)>|[m](javascript:alert(1))"
    result.target = msgspec.structs.replace(result.target, model=evil)
    said = words.markdown(compare(side((result, recording)), side(runs.run(120, seed=1))))
    assert "<img" not in said.replace("\\<", "")
    assert "[m]" not in said
