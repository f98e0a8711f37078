"""Engines as child processes: a program that stands for llama-server, and Tidemill itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support import fake_llama_server
from support.canned import canned
from support.waiting import until
from tidemill.bench.engines import ENGINES, Launch, TargetError, started
from tidemill.bench.engines.base import Form, form_of
from tidemill.bench.processes import born, lives
from tidemill.bench.starts import measure_starts, medians
from tidemill.bench.workload import Fixed, Shape, Workload
from tidemill.store.packed import Header, PackedFile

LLAMA, TIDEMILL = ENGINES["llama.cpp"], ENGINES["tidemill"]
WORKLOAD = Workload((Shape("first", Fixed(4), Fixed(2)),))


def launch(model: Path, binary: Path | None = None, **fields: object) -> Launch:
    return Launch(
        model=model, context=300, sequences=4, threads=1,
        binary=None if binary is None else str(binary),
        **({"folder": model.parent} | fields),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def gone(pid: int) -> bool:
    """Ended, or about to be reaped."""
    return not lives(pid, born(pid))


def test_llama_server_is_called_as_it_wants(tmp_path: Path, gguf: Path) -> None:
    binary = fake_llama_server.write(tmp_path)
    with started(LLAMA, launch(gguf, binary, arguments=("-fa", "on"))) as process:
        phases = process.until_ready(60, [gguf])
        assert 0 < phases.listening <= phases.ready
        assert phases.mapped is None  # nothing of what it has mapped is the model
        (pid,) = process.pids()
    assert gone(pid)
    told = json.loads((tmp_path / "told.json").read_text())
    pairs = dict(zip(told[::2], told[1::2], strict=False))
    assert pairs["-m"] == str(gguf)
    assert (pairs["-np"], pairs["-c"], pairs["-t"]) == ("4", "1200", "1")
    assert told[-2:] == ["-fa", "on"]
    assert LLAMA.version(str(binary)) == "4711 (abcdef)"


def test_what_is_not_installed_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match=r"llama-server is not on PATH.*releases.*--binary"):
        LLAMA.version(None)
    with pytest.raises(TargetError, match="no program that can be run"):
        LLAMA.version(str(tmp_path / "none"))
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    with pytest.raises(TargetError, match="no llama-server: hello"):
        LLAMA.version(str(other))
    fake_llama_server.write(tmp_path)
    assert LLAMA.version(None) == "4711 (abcdef)"
    with pytest.raises(TargetError, match="--binary is for"):
        TIDEMILL.version("x")


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        (["0.32.0+cpu"], "0.32.0+cpu"),
        (["INFO 12-01 03:41:02 [importing.py:44] no accelerator 1.5", "0.11.0"], "0.11.0"),
        (["vllm v0.9"], "0.9"),
        (["/opt/vllm: 8: shift: can't shift that many"], None),
        (["importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"], None),
    ],
)
def test_a_version_is_a_line_that_says_one(
    tmp_path: Path, lines: list[str], version: str | None
) -> None:
    binary = script(tmp_path, "".join(f'echo "{line}"\n' for line in lines))
    if version is not None:
        assert ENGINES["vllm"].version(str(binary)) == version
        return
    with pytest.raises(TargetError, match="this is no vllm: "):
        ENGINES["vllm"].version(str(binary))


def test_what_is_no_package_of_an_interpreter_is_named_with_how_to_install_it() -> None:
    with pytest.raises(TargetError, match=r"has no sglang: install it .*sglang.*--binary"):
        ENGINES["sglang"].version(sys.executable)
    with pytest.raises(TargetError, match="no program that can be run"):
        ENGINES["openvino"].version("/no/such/python")


@pytest.mark.parametrize(
    ("name", "files", "form"),
    [
        ("m.gguf", [], "GGUF file"),
        ("m.bin", [], None),
        ("folder", ["config.json", "model.safetensors"], "Hugging Face folder"),
        ("folder", ["config.json", "openvino_model.xml"], "OpenVINO folder"),
        ("folder", ["README.md"], None),
    ],
)
def test_forms_of_models(tmp_path: Path, name: str, files: list[str], form: Form | None) -> None:
    model = tmp_path / name
    for file in files:
        model.mkdir(exist_ok=True)
        (model / file).touch()
    if not files:
        model.touch()
    assert form_of(model) == form


def test_a_gguf_file_of_another_name_is_one(tmp_path: Path) -> None:
    blob = tmp_path / "sha256-1"
    blob.write_bytes(b"GGUF\3\0\0\0")
    assert form_of(blob) == "GGUF file"


def test_a_model_of_the_wrong_form_is_refused_with_what_to_do(tmp_path: Path, gguf: Path) -> None:
    gguf.touch()
    with pytest.raises(TargetError, match=r"vllm takes a Hugging Face folder, and .*m\.gguf is a "
                       "GGUF file. Give the folder of the original model"):  # fmt: skip
        ENGINES["vllm"].check(gguf)
    (tmp_path / "config.json").touch()
    with pytest.raises(TargetError, match=r"llama\.cpp takes a GGUF file.*convert_hf_to_gguf"):
        LLAMA.check(tmp_path)
    with pytest.raises(TargetError, match="is something else"):
        LLAMA.check(tmp_path / "m.bin")
    ENGINES["ollama"].check(gguf)
    ENGINES["ollama"].check(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_all_that_an_engine_has_started_ends_with_it(tmp_path: Path, gguf: Path) -> None:
    """Also what has made a session of its own, and does not end when it is asked to."""
    binary = fake_llama_server.write(tmp_path, "has a stubborn child")
    with started(LLAMA, launch(gguf, binary)) as process:
        process.until_ready(60)
        pids = process.pids()
        assert len(pids) == 2
    assert all(map(gone, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_when_the_model_is_mapped_is_seen(tmp_path: Path, gguf: Path) -> None:
    gguf.write_bytes(b"GGUF")
    binary = fake_llama_server.write(tmp_path, "maps its model")
    with started(LLAMA, launch(gguf, binary)) as process:
        phases = process.until_ready(60, [gguf])
    assert phases.mapped is not None
    assert 0 < phases.mapped <= phases.ready


def test_an_engine_that_ends_says_its_last_words(tmp_path: Path, gguf: Path) -> None:
    binary = fake_llama_server.write(tmp_path, "dies")
    with (
        started(LLAMA, launch(gguf, binary)) as process,
        pytest.raises(TargetError, match=r"ended with status 1: .*the file is no model"),
    ):
        process.until_ready(60)


def test_an_engine_that_is_never_ready_is_given_up(tmp_path: Path, gguf: Path) -> None:
    binary = fake_llama_server.write(tmp_path, "hangs")
    with started(LLAMA, launch(gguf, binary)) as process:
        with pytest.raises(TargetError, match="was not ready within 0"):
            process.until_ready(0.5)
        pids = process.pids()
    assert all(map(gone, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_an_engine_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    binary = fake_llama_server.write(tmp_path)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from tidemill.bench.engines import *\n"
        f"launch = Launch(model=Path('m.gguf'), context=9, sequences=1, threads=1, "
        f"folder=Path({str(tmp_path)!r}), binary={str(binary)!r})\n"
        "with started(ENGINES['llama.cpp'], launch) as process:\n"
        "    process.until_ready(60)\n"
        "    print(process.pids()[0], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        bench.kill()
    until(lambda: gone(pid))


def test_what_a_start_reads_is_of_this_model_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    files = [
        PackedFile(model.with_suffix(".packed"), Header("k", (str(model),), 0, 0, 0, {}), 1, 1)
        for model in models
    ]
    monkeypatch.setattr("tidemill.store.packed.list_packed", lambda: files)
    assert TIDEMILL.files(launch(models[1])) == [files[1].path]


def test_cold_and_warm_starts_of_tidemill(
    tmp_path: Path, tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    said: list[str] = []
    settings = launch(tiny_chat_model, folder=tmp_path)
    starts = measure_starts(TIDEMILL, settings, WORKLOAD, 1, 120, said.append)
    assert [start.cold for start in starts] == (
        [True, False] if hasattr(os, "posix_fadvise") else [False]
    )
    for start in starts:
        assert 0 < start.listening <= start.ready < start.first_token
        assert start.mapped is None or 0 < start.mapped <= start.ready
        assert start.second > 0
    assert starts[-1].cached is not None
    assert starts[-1].cached > 0.5
    assert medians(starts, cold=False)["ready"] == starts[-1].ready
    assert len(said) == 1 + len(starts)


def script(folder: Path, text: str) -> Path:
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_who_does_not_wait_for_an_engine_to_end_leaves_none(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C once more, while one that does not listen to SIGTERM is waited for."""
    binary = script(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    running = started(LLAMA, launch(gguf, binary))
    process = running.__enter__()
    until(lambda: process.last_words() == "deaf")
    (pid, *_) = process.pids()
    wait = process._process.wait

    def interrupted(timeout: float | None = None) -> int:
        monkeypatch.setattr(process._process, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(process._process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.__exit__(None, None, None)
    assert gone(pid)


def test_an_engine_that_prints_without_end(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.bench.engines.log.LONGEST", 1 << 20)
    with started(LLAMA, launch(gguf, script(tmp_path, "exec yes word"))) as process:
        with pytest.raises(TargetError, match="printed more than 1 MiB before") as error:
            process.until_ready(60)
        pids = process.pids()
    assert len(str(error.value)) < 10_000
    assert all(map(gone, pids))


def test_an_engine_that_prints_without_end_once_it_is_ready(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on, and its log keeps a beginning and an end."""
    monkeypatch.setattr("tidemill.bench.engines.log.LONGEST", 1 << 16)
    binary = fake_llama_server.write(tmp_path, "prints without end")

    def behind_the_cut() -> bytes:
        return (tmp_path / "log").read_bytes().partition(b"left out ...]\n")[2][:100]

    with started(LLAMA, launch(gguf, binary)) as process:
        process.until_ready(60)
        until(behind_the_cut)
        first = behind_the_cut()
        until(lambda: behind_the_cut() not in (b"", first))  # it is cut again and again
        assert "line " in process.last_words()
    text = (tmp_path / "log").read_text()
    assert text.startswith("here I am\n")
    assert text.count("left out ...]") == 1


def test_a_version_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="this is no llama-server: no such thing"):
        LLAMA.version(str(script(tmp_path, "exec yes no such thing")))
    monkeypatch.chdir(tmp_path)
    silent = tmp_path / "silent"
    script(tmp_path, "sleep 600 & echo $! > child; wait").rename(silent)
    child = tmp_path / "child"
    child.touch()
    for patience in (0.5, 5, 50):  # until it has come so far within that
        monkeypatch.setattr("tidemill.bench.engines.base._PATIENCE", patience)
        with pytest.raises(TargetError, match=f"does not run: no answer within {patience:g} s"):
            LLAMA.version(str(silent))
        if pid := child.read_text():
            break
    until(lambda: gone(int(pid)))


def test_whoever_answers_at_the_port_of_an_engine_that_has_ended_is_not_it(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def healthy(connection: socket.socket, number: int) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return True

    with canned(healthy) as other:
        port = int(other.url.split(":")[2].partition("/")[0])
        monkeypatch.setattr("tidemill.bench.engines.process.free_port", lambda: port)
        with started(LLAMA, launch(gguf, script(tmp_path, "echo taken; exit 3"))) as process:
            until(lambda: process._process.poll() is not None)
            with pytest.raises(TargetError, match="ended with status 3: taken"):
                process.until_ready(60)
