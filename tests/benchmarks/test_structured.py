"""The cost of answers in a form: what the benchmark prints is there for each form and each load."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/structured.py"


def test_each_form_has_its_cost(tiny_chat_model: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), "--model", str(tiny_chat_model), "--streams", "1", "2",
         "--tokens", "8", "--rounds", "2", "--threads", "1"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.split()[0] in ("1", "2")]
    for streams in ("1", "2"):
        for form in ("free", "schema", "any JSON", "regex"):
            (row,) = (r for r in rows if r.split()[0] == streams and f" {form} " in r)
            mask = float(row.split()[-2])
            assert (mask > 0) == (form != "free"), row
