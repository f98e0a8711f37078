"""``tidemill bench run --trace``, ``search`` and ``curve``; and what is told meanwhile."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import fake_llama_server
from support.canned import canned
from support.mine import MINE, SLO
from tidemill.bench.arrivals import Closed
from tidemill.bench.result import Result, Server
from tidemill.bench.run import Progress
from tidemill.bench.traces import TraceFile
from tidemill.cli import bench_progress
from tidemill.cli.bench_progress import BenchProgress, line

Tidemill = Callable[..., Any]  # see conftest.py

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.0,40,4
2023-11-16 18:17:03.5,30,5
2023-11-16 18:17:04.5,20,6
2023-11-16 18:17:05.0,10,7
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(SLO, ""))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def bench(tidemill: Tidemill, command: str, target: str, *arguments: object) -> Any:
    return tidemill("bench", command, "--target", target, *map(str, arguments))


class Output(msgspec.Struct):
    results: list[Result]


def results(text: str) -> list[Result]:
    return msgspec.json.decode(text, type=Output).results


# ---- traces


def test_a_trace_is_replayed(tidemill: Tidemill, url: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = bench(
        tidemill, "run", url, "--trace", trace, "--speed", 4, "--scale", 0.5, "--from", 0.5,
        "--to", 2, "--json", file, "--no-keep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trace · http://127.0.0.1:" in done.stdout
    assert f"the trace {trace}, 4 times as fast" in done.stdout
    assert re.search(r"note: trace: 2 requests over 1 s.*4 times as fast", done.stdout)
    assert "all lengths are 0.5 times what they were" in done.stdout
    (result,) = results(file.read_text())
    assert result.summary is not None
    assert result.summary.errors == {}
    assert result.scenario.seconds < 1  # two gaps of a second, four times as fast


def test_a_trace_takes_the_place_of_a_load(
    tidemill: Tidemill, url: str, trace: Path, mine: Path
) -> None:
    done = bench(
        tidemill, "run", url, "--scenario", mine, "--trace", trace, "--speed", 10, "--limit", 3,
        "--json", "-", "--no-keep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = results(done.stdout)
    assert result.scenario.name == "mine"
    assert result.scenario.timeout == 60


def test_a_trace_at_a_rate(tidemill: Tidemill, url: str, trace: Path) -> None:
    done = bench(tidemill, "run", url, "--trace", trace, "--rate", 20, "--json", "-", "--no-keep")
    assert done.returncode == 0, done.stderr
    (result,) = results(done.stdout)
    assert result.summary is not None
    assert result.summary.requests == 4
    assert result.summary.seconds == pytest.approx(4 / 20)  # it was 4 requests in 8/3 s
    assert any("13.33 times as fast" in note for note in result.notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "none.csv"), "none.csv: No such file"),
        (("--trace", "."), "directory"),
        (
            ("--trace", "TRACE", "--concurrency", 3),
            "--concurrency is not for a --rate or a --trace",
        ),
        (
            ("--trace", "TRACE", "--rate", 3, "--speed", 2),
            "--speed is for a --trace without --rate",
        ),
        (("--speed", 3, "--scenario", "rag"), "--speed is for a --trace"),
        (("--from", 3, "--scenario", "rag"), "--from is for a --trace"),
        (("--trace", "TRACE", "--from", 3, "--to", 3), "nothing in it"),
        (("--trace", "TRACE", "--from", 99), "has no requests from --from to --to"),
        (("--trace", "TRACE", "--scenario", "tool-calling"), "do not go with a trace"),
        (("--trace", "TRACE", "--scenario", "cold-start"), "no requests but the first"),
        (("--trace", "TRACE", "--context", 100), "--context"),
        (("--trace", "BAD"), "BAD, line 2, column 'timestamp': 'x' is no number"),
        ((), "--scenario, or a --trace"),
    ],
)
def test_traces_that_cannot_be(
    tidemill: Tidemill, url: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    trace.rename("TRACE")
    Path("BAD").write_text("timestamp\nx\n")
    done = bench(tidemill, "run", url, *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "internal error" not in done.stderr


def test_a_run_in_which_nothing_was_measured_fails(
    tidemill: Tidemill, url: str, mine: Path
) -> None:
    done = bench(tidemill, "run", url, "--scenario", mine, "--rate", 0.001, "--no-keep")
    assert done.returncode == 1
    assert "INVALID: no request was due in the window" in done.stdout
    assert "1 of 1 scenarios were not measured: mine" in done.stderr


# ---- search and curve


def test_a_search_of_what_meets_everything(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    done = bench(
        tidemill, "search", url, "--scenario", mine, "--slo", "ttft=50", "--attain", 0.5,
        "--seconds", 0.5, "--max-rate", 5, "--json", file, "--no-keep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mine: one request takes" in done.stderr
    assert "5 requests/s: met" in done.stderr
    assert "highest that meets it: 5 requests/s: met, not sure; 100.0% of " in done.stdout
    assert "5 requests/s is the most that was to be tried" in done.stdout
    found = json.loads(file.read_text())["found"]
    assert found["met"]["rate"] == 5
    alone, *points = results(file.read_text())
    assert alone.series != points[0].series
    assert len({point.series for point in points}) == 1
    assert all(point.series for point in points)
    assert len({point.seed for point in (alone, *points)}) == 1 + len(points)


def test_a_search_of_what_meets_nothing(tidemill: Tidemill, url: str, mine: Path) -> None:
    done = bench(tidemill, "search", url, "--scenario", mine, "--slo", "ttft=0.000001", "--no-keep")
    assert done.returncode == 1
    assert "even if there is but one at a time" in done.stdout
    assert "no rate was found at which ttft=1e-06 is met" in done.stderr


def test_a_search_with_a_trace(tidemill: Tidemill, url: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = bench(
        tidemill, "search", url, "--trace", trace, "--slo", "ttft=50", "--attain", 0.5,
        "--max-rate", 40, "--json", file, "--no-keep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "highest that meets it: 40 requests/s: met" in done.stdout
    alone, *points = results(file.read_text())
    assert alone.scenario.load == Closed(1)
    for point in points:
        assert point.summary is not None
        assert point.summary.requests == 4  # all of it at each rate
        assert isinstance(point.scenario.load, TraceFile)
        assert point.summary.seconds == pytest.approx(4 / (point.scenario.load.rate or 0))
    no_waiting = bench(tidemill, "search", url, "--trace", trace, "--slo", "tpot=1")
    assert no_waiting.returncode == 2
    assert "only a limit for ttft or e2e says how long" in no_waiting.stderr


def test_a_curve_with_a_trace(tidemill: Tidemill, url: str, trace: Path) -> None:
    for loads, first, last in (
        (("--rates", "20,40"), "20/s", "40/s"),
        (("--concurrency", "1,3", "--seconds", "0.2"), "1 at a time", "3 at a time"),
    ):
        done = bench(tidemill, "curve", url, "--trace", trace, "--no-keep", *loads)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[1].strip().startswith(first)
        assert lines[2].strip().startswith(last)


@pytest.mark.parametrize(
    ("loads", "first", "last"),
    [
        (("--rates", "5,20"), "5/s", "20/s"),
        (("--concurrency", "1,3"), "1 at a time", "3 at a time"),
    ],
)
def test_a_curve(
    tidemill: Tidemill, url: str, mine: Path, loads: tuple[str, str], first: str, last: str
) -> None:
    done = bench(tidemill, "curve", url, "--scenario", mine, "--seconds", 1, *loads)
    assert done.returncode == 0, done.stderr
    assert "2 points in " in done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].strip().startswith(first)
    assert lines[2].strip().startswith(last)
    assert any("TTFT from p50 (o) to p99 (*)" in one for one in lines)
    kept = results(tidemill("bench", "results", "--json").stdout)
    assert len(kept) == 2
    assert len({result.series for result in kept}) == 1


def test_a_curve_finds_its_rates(tidemill: Tidemill, mine: Path) -> None:
    """Of a server that does one request at a time, and another one only then."""
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
    alone = threading.Lock()

    def answer(connection: socket.socket, _: int) -> bool:
        with alone:
            time.sleep(0.01)
        connection.sendall(head % len(event) + event)
        return True

    with canned(answer) as server:
        done = bench(
            tidemill, "curve", server.url, "--model", "m", "--scenario", mine, "--seconds", 0.5,
            "--points", 2, "--no-keep", "--json", "-",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loads = [result.scenario.load for result in results(done.stdout)]
    rates = [load.rate for load in loads if hasattr(load, "rate")]
    assert rates == pytest.approx([rates[1] / 2, rates[1]], rel=0.01)
    assert len(loads) >= 4


@pytest.mark.parametrize(
    ("arguments", "slots"), [(("--rates", "50"), 8), (("--concurrency", "1,3"), 3)]
)
def test_an_engine_is_started_once_with_slots_for_all(
    tidemill: Tidemill, mine: Path, tmp_path: Path, arguments: tuple[str, str], slots: int
) -> None:
    """Whatever the scenario's own load is."""
    binary = fake_llama_server.write(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    target = f"llama.cpp:{tmp_path / 'm.gguf'}"
    done = bench(
        tidemill, "curve", target, "--scenario", mine, "--binary", binary, "--seconds", 0.3,
        "--no-keep", "--json", "-", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    commands = {tuple(result.target.command) for result in results(done.stdout)}
    assert len(commands) == 1  # with its port
    (command,) = commands
    assert command[command.index("-np") + 1] == str(slots)


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("search", ("--scenario", "offline-batch"), "has no SLO"),
        ("search", ("--scenario", "cold-start"), "no other rates"),
        ("search", ("--limit", "3", "--scenario", "rag"), "--limit is for a --trace"),
        ("search", ("--trace", "none.csv", "--slo", "ttft=1"), "none.csv: No such file"),
        ("search", ("--scenario", "rag", "--attain", "1"), "--attain"),
        ("search", ("--scenario", "rag", "--tolerance", "0"), "--tolerance"),
        ("search", (), "--scenario"),
        ("curve", (), "--scenario, or a --trace"),
        ("curve", ("--scenario", "rag", "--rates", "1,x"), "--rates"),
        ("curve", ("--scenario", "rag", "--rates", "0"), "--rates"),
        ("curve", ("--scenario", "rag", "--rates", "nan"), "--rates"),
        ("curve", ("--scenario", "rag", "--concurrency", "1.5"), "--concurrency"),
        ("curve", ("--scenario", "rag", "--rates", "1", "--concurrency", "1"), "not both"),
        ("curve", ("--scenario", "rag", "--points", "1"), "--points"),
        ("curve", ("--scenario", "rag"), "cannot be reached"),
    ],
)
def test_wrong_options(
    tidemill: Tidemill, command: str, arguments: tuple[str, ...], said: str
) -> None:
    done = bench(tidemill, command, "http://127.0.0.1:1/v1", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "internal error" not in done.stderr


# ---- meanwhile


def progress(**fields: Any) -> Progress:
    given = {
        "phase": "measuring", "seconds": 12.0, "left": 42.4, "waits_for": 0, "at_most": None,
        "sent": 20, "ended": 17, "failed": 0, "request_rate": 1.52, "output_rate": 80.4,
        "ttft_p50": 0.1204, "ttft_p99": 1.3,
    } | fields  # fmt: skip
    return Progress(**given)


def test_how_far_a_run_is() -> None:
    assert line(progress()) == (
        "measuring 42 s | 20 sent, 3 in flight | 1.5/s, 80 tok/s | TTFT 120/1300 ms"
    )
    ending = progress(phase="ending", left=0.0, waits_for=3, at_most=88.2, failed=2, ttft_p50=None)
    assert line(ending) == (
        "ending, waiting for 3 answers, 88 s at most | 20 sent, 3 in flight, 2 failed"
    )
    late = progress(left=0.0, waits_for=1, ttft_p50=None)
    assert line(late) == "measuring, waiting for 1 answer | 20 sent, 3 in flight"


def test_a_terminal_has_one_line_that_is_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_progress, "is_drawn", lambda: True)
    with BenchProgress("mine") as shown:
        shown.step("starting")
        shown.run(progress())
        shown.note("stays")
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b[Kmine: starting" in err
    assert "\x1b[Kmine: measuring 42 s" in err
    assert err.count("\n") == 1
    assert err.endswith("mine: stays\n\r\x1b[K")


def test_without_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with BenchProgress("mine") as shown:
        shown.step("starting")
        for _ in range(50):
            now += 0.5
            shown.run(progress())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == err.count("mine: measuring 42 s") == 2


# ---- what is broken off


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the run after so many."""
    measure = Server.measure
    done: list[int] = []

    def counted(self: Server, *arguments: Any) -> Any:
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(1)
        return measure(self, *arguments)

    monkeypatch.setattr(Server, "measure", counted)


def test_a_curve_that_is_broken_off_leaves_its_points(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(2, monkeypatch)
    file = tmp_path / "out.json"
    done = bench(
        tidemill, "curve", url, "--scenario", mine, "--concurrency", "1,2,3", "--seconds", 0.2,
        "--json", file,
    )  # fmt: skip
    assert done.returncode == 130
    assert "broken off after 2 runs:" in done.stderr
    assert [line.split()[:4] for line in done.stdout.splitlines()[1:3]] == [
        ["1", "at", "a", "time"], ["2", "at", "a", "time"],
    ]  # fmt: skip
    assert len(results(file.read_text())) == 2
    kept = tidemill("bench", "results", "--json")
    assert len(results(kept.stdout)) == 2


def test_runs_that_are_broken_off_leave_what_was_measured(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(1, monkeypatch)
    other = tmp_path / "other.toml"
    other.write_text(MINE)
    done = bench(
        tidemill, "run", url, "--scenario", mine, "--scenario", other, "--json", "-", "--no-keep"
    )  # fmt: skip
    assert done.returncode == 130
    assert len(results(done.stdout)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", 10**30], "is not in the range"),
        (["--limit", 10**30, "--trace", "t.csv"], "is not in the range"),
        (["--seconds", 1e-9], "is not in the range"),
        (["--timeout", "nan"], "nan"),
        (["--rate", 5e-324], "is not in the range"),
        (["--name", "\udcff"], "not valid"),
        (["--model", "\udcff"], "not valid"),
        (["--trace", "\udcff.csv"], "not valid"),
        (["--engine-args", "\udcff"], "not valid"),
    ],
)
def test_numbers_and_texts_that_can_be_none(
    tidemill: Tidemill, mine: Path, arguments: list[object], said: str
) -> None:
    """They are refused before anything is started."""
    done = bench(tidemill, "run", "http://127.0.0.1:9", "--scenario", mine, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_scenario_whose_trace_is_not_there_keeps_none_from_it(
    tidemill: Tidemill, url: str, mine: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "lost.toml"
    lost.write_text('name = "lost"\nsummary = "s"\n[load]\nkind = "trace"\nfile = "none.csv"\n')
    done = bench(tidemill, "run", url, "--scenario", lost, "--scenario", mine, "--no-keep")
    assert done.returncode == 1
    assert "lost: not measured: " in done.stderr
    assert "none.csv: No such file" in done.stderr
    assert "mine · http" in done.stdout
