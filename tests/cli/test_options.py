"""Types of options that several commands share."""

from __future__ import annotations

import click
import pytest

from tidemill.cli.options import Number, Numbers, named_numbers


@pytest.mark.parametrize(
    ("each", "text", "numbers"),
    [
        (click.IntRange(1, 1024), "1,8, 32", (1, 8, 32)),
        (click.IntRange(1, 1024), "5", (5,)),
        (Number(min=0, min_open=True), "0.5,2", (0.5, 2.0)),
        (click.Choice((4, 8, 16)), "16,4", (16, 4)),
    ],
)
def test_several_numbers(each: click.ParamType[int], text: str, numbers: tuple[float, ...]) -> None:
    of = Numbers(each)
    assert of.convert(text, None, None) == numbers
    assert of.convert(numbers, None, None) == numbers


@pytest.mark.parametrize("text", ["0", "1,x", "", "1,", "5000", "1;2", "1.5", "nan"])
def test_one_that_is_wrong_is_named(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not"):
        Numbers(click.IntRange(1, 1024)).convert(text, None, None)


def test_named_numbers() -> None:
    kinds = {"mtbf": float, "retries": int}
    assert named_numbers("retries=2, mtbf=0.5", kinds) == {"retries": 2, "mtbf": 0.5}


@pytest.mark.parametrize(
    "text", ["", "mtbf", "mtbf=", "mtbf=x", "retries=1.5", "mttr=1", "mtbf=1,mtbf=2", "mtbf=1,"]
)
def test_named_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        named_numbers(text, {"mtbf": float, "retries": int})
