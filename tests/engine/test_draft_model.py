"""The draft model's own KV memory and books, on runners whose "KV" is the tokens themselves."""

from __future__ import annotations

import random

import pytest

from engine.fake_runner import FakeRunner
from engine.helpers import Collector, check_blocks, check_idle, drive, make_engine, request
from tidemill.engine.draft_model import DraftModel
from tidemill.engine.step_time import StepCosts

CHEAP = StepCosts(per_step=1.0, per_token=1e-3, per_context=1e-9, per_row=1e-6)


class Cousin(FakeRunner):
    """Mostly of one mind with a FakeRunner."""

    def logits_after(self, tokens):
        logits = super().logits_after(tokens)
        return logits if sum(tokens[-2:]) % 5 else -logits


def draft_for(runner: FakeRunner, kind=Cousin, *, n_blocks: int = 64, **options) -> DraftModel:
    own = kind(n_blocks, **options)
    return DraftModel(own, vocab_size=runner.vocab_size, max_context=120)


def check_draft_blocks(draft: DraftModel) -> None:
    held = [block for state in draft._states.values() for block in state.blocks]
    assert sorted(held + draft._free) == list(range(draft._runner.kv.n_blocks))
    assert not draft._runner.violations


def test_the_same_model_guesses_all_right() -> None:
    runner = FakeRunner()
    draft = draft_for(runner, FakeRunner)
    engine = make_engine(runner, proposer=draft, adaptive_drafts=False, max_draft=4)
    requests = [request(f"r{i}", [i, 1, 2], max_tokens=21) for i in range(3)]
    results = drive(engine, requests)
    for r in requests:
        assert results[r.id].tokens == runner.greedy(r.prompt_token_ids, 21)
    assert runner.steps == 5  # the prompts, and four times five tokens each
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens == 3 * 16
    check_draft_blocks(draft)
    assert not draft._states


@pytest.mark.parametrize("n_blocks", [3, 12, 80])
@pytest.mark.parametrize("adaptive", [True, False])
def test_arrivals_ends_aborts_preemption_and_little_memory(n_blocks: int, adaptive: bool) -> None:
    rng = random.Random(n_blocks)
    runner = FakeRunner(n_blocks=30)
    draft = draft_for(runner, n_blocks=n_blocks, max_batch_tokens=9, max_logit_rows=3)
    engine = make_engine(
        runner, proposer=draft, max_context=100, step_costs=CHEAP, adaptive_drafts=adaptive
    )
    collector, requests, aborted = Collector(), {}, set()
    for i in range(40):
        prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 30))]
        r = request(f"r{i}", prompt, n=rng.choice([1, 1, 2]), max_tokens=rng.randrange(1, 40))
        requests[r.id] = r
        engine.add(r, 0.0)
        for _ in range(rng.randrange(6)):
            collector.take(engine.step(0.0))
            check_blocks(engine)
            check_draft_blocks(draft)
        if rng.random() < 0.2:
            aborted.add(f"r{rng.randrange(i + 1)}")
            engine.abort(max(aborted))
    while engine.has_work:
        collector.take(engine.step(0.0))
        check_blocks(engine)
        check_draft_blocks(draft)
    check_idle(engine)
    assert not draft._states
    assert engine.stats.speculation_error is None
    assert engine.stats.preemptions > 0
    if n_blocks > 3:
        assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens
    for id, r in requests.items():
        truth = runner.greedy(r.prompt_token_ids, r.params.max_tokens)
        for sample in collector.results[id].samples.values():
            whole = sample.finish.reason != "abort"
            assert sample.tokens == truth[: None if whole else len(sample.tokens)]


def test_a_context_beyond_the_draft_models_own_goes_on_without_it() -> None:
    runner = FakeRunner(n_blocks=64)
    draft = DraftModel(FakeRunner(n_blocks=5), vocab_size=40, max_context=200)  # 20 tokens
    engine = make_engine(runner, proposer=draft, adaptive_drafts=False, max_draft=4)
    r = request("r", [1, 2, 3], max_tokens=60)
    assert drive(engine, [r])["r"].tokens == runner.greedy([1, 2, 3], 60)
    assert 0 < engine.stats.accepted_tokens < 20
    assert engine.stats.speculation_error is None
    check_draft_blocks(draft)


def test_ids_that_only_the_draft_model_has_are_never_proposed() -> None:
    runner = FakeRunner(vocab_size=30)
    draft = DraftModel(FakeRunner(vocab_size=40), vocab_size=30, max_context=100)
    engine = make_engine(runner, proposer=draft, adaptive_drafts=False)
    r = request("r", [1, 2, 3], max_tokens=60)
    assert drive(engine, [r])["r"].tokens == runner.greedy([1, 2, 3], 60)
    assert not runner.violations
