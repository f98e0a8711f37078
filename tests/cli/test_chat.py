"""``tidemill chat``: at a terminal, and line by line through a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.terminal import Terminal
from support.tiny_chat_model import write_chat_model
from tidemill import LLM, SamplingParams

Tidemill = Callable[..., Any]  # see conftest.py
GREEDY = ["--temperature", "0", "--max-tokens", "8", "--ignore-eos"]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CTRL_C, CTRL_D, UP, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\x1b\r"


def answers(model: Path, *turns: str, system: str | None = None) -> list[str]:
    """What the API says to the same turns."""
    messages = [{"role": "system", "content": system}] if system else []
    texts = []
    with LLM(str(model), threads=1) as llm:
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            texts.append(llm.chat(messages, PARAMS)[0].outputs[0].text)
            messages.append({"role": "assistant", "content": texts[-1]})
    return texts


def shown(texts: list[str]) -> str:
    return "".join(text if text.endswith("\n") or not text else text + "\n" for text in texts)


def saved(path: Path) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def test_lines_are_turns_of_one_conversation(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    done = tidemill("chat", str(tiny_chat_model), "-q", *GREEDY, stdin="Hello\n\nAnd then?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown(answers(tiny_chat_model, "Hello", "And then?"))
    assert done.stderr == ""


def test_a_block_of_lines_is_one_turn(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    stdin = '"""first line\n\n  second line"""\n'
    done = tidemill("chat", str(tiny_chat_model), "-q", *GREEDY, stdin=stdin)
    assert done.stdout == shown(answers(tiny_chat_model, "first line\n\n  second line"))


def test_commands(tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    stdin = (
        f"Hello\n/save {first}\n/system Be brief.\nHi\n/save {second}\n/load {first}\n"
        f"/set top_k 5\n/set\n/help\n/nonsense\n/set volume 11\n/set top_p 7\n/set seed\n/load\n"
        f"/load {tmp_path}/missing\n/reset\n/quit\nnever asked\n"
    )
    done = tidemill("chat", str(tiny_chat_model), *GREEDY, stdin=stdin)
    assert done.returncode == 0, done.stderr
    (hello,) = answers(tiny_chat_model, "Hello")
    (brief,) = answers(tiny_chat_model, "Hi", system="Be brief.")
    assert done.stdout == shown([hello, brief])
    assert saved(first) == [("user", "Hello"), ("assistant", hello)]
    assert saved(second) == [("system", "Be brief."), ("user", "Hi"), ("assistant", brief)]
    for note in (
        "2 messages are in", "2 messages from", "top_k 5", "temperature 0.0", "Ctrl-C stops",
        "no command /nonsense", "no setting volume", "top_p cannot be 7", "give a value",
        "give a file", "missing cannot be read", "forgotten", "tok/s",
    ):  # fmt: skip
        assert note in done.stderr, note


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"messages": 3}', '{"messages": [{"role": 1}]}']
)
def test_loading_what_is_no_conversation(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    done = tidemill("chat", str(tiny_chat_model), "-q", *GREEDY, stdin=f"/load {path}\nHello\n")
    assert done.returncode == 0
    assert done.stdout == shown(answers(tiny_chat_model, "Hello"))
    assert str(path) in done.stderr


def test_a_full_context_is_said_and_survived(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    stdin = "x" * 3000 + "\nHello\n"
    done = tidemill("chat", str(tiny_chat_model), "-q", *GREEDY, stdin=stdin)
    assert done.returncode == 0
    assert "context" in done.stderr
    assert "/reset" in done.stderr
    assert done.stdout == shown(answers(tiny_chat_model, "Hello"))


def test_a_model_without_a_template_gets_the_one_that_fits(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path
) -> None:
    model = write_chat_model(tmp_path / "plain.gguf", template=None)
    done = tidemill("chat", str(model), "-q", *GREEDY, stdin="Hello\n")
    assert done.stdout == shown(answers(tiny_chat_model, "Hello"))
    assert "made for chatml" in done.stderr


def test_without_any_template_the_choices_are_named(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path
) -> None:
    bare = write_chat_model(tmp_path / "bare.gguf", template=None, control_prefix="<|x")
    done = tidemill("chat", str(bare), stdin="Hello\n")
    assert done.returncode == 1
    assert "--chat-template" in done.stderr
    done = tidemill("chat", str(bare), "-q", *GREEDY, "--chat-template", "nope", stdin="Hello\n")
    assert "chatml" in done.stderr
    assert done.stdout == ""
    done = tidemill("chat", str(bare), "-q", *GREEDY, "--chat-template", "llama2", stdin="Hello\n")
    assert done.stdout
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[-1].content }}")
    done = tidemill(
        "chat", str(tiny_chat_model), "-q", *GREEDY, "--chat-template", str(own), stdin="Hello\n"
    )
    with LLM(str(tiny_chat_model), threads=1) as llm:
        assert done.stdout == shown([llm.generate("Hello", PARAMS)[0].outputs[0].text])


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("/set seed abc", "seed cannot be abc: a whole number is needed"),
        ("/set top_p abc", "top_p cannot be abc: a number is needed"),
        ("/set temperature nan", "finite"),
        ("/save ~nobody-of-this-name/x", "no home folder"),
        ("/load ~nobody-of-this-name/x", "no home folder"),
        ("/etc/passwd is a file", 'put it between """'),
    ],
)
def test_a_wrong_command_is_explained(
    tidemill: Tidemill, tiny_chat_model: Path, command: str, answer: str
) -> None:
    done = tidemill("chat", str(tiny_chat_model), "-q", *GREEDY, stdin=f"{command}\nHello\n")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert answer in line
    assert done.stdout == shown(answers(tiny_chat_model, "Hello"))


