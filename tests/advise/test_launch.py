"""Commands for engines: every template, in every kind of case."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.commands import parse, tidemill_calls
from tidemill.advise.answers import from_values
from tidemill.advise.facts import Argument, Engine, load_engines
from tidemill.advise.flow import Part
from tidemill.advise.launch import CONDITIONS, SETTINGS, commands

ENGINES = load_engines()
CANDIDATES = [e for e in ENGINES.values() if e.launch is not None]
SERVERS = Part("local", "servers", False, "")

# Options of each command line as its documentation has them (the source that the file names).
OPTIONS = {
    "vllm": "--host --port --max-model-len --tensor-parallel-size --api-key --attention-backend "
    "--kv-transfer-config",
    "sglang": "-m --model-path --host --port --context-length --enable-metrics --tp "
    "--max-running-requests --api-key",
    "tgi": "--shm-size -p -v --gpus -e --model-id --max-total-tokens --num-shard --usage-stats "
    "--api-key",
    "tensorrt-llm": "--host --port --backend --max_batch_size --max_seq_len --tp_size",
    "lmdeploy": "--server-name --server-port --session-len --max-batch-size --tp --api-keys "
    "--enable-prefix-caching",
    "llama.cpp": "--model -hf --host --port --ctx-size --parallel --metrics --n-gpu-layers "
    "--api-key --offline",
    "ollama": "",
    "gpt4all": "",
    "mistralrs": "--host --port -f -m --max-seqs --cpu",
    "openvino": "--rm -u -p -v --rest_port --model_repository_path --task --source_model",
    "mlc-llm": "--mode --host --port --overrides",
    "mlx-lm": "--model --host --port --decode-concurrency",
}

CASES: list[dict[str, Any]] = [
    {"model.name": name, "model.format": format, **hardware, **data}
    for name, format, hardware, data in itertools.product(
        ("./my model.gguf", "/models/llama", "org/model", "plain", "hf://org/model"),
        ("gguf", "safetensors", "openvino"),
        ({}, {"hardware.servers": ["nvidia"], "hardware.gpus": 1},
         {"hardware.servers": ["nvidia", "cpu-x86"], "hardware.gpus": 4},
         {"hardware.servers": ["apple"]}),
        ({}, {"data.stays_local": True, "data.access_control": True, "load.peak_concurrency": 9}),
    )
]  # fmt: skip


def pieces(engine: Engine) -> list[Argument]:
    assert engine.launch is not None
    launch = engine.launch
    return [*launch.environment, *launch.arguments, *launch.prepare]


@pytest.mark.parametrize("engine", CANDIDATES, ids=lambda e: e.id)
def test_templates_name_conditions_and_settings_that_exist(engine: Engine) -> None:
    for piece in pieces(engine):
        assert piece.when in ("", *CONDITIONS)
        assert set(re.findall(r"\{(\w+)\}", piece.text)) <= set(SETTINGS)


@pytest.mark.parametrize("engine", CANDIDATES, ids=lambda e: e.id)
def test_commands_are_whole_in_every_case(engine: Engine) -> None:
    for values in CASES:
        answers = from_values(values)
        made = commands(engine, SERVERS, answers)
        assert made is not None
        assert made.install
        assert made.source.startswith(("https://", "docs/"))
        everything = [made.start, *made.prepare]
        assert not any(re.search(r"\{\w+\}", text) for text in everything)
        for text in (made.start, *made.prepare):
            words = shlex.split(text.replace("\\\n", " "))
            if engine.id in OPTIONS and text == made.start:
                known = set(OPTIONS[engine.id].split())
                options = {word.split("=")[0] for word in words if word.startswith("-")}
                assert options <= known, (options - known, text)
        if engine.id != "gpt4all":
            assert made.start
            assert made.url.startswith("http://127.0.0.1:")


def test_every_engine_with_a_server_has_a_command() -> None:
    for engine in ENGINES.values():
        if "component" not in engine.classes:
            assert (engine.launch is not None) == bool(engine.value("server")), engine.id
    assert set(OPTIONS) | {"tidemill"} == {engine.id for engine in CANDIDATES}


def test_tidemills_own_commands_are_real() -> None:
    for values in CASES:
        made = commands(ENGINES["tidemill"], SERVERS, from_values(values))
        assert made is not None
        for text in (made.start, *made.prepare):
            (arguments,) = tidemill_calls(text.replace("\\\n", " "))
            parse(arguments)


@pytest.mark.parametrize(
    "name", ["a; rm -rf /", "$(id)", "`id`", "a'b", 'a"b', "a b.gguf", "~/x y"]
)
@pytest.mark.parametrize("engine", CANDIDATES, ids=lambda e: e.id)
def test_a_models_name_stays_one_word(engine: Engine, name: str) -> None:
    made = commands(engine, SERVERS, from_values({"model.name": name}))
    assert made is not None
    for text in (made.start, *made.prepare):
        words = shlex.split(text.replace("\\\n", " "))
        quoted = "hf://" + name if any(word.startswith("hf://") for word in words) else name
        mounted = f"{name}:/model:ro"  # of a folder that a container is given
        if name in text or "rm -rf" in text or "id" in words:
            assert quoted in words or mounted in words, text


def test_conditions_choose_the_pieces() -> None:
    values = {"hardware.servers": ["nvidia"], "hardware.gpus": 4, "model.format": "safetensors"}
    vllm = commands(ENGINES["vllm"], SERVERS, from_values({**values, "model.name": "org/m"}))
    assert vllm is not None
    assert "--tensor-parallel-size 4" in vllm.start
    assert "--api-key" not in vllm.start
    assert "NO_USAGE_STATS" not in vllm.start
    local = {**values, "model.name": "org/m", "data.stays_local": True, "data.access_control": True}
    vllm = commands(ENGINES["vllm"], SERVERS, from_values(local))
    assert vllm is not None
    assert vllm.start.startswith("VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 vllm serve org/m")
    assert '--api-key "$API_KEY"' in vllm.start
    assert vllm.prepare == ("hf download org/m",)


def test_llama_cpp_has_its_context_for_all_slots() -> None:
    answers = from_values({"model.context": 2048, "load.peak_concurrency": 8})
    made = commands(ENGINES["llama.cpp"], SERVERS, answers)
    assert made is not None
    assert "--ctx-size 16384" in made.start
    assert "--parallel 8" in made.start


def test_a_model_that_is_converted_first() -> None:
    answers = from_values({"model.name": "org/m", "model.format": "safetensors"})
    made = commands(ENGINES["llama.cpp"], SERVERS, answers)
    assert made is not None
    assert made.prepare == (
        "hf download org/m --local-dir model",
        "python convert_hf_to_gguf.py ./model --outfile model.gguf",
    )
    assert "--model model.gguf" in made.start
    ollama = commands(ENGINES["ollama"], SERVERS, answers)
    assert ollama is not None
    assert ollama.prepare[1] == (
        "echo FROM ./model > Modelfile && ollama create local-model -f Modelfile"
    )


# ---- names of Tidemill's own


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "hf://org/model:Q4_K_M", "pypi://a#b.gguf"])
@pytest.mark.parametrize("engine", CANDIDATES, ids=lambda e: e.id)
def test_other_engines_are_given_the_path_of_what_only_tidemill_knows(
    engine: Engine, name: str
) -> None:
    for format in ("gguf", "safetensors"):
        answers = from_values({"model.name": name, "model.format": format})
        made = commands(engine, SERVERS, answers, catalogue={"smollm2"})
        assert made is not None
        everything = "\n".join((made.start, *made.prepare))
        if engine.id == "tidemill":
            assert f"tidemill serve {shlex.quote(name)}" in everything
        else:
            path = f'"$(tidemill pull --path {shlex.quote(name)})"'
            assert name not in everything.replace(path, "")
            assert path in everything or engine.id in ("gpt4all", "mlc-llm")
            assert not re.search(r"hf download|ollama pull| -hf ", everything)


def test_the_path_is_where_the_model_is(tmp_path: Path) -> None:
    """As printed, by a shell: with a model that is not in the store yet."""
    home = tmp_path / "the home"
    home.mkdir()
    (tmp_path / "own.gguf").write_bytes(b"GGUF of mine")
    (home / "catalogue.toml").write_text(f"[mine]\nsource = 'file://{tmp_path}/own.gguf'\n")
    programs = {"tidemill": f'exec "{sys.executable}" -m tidemill "$@"', "llama-server": 'cat "$2"'}
    for program, does in programs.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / program).chmod(0o755)
    answers = from_values({"model.name": "mine"})
    made = commands(ENGINES["llama.cpp"], SERVERS, answers, catalogue={"mine"})
    assert made is not None
    shell = {
        **os.environ, "TIDEMILL_HOME": str(home), "PATH": f"{tmp_path}:{os.environ['PATH']}"
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", made.start], env=shell, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "GGUF of mine"), done.stderr


def test_a_folder_is_mounted_into_a_container() -> None:
    answers = from_values({"model.name": "./llama", "model.format": "safetensors"})
    made = commands(ENGINES["tgi"], SERVERS, answers)
    assert made is not None
    assert "-v ./llama:/model:ro" in made.start
    assert "--model-id /model" in made.start


def test_a_name_that_may_be_none_is_said() -> None:
    def note(name: str) -> str:
        values = {"model.name": name}
        made = commands(ENGINES["ollama"], SERVERS, from_values(values), catalogue={"smollm2"})
        assert made is not None
        return made.note

    assert "Whether Ollama knows a model `llama9` was not looked up." in note("llama9")
    for name in ("smollm2", "org/model", "./llama9", "hf://org/model"):
        assert "looked up" not in note(name)
