"""The sandbox in which chat templates run: no access to Python, bounded time and memory.

Jinja's own sandbox keeps a template away from Python's internals (CVE-2024-34359 and its kin were
templates rendered without it), but a template may still loop for hours or fill the memory. Here
the template's compiler, calls, operators, filters and tests also report to a TemplateBudget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace, pass_context

from tidemill.text.template_budget import current_budget
from tidemill.text.template_filters import (
    chat_template_filters,
    checked,
    joined,
    reserve_format,
    reserve_percent,
    reserve_replace,
)

Test = Callable[..., bool]

# fmt: off
_STR_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper",
))
# fmt: on
_DICT_METHODS = frozenset(("copy", "get", "items", "keys", "values"))
_LIST_METHODS = frozenset(("copy", "count", "index", "grouper", "list"))


class _Items:
    """What a ``for`` loop runs over, reporting each step."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        budget = current_budget()
        for item in self._items:
            budget.tick()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # TypeError: the loop then counts


class _QuietNamespace(Namespace):
    """A namespace may hold itself or others many times over; its text does not follow them."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BudgetedCode(CodeGenerator):
    """Generates code in which everything that makes a value reports to the environment."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        for loop in node.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_items", [], [], None, None, lineno=loop.lineno)
        super().visit_Template(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        made = node.ctx == "load"
        self.write("environment.made(" if made else "")
        super().visit_Tuple(node, frame)
        self.write(")" if made else "")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_Compare(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _refuse(self, node: nodes.Node, frame: Frame) -> None:
        name = type(node).__name__.lower()
        raise TemplateAssertionError(f"{name} has no place in a chat template", node.lineno)

    visit_Include = _refuse
    visit_Import = _refuse
    visit_FromImport = _refuse
    visit_Extends = _refuse
    visit_EvalContextModifier = _refuse
    visit_ScopedEvalContextModifier = _refuse


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Called on each value that is printed. That it takes the context keeps Jinja from evaluating
    constant expressions while it compiles."""
    return current_budget().text(value)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. Use it with a budget active, compiling included."""

    code_generator_class = _BudgetedCode
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters = {**chat_template_filters(), "_items": _Items}
        self.tests = {name: checked(cast(Test, test)) for name, test in TESTS.items()}
        del self.globals["lipsum"]
        self.globals["namespace"] = _QuietNamespace

    def made(self, value: Any) -> Any:
        """A value that the template has made."""
        current_budget().check(value)
        return value

    def concat(self, parts: Iterable[Any]) -> str:
        """Joins the output of blocks, and what stands between ``~``."""
        budget = current_budget()
        budget.tick()
        return joined("", parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, list | tuple):
            return attr in _LIST_METHODS
        # Beyond data there are only Jinja's own objects: loop, macros, namespaces, cyclers ...
        own = isinstance(obj, Namespace) or type(obj).__module__.startswith("jinja2.")
        return own and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses at once, where Jinja would wait until the attribute is used."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not for chat templates")

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute not in _DICT_METHODS and attribute in obj:
            return obj[attribute]  # a key like "update" rather than a method that is refused
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Any:
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None:
            return None
        template = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            reserve_format(template, args, kwargs)
            return sandboxed(*args, **kwargs)

        return formatted

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        for argument in (*args, *(v for k, v in kwargs.items() if not k.startswith("_"))):
            if isinstance(argument, list | tuple | dict):
                budget.measure(argument)
        if isinstance(__obj, LoopContext) and args:  # the next level of a recursive loop
            args = (_Items(args[0]), *args[1:])
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = __obj.__name__
            if name == "join" and len(args) == 1:
                args = (__self.filters["list"](args[0]),)
                budget.reserve(sum(len(item) + len(owner) for item in args[0]))
            elif name == "replace" and len(args) >= 2:
                reserve_replace(owner, *args)
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, str | list | tuple):
                    budget.reserve(len(value) * max(times, 0))
            if isinstance(left, int) and isinstance(right, int):
                budget.check_bits(left.bit_length() + right.bit_length())
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                budget.check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            reserve_percent(left, right)
        return self.made(super().call_binop(context, operator, left, right))
