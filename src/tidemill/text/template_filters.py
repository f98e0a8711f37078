"""The filters that chat templates may use, with bounds on what their arguments ask for.

Jinja's own are taken where their result cannot be much larger than their input; the others are
written here. Filters that nobody needs in a prompt, or that give access to attributes, are left
out (attr, pprint, random, urlize, xmlattr, wordwrap ...).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import markupsafe
from jinja2 import Environment
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.utils import pass_environment

from tidemill.text.errors import ChatTemplateError
from tidemill.text.template_budget import current_budget

# fmt: off
_PLAIN = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int",
    "items", "last", "length", "lower", "map", "max", "min", "reject", "rejectattr", "reverse",
    "select", "selectattr", "sort", "title", "trim", "truncate", "unique", "upper", "wordcount",
)
# fmt: on

_MAX_WIDTH = 1000
_WIDE_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\*|\d{4,}|\d*\.(?:\*|\d{4,}))")
_WIDE_FORMAT = re.compile(r"\{[^{}]*:[^{}]*(?:\d{4,}|\{)")


def bounded(number: Any, what: str) -> int:
    """An int argument that sets a width or a count."""
    if not isinstance(number, int) or not -_MAX_WIDTH <= number <= _MAX_WIDTH:
        raise ChatTemplateError(f"{what} in a chat template must be an integer up to {_MAX_WIDTH}")
    return number


def reserve_percent(template: str, values: Any) -> None:
    """Account for ``template % values``."""
    if _WIDE_PERCENT.search(template):
        raise ChatTemplateError("a chat template formats with too large a width")
    _reserve_fields(template, template.count("%"), values)


def reserve_format(template: str, args: Any, kwargs: Any) -> None:
    """Account for ``template.format(*args, **kwargs)``."""
    if _WIDE_FORMAT.search(template):
        raise ChatTemplateError("a chat template formats with too large a width")
    _reserve_fields(template, template.count("{"), (args, kwargs))


def _reserve_fields(template: str, fields: int, values: Any) -> None:
    budget = current_budget()
    size = budget.measure(values)
    # Within a list, repr() writes up to ten characters for one that cannot be printed.
    budget.reserve(len(template) + fields * (_MAX_WIDTH + 10 * size.chars + 8 * size.nodes))


def reserve_replace(text: str, old: Any, new: Any, count: Any = -1) -> None:
    """Account for ``text.replace(old, new, count)``."""
    if isinstance(old, str) and isinstance(new, str) and isinstance(count, int):
        places = text.count(old)
        if count >= 0:
            places = min(places, count)
        current_budget().reserve(len(text) + places * len(new))


def joined(separator: str, items: Iterable[Any]) -> str:
    """``separator.join(map(str, items))`` within the limits."""
    budget = current_budget()
    parts: list[str] = []
    for item in items:
        parts.append(budget.text(item))
        budget.reserve(len(separator))
    return separator.join(parts)


@pass_environment
def _join(
    environment: Environment, value: Any, d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return joined(str(d), value)


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(s)
    limit = -1 if count is None else count
    reserve_replace(text, old, new, limit)
    return text.replace(old, new, limit)


def _string(value: Any) -> str:
    return current_budget().text(value)


def _list(value: Iterable[Any]) -> list[Any]:
    limit = current_budget().max_nodes
    found = list(islice(value, limit + 1))
    if len(found) > limit:
        raise ChatTemplateError("a chat template makes a list that is too long")
    return found


def _sum(value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """Sums numbers only: adding up lists or texts would take quadratic time."""
    if attribute is not None:
        raise ChatTemplateError("the sum filter takes no attribute in a chat template; use map")
    total = start
    for item in value:
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise ChatTemplateError("the sum filter adds numbers only in a chat template")
        total += item
        current_budget().check(total)
    return total


def _center(value: Any, width: int = 80) -> str:
    return str(value).center(bounded(width, "a width"))


def _round(value: float, precision: int = 0, method: str = "common") -> Any:
    return FILTERS["round"](value, bounded(precision, "a precision") if precision else 0, method)


def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterator[Any]:
    result: Iterator[Any] = FILTERS["batch"](value, bounded(linecount, "a count"), fill_with)
    return result


def _slice(value: Iterable[Any], slices: int, fill_with: Any = None) -> list[list[Any]]:
    """Columns of about equal length, the longer ones first."""
    items, columns = _list(value), bounded(slices, "a count")
    each, longer = divmod(len(items), columns)
    found = []
    for column in range(columns):
        start = column * each + min(column, longer)
        part = items[start : start + each + (column < longer)]
        if fill_with is not None and column >= longer:
            part.append(fill_with)
        found.append(part)
    return found


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(s)
    indent = len(width) if isinstance(width, str) else bounded(width, "a width")
    current_budget().reserve(len(text) + (len(text.splitlines()) + 1) * max(indent, 0))
    result: str = FILTERS["indent"](text, width, first, blank)
    return result


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    template = str(value)
    reserve_percent(template, kwargs or args)
    return template % (kwargs or args)


def _escape(value: Any) -> str:
    text = str(value)
    current_budget().reserve(6 * len(text))
    return str(markupsafe.escape(text))


def _urlencode(value: Any) -> str:
    if isinstance(value, str):
        current_budget().reserve(12 * len(value))
    else:
        current_budget().reserve(12 * current_budget().measure(value).chars)
    result: str = FILTERS["urlencode"](value)
    return result


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face defines it for chat templates; Jinja's escapes HTML."""
    budget = current_budget()
    size = budget.measure(value)
    width = len(indent) if isinstance(indent, str) else bounded(indent or 0, "an indent")
    if separators is not None and sum(map(len, separators)) > _MAX_WIDTH:
        raise ChatTemplateError("a chat template separates JSON by too long a text")
    around = 8 + max(width, 0) * size.depth + sum(map(len, separators or ()))
    budget.reserve((12 if ensure_ascii else 6) * size.chars + around * size.nodes)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


_OWN: Mapping[str, Callable[..., Any]] = {
    "batch": _batch,
    "center": _center,
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "list": _list,
    "replace": _replace,
    "round": _round,
    "safe": _string,  # nothing is escaped unless asked for, so there is nothing to mark as safe
    "slice": _slice,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
    "urlencode": _urlencode,
}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its result checked against the budget."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.tick()
        result = function(*args, **kwargs)
        budget.check(result)
        return result

    return call


def chat_template_filters() -> dict[str, Callable[..., Any]]:
    chosen = {name: FILTERS[name] for name in _PLAIN} | dict(_OWN)
    return {name: checked(function) for name, function in chosen.items()}
