"""The arithmetic of the ablations, and a run of all of them on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ablations
from models.dequantised import write_f32
from support.tiny_models import GGUF_CASES, write_gguf
from techniques.all import TECHNIQUES
from techniques.comparing import Figure, Measured, Rounds, Technique, compare, lines
from techniques.setup import FULL, QUICK
from tidemill.weights import open_checkpoint
from tidemill.weights.base import TensorType


@pytest.mark.parametrize(
    ("kind", "on", "off", "gain", "shown"),
    [
        ("rate", 300.0, 100.0, 3.0, "3.00x"),
        ("time", 20.0, 50.0, 2.5, "2.50x"),
        ("size", 65.0, 100.0, 0.35, "35% less"),
    ],
)
def test_a_gain_is_above_one_or_zero_where_the_technique_helps(kind, on, off, gain, shown):
    figure = Figure("figure", "unit", kind)
    assert figure.gain(on, off) == pytest.approx(gain)
    assert figure.show(gain) == shown


def test_gains_are_taken_round_by_round():
    # The machine slows down by half for the second round: within it the gain stays.
    row = Rounds(Figure("decode", "tok/s"), [100, 50, 120], [50, 25, 30]).row()
    assert (row["gain"], row["lowest"], row["highest"]) == (2.0, 2.0, 4.0)
    assert (row["with"], row["without"]) == (100, 30)


def test_the_order_turns_round_from_round_to_round():
    order = []

    def measure(on):
        order.append(on)
        return Measured({"speed": 4.0 if on else 2.0}, [[1, 2]])

    (row,) = compare(measure, [Figure("speed", "tok/s")], rounds=3)
    assert order == [True, False, False, True, True, False]
    assert row["rounds_with"] == [4.0] * 3
    assert row["rounds_without"] == [2.0] * 3


def test_sides_that_did_different_work_are_not_compared():
    with pytest.raises(SystemExit, match="changed what came out"):
        compare(lambda on: Measured({"speed": 1.0}, [[int(on)]]), [Figure("speed", "tok/s")], 1)


def test_the_table_shows_gain_range_and_promise():
    figure = Figure("requests", "1/s", promise=7.0)
    technique = Technique("batching", "one at a time", (figure,), lambda bench: None)
    text = "\n".join(lines(technique, [Rounds(figure, [8.0, 9.0], [2.0, 1.0]).row()]))
    assert "batching (against one at a time)" in text
    assert "6.50x (4.00x, 9.00x)   promised: 7.00x" in text


def test_every_technique_of_the_promise_is_there():
    promised = {
        (name, figure.name): figure.promise
        for name, technique in TECHNIQUES.items()
        for figure in technique.figures
        if figure.promise is not None
    }
    assert promised["batching", "requests"] == 7.0
    assert promised["paged", "throughput"] == 2.8
    assert promised["paged", "KV set aside for a token"] == 0.35
    assert promised["passes", "decode"] == 2.3
    assert promised["weights", "file"] == 0.87


def test_full_sizes_fit_the_models_measured():
    assert QUICK.longest <= 1024
    assert FULL.longest <= 8192


def test_a_model_is_written_as_f32_with_the_same_weights(tmp_path: Path):
    source = write_gguf(GGUF_CASES[0], tmp_path / "model.gguf", quantise="Q8_0")
    target = write_f32(source, tmp_path / "floats" / "model-F32.gguf")
    before, after = open_checkpoint(source), open_checkpoint(target)
    assert set(after.tensors) == set(before.tensors)
    assert TensorType.Q8_0 in {tensor.type for tensor in before.tensors.values()}
    for name, tensor in after.tensors.items():
        assert tensor.type == TensorType.F32
        assert np.array_equal(tensor.dequantize(), before.tensors[name].dequantize()), name
    differing = {k for k, v in before.metadata.items() if after.metadata.get(k) != v}
    assert differing <= {"general.file_type"}
    written = target.stat().st_mtime_ns
    write_f32(source, target)
    assert target.stat().st_mtime_ns == written, "it is written once"


def test_all_ablations_run(tiny_chat_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TIDEMILL_PEERS", str(tmp_path))
    file = tmp_path / "results" / "ablations.json"
    ablations.main(
        ["--quick", "--rounds", "1", "--threads", "1", "--json", str(file),
         "--model", str(tiny_chat_model)]
    )  # fmt: skip
    found = json.loads(file.read_text())["techniques"]
    assert [entry["technique"] for entry in found] == list(TECHNIQUES)
    rows = {(e["technique"], row["figure"]): row for e in found for row in e["rows"]}
    assert all(row["with"] > 0 and row["without"] > 0 for row in rows.values())
    # What depends on no clock: two contexts of the pool hold two requests, or many more pages.
    at_once = rows["paged", "sequences at once"]
    assert at_once["without"] <= QUICK.pool < at_once["with"]
    assert 0.5 < rows["paged", "KV set aside for a token"]["gain"] < 1
    assert 0.3 < rows["kv8", "KV cache"]["gain"] < 0.5
    assert "quick: the figures mean nothing" in capsys.readouterr().out


def test_one_technique_alone_and_unknown_ones(capsys):
    with pytest.raises(SystemExit):
        ablations.main(["--only", "batching,magic"])
    assert "no technique magic" in capsys.readouterr().err