@pytest.fixture
def terminal(tiny_chat_model: Path, cli_env: dict[str, str]) -> Iterator[Terminal]:
    with Terminal(["chat", str(tiny_chat_model), *GREEDY], cli_env) as opened:
        opened.expect("/help lists the commands")
        opened.expect(">>>")
        yield opened


def test_a_conversation_at_a_terminal(
    terminal: Terminal, tiny_chat_model: Path, tmp_path: Path
) -> None:
    terminal.send("Hello\r")
    terminal.expect(r"8 generated.*tok/s")
    terminal.expect(">>>")
    path = tmp_path / "talk.json"
    terminal.send(f"/save {path}\r")
    terminal.expect("2 messages are in")
    terminal.expect(">>>")
    terminal.send(CTRL_D)
    assert terminal.finish() == 0
    assert saved(path) == [("user", "Hello"), ("assistant", *answers(tiny_chat_model, "Hello"))]


def test_exit_leaves(terminal: Terminal) -> None:
    terminal.send("exit\r")
    assert terminal.finish() == 0


def test_sigterm_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.send("half a line")
    terminal.expect("half a line")  # the prompt reads key by key now
    assert not terminal.echoes()
    terminal.process.terminate()
    assert terminal.finish() == 143
    assert terminal.echoes()


def test_several_lines_at_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    for keys in (
        f"one{ALT_ENTER}two\r",
        '"""three\rfour"""\r',
        "\x1b[200~five\nsix\x1b[201~\r",  # bracketed paste
    ):
        terminal.send(keys)
        terminal.expect("tok/s")
        terminal.expect(">>>")
    terminal.send(f"/save {path}\r")
    terminal.expect("6 messages are in")
    asked = [content for role, content in saved(path) if role == "user"]
    assert asked == ["one\ntwo", "three\nfour", "five\nsix"]


def test_ctrl_c_stops_the_answer_and_not_the_program(
    tiny_chat_model: Path, cli_env: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    # The slow backend: an answer of a thousand tokens would take minutes.
    arguments = ["chat", str(tiny_chat_model), "--backend", "reference", "--ignore-eos"]
    with Terminal([*arguments, "--seed", "1"], cli_env) as terminal:
        terminal.expect(">>>")
        terminal.send("Hello\r")
        terminal.expect(r"Hello\s+\S")  # the echo, then something of the answer
        terminal.send(CTRL_C)
        terminal.expect(r"\[stopped\]")
        terminal.expect(">>>")
        terminal.send(f"/save {path}\r")
        terminal.expect("2 messages are in")
        terminal.expect(">>>")
        terminal.send("/set max_tokens 3\r")
        terminal.expect("max_tokens 3")
        terminal.expect(">>>")
        terminal.send("Again\r")
        terminal.expect("3 generated")
        terminal.expect(">>>")
        terminal.send("half a line" + CTRL_C)
        terminal.expect("Ctrl-D leaves")
        terminal.expect(">>>")
        terminal.send(CTRL_D)
        assert terminal.finish() == 0
    assert [role for role, _ in saved(path)] == ["user", "assistant"]


def test_history_is_kept_between_conversations(
    terminal: Terminal, tiny_chat_model: Path, cli_env: dict[str, str]
) -> None:
    terminal.send("Hello again\r")
    terminal.expect("tok/s")
    terminal.expect(">>>")
    terminal.send(CTRL_D)
    assert terminal.finish() == 0
    history = Path(cli_env["TIDEMILL_HOME"]) / "chat_history"
    assert "+Hello again" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    with Terminal(["chat", str(tiny_chat_model), *GREEDY], cli_env) as later:
        later.expect(">>>")
        later.send(UP)
        later.expect("Hello again")
        later.send("\r")
        later.expect("tok/s")
