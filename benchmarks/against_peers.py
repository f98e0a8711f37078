"""Speed against other engines: the same model, threads and lengths, in interleaved rounds.

    python benchmarks/against_peers.py [--peers llama.cpp,vllm] [--work "smollm2/*"] [--rounds 5]

``make bench-peers`` runs it whole (hours), ``make bench`` the short form against llama.cpp alone.
Peers are made on first use, outside the tree (``peers/environments.py``). What exactly is timed is
said in ``peers/protocol.py`` and in the output. A peer that cannot be had, or cannot do something,
is in the table with the reason. The table goes to standard output, everything measured to a JSON
file in benchmarks/results/, after each round; ``--show`` makes the table of one or several.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from comparison.machine import measure_limits, measure_load
from comparison.report import merged, rows, text
from comparison.rounds import (
    Bounds,
    PeerProcess,
    Record,
    Records,
    compare,
    environment_of,
)
from comparison.worker import WorkerError
from comparison.works import MODELS, WORKS, select
from peers import PEERS, module_of
from peers.environments import root
from peers.protocol import Model, Settings, Work

HERE = Path(__file__).resolve().parent


def main() -> None:
    args = _arguments()
    if args.show:
        report = merged([json.loads(file.read_text()) for file in args.show])
        if args.json:
            _write(args.json, report)
        print(text(report))
        return
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the peers' processes are ended
        signal.signal(ending, lambda *_: sys.exit(1))
    chosen = select(args.work)
    names = _peers(args.peers)
    peers, absent = have(names, environment_of(args.threads, HERE))
    report = {
        "when": f"{_now():%Y-%m-%dT%H:%M:%SZ}", "limits": asdict(measure_limits(args.threads)),
        "loads": [], "peers": [peer.hello for peer in peers], "absent": absent, "rows": [],
    }  # fmt: skip
    file = args.json or HERE / "results" / f"peers-{_now():%Y%m%d-%H%M%S}.json"
    until = time.monotonic() + 60 * args.minutes
    left = sum(map(len, chosen.values()))
    for name, work_names in chosen.items():
        share = (until - time.monotonic()) * len(work_names) / left
        left -= len(work_names)
        works = {work: quick(WORKS[work]) if args.quick else WORKS[work] for work in work_names}
        try:
            model = prepare(name, folder=any(peer.hello["wants"] == "folder" for peer in peers))
        except Exception as error:  # whatever is wrong with one model, the others are measured
            print(f"{name}: cannot be had: {error}", file=sys.stderr, flush=True)
            continue
        measure(
            model, works, peers, report, file, rounds=args.rounds, threads=args.threads,
            bounds=Bounds(args.limit), seconds=share, known=known(name, args.settings),
        )  # fmt: skip
    print(f"{text(report)}\n\n{file}")


def measure(
    model: Model, works: Mapping[str, Work], peers: Sequence[PeerProcess], report: dict[str, Any],
    file: Path, *, rounds: int, threads: int, bounds: Bounds, seconds: float,
    known: Mapping[tuple[str, str], Settings],
) -> None:  # fmt: skip
    """Compare on one model; after each round ``file`` has everything measured so far."""
    others = report["rows"]
    absent: dict[str, str] = report["absent"]
    names = [name for name in PEERS if name in absent or name in {peer.name for peer in peers}]

    def before_round(number: int) -> None:
        load = measure_load()
        report["loads"].append({"model": model.name, "round": number, **asdict(load)})
        print(f"{model.name}, round {number + 1}: {load}", file=sys.stderr, flush=True)

    def after_round(records: Records) -> None:
        missing = {(work, name): Record(error=absent[name]) for work in works for name in absent}
        report["rows"] = others + rows(model.name, works, names, records | missing)
        _write(file, report)

    compare(
        model, works, peers, rounds=rounds, threads=threads, bounds=bounds, seconds=seconds,
        known=known, before_round=before_round, after_round=after_round,
    )  # fmt: skip


def known(model: str, files: Sequence[Path]) -> dict[tuple[str, str], Settings]:
    """The settings that earlier runs, the last one above all, chose for each work and peer."""
    reports = [json.loads(file.read_text()) for file in files]
    return {
        (row["work"], row["peer"]): row["settings"]
        for report in reports
        for row in report["rows"]
        if row["model"] == model and row["median"] is not None
    }


def have(names: Sequence[str], env: dict[str, str]) -> tuple[list[PeerProcess], dict[str, str]]:
    """Make the peers; those that answer, and why the others do not."""
    peers, absent = [], {}
    for name in names:
        print(f"{name}: looking for it", file=sys.stderr, flush=True)
        module = module_of(name)
        try:
            python = install(module, env)
            log = root() / "logs" / f"{name}.log"
            peer = PeerProcess(name, [python, "-m", module, "serve"], cwd=HERE, log=log, env=env)
            try:
                peer.greet()
            finally:
                peer.close()
        except (WorkerError, subprocess.SubprocessError, OSError) as error:
            absent[name] = str(error)
        else:
            peers.append(peer)
    return peers, absent


def install(module: str, env: dict[str, str]) -> str:
    """The interpreter that serves this peer. Raises WorkerError if it cannot be made."""
    done = subprocess.run(
        [sys.executable, "-m", module, "install"], cwd=HERE, env=env, stdout=subprocess.PIPE,
        timeout=4 * 3600, check=False,
    )  # fmt: skip
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {"error": f"its installation ended with exit status {done.returncode}"}
    if "ok" not in answer:
        raise WorkerError(answer["error"])
    return str(answer["ok"]["python"])


def prepare(name: str, *, folder: bool) -> Model:
    """Find or write a model; with ``folder`` its Hugging Face form too, where that is sensible."""
    from models import hf_folder, llama_1b_random
    from tidemill.store import resolve
    from tidemill.text import load_tokenizer
    from tidemill.weights import open_checkpoint

    type_ = name.removeprefix("llama-1b-")
    path = llama_1b_random.write(type_) if type_ != name else resolve(name)
    checkpoint = open_checkpoint(path)
    metadata = checkpoint.metadata
    architecture = str(metadata["general.architecture"])
    tokenizer = load_tokenizer(checkpoint.format, metadata, checkpoint.folder)
    written, why = None, None
    if folder and type_ != name and type_ != "BF16":
        why = "it has no kernels for GGUF types; its speed on this shape is that of BF16"
    elif folder:
        written = root() / "models" / f"{Path(path).stem}-hf"
        hf_folder.write_folder(Path(path), written)
    return Model(
        name=name,
        path=str(path),
        file_type={2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 15: "Q4_K_M", 32: "BF16"}.get(
            int(metadata.get("general.file_type", -1)), "unknown"
        ),
        architecture=architecture,
        vocab_size=tokenizer.vocab_size,
        context=int(metadata[f"{architecture}.context_length"]),
        folder=None if written is None else str(written),
        folder_error=why,
        text=" ".join(single_token_words(tokenizer)),
    )


def single_token_words(tokenizer: Any, most: int = 500) -> list[str]:
    """Words that are one token together with the space before them."""
    words = []
    for i in range(tokenizer.vocab_size):
        token = tokenizer.token_bytes(i)
        if token[:1] == b" " and token[1:].isalpha() and token[1:].islower() and token.isascii():
            words.append(token[1:].decode())
            if len(words) == most:
                break
    return words


def quick(work: Work) -> Work:
    """The same work in a small size, to see that it runs."""
    return replace(
        work, prompt=min(work.prompt, 48), generate=min(work.generate, 8), repeats=1
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="works: " + ", ".join(f"{m}/{{{','.join(w)}}}" for m, w in MODELS.items()),
    )
    parser.add_argument("--peers", default="", help=f"of {', '.join(PEERS[1:])}; default: all")
    parser.add_argument("--work", default="*", help="patterns of MODEL/WORK; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="the most, for each model")
    parser.add_argument(
        "--minutes", type=float, default=math.inf,
        help="begin no round that would end later, each model having its share; the first round "
        "of each is always measured",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, default=Bounds.measure, help="seconds a measure")
    parser.add_argument(
        "--settings", type=Path, nargs="+", default=[], metavar="JSON",
        help="try no settings of peers where these earlier runs did: take what they chose",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that all runs: no figures"
    )
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="JSON",
        help="measure nothing: the table of earlier runs, merged",
    )  # fmt: skip
    args = parser.parse_args()
    if args.rounds < 1 or args.threads < 1 or args.limit <= 0 or args.minutes <= 0:
        parser.error("--rounds, --threads, --limit and --minutes are above 0")
    if args.quick and args.json is None:
        parser.error("--quick: its figures mean nothing; say with --json where they may go")
    try:
        select(args.work)
        _peers(args.peers)
    except ValueError as error:
        parser.error(str(error))
    return args


def _peers(text: str) -> list[str]:
    """Tidemill and the peers asked for, in the table's order."""
    asked = {name for name in text.replace(",", " ").split() if name} or set(PEERS)
    unknown = asked - set(PEERS)
    if unknown:
        raise ValueError(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return [name for name in PEERS if name in asked or name == "tidemill"]


def _write(file: Path, report: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    main()
