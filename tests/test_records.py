"""Quickly defined dataclasses do what the library's do."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from tidemill import records


def define(dataclass: Any) -> dict[str, Any]:
    @dataclass(frozen=True, slots=True)
    class Point:
        """Where."""

        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, repr=False, compare=False)

        @property
        def sum(self) -> int:
            return self.x + self.y

    @dataclass(slots=True)
    class Counter:
        n: int = 0
        seen: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True, slots=True)
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

        def __repr__(self) -> str:
            return f"even {self.n}"

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True)
    class Arrays:
        values: Any

    return {c.__name__: c for c in (Point, Counter, Even, Nothing, Arrays)}


BOTH = pytest.mark.parametrize(
    "kinds", [define(dataclasses.dataclass), define(records.dataclass)], ids=["library", "quick"]
)


@BOTH
def test_values(kinds: dict[str, Any]) -> None:
    point = kinds["Point"]
    a, b = point(1), point(x=1, y=2, tags=["b"])
    assert (a.x, a.y, a.tags, a.sum) == (1, 2, [], 3)
    assert a.tags is not point(1).tags
    assert a == b
    assert hash(a) == hash(b)
    assert a != point(2)
    assert a != (1, 2)
    assert repr(a).endswith("Point(x=1, y=2)")
    assert dataclasses.replace(a, y=5) == point(1, 5)
    assert dataclasses.asdict(a) == {"x": 1, "y": 2, "tags": []}
    assert point.__doc__ == "Where."
    assert point.__match_args__ == ("x", "y", "tags")
    assert not hasattr(a, "__dict__")
    match a:
        case point(x, 2):
            assert x == 1
        case _:
            raise AssertionError


@BOTH
def test_frozen(kinds: dict[str, Any]) -> None:
    a = kinds["Point"](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        a.x = 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del a.x


@BOTH
def test_not_frozen(kinds: dict[str, Any]) -> None:
    a = kinds["Counter"]()
    a.n += 1
    assert a == kinds["Counter"](1, [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    with pytest.raises(AttributeError):
        a.m = 1


@BOTH
@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4)])
def test_wrong_arguments(kinds: dict[str, Any], arguments: tuple[int, ...]) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            kinds["Point"](*arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        kinds["Point"](1, z=2)


@BOTH
def test_own_methods_stay(kinds: dict[str, Any]) -> None:
    assert repr(kinds["Even"](2)) == "even 2"
    with pytest.raises(ValueError, match="odd"):
        kinds["Even"](3)


@BOTH
def test_no_fields(kinds: dict[str, Any]) -> None:
    assert kinds["Nothing"]() == kinds["Nothing"]()
    assert {kinds["Nothing"](): 1}[kinds["Nothing"]()] == 1


@BOTH
def test_the_same_array_is_equal(kinds: dict[str, Any]) -> None:
    array = np.zeros(3)
    assert kinds["Arrays"](array) == kinds["Arrays"](array)


@records.dataclass(frozen=True, slots=True)
class Pickled:
    x: int
    y: int = 0


def test_pickling() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)  # noqa: S301


def test_the_signature_is_known_once_an_object_was_made() -> None:
    Pickled(1)
    assert list(inspect.signature(Pickled).parameters) == ["x", "y"]


def test_other_options_are_the_librarys() -> None:
    @records.dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        x: int = 1

    assert Options(x=2).x == 2
    with pytest.raises(TypeError):
        Options(2)  # type: ignore[misc]


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(TypeError, match="keyword-only"):

        @records.dataclass(frozen=True, slots=True)
        class Mixed:
            x: int = dataclasses.field(kw_only=True)
