"""Hostile chat templates end in a clear error: no Python, no endless loop, no memory blow-up."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from tidemill.text.chat import ChatTemplate
from tidemill.text.errors import ChatTemplateError
from tidemill.text.template_budget import TemplateLimits

USER = [{"role": "user", "content": "Hi"}]
LIMITS = TemplateLimits(seconds=0.25)


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, limits=LIMITS).render(USER, **variables)


# Ways to Python from a template: CVE-2024-34359 (unsandboxed rendering), CVE-2024-56201,
# CVE-2024-56326 and CVE-2025-27516 (gaps of the sandbox), and their kin.
INJECTIONS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ messages.__class__ }}{{ messages.__class__.__init__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace().__class__.__init__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__closure__[0].cell_contents }}",
    "{{ strftime_now.__code__ }}",
    "{{ range.__class__.__base__ }}",
    "{{ dict.mro() }}",
    "{{ dict.fromkeys('ab') }}",
    "{{ messages | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ messages | sum(attribute='__class__') }}",
    "{{ messages | join(attribute='__class__') }}",
    "{{ messages | sort(attribute='__class__') }}",
    "{{ messages[0]['__class__']['__mro__'] }}",
    "{{ '{0.__class__}'.format(messages).__class__ }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{x.__init__.__globals__}'.format_map({'x': cycler}) }}",
    "{% set f = 'format' %}{{ ('{0.__class__.__mro__}' | attr(f))(messages) }}",
    "{{ ['{0.__class__.__mro__}'.format] | map('string') | list }}{{ ''.format.__globals__ }}",
    "{% for f in ['{.__class__.__mro__}'.format] %}{{ [messages] | map(f) | list }}{% endfor %}",
    "{{ lipsum.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ (1).__class__ }}{{ (1).real.__class__.__mro__ }}",
    "{{ loop.__class__ }}{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func.__globals__ }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'x' import y %}",
    "{% autoescape true %}{{ 'x' }}{% endautoescape %}",
    "{% do messages.append(1) %}",
]


@pytest.mark.parametrize("source", INJECTIONS)
def test_no_way_to_python(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


EVER = "{% for i in range(99999) %}"

NEVER_ENDING = [
    EVER + EVER + "{% endfor %}{% endfor %}",
    EVER + EVER + "{% set x = i * 3 %}{% endfor %}{% endfor %}",
    EVER + "{% for j in range(99999) if j == i %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if i in range(i) %}{% for j in range(i) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    EVER + "{{ range(99999) | list | length }}{% endfor %}",
    EVER + "{{ range(99999) | sum }}{% endfor %}",
    EVER + "{{ range(99999) | map('string') | join | length }}{% endfor %}",
    EVER + "{% if range(99999) | list == range(99999) | list %}{% endif %}{% endfor %}",
    EVER + "{{ range(99999) | sort | first }}{% endfor %}",
    "{% set s = 'a' * 4000000 %}" + "{{ ('a' * 9 + 'b') in s }}" * 1500,
    "{% set s = range(99999) | list %}" + "{{ s == range(99999) | list }}" * 1500,
    "{{ range(99999) | map('replace', 'a', 'b') | map('upper') | list | length }}" * 700,
]


@pytest.mark.parametrize("source", NEVER_ENDING, ids=range(len(NEVER_ENDING)))
def test_loops_are_stopped(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(ChatTemplateError):
        render(source)
    # Processor time of this thread, so a busy machine does not matter. Far above the limit, far
    # below what these would take.
    assert time.thread_time() - start < 10


def double(expression: str, times: int = 60, start: str = "'x'") -> str:
    """``x`` set to an expression of itself, many times over."""
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}"
        f"{{% set ns.x = {expression} %}}{{% endfor %}}"
    )


BLOW_UPS = [
    "{{ 'x' * 1000000000 }}",
    "{{ 1000000000 * 'x' }}",
    "{{ [0] * 1000000000 }}",
    "{{ (0,) * 1000000000 }}",
    "{{ 10 ** 10 ** 9999 }}",
    "{{ 10 ** 99999 }}",
    "{{ 'x' * 10 ** 9 ~ 'y' }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.999999999f' % 1.0 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999d}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ 'x'.center(999999999) }}",
    "{{ 'x'.ljust(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ '\\t'.expandtabs(999999999) }}",
    "{{ 'x' | center(999999999) }}",
    "{{ 'x\\ny' | indent(999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ [1, 2] | batch(999999999, 'x') | list }}",
    "{{ [1, 2] | slice(999999999) | list }}",
    "{{ 1.5 | round(999999999) }}",
    "{{ 1.5 | round(999999999, 'floor') }}",
    "{{ lipsum(999999999) }}",
    "{{ range(999999999) | list }}",
    "{{ 'x'.encode('utf-32') }}",
    "{{ 'x'.translate({120: 'y' * 1000000}) }}",
    double("ns.x + ns.x") + "{{ ns.x }}",
    double("ns.x ~ ns.x") + "{{ ns.x }}",
    double("ns.x ~ ns.x ~ ns.x ~ ns.x") + "{{ ns.x }}",
    double("ns.x.replace('x', ns.x)", start="'xx'"),
    double("ns.x | replace('x', ns.x)", start="'xx'"),
    double("ns.x.replace('', ns.x)", start="'xx'"),
    double("ns.x.join([ns.x, ns.x, ns.x])"),
    double("[ns.x, ns.x] | join(ns.x)"),
    double("'%s%s' % (ns.x, ns.x)"),
    double("'{}{}'.format(ns.x, ns.x)"),
    double("'{0}{0}{0}{0}'.format(ns.x)"),
    double("ns.x * ns.x", start="10"),
    double("ns.x ** 2", start="10"),
    double("ns.x + ns.x", start="[0]"),
    double("[ns.x, ns.x]", start="[0]") + "{{ ns.x }}",
    double("[ns.x, ns.x]", start="[0]") + "{{ ns.x | tojson }}",
    double("[ns.x, ns.x]", start="[0]") + "{{ ns.x == [ns.x, ns.x] }}",
    double("(ns.x, ns.x)", start="[0]") + "{{ ns.x | string | length }}",
    double("{'a': ns.x, 'b': ns.x}", start="{}") + "{{ ns.x ~ '' }}",
    double("dict(a=ns.x, b=ns.x)", start="{}") + "{{ ns.x | pprint }}",
    double("[ns.x].copy() + [ns.x]", start="[0]") + "{{ ns.x }}",
    double("[ns.x] * 1000", start="[0]") + "{{ ns.x }}",
    double("dict(a=ns.x, b=ns.x).values()", start="{}") + "{{ ns.x }}",
    double("dict(a=ns.x, b=ns.x).items() | list", start="{}") + "{{ ns.x }}",
    double("[ns.x, ns.x] | batch(2) | list", start="[0]") + "{{ ns.x }}",
    double("[[ns.x, 1], [ns.x, 2]] | groupby(1)", start="[0]") + "{{ ns.x }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}"
    "{% endmacro %}{{ m(60, 1, 2) }}",
    "{% macro m() %}{% for i in range(99999) %}"
    + "y" * 5000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "{% set x %}{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}{% endset %}{{ x }}",
    "{% filter upper %}{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}{% endfilter %}",
    "{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}",
    "{% set s = 'x' * 4000000 %}{{ " + " ~ ".join(["s"] * 3000) + " }}",
    "{% set s = 'x' * 4000000 %}{% set l = [" + ",".join(["s"] * 3000) + "] %}{{ l }}",
    "{% set s = 'x' * 4000000 %}{{ [" + ",".join(["s"] * 3000) + "] | join }}",
    "{% set s = 'x' * 4000000 %}" + "{{ s }}" * 3000,
    "{% set s = 'ab' * 2000000 %}{{ s | list | length }}{{ s.split('b') | length }}",
    "{{ range(9999) | map('replace', '1', 'x' * 4000000) | list }}",
    "{{ range(99999) | map('center', 1000) | list | length }}",
    "{{ [[0] * 50000] * 50000 }}",
    "{{ [[1]] * 1000 | sum(start=[]) }}{{ ([[1]] * 90000) | sum(start=[]) }}",
    "{{ strftime_now('%c' * 100000) }}",
    "{{ 'x' * (('9' * 4000) | int) }}",
    "{{ ('%' * 1000000) | urlencode | urlencode | urlencode | length }}{{ '%' * 999999999 }}",
]


@pytest.mark.parametrize("source", BLOW_UPS, ids=range(len(BLOW_UPS)))
def test_memory_is_bounded(source: str) -> None:
    start = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            render(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
    assert time.thread_time() - start < 20


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "[" * 2000 + "]" * 2000 + " }}",
        "{{ " + "+".join(["x"] * 20000) + " }}",
        "{{ " + "not " * 15000 + "x }}",
        "{{ x" + ".a" * 20000 + " }}",
        "{{ x" + "|upper" * 9000 + " }}",
        "{% if a %}" * 2000 + "{% endif %}" * 2000,
        "{% for a in b %}" * 100 + "{% endfor %}" * 100,
        "{% if a %}{% elif b %}" + "{% elif c %}" * 5000 + "{% endif %}",
        "x" * (LIMITS.source_chars + 1),
        "{{ '" + "a" * 100 + "' * 10000000 }}",
        "\x00{{",
    ],
    ids=range(12),
)
def test_sources_that_stress_the_compiler(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_constant_expressions_are_not_evaluated_while_compiling() -> None:
    template = ChatTemplate("{{ 'x' | center(500) | length }}", limits=LIMITS)
    assert "500" not in template.render(USER).replace("500", "", 1)
    ChatTemplate("{{ 'x' * 1000000000 }}{{ 'x' | center(999999999) }}", limits=LIMITS)


def test_honest_large_input_is_rendered() -> None:
    """The limits grow with the input: 8 million characters in 500 messages are fine."""
    messages = [{"role": "user", "content": "word " * 3200}] * 500
    template = ChatTemplate(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) +"
        " '<|im_end|>\\n' }}{% endfor %}"
    )
    assert len(template.render(messages)) > 7_900_000


def test_an_input_that_shares_parts_is_measured_as_a_tree() -> None:
    value: list[object] = [0]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(ChatTemplateError):
        render("{{ value }}", value=value)


def test_other_threads_go_on_and_the_template_stays_usable() -> None:
    hostile = ChatTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        limits=LIMITS,
    )
    honest = ChatTemplate("{{ messages[0].content }}")
    results: list[str] = []

    def work() -> None:
        for _ in range(20):
            results.append(honest.render(USER))
        with pytest.raises(ChatTemplateError, match=r"more than 0\.25 s"):
            hostile.render(USER)
        results.append(honest.render(USER))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["Hi"] * 63
