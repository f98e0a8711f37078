"""The harness over fake peers: rounds, settings, failures, limits in time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from comparison.report import rows, table
from comparison.rounds import Bounds, PeerProcess, compare
from comparison.worker import WorkerError
from peers.protocol import Model, Work
from support.waiting import until

FAKE = Path(__file__).with_name("fake_peer.py")
MODEL = Model("tiny", "/tiny.gguf", "Q4_0", "llama", 100, 64)
WORKS = {
    "prefill": Work("prefill 8", "speed", prompt=8, figures=("prefill",)),
    "decode": Work("decode", "speed", prompt=8, generate=4, streams=2, figures=("decode",)),
}
PATIENT = Bounds(measure=60, load=60)


@pytest.fixture
def peer(tmp_path):
    made = []

    def make(name, behaviour):
        process = PeerProcess(
            name,
            [sys.executable, str(FAKE), behaviour, str(tmp_path / f"{name}.state")],
            cwd=tmp_path,
            log=tmp_path / "logs" / f"{name}.log",
        )
        process.greet()
        made.append(process)
        return process

    yield make
    for process in made:
        process.close()


def run(peers, rounds=3, works=WORKS, bounds=PATIENT):
    return compare(
        MODEL, works, peers, rounds=rounds, threads=2, bounds=bounds, say=lambda line: None
    )


def lines(tmp_path, name):
    return (tmp_path / f"{name}.state").read_text().splitlines()


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_every_round_measures_every_work_by_every_peer(peer):
    records = run([peer("tidemill", "plain"), peer("other", "plain")])
    assert set(records) == {(w, p) for w in WORKS for p in ("tidemill", "other")}
    for record in records.values():
        assert record.error is None
        assert len(record.rounds) == 3
    assert records["decode", "other"].rounds == [{"decode": 100.0}] * 3


def test_the_fastest_settings_are_found_and_kept(peer, tmp_path):
    records = run([peer("other", "settings")], rounds=2)
    record = records["prefill", "other"]
    assert record.settings == {"speed": 9}
    assert record.tried == [
        ({"speed": 2}, {"prefill": 20.0}),
        ({"speed": 9}, {"prefill": 90.0}),
        ({"speed": 4}, {"prefill": 40.0}),
    ]
    assert record.rounds == [{"prefill": 90.0}] * 2
    measured = [line for line in lines(tmp_path, "other") if line == "measure prefill 8"]
    assert len(measured) == 3 + 2  # one setting each, then the rounds


def test_settings_that_are_known_are_not_looked_for(peer, tmp_path):
    records = compare(
        MODEL, WORKS, [peer("other", "settings")], rounds=1, threads=2, bounds=PATIENT,
        known={("prefill", "other"): {"speed": 4}}, say=lambda line: None,
    )  # fmt: skip
    assert records["prefill", "other"].tried == []
    assert records["prefill", "other"].rounds == [{"prefill": 40.0}]
    assert records["decode", "other"].settings == {"speed": 9}


def test_a_process_is_fresh_in_each_round_unless_it_starts_slowly(peer, tmp_path):
    run([peer("quick", "plain"), peer("slow", "slow start")], rounds=3)
    starts = {
        name: sum(line.startswith("start") for line in lines(tmp_path, name))
        for name in ("quick", "slow")
    }
    # The greeting's process is used until its first close.
    assert starts == {"quick": 1 + 3, "slow": 1}


def test_one_failing_work_costs_neither_the_other_work_nor_the_other_peers(peer):
    records = run([peer("tidemill", "plain"), peer("other", "breaks on decode")])
    assert records["decode", "other"].error == "no decoding today"
    assert records["prefill", "other"].error is None
    assert len(records["prefill", "other"].rounds) == 3
    assert len(records["decode", "tidemill"].rounds) == 3


def test_what_failed_is_not_tried_again(peer, tmp_path):
    run([peer("other", "breaks on decode")], rounds=3)
    assert lines(tmp_path, "other").count("measure decode") == 1


@pytest.mark.parametrize(("seconds", "measured"), [(0.0, 1), (600.0, 3)])
def test_rounds_end_when_the_time_is_used_up_but_the_first_is_measured(peer, seconds, measured):
    seen = []
    records = compare(
        MODEL, WORKS, [peer("other", "plain")], rounds=3, threads=2, bounds=PATIENT,
        seconds=seconds, after_round=lambda records: seen.append(len(records)),
        say=lambda line: None,
    )  # fmt: skip
    assert seen == [len(WORKS)] * measured
    assert [len(record.rounds) for record in records.values()] == [measured] * len(WORKS)


def test_a_peer_that_refuses_a_model_says_why_in_the_table(peer):
    records = run([peer("tidemill", "plain"), peer("other", "refuses")])
    text = table(rows("tiny", WORKS, ["tidemill", "other"], records))
    assert text.count("not run: does not take such models") == 2


def test_a_peer_that_dies_is_shown_with_its_last_words(peer):
    records = run([peer("tidemill", "plain"), peer("other", "dies")])
    error = records["prefill", "other"].error
    assert "exit status 7" in error
    assert "out of memory, says the engine" in error
    assert len(records["prefill", "tidemill"].rounds) == 3


def test_a_peer_that_hangs_is_ended_with_its_children(peer, tmp_path):
    other = peer("other", "hangs")
    records = run([other], works={"prefill": WORKS["prefill"]}, bounds=Bounds(1.0, 0.0))
    assert records["prefill", "other"].error == "took longer than the limit of 1 s"
    started = [int(line.split()[1]) for line in lines(tmp_path, "other") if "measure" not in line]
    assert len(started) == 2  # the peer and its child
    until(lambda: not any(running(pid) for pid in started))


def test_figures_of_zero_are_no_figures(peer):
    records = run([peer("other", "zero")])
    assert records["prefill", "other"].error.startswith("gave no prefill")


def test_anything_but_json_is_an_error_that_shows_it(peer):
    with pytest.raises(WorkerError, match="loading weights"):
        peer("other", "babbles")


def test_an_idle_peer_is_stopped(peer, tmp_path):
    quiet = peer("quiet", "plain")
    pid = int(lines(tmp_path, "quiet")[0].split()[1])
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert quiet.variants(MODEL, WORKS["prefill"], 2, PATIENT) == [{}]  # and goes on when asked
    assert os.getpgid(pid) == pid


def test_the_order_of_peers_alternates(peer):
    order = []
    compare(
        MODEL, {"prefill": WORKS["prefill"]}, [peer("a", "plain"), peer("b", "plain")],
        rounds=2, threads=2, bounds=PATIENT,
        say=lambda line: order.append(line.split(", ")[2][0]),
    )  # fmt: skip
    assert order == ["a", "b", "b", "a"]
