"""What peers share: works, timing by difference, processes, tables of tools, the catalogue."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from comparison.machine import load_between
from comparison.worker import Worker
from comparison.works import MODELS, WORKS, select
from peers import PEERS, environments, module_of, protocol
from peers.ggml_tools import batched_rows
from peers.protocol import ApiPeer, Limits, Model, Work, peak_resident, prompts_of, time_to_output
from support.waiting import until
from tidemill.bench.processes import born, lives

BENCHMARKS = Path(protocol.__file__).parents[1]
MODEL = Model("tiny", "/tiny.gguf", "Q4_0", "llama", 1000, 64)


class Clockwork(ApiPeer):
    """Takes 1 ms for each prompt token and 100 ms for each step, on a clock of its own."""

    name = "clockwork"

    def __init__(self, monkeypatch, spoil=0):
        super().__init__()
        self.now, self.spoil, self.loads = 0.0, spoil, 0
        monkeypatch.setattr(protocol.time, "perf_counter", lambda: self.now)

    def load(self, model, threads, settings, limits):
        self.loads += 1

    def generate(self, prompts, new_tokens):
        self.now += 0.001 * sum(map(len, prompts)) + 0.1 * (new_tokens - 1)
        return [new_tokens - self.spoil] * len(prompts)


def measure(peer, work, settings=None):
    return peer.measure(MODEL, work, 2, settings or {}, Limits(64, 4))


def test_prefill_and_decode_are_told_apart(monkeypatch):
    work = Work("w", "speed", 20, generate=5, streams=4, repeats=2, figures=("prefill", "decode"))
    assert measure(Clockwork(monkeypatch), work) == pytest.approx(
        {"prefill": 1000.0, "decode": 4 / 0.1}
    )


def test_only_the_figures_asked_for_are_given(monkeypatch):
    work = Work("w", "speed", 20, generate=5, figures=("decode",))
    assert set(measure(Clockwork(monkeypatch), work)) == {"decode"}


def test_an_engine_that_stops_early_is_found_out(monkeypatch):
    work = Work("w", "speed", 20, generate=5, figures=("decode",))
    with pytest.raises(RuntimeError, match="asked for 1 answers of 4 tokens"):
        measure(Clockwork(monkeypatch, spoil=1), work)


def test_a_model_is_loaded_once_for_the_same_settings(monkeypatch):
    peer = Clockwork(monkeypatch)
    work = Work("w", "speed", 20, figures=("prefill",))
    for settings, loads in (({}, 1), ({}, 1), ({"kv": "u8"}, 2)):
        measure(peer, work, settings)
        assert peer.loads == loads


def test_prompts_are_random_but_repeatable_and_differ_between_streams():
    work = Work("w", "speed", 32, streams=3)
    first = prompts_of(work, MODEL, 1)
    assert first == prompts_of(work, MODEL, 1)
    assert first != prompts_of(work, MODEL, 2)
    assert [len(p) for p in first] == [32] * 3
    assert first[0] != first[1]
    assert all(0 <= token < 1000 for prompt in first for token in prompt)


def script(text):
    return [sys.executable, "-c", text]


def test_a_process_is_timed_to_its_first_visible_output():
    late = script("import sys, time; print(flush=True); time.sleep(0.3); print('x', flush=True);"
                  "time.sleep(600)")  # fmt: skip
    assert 0.3 <= time_to_output(late) < 60  # neither at the blank line nor at the end


def test_a_process_without_output_is_an_error_with_its_last_words():
    with pytest.raises(RuntimeError, match=r"exit status 3.*no such model"):
        time_to_output(script("import sys; sys.stderr.write('no such model'); sys.exit(3)"))


def test_peak_memory_is_seen_though_it_was_given_back():
    hold = "x = bytearray(b'1') * (512 << 20); del x; import time; time.sleep(0.2)"
    assert 512 << 20 < peak_resident(script(hold)) < 544 << 20


def test_peak_memory_includes_what_was_touched_last():
    last = "import os; x = bytearray(b'1') * (512 << 20); os._exit(0)"
    assert 512 << 20 < peak_resident(script(last)) < 544 << 20


def test_peak_memory_of_a_failing_process_is_an_error():
    with pytest.raises(RuntimeError, match="exit status 4"):
        peak_resident(script("import sys; sys.exit(4)"))


NOISY = """
import sys, time
sys.path.insert(0, sys.argv.pop())
from peers.protocol import ApiPeer, main

class Noisy(ApiPeer):
    name = timed = "noisy"
    def version(self):
        return "1"
    def load(self, *_):
        print("loading ...", flush=True)
        time.sleep(0.3)
    def generate(self, prompts, new_tokens):
        print("generating ...", flush=True)
        return [new_tokens for _ in prompts]

