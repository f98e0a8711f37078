"""The commands pull, list and rm."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tidemill import store
from tidemill.cli.main import main

REPO = "acme/tiny"


@pytest.fixture
def tidemill(capsys):
    """Runs the command line; gives exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(exit.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def repo(hub_server, make_gguf) -> str:
    hub_server.repos[REPO] = {"tiny-Q8_0.gguf": make_gguf(200_000)}
    hub_server.cards[REPO] = {"license": "mit"}
    return f"hf://{REPO}"


def test_pull(tidemill, repo):
    code, out, err = tidemill("pull", repo)
    assert code == 0
    assert out.startswith(f"{repo}: ready, 200.0 kB at ")
    assert "200.0 kB" in err
    code, out, err = tidemill("pull", repo)
    assert code == 0
    assert out.startswith(f"{repo}: already here, ")
    assert err == ""
    code, out, err = tidemill("pull", "--force", "--quiet", repo)
    assert code == 0
    assert ": ready, " in out
    assert err == ""


def test_pull_json(tidemill, repo):
    code, out, _ = tidemill("pull", "--json", repo)
    assert code == 0
    (model,) = store.list_models()
    described = json.loads(out)
    assert described["path"] == str(model.path)
    assert described["sha256"] == model.sha256
    assert described["license"] == "mit"


def test_pull_for_a_shell(tidemill, repo):
    code, out, err = tidemill("pull", "--path", repo)
    assert code == 0
    (model,) = store.list_models()
    assert out == f"{model.path}\n"
    assert "200.0 kB" in err
    assert tidemill("pull", "--path", "--json", repo)[0] == 2


def test_pull_of_an_unknown_name(tidemill):
    code, out, err = tidemill("pull", "smolm2")
    assert code == 1
    assert out == ""
    assert "did you mean smollm2?" in err


def test_list(tidemill, repo):
    tidemill("pull", repo)
    code, out, _ = tidemill("list")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "PACKED", "LICENCE", "WHERE"]
    assert lines[1].split()[:5] == [repo, "200.0", "kB", "-", "mit"]
    assert any("smollm2" in line and "tidemill pull smollm2" in line for line in lines)
    assert any("gemma3" in line and "253.1 MB" in line for line in lines)


def test_list_json(tidemill, repo, hub_server, make_gguf):
    tidemill("pull", repo)
    hub_server.repos["acme/half"] = {"tiny-Q8_0.gguf": make_gguf(4 << 20)}
    hub_server.behave("/cdn/acme--half/tiny-Q8_0.gguf", drop_after=1 << 20, drops_left=100)
    assert tidemill("pull", "hf://acme/half")[0] == 1
    listed = json.loads(tidemill("list", "--json")[1])
    assert [model["name"] for model in listed["installed"]] == [repo]
    assert [entry["name"] for entry in listed["unfinished"]] == ["hf://acme/half"]
    assert {entry["name"] for entry in listed["available"]} == {"smollm2", "gemma3"}
    assert "unfinished" in tidemill("list")[1]


def test_rm_needs_a_yes(tidemill, repo, monkeypatch):
    tidemill("pull", repo)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, _, err = tidemill("rm", repo)
    assert code == 2
    assert "--yes" in err
    assert len(store.list_models()) == 1
    code, out, _ = tidemill("rm", "--yes", repo)
    assert code == 0
    assert "freed" in out
    assert store.list_models() == []


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
def test_rm_asks(tidemill, repo, monkeypatch, answer, left):
    import io

    tidemill("pull", repo)
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    code, _, _ = tidemill("rm", repo)
    assert code == (130 if left else 0)
    assert len(store.list_models()) == left


def test_rm_of_an_unknown_name(tidemill, repo):
    tidemill("pull", repo)
    code, _, err = tidemill("rm", "--yes", "hf://acme/tini")
    assert code == 1
    assert f"did you mean {repo}?" in err


def test_commands_import_no_clients():
    heavy = "huggingface_hub", "fsspec", "numpy", "tqdm", "filelock", "httpx", "httpx2", "zipfile"
    script = (
        "import sys, tidemill.cli.store_commands, tidemill.store\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"
