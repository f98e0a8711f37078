"""Calibration files: what is written is read again, and what is not one is refused."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.calibrations import calibration, points, seconds
from tidemill.engine.step_time import attended
from tidemill.simulate.base import StepWork
from tidemill.simulate.calibration import (
    Calibration,
    CalibrationError,
    Served,
    calibrated,
    fit_points,
    load,
    save,
    step_table,
    stored,
)


@pytest.fixture
def made() -> Calibration:
    served = Served(
        per_request=4e-3, per_prompt_token=5e-6, per_step=3e-4, per_token=2e-5, spread=0.1
    )
    return calibration("dir/smollm2", served)


def test_what_is_written_is_read_again(made: Calibration, tmp_path: Path) -> None:
    path = save(made, tmp_path / "file.json")
    assert load(path) == made


def test_a_replica_costs_what_was_measured_and_what_its_server_adds(made: Calibration) -> None:
    spec = calibrated(made, hour=0.5)
    assert (spec.n_blocks, spec.max_sequences, spec.max_prefill_tokens) == (3000, 64, 256)
    assert (spec.hour, spec.devices) == (0.5, 1)
    assert spec.front.seconds(100) == pytest.approx(4e-3 + 100 * 5e-6)
    step = spec.step_time
    assert (step.origin, step.band) == ("measured", made.fit.error.p95)
    assert "dir/smollm2 on Some CPU, 2 threads, 2026-11-30" in step.source
    for work in (StepWork(0, 0, 10, 1000, 10), StepWork(100, attended(0, 100), 5, 99, 6)):
        bare = step_table(made, with_server=False).seconds(work)
        assert bare == pytest.approx(seconds(work), rel=0.05)
        assert step.seconds(work) == pytest.approx(bare + 3e-4 + 2e-5 * work.rows)


def test_held_out_points_are_marked_as_such(made: Calibration) -> None:
    held = [point for point in made.points if point.held_out]
    assert len(held) == made.fit.error.steps == 5
    again, fit = fit_points(points(), seed=1)
    assert [p.held_out for p in again] != [p.held_out for p in made.points]
    assert fit.costs != made.fit.costs  # other points were fitted


def test_a_point_that_is_held_out_does_not_touch_the_fit(made: Calibration) -> None:
    wrong = [
        msgspec.structs.replace(point, seconds=10 * point.seconds) if point.held_out else point
        for point in made.points
    ]
    _, fit = fit_points(wrong)
    assert fit.costs == made.fit.costs
    assert fit.error.median == pytest.approx(0.9, abs=0.02)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="too few to hold some out"):
        fit_points(points()[:2])


def test_the_store_keeps_one_file_for_each_thing_that_changes_times(
    made: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    assert list(stored()) == []
    later = msgspec.structs.replace(made, made=made.made + datetime.timedelta(days=1))
    changed = [
        msgspec.structs.replace(made, threads=1),
        msgspec.structs.replace(made, version="0.2.0"),
        msgspec.structs.replace(made, identity="abd"),
        msgspec.structs.replace(made, machine=msgspec.structs.replace(made.machine, cores=4)),
        msgspec.structs.replace(made, engine=msgspec.structs.replace(made.engine, kv_dtype="q8_0")),
    ]
    paths = {save(one) for one in (made, later, *changed)}
    assert len(paths) == 6  # the later one took the place of the first
    assert all(path.name.startswith("smollm2-") for path in paths)
    (tmp_path / "calibrations" / "broken.json").write_text("{")
    found = list(stored())
    assert len(found) == 6
    assert found[0][1] == later


def test_a_name_that_is_a_path_or_strange_stays_in_the_folder(made: Calibration) -> None:
    for name in ("../../etc/passwd", "hf://a/b:Q4", "..", "x" * 400, "a\nb"):
        file = msgspec.structs.replace(made, model=name).file_name
        assert "/" not in file
        assert len(file) < 130
        assert not file.startswith(".")


def change(made: Calibration, path: str, value: Any) -> bytes:
    content = json.loads(msgspec.json.encode(made))
    *parents, last = path.split(".")
    place = content
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "format"),
        ("extra", 1, "unknown field `extra`"),
        ("fit.costs.tokens", [[0, 0.0]], "length >= 2"),
        ("fit.costs.tokens", [[1, 0.1], [2, 0.2]], "knots begin at 0"),
        ("fit.costs.tokens", [[0, 0.0], [5, 0.2], [5, 0.3]], "knots begin at 0 and rise"),
        ("fit.costs.rows", [[0, 0.0], [4, 0.5], [8, 0.2]], "never take less time"),
        ("fit.costs.rows", [[0, 0.0], [2**40, 0.5]], "knots end at"),
        ("fit.costs.rows", [[0, 0.0], [1, -0.5]], ">= 0"),
        ("fit.costs.per_decode_context", -1e-9, ">= 0"),
        ("fit.costs.per_decode_context", 1e300, "<="),
        ("fit.error", {"steps": 1}, "median"),
        ("points", [], "length >= 2"),
        ("points.0.seconds", 0, "> 0"),
        ("points.0.rows", -1, ">= 0"),
        ("points.0.seconds", "fast", "float"),
        ("engine.max_batch_tokens", 10**12, "<="),
        ("engine.n_blocks", 10**15, "<="),
        ("engine.block_size", 0, ">= 1"),
        ("served.per_request", -1, ">= 0"),
        ("model", "x" * 10_000, "length <= 500"),
        ("made", "yesterday", "datetime"),
        ("limits.bytes_per_second", 0, "> 0"),
    ],
)
def test_files_that_are_no_calibration_are_refused(
    made: Calibration, tmp_path: Path, path: str, value: Any, message: str
) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(change(made, path, value))
    with pytest.raises(CalibrationError) as caught:
        load(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "`tidemill calibrate` makes a new one" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"\xff\xfe", b"[" * 200_000, b'{"format": NaN}']
)
def test_what_is_not_json_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(data)
    with pytest.raises(CalibrationError, match="no calibration"):
        load(file)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 32)
    with pytest.raises(CalibrationError, match="larger than 4 MiB"):
        load(file)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="`tidemill calibrate` makes calibrations"):
        load(tmp_path / "none.json")
