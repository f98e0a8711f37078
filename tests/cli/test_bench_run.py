"""``tidemill bench run``, ``list``, ``show`` and ``selftest``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import fake_llama_server
from support.canned import canned
from support.mine import MINE
from tidemill.bench.result import Result
from tidemill.bench.scenario import names

Tidemill = Callable[..., Any]  # see conftest.py


def run(tidemill: Tidemill, target: str, *arguments: object) -> Any:
    return tidemill("bench", "run", "--target", target, *map(str, arguments))


def test_a_url_is_measured(tidemill: Tidemill, url: str, mine: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run(tidemill, url, "--scenario", mine, "--json", file, "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert "mine · http://127.0.0.1:" in done.stdout
    for words in ("TTFT", "TPOT", "ITL", "E2E", "SLO ttft=50: met by 100.0%", "no errors"):
        assert words in done.stdout, words
    (found,) = msgspec.json.decode(file.read_bytes())["results"]
    result = msgspec.convert(found, Result)
    assert (result.seed, result.target.model) == (3, "mock")
    assert result.target.extra == {"temperature": 0, "ignore_eos": True}
    assert result.scenario.name == "mine"
    assert result.machine.cores >= 1
    assert result.summary is not None
    assert result.summary.mean_output_tokens == 4
    assert result.summary.attained == 1


def test_json_alone_and_options(tidemill: Tidemill, url: str, mine: Path) -> None:
    done = run(
        tidemill, url, "--scenario", mine, "--json", "-", "--slo", "ttft=9,tpot=8", "--rate", 40,
        "--seconds", 0.4, "--scale", 2, "--model", "other", "--timeout", 30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert found["slo"] == {"ttft": 9.0, "tpot": 8.0, "e2e": None}
    scenario = found["scenario"]
    assert scenario["load"] == {"kind": "gamma", "rate": 40.0, "burstiness": 1.0}
    assert (scenario["seconds"], scenario["timeout"]) == (0.4, 30.0)
    assert scenario["shapes"][0]["output"] == {"kind": "fixed", "tokens": 8}
    assert found["target"]["model"] == "other"


def test_what_a_million_tokens_cost(tidemill: Tidemill, url: str, mine: Path) -> None:
    done = run(
        tidemill, url, "--scenario", mine, "--price-per-hour", 3, "--people-per-hour", 1,
        "--power-price", 0.5, "--watts", 200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(4.1 an hour: machine + people + power)" in done.stdout
    assert "(estimate: --watts)" in done.stdout
    assert "not known: cores, cpu seconds, memory: the server was not started here" in done.stdout
    done = run(tidemill, url, "--scenario", mine, "--price-per-hour", -1)
    assert "--price-per-hour" in done.stderr


def test_engines_are_listed_with_how_to_get_them(tidemill: Tidemill) -> None:
    done = tidemill("bench", "engines")
    assert done.returncode == 0, done.stderr
    assert "tidemill      0." in done.stdout
    assert "tested with the engine" in done.stdout
    assert "text-generation-inference" in done.stdout
    assert done.stdout.count("takes a ") == 9


def test_keys_are_sent_and_not_kept(tidemill: Tidemill, mine: Path) -> None:
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    text = mine.read_text().replace('name = "chat"', 'name = "chat"\ntenant = "a"')
    mine.write_text(text)
    with canned(lambda c, _: c.sendall(answer % (len(event), event)) is None) as server:
        done = run(
            tidemill, server.url, "--scenario", mine, "--model", "m", "--api-key", "first-key",
            "--tenant-key", "a=second-key", "--json", "-",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Authorization: Bearer second-key" in server.requests[-1]
    assert "-key" not in done.stdout
    (found,) = json.loads(done.stdout)["results"]
    assert any("does not count tokens" in note for note in found["notes"])


def test_tidemill_is_started_and_measured(
    tidemill: Tidemill, tiny_chat_model: Path, mine: Path
) -> None:
    target = f"tidemill:{tiny_chat_model}"
    done = run(tidemill, target, "--scenario", mine, "--threads", 1, "--json", "-")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert found["summary"]["errors"] == {}
    assert found["summary"]["mean_output_tokens"] == 4
    assert found["summary"]["counted"]
    assert len(found["summary"]["watched"]) >= 2  # the front end, and its worker
    assert found["resources"]["memory"]["peak"] > 20 << 20
    assert found["resources"]["cpu_seconds"] > 0
    assert found["resources"]["density"]["per_core_given"] == found["summary"]["output_rate"]
    assert found["resources"]["cost"] is None
    assert "--speculative" in found["target"]["command"]
    assert found["target"]["engine"] == "tidemill"


@pytest.mark.parametrize("name", ["two-tenants", "json-extraction"])
def test_what_needs_more_of_a_server_runs_on_tidemill(
    tidemill: Tidemill, tiny_chat_model: Path, name: str
) -> None:
    """The tiny model has nothing to say, but what it says must be in the form asked for."""
    done = run(
        tidemill, f"tidemill:{tiny_chat_model}", "--scenario", name, "--scale", 0.05, "--threads",
        1, "--concurrency", 2, "--seconds", 1, "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert found["summary"]["errors"] == {}
    if name == "two-tenants":
        assert set(found["by_shape"]) == {"quiet", "flood"}
        assert "--api-key-file" in found["target"]["command"]
        assert not any("tenants" in note for note in found["notes"])
    else:
        assert sum(found["summary"]["verdicts"].values()) == found["summary"]["good"]


TOOL = """
[shapes.task]
template = "Call f with $n."
values = { n = [1, 2] }
answer = ["n"]
call = "f"
choice = "required"