main(Noisy())
"""


@pytest.fixture
def noisy(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    return [sys.executable, str(tmp_path / "noisy.py")]


def test_what_an_engine_prints_is_not_taken_for_its_first_token(noisy):
    request = {
        "model": asdict(MODEL), "work": asdict(Work("w", "start", 4, figures=("seconds",))),
        "threads": 1, "settings": {},
    }  # fmt: skip
    command = [*noisy, "answer", json.dumps(request), str(BENCHMARKS)]
    assert time_to_output(command) >= 0.3


def test_what_an_engine_prints_is_not_taken_for_its_answer(noisy, tmp_path):
    worker = Worker([*noisy, "serve", str(BENCHMARKS)], cwd=tmp_path, log=tmp_path / "log")
    work = Work("w", "speed", 4, figures=("prefill",))
    try:
        figures = worker.ask(
            {"op": "measure", "model": asdict(MODEL), "work": asdict(work), "threads": 1,
             "settings": {}, "limits": {"context": 64, "streams": 1}}, 60
        )  # fmt: skip
    finally:
        worker.close()
    assert figures["prefill"] > 0
    assert "loading ..." in (tmp_path / "log").read_text()


def test_a_stopped_peer_goes_when_the_harness_is_killed(noisy, tmp_path):
    harness = f"""
import os, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
from comparison.worker import Worker
worker = Worker({[*noisy, "serve", str(BENCHMARKS)]!r}, cwd=Path("."), log=Path("log"))
worker.ask({{"op": "hello"}}, 60)
worker.pause()
print(worker._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(script(harness), cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        peer = int(process.stdout.readline())
        process.kill()
    until(lambda: not lives(peer, born(peer)))  # or nobody has waited for it yet


def test_rates_are_read_from_the_table_of_llama_batched_bench():
    printed = """
main: n_kv_max = 1024, n_batch = 2048
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    64 |     64 |    8 |   1024 |    3.011 |   170.05 |    4.655 |   109.99 |    7.666 |   133.58 |
"""
    assert batched_rows(printed) == [(170.05, 109.99)]


def test_every_peer_is_one_file_that_serves():
    for name in PEERS:
        source = (BENCHMARKS / module_of(name).replace(".", "/")).with_suffix(".py").read_text()
        tree = ast.parse(source)
        names = {
            statement.value.value
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            for statement in node.body
            if isinstance(statement, ast.Assign)
            and getattr(statement.targets[0], "id", "") == "name"
            and isinstance(statement.value, ast.Constant)
        }
        assert names == {name}
        assert 'if __name__ == "__main__":\n    main(' in source


def test_modules_that_peers_share_need_only_the_standard_library():
    for file in ("protocol", "environments", "ggml_tools", "__init__"):
        tree = ast.parse((BENCHMARKS / "peers" / f"{file}.py").read_text())
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module]
            for module in modules:
                top = module.partition(".")[0]
                assert top == "peers" or top in sys.stdlib_module_names, f"{file}: {module}"


def test_works_are_selected_by_patterns_in_the_order_of_the_table():
    assert select("*/decode smollm2/prefill") == {
        "smollm2": ["prefill", "decode"],
        "gemma3": ["decode"],
        **{model: ["decode"] for model in MODELS if model.startswith("llama-1b")},
    }
    assert select("*") == {model: list(works) for model, works in MODELS.items()}


@pytest.mark.parametrize("patterns", ["smollm2/no-such", "smollm2/prefill, nothing/*", ""])
def test_a_pattern_that_matches_nothing_is_refused(patterns):
    with pytest.raises(ValueError, match="no work matches"):
        select(patterns)


def test_every_work_fits_the_context_of_smollm2():
    assert all(work.context <= 8192 for work in WORKS.values())


STAT = "cpu  {} {} 0 {} 0 0 0 {} 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"


def test_load_is_what_others_took_of_the_processors():
    load = load_between(STAT.format(100, 0, 900, 0), STAT.format(110, 10, 1060, 20), "0.5 0.4 0.3")
    assert (load.busy, load.stolen, load.average) == (0.1, 0.1, 0.5)
    assert not load.quiet
    assert "NOT QUIET" in str(load)
    assert load_between(STAT.format(0, 0, 0, 0), STAT.format(4, 0, 96, 0), "0.1 0 0").quiet


def test_a_half_made_environment_is_made_anew_and_a_whole_one_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEMILL_PEERS", str(tmp_path))
    done = []

    def step(what, command, cwd=None):
        done.append(what)
        python = tmp_path / "other" / "env" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        if "broken" in what:
            raise environments.InstallError(what)

    monkeypatch.setattr(environments, "step", step)
    with pytest.raises(environments.InstallError):
        environments.environment("other", ["broken==1"])
    environments.environment("other", ["sound==1"])
    made = len(done)
    environments.environment("other", ["sound==1"])
    assert len(done) == made
    environments.environment("other", ["sound==2"])
    assert len(done) > made


def test_a_failing_step_says_which_and_how():
    with pytest.raises(environments.InstallError, match=r"fetch it: .*no route"):
        environments.step("fetch it", script("print('no route'); raise SystemExit(1)"))
