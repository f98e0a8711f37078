"""Speculation changes nothing but the number of steps.

The same requests run with and without guesses, on a runner whose "KV" is the tokens themselves;
whatever is guessed, tokens, text, log-probabilities and ends are equal.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks, check_idle, drive, make_engine, request
from engine.test_text import PieceTokenizer
from tidemill.engine.base import TokenEvent
from tidemill.engine.lookup import PromptLookup
from tidemill.engine.speculation import MAX_DRAFT, Speculator
from tidemill.engine.step_time import StepCosts, StepTimeModel

VOCAB, POISON = 40, 39


class Oracle:
    """Guesses the greedy continuation, wrongly with a chance of ``errors`` per token; a function
    of the tokens alone. ``silent``: has no guess that often."""

    def __init__(self, runner: FakeRunner, errors: float, silent: float = 0.0, wrong=range(VOCAB)):
        self.runner, self.errors, self.silent, self.wrong = runner, errors, silent, list(wrong)
        self.seen: set = set()

    def kinds(self, sequences):
        self.seen.update(sequences)
        return [int(self._rng(s).random() >= self.silent) for s in sequences]

    def first_rate(self, kind):
        return 0.5

    def propose(self, sequences, lengths):
        drafts = []
        for sequence, n in zip(sequences, lengths, strict=True):
            rng = self._rng(sequence)
            truth = self.runner.greedy(sequence.tokens, n)
            drafts.append([rng.choice(self.wrong) if rng.random() < self.errors else t
                           for t in truth])  # fmt: skip
        return drafts

    def forget(self, sequence):
        self.seen.discard(sequence)

    def _rng(self, sequence) -> random.Random:
        return random.Random(zlib.crc32(sequence.tokens.tobytes()))


# Guesses are all but free, so that the adaptive length is never 0 for long.
CHEAP = StepCosts(per_step=1.0, per_token=1e-3, per_context=1e-9, per_row=1e-6)


@dataclass(frozen=True)
class Setup:
    n_blocks: int
    block_size: int
    max_batch_tokens: int
    max_sequences: int
    max_logit_rows: int
    max_preemptions: int
    prefix_caching: bool
    max_draft: int
    adaptive: bool
    errors: float
    target: float | None


setups = st.builds(
    Setup,
    n_blocks=st.sampled_from([12, 20, 60]),
    block_size=st.sampled_from([1, 4, 16]),
    max_batch_tokens=st.sampled_from([2, 7, 32]),
    max_sequences=st.sampled_from([1, 3, 16]),
    max_logit_rows=st.sampled_from([2, 5, 32]),
    max_preemptions=st.sampled_from([0, 1, 8]),
    prefix_caching=st.booleans(),
    max_draft=st.sampled_from([1, 3, 15]),
    adaptive=st.booleans(),
    errors=st.sampled_from([0.0, 0.3, 1.0]),
    target=st.sampled_from([None, None, 1.01]),
)
prompts = st.one_of(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 30).map(lambda n: [0, 1, 2, 3] * (n // 4) + [1] * (n % 4 + 1)),
)


@st.composite
def params(draw):
    n = draw(st.sampled_from([1, 1, 2]))
    return {
        "n": n,
        "best_of": draw(st.sampled_from([None, None, n + 1])),
        "max_tokens": draw(st.sampled_from([1, 2, 5, 25])),
        "min_tokens": draw(st.sampled_from([0, 0, 1])),
        "temperature": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "top_p": draw(st.sampled_from([1.0, 0.8])),
        "seed": draw(st.sampled_from([None, 3])),
        "logprobs": draw(st.sampled_from([None, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, None, 1])),
        "stop_token_ids": draw(st.sampled_from([(), (5,)])),
        "stop": draw(st.sampled_from([(), ("a",), ("w3", "b"), ("ab",)])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.7])),
        "logit_bias": {POISON: -100.0, 7: 1.5},
    }


@st.composite
def scripts(draw):
    script: list[tuple[str, object]] = []
    for number in range(draw(st.integers(1, 8))):
        script.append(("add", request(
            f"r{number}", draw(prompts), priority=draw(st.integers(0, 2)), **draw(params())
        )))  # fmt: skip
        script.append(("step", draw(st.integers(0, 4))))
        if draw(st.integers(0, 5)) == 0:
            script.append(("abort", f"r{draw(st.integers(0, number))}"))
        if draw(st.integers(0, 9)) == 0:
            script.append(("fault", None))
    return script


def play(setup: Setup, script, *, speculate: bool):
    """Run ``script``; the results and the engine."""
    runner = FakeRunner(
        setup.n_blocks, setup.block_size, VOCAB, 32, setup.max_logit_rows, poison=POISON
    )
    oracle = Oracle(runner, setup.errors, silent=0.1) if speculate else None
    engine = make_engine(
        runner, PieceTokenizer(), proposer=oracle, max_context=60, step_costs=CHEAP,
        max_batch_tokens=setup.max_batch_tokens, max_sequences=setup.max_sequences,
        max_preemptions=setup.max_preemptions, prefix_caching=setup.prefix_caching,
        max_draft=setup.max_draft, adaptive_drafts=setup.adaptive, target_itl=setup.target,
    )  # fmt: skip
    collector = Collector()
    refused = set()

    def step() -> None:
        collector.take(engine.step(0.0))
        check_blocks(engine)
        check_cache(engine)

    for kind, argument in script:
        if kind == "add":
            try:
                engine.add(argument, 0.0)
            except ValueError:
                refused.add(argument.id)
        elif kind == "step":
            for _ in range(argument):
                step()
        elif kind == "abort":
            engine.abort(argument)
        elif speculate:
            # The whole step fails once; repeated without guesses it is as it would have been.
            runner.fail_next = 1
            step()
            runner.fail_next = 0
    limit = 3000
    while engine.has_work:
        step()
        limit -= 1
        assert limit, "the engine does not come to an end"
    check_idle(engine)
    if oracle is not None:
        assert not oracle.seen, "the proposer keeps what has ended"
    return collector.results, engine, refused


def check_cache(engine) -> None:
    """What the prefix cache can find of running sequences is confirmed, and lies in the blocks."""
    kv = engine._kv
    for sequence in engine._scheduler.running:
        confirmed = len(sequence.tokens) // kv.block_size
        hashes = sequence.hash_blocks(confirmed, kv.block_size, "")
        for i, block in enumerate(sequence.blocks):
            name = kv._hashes[block]
            if name is not None:
                assert i < confirmed
                assert name == hashes[i]
                known = sequence.tokens[i * kv.block_size : (i + 1) * kv.block_size]
                assert engine._runner._blocks[block].tolist() == known.tolist()


@given(setups, scripts())
@settings(
    derandomize=True, max_examples=120, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_random_schedules_give_the_same_with_and_without(setup: Setup, script) -> None:
    with_faults = any(kind == "fault" for kind, _ in script)
    plain, _, refused = play(setup, script, speculate=False)
    guessed, engine, refused_too = play(setup, script, speculate=True)
    assert refused == refused_too
    assert set(plain) == set(guessed)
    stats = engine.stats
    assert stats.speculation_error is None
    if stats.accepted_tokens:
        note("accepted")
    if stats.preemptions:
        note("preempted")
    if stats.drafted_tokens > stats.accepted_tokens:
        note("rejected")
    for id, expected in plain.items():
        result = guessed[id]
        assert (result.error is None) == (expected.error is None) or with_faults
        if result.error or expected.error:
            continue
        assert sorted(result.samples) == sorted(expected.samples)
        for index, sample in result.samples.items():
            other = expected.samples[index]
            if "abort" in (sample.finish.reason, other.finish.reason):
                n = min(len(sample.tokens), len(other.tokens))
                assert sample.tokens[:n] == other.tokens[:n]
                assert sample.logprobs[:n] == other.logprobs[:n]
                continue
            assert sample.tokens == other.tokens
            assert sample.text == other.text
            assert sample.logprobs == other.logprobs
            assert sample.finish.reason == other.finish.reason
            assert sample.finish.stop_reason == other.finish.stop_reason
            assert sample.finish.cumulative_logprob == other.finish.cumulative_logprob
            assert 0 <= sample.finish.accepted_tokens <= sample.finish.drafted_tokens


def speculating(runner: FakeRunner, proposer, **config):
    config = {"step_costs": CHEAP, "adaptive_drafts": False} | config
    return make_engine(runner, proposer=proposer, **config)


def test_right_guesses_come_out_in_one_step() -> None:
    runner = FakeRunner()
    runner.keep_batches = True
    engine = speculating(runner, Oracle(runner, 0.0), max_draft=5)
    result = drive(engine, [request("r", [1, 2, 3], max_tokens=19)])["r"]
    assert result.tokens == runner.greedy([1, 2, 3], 19)
    assert [len(b.tokens) for b in runner.batches] == [3, 6, 6, 6]
    assert (engine.stats.drafted_tokens, engine.stats.accepted_tokens) == (15, 15)
    assert result.samples[0].finish.accepted_tokens == 15


def test_the_first_wrong_guess_ends_the_run_and_costs_nothing_else() -> None:
    runner = FakeRunner()
    truth = runner.greedy([1, 2], 12)

    class Third(Oracle):
        def propose(self, sequences, lengths):
            drafts = super().propose(sequences, lengths)
            return [[*d[:2], (d[2] + 1) % VOCAB, *d[3:]] if len(d) > 2 else d for d in drafts]

    engine = speculating(runner, Third(runner, 0.0), max_draft=4)
    engine.add(request("r", [1, 2], max_tokens=12), 0.0)
    counts, tokens = [], []
    while engine.has_work:
        events = [e for e in engine.step(0.0) if isinstance(e, TokenEvent)]
        counts.append(len(events))
        tokens += [e.token_id for e in events]
    assert tokens == truth
    assert counts == [1, 3, 3, 3, 2]


@pytest.mark.parametrize("kind", ["max_tokens", "context", "stop string", "stop token", "end"])
def test_an_end_within_an_accepted_run(kind: str) -> None:
    """What would have been accepted after the end never was."""
    tokenizer = PieceTokenizer()
    runner = FakeRunner(vocab_size=40)
    for seed in range(300):  # a prompt whose continuation spells what is looked for
        prompt = [seed % 26, seed // 26]
        truth = runner.greedy(prompt, 12)
        if kind != "end" or 30 in truth[2:8]:
            break
    wanted = {"max_tokens": 40}
    config = {}
    if kind == "max_tokens":
        wanted, expected = {"max_tokens": 7}, truth[:7]
    elif kind == "context":
        config, wanted, expected = {"max_context": 9}, {"max_tokens": None}, truth[:7]
    elif kind == "stop string":
        stop = tokenizer.decode([truth[4]], skip_special=False)
        wanted["stop"] = (stop,)
        first = next(i for i in range(12) if stop in tokenizer.decode(truth[: i + 1]))
        expected = truth[: first + 1]
    elif kind == "stop token":
        wanted["stop_token_ids"] = (truth[5],)
        expected = truth[: truth.index(truth[5]) + 1]
    else:
        expected = truth[: truth.index(30) + 1]
    assert 2 < len(expected) < 10
    engine = make_engine(
        runner, tokenizer, proposer=Oracle(runner, 0.0), adaptive_drafts=False, max_draft=15,
        **config,
    )  # fmt: skip
    sample = drive(engine, [request("r", prompt, **wanted)])["r"].samples[0]
    assert sample.tokens == expected
    assert runner.steps == 2


def test_guesses_take_no_block_that_others_need() -> None:
    """With memory for just the sequences, speculation preempts nobody that would not have been."""
    runner = FakeRunner(n_blocks=16)
    engine = speculating(runner, Oracle(runner, 0.0))
    requests = [request(f"r{i}", [i] * 12, max_tokens=4) for i in range(4)]
    results = drive(engine, requests)
    assert engine.stats.preemptions == 0
    assert engine.stats.accepted_tokens > 0
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 4)


def test_a_faulty_guess_does_not_fail_its_request() -> None:
    runner = FakeRunner(poison=POISON)
    runner._rows[:, POISON] = -50
    engine = speculating(runner, Oracle(runner, 0.5, wrong=[POISON]))
    requests = [request(f"r{i}", [i, 2]) for i in range(3)]
    results = drive(engine, requests)
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 16)
    assert engine.stats.failures == 0


def test_a_proposer_that_fails_is_given_up() -> None:
    class Broken(Oracle):
        def propose(self, sequences, lengths):
            raise RuntimeError("out of ideas")

    runner = FakeRunner()
    engine = speculating(runner, Broken(runner, 0.0))
    results = drive(engine, [request("r", [1, 2])])
    assert results["r"].tokens == runner.greedy([1, 2], 16)
    assert "out of ideas" in engine.stats.speculation_error


# ---- how many ----------------------------------------------------------------------------------


def counts_per_step(engine, runner) -> list[int]:
    runner.keep_batches = True
    drive(engine, check=False)
    return [len(b.tokens) for b in runner.batches]


def test_the_length_follows_the_acceptance_and_the_price() -> None:
    def longest(errors: float, per_token: float, per_step: float = 1.0) -> int:
        runner = FakeRunner(n_blocks=200)
        costs = StepCosts(per_step=per_step, per_token=per_token, per_context=1e-9, per_row=1e-9)
        engine = make_engine(
            runner, proposer=Oracle(runner, errors), step_costs=costs, max_context=400
        )
        engine.add(request("r", [1, 2, 3], max_tokens=300), 0.0)
        counts = counts_per_step(engine, runner)[1:]
        return int(np.median(counts[len(counts) // 2 : -3])) - 1

    assert longest(0.0, 0.001) == MAX_DRAFT
    assert 0 < longest(0.4, 0.01) < 10
    assert longest(0.4, 0.2) <= 2
    assert longest(0.9, 0.2) == 0
    assert longest(0.0, 1.0, per_step=0.1) == 0


def test_it_costs_next_to_nothing_where_it_does_not_pay_and_comes_back_where_it_does() -> None:
    class Turning(Oracle):
        def propose(self, sequences, lengths):
            self.errors = 1.0 if len(sequences[0].tokens) < 800 else 0.0
            return super().propose(sequences, lengths)

    runner = FakeRunner(n_blocks=600)
    costs = StepCosts(per_step=1.0, per_token=0.1, per_context=1e-9, per_row=1e-9)
    engine = make_engine(runner, proposer=Turning(runner, 1.0), step_costs=costs, max_context=1600)
    engine.add(request("r", [1, 2, 3], max_tokens=1500), 0.0)
    counts = counts_per_step(engine, runner)[1:]
    useless = counts[:700]
    extra = sum(useless) - len(useless)
    assert 3 <= extra < 0.06 * len(useless)  # x 0.1 of a step each: 0.6 % of the time
    assert engine.stats.accepted_tokens > 500  # of the 700 after the turn
    assert len(counts) < 1050


def test_a_large_batch_is_left_alone() -> None:
    runner = FakeRunner(n_blocks=400, max_logit_rows=64)
    costs = StepCosts(per_step=1.0, per_token=0.5, per_context=1e-9, per_row=1e-9)
    engine = make_engine(
        runner, proposer=Oracle(runner, 0.0), step_costs=costs, max_sequences=32,
        max_batch_tokens=64,
    )  # fmt: skip
    drive(engine, [request(f"r{i}", [i, 1], max_tokens=20) for i in range(32)])
    assert engine.stats.drafted_tokens == 0


def test_proposing_that_takes_long_is_part_of_the_price() -> None:
    runner = FakeRunner()
    speculator = Speculator(Oracle(runner, 0.0), StepTimeModel(CHEAP))
    engine = speculating(runner, speculator.proposer, adaptive_drafts=True)
    engine._speculator._draft_seconds = 3.0
    drive(engine, [request("r", [1, 2], max_tokens=40)])
    # Only what is tried to see whether it still does not pay.
    assert engine.stats.drafted_tokens <= 3


# ---- prompt lookup -----------------------------------------------------------------------------


class Tokens:
    """What a proposer sees of a sequence."""

    def __init__(self, tokens):
        from array import array

        self.tokens = array("i", tokens)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 12), st.integers(1, 59))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_lookup_continues_the_longest_earlier_match(tokens, n, cut) -> None:
    lookup = PromptLookup()
    sequence = Tokens(tokens[:cut])
    lookup.kinds([sequence])  # the index grows with the sequence
    sequence.tokens.extend(tokens[cut:])
    kind = lookup.kinds([sequence])[0]

    def match(end: int) -> int:
        """How many tokens before ``end`` equal those at the end of all."""
        length = 0
        while length < end and length < 8 and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        return length

    places = [end for end in range(2, len(tokens)) if match(end) >= 2]
    recent = places[-12:]
    if not places:
        assert kind == 0
        return
    best = max(match(end) for end in recent)
    assert kind == best
    place = max(end for end in recent if match(end) == best)
    draft = lookup.propose([sequence], [n])[0]
    expected = list(tokens)
    for i in range(n):
        expected.append(expected[place + i])
    assert draft == expected[len(tokens) :]
    lookup.forget(sequence)
    assert not lookup._indices
    assert not lookup._places


def test_lookup_speeds_up_what_repeats_and_changes_nothing() -> None:
    class Copier(FakeRunner):
        """Says the prompt again and again."""

        def logits_after(self, tokens):
            logits = super().logits_after(tokens).copy()
            logits[tokens[len(tokens) - 30] if len(tokens) >= 30 else 0] = 30.0
            return logits

    prompt = np.random.default_rng(3).integers(0, VOCAB, 30).tolist()
    steps = {}
    for proposer in (None, PromptLookup()):
        runner = Copier(n_blocks=100)
        engine = make_engine(runner, proposer=proposer, max_context=300, step_costs=CHEAP)
        result = drive(engine, [request("r", prompt, max_tokens=200, temperature=0.9, seed=1)])
        assert result["r"].tokens == (prompt * 7)[:200]
        steps[proposer is not None] = runner.steps
    assert steps[False] == 201 or steps[False] == 200
    assert steps[True] < 40
