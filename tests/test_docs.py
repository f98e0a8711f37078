"""The documentation says what the code does: snippets run, commands parse, links lead somewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from support.commands import parse, tidemill_calls
from tidemill import SamplingParams
from tidemill.cli.main import COMMANDS, cli
from tidemill.llm import CompletionOutput, RequestMetrics, RequestOutput
from tidemill.llm.core import LoadOptions
from tidemill.store import load_catalogue

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MODELS = ("smollm2", "gemma3")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [code for name, code in _FENCE.findall(page.read_text("utf-8")) if name == language]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


# ---- Python snippets ---------------------------------------------------------------------------


def run_snippets(page: Path, model: Path) -> str:
    """Run the page's snippets in one namespace, on ``model`` in the place of the real ones."""
    snippets = blocks(page, "python")
    assert snippets, f"{page} has no Python snippets"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, snippet in enumerate(snippets, 1):
            for name in MODELS:
                snippet = snippet.replace(f'"{name}"', repr(str(model)))
            exec(compile(snippet, f"{page_id(page)}, snippet {number}", "exec"), namespace)
    return printed.getvalue()


@pytest.fixture
def tiny_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEMILL_OFFLINE", "1")


@pytest.mark.usefixtures("tiny_store")
@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_snippets_run(name: str, tiny_chat_model: Path) -> None:
    assert run_snippets(ROOT / name, tiny_chat_model).strip()


@pytest.mark.usefixtures("tiny_store")
def test_python_page_snippets_run(tiny_chat_model: Path) -> None:
    printed = run_snippets(ROOT / "docs/python.md", tiny_chat_model)
    for words in (
        "The capital of France is ->",  # a batch
        "<|im_start|>user\nWhy is the sky blue?<|im_end|>",  # the rendered chat
        "rank 1",  # greedy log-probabilities
        "temperature invalid_value",  # RequestError
        "context_length_exceeded",
        "a KV cache of",  # InsufficientMemoryError
        "threads: ",
        "\n0 of ",  # the first request finds nothing in the prefix cache ...
        "\nTrue\n",  # batch invariance
    ):
        assert words in printed, words
    cached = [int(n) for n in re.findall(r"^(\d+) of \d+ from the cache$", printed, re.MULTILINE)]
    assert cached[0] == 0
    assert cached[1] >= 16  # ... the second one does


# ---- commands ----------------------------------------------------------------------------------


def console_commands(page: Path) -> list[str]:
    """The lines after ``$`` in the page's console blocks."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def check_call(arguments: list[str], *, whole: bool) -> None:
    """Fail unless the options exist, values are valid and, if ``whole``, nothing is missing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parse(arguments)
    except click.UsageError as error:
        missing = isinstance(error, click.MissingParameter | click.exceptions.NoArgsIsHelpError)
        if whole or not missing:
            pytest.fail(f"tidemill {shlex.join(arguments)}: {error.format_message()}")


