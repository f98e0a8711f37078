"""Records what Transformers gives for the tiny models of ``tests/support/tiny_models.py``.

    python tests/oracles/make_logits.py            # rewrite tests/fixtures/logits/*.json
    python tests/oracles/make_logits.py --check    # recompute and compare, write nothing

Needs torch, transformers (5 or later) and safetensors. Each model is written to a folder, loaded
by ``from_pretrained`` in float32, and run once over all tokens; a few rows of logits are kept, and
the mean of the last hidden states and the last of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.tiny_models import (
    CASES,
    FIXTURES,
    TinyCase,
    expected,
    expected_pooled,
    relative_error,
    rows_of,
    tokens_of,
    write_folder,
)


def results_of(case: TinyCase) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits (R, vocab) of the recorded rows; the pooled hidden states (d_model,) by way."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(case, Path(folder))
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            local_files_only=True,
        )
    problems = {key: value for key, value in report.items() if value}
    if problems:
        raise SystemExit(f"{case}: the weights do not fit the model: {problems}")
    with torch.no_grad():
        ids = torch.tensor(tokens_of(case)[None].astype(np.int64))
        logits = model(ids, use_cache=False).logits[0].float().numpy()
        states = model.base_model(ids, use_cache=False).last_hidden_state[0].double().numpy()
    return logits[rows_of(case)], {"mean": states.mean(axis=0), "last": states[-1]}


def _digits(row: np.ndarray) -> list[float]:
    return [float(f"{x:.7g}") for x in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the records")
    parser.add_argument("cases", nargs="*", help="only these cases")
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    worst = 0.0
    for case in CASES:
        if arguments.cases and case.name not in arguments.cases:
            continue
        logits, pooled = results_of(case)
        if arguments.check:
            error = relative_error(logits, expected(case)[2])
            for way, vector in expected_pooled(case).items():
                error = max(error, relative_error(pooled[way], vector))
            worst = max(worst, error)
            print(f"{case.name:20} differs by {error:.1e}")
            continue
        record = {
            "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "tokens": tokens_of(case).tolist(),
            "rows": rows_of(case),
            "logits": [_digits(row) for row in logits],
            "pooled": {way: _digits(vector) for way, vector in pooled.items()},
        }
        FIXTURES.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, separators=(",", ":")).replace("],[", "],\n[")
        (FIXTURES / f"{case.name}.json").write_text(text + "\n")
        print(f"{case.name:20} recorded")
    if worst > 1e-5:
        raise SystemExit(f"the records are stale: they differ by up to {worst:.1e}")


if __name__ == "__main__":
    main()