[[shapes.task.tools]]
name = "f"
description = ""

[shapes.task.tools.parameters]
type = "object"
required = ["n"]
additionalProperties = false
properties = { n = { type = "integer", maximum = 9 } }
"""


def test_tools_are_called_on_tidemill(
    tidemill: Tidemill, tiny_chat_model: Path, mine: Path
) -> None:
    mine.write_text(mine.read_text().replace("tokens = 4", "tokens = 100") + TOOL)
    target = f"tidemill:{tiny_chat_model}"
    done = run(
        tidemill, target, "--scenario", mine, "--threads", 1, "--json", "-", "--engine-args",
        "--context 1000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert found["summary"]["errors"] == {}
    assert sum(found["summary"]["verdicts"].values()) == found["summary"]["good"] > 0
    assert found["target"]["extra"] == {"temperature": 0}  # the model ends what is checked
    assert found["target"]["arguments"] == ["--context", "1000"]


def test_llama_cpp_is_started_and_measured(tidemill: Tidemill, tmp_path: Path, mine: Path) -> None:
    binary = fake_llama_server.write(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    mine.write_text(mine.read_text().replace('name = "chat"', 'name = "chat"\ntenant = "a"'))
    target = f"llama.cpp:{tmp_path / 'm.gguf'}"
    done = run(
        tidemill, target, "--scenario", mine, "--binary", binary, "--engine-args", "-fa 'on'"
    )
    assert done.returncode == 0, done.stderr
    assert "mine · llama.cpp 4711 (abcdef) · " in done.stdout
    assert json.loads((tmp_path / "told.json").read_text())[-2:] == ["-fa", "on"]
    assert " · with -fa on\n" in done.stdout
    assert "note: llama.cpp does not tell tenants apart: to it they were one" in done.stdout


def test_an_engine_that_cannot_hold_a_scenario_says_so(
    tidemill: Tidemill, tiny_chat_model: Path
) -> None:
    done = run(tidemill, f"tidemill:{tiny_chat_model}", "--scenario", "agentic-coding")
    assert done.returncode == 1
    assert "was trained for 1024 tokens" in done.stderr
    assert "needs 1 sequences of 54756 tokens: --scale" in done.stderr


def test_of_several_scenarios_one_that_fails_keeps_none_from_it(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    done = run(tidemill, url, "--scenario", "cold-start", "--scenario", mine, "--json", file)
    assert done.returncode == 1
    assert "cold-start: not measured: cold-start starts the engine itself" in done.stderr
    assert "1 of 2 scenarios were not measured" in done.stderr
    assert [r["scenario"]["name"] for r in json.loads(file.read_text())["results"]] == ["mine"]


def test_what_was_measured_before_stays_if_nothing_comes_of_it(
    tidemill: Tidemill, mine: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    file.write_text("before")
    done = run(tidemill, "http://127.0.0.1:1", "--scenario", mine, "--json", file)
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scenario", "nope"), "there is no scenario 'nope'"),
        (("--scenario", "none.toml"), "none.toml"),
        (("--scenario", "rag", "--slo", "ttft"), "--slo"),
        (("--scenario", "rag", "--slo", "ttft=1,ttft=2"), "--slo"),
        (("--scenario", "rag", "--slo", "ttft=-1"), "more than 0"),
        (("--scenario", "rag", "--slo", "ttft=nan"), "more than 0"),
        (("--scenario", "rag", "--rate", "1", "--concurrency", "2"), "--concurrency is not for"),
        (("--scenario", "rag", "--rate", "inf"), "--rate"),
        (("--scenario", "rag", "--engine-args", "'"), "--engine-args"),
        (("--scenario", "rag", "--engine-args", "-x"), "not for a URL"),
        (("--scenario", "rag", "--tenant-key", "a"), "TENANT=KEY"),
        (("--scenario", "rag", "--json", "no/such/folder/x"), "no/such/folder"),
        ((), "--scenario"),
    ],
)
def test_wrong_options(tidemill: Tidemill, arguments: tuple[str, ...], said: str) -> None:
    done = run(tidemill, "http://127.0.0.1:1/v1", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    ("target", "arguments", "said"),
    [
        ("tidemill", ("--model", "x"), "--target tidemill:MODEL"),
        ("tidemill", ("--api-key", "x"), "an engine gets its own"),
        ("tidemill:no/such/file.gguf", (), "no/such/file.gguf"),
        ("tgi:x", (), "start that by hand and give its URL"),
        ("sglang", (), "which model? Give it as sglang:MODEL, Hugging Face folder"),
    ],
)
def test_wrong_targets(
    tidemill: Tidemill, target: str, arguments: tuple[str, ...], said: str
) -> None:
    done = run(tidemill, target, "--scenario", "rag", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "internal error" not in done.stderr


def test_list_and_show(tidemill: Tidemill, mine: Path) -> None:
    listed = tidemill("bench", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == names()
    shown = tidemill("bench", "show", "two-tenants").stdout
    assert "4 requests/s" in shown
    assert "tenant quiet" in shown
    as_file = tidemill("bench", "show", str(mine), "--toml").stdout
    assert as_file == MINE
    done = tidemill("bench", "show", "nope")
    assert done.returncode == 1
    assert "there is no scenario" in done.stderr


def test_selftest(tidemill: Tidemill) -> None:
    done = tidemill("bench", "selftest", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["summary"]["mean_output_tokens"] == 50
    assert found["lag_p50"]["value"] > 0
