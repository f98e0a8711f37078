"""How far predictions were off, as ``benchmarks/simulation_proof.py`` has found out: kept beside
the calibration that they came from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.bench.measures import Summary
from tidemill.store.layout import write_durably

_MOST_BYTES = 1 << 20  # of a file


class ProofError(ValueError):
    """The file of a proof cannot be used."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``errors``: the largest of each figure, as a share of what was measured, over scenarios that
    nothing was fitted to. ``made``: the day."""

    made: str
    scenarios: list[str]
    errors: dict[str, float]


def figures(summary: Summary) -> dict[str, float]:
    """Those that are predicted and compared, by name: "ttft.p50", "output_rate" ..."""
    found = {
        f"{name}.{share}": estimate.value
        for name, shares in summary.latency.items()
        for share, estimate in shares.items()
    }
    found |= {"output_rate": summary.output_rate, "request_rate": summary.request_rate}
    if summary.attained is not None and summary.goodput is not None:
        found |= {"attained": summary.attained, "goodput": summary.goodput}
    return found


def proof_beside(calibration: Path) -> Proof | None:
    """Of the calibration in this file, if there is one. Raises ProofError."""
    path = _place(calibration)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProofError(f"{path}: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=Proof)
    except msgspec.DecodeError as error:
        raise ProofError(f"{path}: no proof of a calibration ({error}): remove it") from None


def keep_proof(proof: Proof, calibration: Path) -> Path:
    path = _place(calibration)
    write_durably(path, msgspec.json.format(msgspec.json.encode(proof), indent=1).decode() + "\n")
    return path


def _place(calibration: Path) -> Path:
    return calibration.with_suffix(".proof")
