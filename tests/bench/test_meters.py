"""Samples of real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from support.waiting import until
from tidemill.bench import meters
from tidemill.bench.meters import Sampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

BUSY = "data = bytearray(b'x') * (64 << 20)\nprint(flush=True)\nwhile True: pass\n"


def test_a_process_that_computes_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "_EVERY", 0.01)
    with closing(Sampler()) as sampler:
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sampler.watch(lambda: [process.pid])
            until(lambda: bool(sampler.samples) and sampler.samples[-1].cpu >= 0.1)
            process.kill()
        until(lambda: sampler.samples[-1].memory == 0)
    samples = sampler.samples
    assert sampler.exact
    assert max(sample.memory for sample in samples) > 64 << 20
    assert all(b.when > a.when and b.cpu >= a.cpu for a, b in itertools.pairwise(samples))
    assert samples[-1].cpu >= 0.1  # which an ended process has taken all the same
    after = len(samples)
    time.sleep(0.05)
    assert len(sampler.samples) == after  # nothing is taken any more


def test_memory_without_pss_is_rss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "proportional_bytes", lambda pid: None)
    sampler = Sampler()
    sampler.take([os.getpid()], 1.0)
    assert not sampler.exact
    assert sampler.samples[-1].memory > 1 << 20


def test_sampling_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it costs: where one sample takes long, the next one comes late."""
    pauses: list[float] = []

    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += 0.5
            return cls.now

    sampler = Sampler()
    monkeypatch.setattr(meters, "time", Clock)
    monkeypatch.setattr(sampler._ended, "wait", lambda pause: pauses.append(pause) or True)
    sampler._run()
    assert pauses == [pytest.approx(50.0)]
