"""Stop strings: the same text for every way in which it is cut into deltas."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.stops import StopStrings


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, spelled out: at each character, is some stop string complete?"""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def stream(deltas: list[str], stops: list[str]) -> tuple[str, str | None]:
    finder = StopStrings(stops)
    shown = ""
    for delta in deltas:
        text, stop = finder.push(delta)
        shown += text
        if stop is not None:
            assert finder.stopped == stop
            return shown, stop
    return shown + finder.flush(), None


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


few_letters = st.text(alphabet="ab\n", max_size=24)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=5)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(few_letters, stop_lists, st.lists(st.integers(0, 100), max_size=8))
def test_every_chunking_gives_the_cut_text(text: str, stops: list[str], places: list[int]) -> None:
    assert stream(cut(text, places), stops) == oracle(text, stops)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(few_letters, stop_lists)
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown = ""
    for count, char in enumerate(text, 1):
        delta, stop = finder.push(char)
        shown += delta
        if stop is not None:
            return
        held = text[len(shown) : count]
        assert shown + held == text[:count]
        longest = max(
            (
                size
                for size in range(1, count + 1)
                if any(
                    len(stop) > size and stop.startswith(text[count - size : count])
                    for stop in stops
                )
            ),
            default=0,
        )
        assert len(held) == longest


def test_random_texts_with_many_stop_strings() -> None:
    rng = random.Random(4)
    for _ in range(20):
        stops = ["".join(rng.choices("xyz", k=rng.randint(3, 9))) for _ in range(40)]
        text = "".join(rng.choices("xyz", k=300))
        deltas = cut(text, [rng.randint(0, 300) for _ in range(60)])
        assert stream(deltas, stops) == oracle(text, stops)


def test_a_stop_string_over_several_deltas_leaks_nothing() -> None:
    finder = StopStrings(["<|im_end|>"])
    assert finder.push("Hi<") == ("Hi", None)
    assert finder.push("|im_") == ("", None)
    assert finder.push("end|>more") == ("", "<|im_end|>")
    assert finder.push("more") == ("", "<|im_end|>")
    assert finder.flush() == ""


def test_a_false_start_comes_out_whole() -> None:
    finder = StopStrings(["STOP"])
    assert finder.push("a ST") == ("a ", None)
    assert finder.push("x") == ("STx", None)
    assert finder.push("ST") == ("", None)
    assert finder.flush() == "ST"
    assert finder.push("OP") == ("OP", None)  # the text had ended; this is another one


def test_the_first_complete_string_wins_and_of_equals_the_longest() -> None:
    assert stream(["xabcdef"], ["abcdef", "bcd"]) == ("xa", "bcd")
    assert stream(["xabcd"], ["bcd", "abcd", "d"]) == ("x", "abcd")


def test_overlapping_with_itself() -> None:
    assert stream(list("aaab"), ["aab"]) == ("a", "aab")
    assert stream(list("\n\n\nb"), ["\n\nb"]) == ("\n", "\n\nb")


def test_without_stop_strings_everything_passes() -> None:
    finder = StopStrings([])
    assert finder.push("abc") == ("abc", None)
    assert finder.flush() == ""


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["a", ""])
