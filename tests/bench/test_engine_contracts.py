"""Engines that are not started in tests, against what their documentation says: the flags and
variables that they are started with, the path that tells that they are ready, the fields that they
are asked with. ``contracts/`` has what was read, where and when.
"""

from __future__ import annotations

import datetime
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from tidemill.bench.engines import ENGINES, Launch

FOLDER = Path(__file__).parent / "contracts"

PYTHONS = {"HF_HUB_OFFLINE", "OMP_NUM_THREADS"}
"""Variables of what an engine is built on (huggingface_hub, OpenMP), not its own."""


class Document(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    looked_up: datetime.date
    note: str = ""
    flags: list[str] = []
    environment: list[str] = []
    paths: list[str] = []
    fields: list[str] = []


class Contract(msgspec.Struct, forbid_unknown_fields=True):
    engine: str
    documents: list[Document]

    def all(self, kind: str) -> set[str]:
        return {each for document in self.documents for each in getattr(document, kind)}


CONTRACTS = [
    msgspec.convert(tomllib.loads(path.read_text()), Contract)
    for path in sorted(FOLDER.glob("*.toml"))
]


def test_every_engine_is_tested_for_real_or_has_a_contract() -> None:
    documented = {contract.engine for contract in CONTRACTS}
    for engine in ENGINES.values():
        assert engine.proof == "tested with the engine" or engine.name in documented


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.engine)
def test_an_engine_is_called_and_asked_as_documented(contract: Contract, tmp_path: Path) -> None:
    engine = ENGINES[contract.engine]
    launch = Launch(
        model=tmp_path, context=2048, sequences=4, threads=2, folder=tmp_path, binary=sys.executable
    )
    program, *arguments = engine.command(launch, 8123)
    assert program == sys.executable
    flags = {argument for argument in arguments if argument.startswith("--")}
    assert flags <= contract.all("flags")
    assert engine.environment(launch, 8123).keys() <= contract.all("environment") | PYTHONS
    assert engine.health in contract.all("paths")
    assert engine.greedy.keys() | engine.full_length.keys() <= contract.all("fields")
    # Where it listens is said, by a flag or a variable, and that it is this machine only.
    said = " ".join([*arguments, *engine.environment(launch, 8123).values()])
    assert "8123" in said
    assert "127.0.0.1" in said
    # What the user adds comes last, and so wins.
    added = msgspec.structs.replace(launch, arguments=("--more", "2"))
    assert engine.command(added, 8123)[-2:] == ["--more", "2"]
