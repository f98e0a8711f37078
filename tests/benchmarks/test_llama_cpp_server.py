"""llama.cpp's server as a peer, over a server that has no model."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from peers import llama_cpp_server
from peers.llama_cpp import LlamaCpp
from peers.llama_cpp_server import LlamaCppServer, Server
from peers.protocol import Limits, Model, Work

FAKE = Path(__file__).with_name("fake_llama_server.py")
MODEL = Model("tiny", "/tiny.gguf", "Q4_0", "llama", 1000, 64)
SETTINGS = {"flash attention": "on", "ubatch": 128}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(LlamaCpp, "tools", tmp_path)
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    return tmp_path


@pytest.fixture
def peer(folder):
    peer = LlamaCppServer()
    yield peer
    peer.close()


def requests(folder):
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_all_prompts_are_one_request_without_reuse_of_earlier_ones(peer, folder):
    peer.load(MODEL, 2, SETTINGS, Limits(33, 2))
    assert peer.generate([[301, 302], [303, 304]], 5) == [5, 5]
    assert peer.generate([[301]], 1) == [1]
    first, second = requests(folder)
    assert first["prompt"] == [[301, 302], [303, 304]]
    assert (first["n_predict"], first["ignore_eos"], first["cache_prompt"]) == (5, True, False)
    assert second["prompt"] == [[301]]


def test_a_server_holds_what_its_work_needs_and_no_more(peer, folder):
    work = Work("w", "speed", prompt=8, generate=4, streams=3, figures=("prefill",))
    assert peer.measure(MODEL, work, 2, SETTINGS, Limits(8192, 64))["prefill"] > 0
    arguments = json.loads((folder / "arguments.json").read_text())
    options = dict(itertools.pairwise(arguments))
    assert (options["-np"], options["-c"], options["-t"]) == ("3", str(3 * 13), "2")
    assert (options["-fa"], options["-ub"]) == ("on", "128")


def test_start_and_memory_are_of_the_servers_process(peer, folder):
    start = peer.measure(MODEL, Work("w", "start", 8, figures=("seconds",)), 1, SETTINGS, None)
    memory = peer.measure(MODEL, Work("w", "memory", 8, figures=("MiB",)), 1, SETTINGS, None)
    assert start["seconds"] > 0.004  # it said twice that it was loading
    assert 1 < memory["MiB"] < 200
    assert [request.get("stream", False) for request in requests(folder)] == [True, True, False]


def test_a_request_refused_is_an_error_with_the_reason(peer):
    peer.load(MODEL, 2, SETTINGS, Limits(8, 1))
    with pytest.raises(RuntimeError, match=r"HTTP status 400: .*token 0 is not taken"):
        peer.generate([[0]], 1)


def test_a_server_that_ends_is_an_error_with_its_last_words(folder):
    broken = Model("broken", "broken", "Q4_0", "llama", 1000, 64)
    with pytest.raises(RuntimeError, match="exit status 1: no such architecture"):
        Server(broken, 2, SETTINGS, Limits(8, 1))


def test_the_server_is_of_the_same_build_as_the_tools():
    assert "llama-server" in llama_cpp_server.TOOLS.targets