@pytest.fixture
def files_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that examples name."""
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "prompt.txt"):
        (tmp_path / name).write_text("A text.\n")


@pytest.mark.usefixtures("files_at_hand")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_console_blocks_parse(page: Path) -> None:
    for line in console_commands(page):
        for call in tidemill_calls(line):
            check_call(call, whole=True)


@pytest.mark.usefixtures("files_at_hand")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_the_prose_exist(page: Path) -> None:
    """Arguments may be left out there, but commands and options must be real."""
    for span in _SPAN.findall(prose(page).replace("\\|", "|")):
        if not span.startswith("tidemill ") or "COMMAND" in span:
            continue
        span = re.sub(r" [NM]\b(?![A-Z])", " 512", span).replace(" ...", "")
        for call in tidemill_calls(span):
            check_call(call, whole=False)


@pytest.mark.parametrize(
    "line",
    [
        "tidemill rnu smollm2 x",
        "tidemill run smollm2 x --sed 3",
        "FOO=1 tidemill run smollm2 x --temperature hot | head",
        "echo x | tidemill run --top-p 2 smollm2 -",
        "tidemill eval perplexity smollm2",
        "tidemill run",
    ],
)
def test_wrong_commands_would_be_found(line: str) -> None:
    calls = list(tidemill_calls(line))
    assert len(calls) == 1
    with pytest.raises(pytest.fail.Exception):
        check_call(calls[0], whole=True)


def test_make_targets_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for page in PAGES:
        lines = [*console_commands(page), *_SPAN.findall(prose(page))]
        for line in lines:
            if match := re.match(r"make ([a-z][a-z-]*)", line):
                assert match[1] in targets, f"{page_id(page)}: make {match[1]}"


# ---- nothing is left out -----------------------------------------------------------------------


def options_of(command: click.Command) -> set[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        subcommands = [
            command.get_command(context, name) for name in command.list_commands(context)
        ]
        return set().union(*(options_of(sub) for sub in subcommands if sub is not None))
    return {
        max(parameter.opts, key=len)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    assert re.search(rf"^\$ .*tidemill {name}\b", text, re.MULTILINE), f"no example of {name}"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    missing = {option for option in options_of(command) if not re.search(rf"{option}\b", text)}
    assert not missing


def test_every_python_name_is_documented() -> None:
    text = (ROOT / "docs/python.md").read_text("utf-8")
    names = {*LoadOptions.__annotations__}
    for kind in (SamplingParams, RequestOutput, CompletionOutput, RequestMetrics):
        names |= {field.name for field in dataclasses.fields(kind)}
    missing = {name for name in names if f"`{name}`" not in text}
    assert not missing


def test_sampling_defaults_are_those_documented() -> None:
    text = (ROOT / "docs/python.md").read_text("utf-8")
    defaults = SamplingParams()
    for field in dataclasses.fields(SamplingParams):
        row = re.search(rf"^\| `{field.name}` \| ([^|]*?) \|", text, re.MULTILINE)
        assert row is not None, field.name
        value = getattr(defaults, field.name)
        shown = "{}" if field.name == "logit_bias" else str(value)
        assert row[1].strip("`") == shown, field.name


def test_every_environment_variable_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").glob("*.cpp")]
    read = re.compile(r"(?:environ(?:\.get\(|\[)|getenv\(|envvar=)\"(\w+)\"")
    found = {name for path in sources for name in read.findall(path.read_text("utf-8"))}
    assert {"TIDEMILL_HOME", "TIDEMILL_ISA", "TIDEMILL_THREADS"} <= found
    missing = {name for name in found - {"XDG_CONFIG_HOME"} if f"`{name}`" not in text}
    missing -= {name for name in missing if f"${name}" in text}
    assert not missing


def test_the_catalogue_table_is_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = (ROOT / "docs/models.md").read_text("utf-8")
    for entry in load_catalogue().values():
        assert entry.bytes is not None
        size = f"{entry.bytes / 1e6:.0f} MB"
        row = rf"^\| `{entry.name}`[^|]*\|[^|]*\| {size} \| {entry.license}\b"
        assert re.search(row, text, re.MULTILINE), entry


# ---- pages -------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")
        for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.is_relative_to(ROOT), link
        assert path.exists(), f"{page_id(page)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(path), f"{page_id(page)} links to {link}: no such heading"


def test_both_readmes_say_the_same() -> None:
    """The translation has the same headings, commands, snippets and links, in the same order."""
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    for language in ("console", "python"):
        assert blocks(english, language) == blocks(chinese, language)
    texts = [prose(page) for page in (english, chinese)]
    levels = [re.findall(r"^(#+) ", text, re.MULTILINE) for text in texts]
    assert levels[0] == levels[1]
    links = [[link for link in _LINK.findall(text) if "README" not in link] for text in texts]
    assert links[0] == links[1]


def test_the_tests_that_are_named_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/tested.md").read_text("utf-8"))
    assert len(named) > 40
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file}::{test}"
