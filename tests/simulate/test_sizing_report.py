"""A sizing in words, as a picture, and as data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from support.commands import parse, tidemill_calls
from support.sizing import MIX, Queue, option, trial
from tidemill.bench.measures import Slo
from tidemill.presentation.document import as_html, as_markdown, as_text
from tidemill.simulate.sizing.goal import Goal, Load
from tidemill.simulate.sizing.option import Option, Point
from tidemill.simulate.sizing.report import as_data, blocks, breaks, command, picture
from tidemill.simulate.sizing.search import Breaking, Sizing, size

SLO = Slo(ttft=0.2, tpot=0.05)


def sizing(*options: Option, rate: float = 300.0, **goal: Any) -> Sizing:
    goals = Goal(**{"slo": SLO, "load": Load.per_second(rate), **goal})
    return size(options or VARIETY, goals, MIX, Queue())


VARIETY = [
    option("slow", watts=100, fixed=0.02, band=0.3),
    option("fast", tensor=4, watts=2800, fixed=0.004, band=0.3),
    option("dear", watts=9000, fixed=0.03, band=0.3),
    Option("small", "gpu", "bf16", 1, 1, None, "needs 16 GB of 8", 5.0),
]


def text_of(found: Sizing) -> str:
    return as_text(blocks(found, "a-model", "short-chat"), 100)


def test_the_whole_is_told() -> None:
    text = " ".join(text_of(sizing()).split())
    for words in (
        "What it takes: a-model, short-chat", "300 requests a second at the peak",
        "TTFT 0.2 s, TPOT 0.05 s, kept by 99 of 100 requests", "1 spare replica (N + 1)",
        "No prices were given", "takes the least power, by data sheets", "vllm serve a-model",
        "Step times may be off by 30% (made up)", "Why not the others", "needs 16 GB of 8",
        "What more would buy", "tokens/s a user", "When the load doubles",
        "Where the figures come from", "step times: data sheet: made up; band 30%",
        "before a request's first step: 0 ms (left out)",
    ):  # fmt: skip
        assert words in text, words


def test_other_forms_have_it_too() -> None:
    made = blocks(sizing(), "a-model", "short-chat")
    assert "| option | lost by | because |" in as_markdown(made)
    assert "<table>" in as_html(made)


def test_prices_are_told() -> None:
    text = text_of(sizing(option("priced", hour=2.0, watts=100.0)))
    assert "per hour" in text
    assert "The cheapest that was found, by the prices given" in " ".join(text.split())


def test_prices_have_their_currency() -> None:
    found = sizing(
        option("far", hour=2.0, currency="EUR"), option("near", hour=3.0, fixed=0.012),
        option("big", tensor=4, hour=8.0, fixed=0.004, currency="EUR"),
    )  # fmt: skip
    text = " ".join(text_of(found).split())
    assert "EUR per hour: " in text  # of the winner
    assert text.count("EUR per hour") == text.count("per hour") > 3
    assert as_data(found, "a-model", "short-chat")["currency"] == "EUR"
    assert as_data(sizing(), "a-model", "short-chat")["currency"] is None


def test_prices_in_several_currencies_are_not_compared() -> None:
    mixed = [option(name, hour=2.0, currency=name) for name in ("USD", "EUR")]
    with pytest.raises(ValueError, match=r"EUR and USD cannot be compared.*--price NAME=X/h"):
        sizing(*mixed)


def test_an_slo_that_nobody_meets() -> None:
    text = " ".join(text_of(sizing(slo=Slo(ttft=0.001))).split())
    assert "Nothing that was tried meets this" in text
    assert "What stands in the way" in text
    assert "computing 400 tokens of a prompt, alone, takes" in text
    assert "Where the figures come from" in text
    assert "Nothing was simulated: no option fits" in text_of(sizing(VARIETY[3]))


def test_without_limits() -> None:
    assert "no limits: only throughput counts" in " ".join(text_of(sizing(slo=Slo())).split())


def test_many_that_lost_are_counted() -> None:
    many = [option(f"h{i}", watts=1000 + i, fixed=0.02 + i / 10_000) for i in range(40)]
    text = text_of(sizing(option("good", watts=1.0), *many))
    assert "And 28 more: 28 by 'takes more'" in text


def test_near_saturation_it_says_so() -> None:
    found = sizing()
    assert "so near to saturation" not in text_of(found)
    verified = found.verified
    assert verified is not None
    full = dataclasses.replace(verified, slow=dataclasses.replace(verified.slow, filled=0.95))
    text = " ".join(text_of(dataclasses.replace(found, verified=full)).split())
    assert "so near to saturation a small error makes a large difference" in text
    grows = dataclasses.replace(verified, slow=dataclasses.replace(verified.slow, growing=True))
    assert "| grows |" in as_markdown(blocks(dataclasses.replace(found, verified=grows), "m", "w"))


@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        (Breaking(None, None, "", trial()), "Nothing breaks: at twice the peak"),
        (Breaking(1.5, "ttft", "requests queue", trial()), "TTFT first, at 1.5 times the peak"),
        (Breaking(2.0, None, "x", trial(growing=True)), "Requests pile up first, at 2 times"),
        (Breaking(2.0, "ttft", "x", trial(growing=True)), "no figure can be given"),
    ],
)
def test_what_breaks_in_words(breaking: Breaking, words: str) -> None:
    assert words in breaks(breaking)


# ---- commands ----------------------------------------------------------------------------------


def test_the_command_of_a_gpu() -> None:
    made = option("gpu", tensor=2, max_sequences=128, max_prefill_tokens=1024)
    assert command(made, "org/a model") == (
        "vllm serve 'org/a model' --tensor-parallel-size 2 --max-model-len 4096 "
        "--max-num-seqs 128 --max-num-batched-tokens 1024"
    )
    fp8 = dataclasses.replace(made, weights="fp8", tensor=1, pipeline=2)
    assert command(fp8, "m").startswith(
        "vllm serve m --pipeline-parallel-size 2 --quantization fp8"
    )


def test_the_command_of_a_cpu_is_one_of_ours() -> None:
    (arguments,) = tidemill_calls(command(option(kind="cpu"), "smollm2"))
    assert arguments == ["serve", "smollm2", "--max-sequences", "64", "--context", "4096"]
    parse(arguments)


# ---- the picture -------------------------------------------------------------------------------


def points(*values: tuple[str, float, float]) -> tuple[Point, ...]:
    return tuple(Point(option(name), 1, total, speed, 0.1) for name, total, speed in values)


def test_the_picture_has_every_option_in_its_place() -> None:
    lines = picture(points(("a", 100, 10), ("b", 1000, 20), ("a", 10_000, 40)), "W").splitlines()
    assert lines[0] == "tokens/s a user"
    assert lines[1].startswith("      40 |")
    assert lines[1].endswith("A")
    assert lines[12].startswith("      10 |A")
    assert sum(line.count("B") for line in lines[1:13]) == 1
    assert lines[14].split() == ["100", "10,000", "W"]
    assert lines[-2:] == ["A a, bf16", "B b, bf16"]


def test_a_picture_of_equals() -> None:
    assert picture(points(("a", 5, 5), ("b", 5, 5)), "W")


# ---- data --------------------------------------------------------------------------------------


def test_data_is_json_and_complete() -> None:
    found = sizing()
    data = json.loads(json.dumps(as_data(found, "m", "w"), allow_nan=False))
    assert data["by"] == "watts"
    assert data["winner"] == data["options"][0]
    assert len(data["options"]) == len(VARIETY)
    assert {o["outcome"] for o in data["options"]} >= {"meets", "memory"}
    assert data["at_peak"]["slow"]["latency"]["ttft"]["p99"] <= 0.2
    assert data["breaks"]["trial"]
    assert len(data["front"]) == len(found.front)
    none = as_data(sizing(slo=Slo(ttft=0.001)), "m", "w")
    assert none["winner"] is None
    assert none["at_peak"] is None
    assert none["breaks"] is None
