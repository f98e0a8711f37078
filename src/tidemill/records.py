"""``dataclass`` as in the standard library, but quick to define.

The library's decorator compiles up to six methods for each class, a millisecond or so, which for
the hundred classes that a run imports is a good part of the time to its first token. Here the
methods of a ``slots=True`` class are shared ones, but for ``__init__``, which is compiled when the
first object is made. What the library offers beyond what is used in this package is handed on to
it. Type checkers see the library's decorator.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, kw_only=False, **options):
        """See ``dataclasses.dataclass``."""

        def decorate(cls):
            if not slots or options:
                options.update(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only)
                return dataclasses.dataclass(**options)(cls)
            return _define(cls, frozen, eq, kw_only)

        return decorate if cls is None else decorate(cls)


def _define(cls: Any, frozen: bool, eq: bool, kw_only: bool) -> Any:
    own = set(cls.__dict__)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or the library would look for a signature
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)
    if not all(field.init for field in fields) or any(
        "InitVar" in str(kind) for kind in cls.__annotations__.values()
    ):
        raise TypeError(
            f"{cls.__name__}: use dataclasses.dataclass for fields that are no argument"
        )
    compared = tuple(field.name for field in fields if field.compare)
    shown = tuple(field.name for field in fields if field.repr)

    def __init__(self: Any, /, *values: Any, **named: Any) -> None:
        cls.__init__ = _make_init(cls, fields, frozen)
        cls.__init__(self, *values, **named)

    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return [getattr(self, name) for name in compared] == [
            getattr(other, name) for name in compared
        ]

    def __hash__(self: Any) -> int:
        return hash(tuple([getattr(self, name) for name in compared]))

    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    methods: dict[str, Any] = {"__init__": __init__, "__repr__": __repr__}
    if frozen:
        methods |= _FROZEN
    if eq:
        methods["__eq__"] = __eq__
        if frozen:
            methods["__hash__"] = __hash__
        elif "__eq__" not in own:
            methods["__hash__"] = None
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _make_init(cls: Any, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Any:
    """``__init__`` with the fields as arguments, as the library writes it."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    arguments: list[str] = []
    keywords: list[str] = []
    body = []
    for i, field in enumerate(fields):
        to = keywords if field.kw_only else arguments
        value = field.name
        if field.default is not dataclasses.MISSING:
            scope[f"_default{i}"] = field.default
            to.append(f"{field.name}=_default{i}")
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"_make{i}"] = field.default_factory
            to.append(f"{field.name}=_missing")
            value = f"_make{i}() if {field.name} is _missing else {field.name}"
        else:
            to.append(field.name)
        body.append(
            f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n ".join(body) or "pass"
    given = ", ".join(["self", *arguments, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({given}):\n {lines}\n", scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _set_frozen(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_frozen(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN = {
    "__setattr__": _set_frozen,
    "__delattr__": _delete_frozen,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
