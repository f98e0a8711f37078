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

    @dataclass(frozen=True, slots=True, eq=False)
    class Same:
        x: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        x: int
        y: int = 2

    @dataclass(frozen=True, slots=True, kw_only=True)
    class MoreOptions(Options):
        z: int

    @dataclass(slots=True)
    class Mixed:
        x: int = 1
        y: int = dataclasses.field(kw_only=True)
        z: int = 3

    kinds = (Point, Counter, Even, Nothing, Arrays, Same, Options, MoreOptions, Mixed)
    return {c.__name__: c for c in kinds}


def define_compiled() -> dict[str, Any]:
    """With an ``__init__`` of their own from the first object on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_FEW", 0)
        return define(records.dataclass)


BOTH = pytest.mark.parametrize(
    "kinds",
    [define(dataclasses.dataclass), define(records.dataclass), define_compiled()],
    ids=["library", "quick", "compiled"],
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
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        kinds["Point"](1, x=2)
    assert kinds["Point"](3).x == 3


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


def test_init_is_compiled_for_many_objects_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(cls: Any, *arguments: Any) -> Any:
        made.append(cls)
        return make_init(cls, *arguments)

    make_init = records._make_init
    monkeypatch.setattr(records, "_make_init", make)
    point = define(records.dataclass)["Point"]
    points = [point(0)]
    assert made == []
    points += [point(i) for i in range(1, 30)]
    assert made == [point]
    assert [p.x for p in points] == list(range(30))
    assert list(inspect.signature(point).parameters) == ["x", "y", "tags"]


@BOTH
def test_compared_by_identity(kinds: dict[str, Any]) -> None:
    a, b = kinds["Same"](1), kinds["Same"](1)
    assert a != b
    assert a == a
    assert {a: 1, b: 2}[b] == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.x = 2


@BOTH
def test_keyword_only(kinds: dict[str, Any]) -> None:
    more = kinds["MoreOptions"](z=3, x=1)
    assert (more.x, more.y, more.z) == (1, 2, 3)
    assert more == kinds["MoreOptions"](x=1, y=2, z=3)
    assert dataclasses.replace(more, y=5).y == 5
    assert kinds["MoreOptions"].__match_args__ == ()
    for _ in range(2):
        with pytest.raises(TypeError, match="positional argument"):
            kinds["Options"](2)
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'x'"):
            kinds["Options"](y=2)
    mixed = kinds["Mixed"](4, 5, y=6)
    assert (mixed.x, mixed.y, mixed.z) == (4, 6, 5)
    assert repr(mixed).endswith("Mixed(x=4, y=6, z=5)")


def test_other_options_are_the_librarys() -> None:
    @records.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        x: int = 1

    assert Ordered(2) > Ordered()


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Shared\.x.*default_factory"):

        @records.dataclass(slots=True)
        class Shared:
            x: list[int] = []  # noqa: RUF012

    with pytest.raises(TypeError, match="no argument"):

        @records.dataclass(frozen=True, slots=True)
        class Computed:
            x: int = dataclasses.field(init=False)
