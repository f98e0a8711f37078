"""``tidemill calibrate`` and ``tidemill hardware``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.simulate import calibrate as room
from tidemill.simulate.analytic import analytic
from tidemill.simulate.calibration import load
from tidemill.simulate.profiles import load_hardware
from tidemill.simulate.shapes import load_shape

Tidemill = Callable[..., Any]  # see conftest.py


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of a few steps."""
    monkeypatch.setattr(room, "_QUICK_SECONDS", 1e-3)
    monkeypatch.setattr(room, "SEQUENCES", 4)
    monkeypatch.setattr(room, "BATCH_TOKENS", 64)
    monkeypatch.setattr(room, "PREFILL_TOKENS", 32)


@pytest.mark.usefixtures("hasty")
def test_calibrate_measures_fits_writes_and_tells(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made.json"
    done = tidemill("calibrate", str(tiny_chat_model), "--quick", "--no-server", "--out", str(out))
    assert done.returncode == 0, done.stderr
    made = load(out)
    assert made.threads == 1
    assert made.served is None
    assert made.fit.error.steps >= 3
    assert made.engine.max_sequences == 4
    assert made.limits.products_per_second["F32"] > 0
    assert {"attn_output", "attention"} <= {re.sub(r".*\+", "", op) for op in made.ops[0].ops}
    for words in ("spread of repeats", "not fitted", "decodes behind 256 tokens", "prompts: 16:",
                  "times the measured time", f"written to {out}"):  # fmt: skip
        assert words in done.stdout, words


@pytest.mark.usefixtures("hasty")
def test_calibrations_are_kept_and_listed(tidemill: Tidemill, tiny_chat_model: Path) -> None:
    assert "`tidemill calibrate` makes one" in tidemill("calibrate", "--list").stdout
    done = tidemill("calibrate", str(tiny_chat_model), "--quick", "--no-server")
    assert done.returncode == 0, done.stderr
    listed = tidemill("calibrate", "--list").stdout
    assert str(tiny_chat_model) in listed
    assert re.search(r"error [\d.]+% \(95 %: [\d.]+%\)", listed)


def test_a_file_that_cannot_be_written_is_told_of_before_measuring(
    tidemill: Tidemill, tiny_chat_model: Path, tmp_path: Path
) -> None:
    done = tidemill("calibrate", str(tiny_chat_model), "--out", str(tmp_path / "no" / "where"))
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


def test_a_model_that_is_not_there_is_told_of(tidemill: Tidemill) -> None:
    done = tidemill("calibrate", "no-such-model", "--offline")
    assert done.returncode == 1
    assert "no-such-model" in done.stderr


def test_hardware_is_listed_and_described(tidemill: Tidemill) -> None:
    listed = tidemill("hardware").stdout
    assert re.search(r"h200 +141 GB +4800 GB/s +989\.4 T +1979 T +700 W", listed)
    described = tidemill("hardware", "h200").stdout
    for words in ("bandwidth             4800 GB/s", "data sheet", "https://", "(2026-11-30)",
                  "assumed of every GPU", "efficiency.memory"):  # fmt: skip
        assert words in described, words


def test_a_profile_can_be_copied_changed_and_shown(tidemill: Tidemill, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = tidemill("hardware", "l40s", "--toml").stdout
    price = (
        '[price]\ncurrency = "EUR"\nhour = { value = 1.2, kind = "assumption", note = "ours" }\n'
    )
    file.write_text(text + "\n" + price)
    shown = tidemill("hardware", str(file)).stdout
    assert re.search(r"price\.hour +1\.2 EUR +assumption", shown)
    spec = analytic(load_hardware(str(file)), load_shape("mistral-7b"), tensor_parallel=2)
    assert (spec.hour, spec.currency) == (2.4, "EUR")
    assert tidemill("hardware", "--toml").returncode == 2


def test_hardware_that_is_not_known_is_told_of(tidemill: Tidemill, tmp_path: Path) -> None:
    done = tidemill("hardware", "h300")
    assert done.returncode == 1
    assert "there are a100-80gb" in done.stderr
    file = tmp_path / "mine.toml"
    file.write_text('name = "x"')
    assert "mine.toml: " in tidemill("hardware", str(file)).stderr
