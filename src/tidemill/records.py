"""``dataclass`` as in the standard library, but quick to define.

The library's decorator searches every annotation and compiles up to six methods for each class, a
millisecond or so, which for the hundred classes that a run imports is a good part of the time to
its first token. Here the methods of a ``slots=True`` class are shared ones, and ``__init__`` is
compiled for classes of which more than a few objects are made. What the library offers beyond what
is used in this package is handed on to it. Type checkers see the library's decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
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


Fields = dict[str, "dataclasses.Field[Any]"]

# Objects of a class that are made without its own __init__. Compiling it takes as long as thirty
# of them; most classes have one or two in a run.
_FEW = 8


def _define(cls: Any, frozen: bool, eq: bool, kw_only: bool) -> Any:
    own = cls.__dict__
    inherited: Fields = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= base.__dict__.get("__dataclass_fields__", {})
    fields = inherited | _own_fields(cls, kw_only)
    listed = tuple(fields.values())
    compared = tuple(field.name for field in listed if field.compare)
    shown = tuple(field.name for field in listed if field.repr)
    few = _FEW

    def __init__(self: Any, /, *values: Any, **named: Any) -> None:
        nonlocal few
        few -= 1
        if few < 0 or not _fill(self, listed, values, named):
            made.__init__ = _make_init(made, listed, frozen)
            made.__init__(self, *values, **named)

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
    # The slots take the place of the defaults, for which the class has to be made anew.
    dropped = {*fields, "__dict__", "__weakref__"}
    namespace = {
        **methods,
        **{name: value for name, value in own.items() if name not in dropped},
        "__qualname__": cls.__qualname__,
        "__slots__": tuple(name for name in fields if name not in inherited),
        "__dataclass_fields__": fields,
        "__match_args__": tuple(field.name for field in listed if not field.kw_only),
    }
    made: Any = type(cls)(cls.__name__, cls.__bases__, namespace)
    return made


def _own_fields(cls: Any, kw_only: bool) -> Fields:
    """What the class's own annotations say, as ``dataclasses.fields`` gives it."""
    fields = {}
    for name, kind in cls.__annotations__.items():
        default = cls.__dict__.get(name, dataclasses.MISSING)
        field: Any = default
        if not isinstance(default, dataclasses.Field):
            field = dataclasses.field(default=default)
        written = str(kind)
        if not field.init or "ClassVar" in written or "InitVar" in written or "KW_ONLY" in written:
            raise TypeError(
                f"{cls.__name__}: use dataclasses.dataclass for fields that are no argument"
            )
        if field.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: one {default!r} for all; use default_factory")
        field.name, field.type = name, kind
        field._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
        if field.kw_only is dataclasses.MISSING:
            field.kw_only = kw_only
        fields[name] = field
    return fields


def _fill(
    self: Any,
    fields: Collection[dataclasses.Field[Any]],
    values: tuple[Any, ...],
    named: Mapping[str, Any],
) -> bool:
    """Do what ``__init__`` does; False if the arguments are not what it takes."""
    n_values = n_named = 0
    for field in fields:
        if n_values < len(values) and not field.kw_only:
            value = values[n_values]
            n_values += 1
        elif field.name in named:
            value = named[field.name]
            n_named += 1
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            return False
        object.__setattr__(self, field.name, value)
    if (n_values, n_named) != (len(values), len(named)):
        return False
    if hasattr(self, "__post_init__"):
        self.__post_init__()
    return True


def _make_init(cls: Any, fields: Collection[dataclasses.Field[Any]], frozen: bool) -> Any:
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
