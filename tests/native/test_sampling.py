"""The native sampler against the NumPy oracle, its distribution, and its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import sampling_oracle as oracle
from engine.sampling_oracle import Rules
from tidemill import _native
from tidemill.engine.sampling import ROW_DTYPE, Results


class Row:
    """One parameter row and its history, and a sampler over it."""

    def __init__(self, vocab: int, n_top: int = 20, width: int = 64) -> None:
        self.rows = np.zeros(1, ROW_DTYPE)
        self.history = np.zeros((1, width), np.int32)
        self.results = Results(1, min(n_top, vocab))
        self.native = _native.BatchSampler(
            vocab, self.rows.view(np.uint8).reshape(1, -1), self.history, self.results.native()
        )

    def sample(self, logits, rules: Rules, *, seed=0, stream=0, prompt=(), output=(), n_top=-1):
        tokens = [*prompt, *output]
        self.history[0, : len(tokens)] = tokens
        self.rows[0] = (
            seed, stream, len(prompt), len(tokens), rules.top_k, n_top, rules.temperature,
            rules.top_p, rules.min_p, rules.typical_p, rules.repetition_penalty,
            rules.presence_penalty, rules.frequency_penalty,
        )  # fmt: skip
        ids = np.array(list(rules.bias), np.int32)
        bias = np.array(list(rules.bias.values()), np.float32)
        biases = [(0, ids, bias)] if len(ids) else []
        (token,) = self.native.sample(logits.reshape(1, -1), [0], [0], biases)
        assert token == (-self.status or self.results.tokens[0])
        return int(self.results.tokens[0])

    @property
    def status(self) -> int:
        return int(self.results.status[0])


def test_philox_agrees_with_the_published_vectors() -> None:
    """Random123's known answer for a zero counter and key begins 6627e8d5 e169c58d."""
    bits = (0xE169C58D << 32 | 0x6627E8D5) >> 11
    assert _native.philox_uniform(0, 0, 0) == bits * 2.0**-53


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)
)  # fmt: skip
@settings(derandomize=True, max_examples=200)
def test_philox_agrees_with_the_oracle(seed: int, stream: int, position: int) -> None:
    u = _native.philox_uniform(seed, stream, position)
    assert u == oracle.philox_uniform(seed, stream, position)
    assert 0.0 <= u < 1.0


@st.composite
def cases(draw):
    vocab = draw(st.sampled_from([1, 2, 5, 63, 64, 65, 200, 1000, 4160]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 0.5, 3.0, 10.0, 60.0]))
    logits = rng.standard_normal(vocab) * spread + draw(st.sampled_from([0.0, -500.0, 1e4]))
    if draw(st.booleans()):
        logits = np.round(logits * 4) / 4  # plenty of ties
    token = st.integers(0, vocab - 1)
    filters = draw(st.sampled_from(["none", "k", "p", "kp", "m", "t", "kpm", "pm", "kpmt", "pt"]))
    penalise = draw(st.booleans())
    rules = Rules(
        temperature=draw(st.sampled_from([0.0, 1e-4, 0.01, 0.3, 1.0, 1.7, 10.0])),
        top_k=draw(st.sampled_from([1, 2, 40, 100, vocab, vocab + 3])) if "k" in filters else 0,
        top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 0.9999])) if "p" in filters else 1.0,
        min_p=draw(st.sampled_from([0.003, 0.05, 0.4])) if "m" in filters else 0.0,
        typical_p=draw(st.sampled_from([0.05, 0.5, 0.95])) if "t" in filters else 1.0,
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.5])) if penalise else 1.0,
        presence_penalty=draw(st.sampled_from([0.0, -1.0, 2.0])) if penalise else 0.0,
        frequency_penalty=draw(st.sampled_from([0.0, -0.5, 0.25])) if penalise else 0.0,
        bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -1.0, 5.0]), max_size=3)),
    )
    prompt = draw(st.lists(token, min_size=1, max_size=12))
    output = draw(st.lists(token, max_size=12))
    return logits.astype(np.float32), rules, prompt, output


@given(cases())
@settings(derandomize=True, max_examples=400, deadline=None)
def test_chooses_what_the_oracle_chooses(case) -> None:
    """Token by token, for the same uniform number; many numbers, so the whole candidate set."""
    logits, rules, prompt, output = case
    row = Row(len(logits))
    x = oracle.adjusted(logits, rules, prompt, output)
    before = logits.copy()
    for seed in range(12):
        token = row.sample(logits, rules, seed=seed, stream=3, prompt=prompt, output=output)
        expected = oracle.choose_clearly(x, rules, oracle.philox_uniform(seed, 3, len(output)))
        assert row.status == 0
        assert expected is None or token == expected
    assert np.array_equal(logits, before), "the logits are not the sampler's to change"


def test_the_oracle_is_seldom_undecided() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(1000) * 3).astype(np.float32)
    rules = Rules(top_p=0.9, min_p=0.001)
    decided = [oracle.choose_clearly(x, rules, u) is not None for u in rng.random(500)]
    assert np.mean(decided) > 0.95


@pytest.mark.parametrize(
    "rules",
    [
        Rules(), Rules(top_k=50), Rules(top_k=9000), Rules(top_p=0.95),
        Rules(top_p=0.999, temperature=3.0), Rules(top_k=64, top_p=0.9, min_p=0.02),
        Rules(typical_p=0.8), Rules(min_p=0.1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", ["flat", "peaked", "gaussian", "sorted", "equal"])
def test_a_vocabulary_of_262144(rules: Rules, shape: str) -> None:
    n = 262_144
    rng = np.random.default_rng(3)
    logits = {
        "flat": lambda: rng.random(n),
        "peaked": lambda: rng.standard_normal(n) + 15 * (rng.random(n) < 1e-4),
        "gaussian": lambda: rng.standard_normal(n) * 3,
        "sorted": lambda: np.linspace(-9, 9, n),
        "equal": lambda: np.full(n, 2.5),
    }[shape]().astype(np.float32)
    row = Row(n)
    undecided = 0
    for seed in range(2):
        expected = oracle.choose_clearly(logits, rules, oracle.philox_uniform(seed, 0, 0))
        if expected is None:
            undecided += 1
        else:
            assert row.sample(logits, rules, seed=seed, prompt=[0]) == expected
    # On flat distributions single tokens are no wider than float32's noise, so compare the place.
    if undecided:
        ids, mass = oracle.candidates(logits, rules)
        cumulative = np.cumsum(mass) / mass.sum()
        for seed in range(2):
            token = row.sample(logits, rules, seed=seed, prompt=[0])
            place = np.searchsorted(ids, token)
            u = oracle.philox_uniform(seed, 0, 0)
            assert abs(cumulative[min(place, len(ids) - 1)] - u) < 2e-3


@pytest.mark.parametrize(
    "rules",
    [
        Rules(temperature=0.7), Rules(top_k=8), Rules(top_p=0.8), Rules(min_p=0.1),
        Rules(typical_p=0.7), Rules(top_k=20, top_p=0.9, temperature=1.5),
        Rules(repetition_penalty=1.3, presence_penalty=0.5, bias={3: 2.0}),
    ],
    ids=str,
)  # fmt: skip
def test_the_distribution_is_right(rules: Rules) -> None:
    """Chi-square over 20,000 draws of fixed seeds: p < 1e-4 would mean a wrong distribution."""
    n, draws = 48, 20_000
    logits = (np.random.default_rng(5).standard_normal(n) * 2).astype(np.float32)
    prompt, output = [1, 2, 3], [2, 7, 7]
    ids, mass = oracle.candidates(oracle.adjusted(logits, rules, prompt, output), rules)
    row = Row(n)
    counts = np.zeros(n)
    for seed in range(draws):
        counts[row.sample(logits, rules, seed=seed, prompt=prompt, output=output)] += 1
    assert counts.sum() == counts[ids].sum(), "a token that the filters exclude was drawn"
    expected = draws * mass / mass.sum()
    big = expected >= 5
    chi2 = ((counts[ids] - expected)[big] ** 2 / expected[big]).sum()
    degrees = max(1, big.sum() - 1)
    # Wilson-Hilferty: the cube root of chi2 / degrees is close to normal.
    z = ((chi2 / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    assert z < 3.72


def test_positions_and_streams_are_independent() -> None:
    """Serial correlation of the uniform numbers along positions, streams and seeds is noise."""
    u = np.array([[_native.philox_uniform(s, i, p) for p in range(50)]
                  for s in range(20) for i in range(10)])  # fmt: skip
    assert abs(u.mean() - 0.5) < 0.01
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1]), (u[10:], u[:-10])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.04


@given(st.integers(0, 2**32), st.sampled_from([1, 5, 64, 100, 3000]), st.integers(0, 20))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_logprobs_are_of_the_raw_logits(seed: int, vocab: int, n_top: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal(vocab) * 8).astype(np.float32) / 2
    rules = Rules(temperature=0.5, top_k=5, bias={0: 30.0}, repetition_penalty=1.5)
    row = Row(vocab)
    token = row.sample(logits, rules, seed=seed, prompt=[0], n_top=n_top)
    truth = oracle.logprobs(logits)
    order = np.lexsort((np.arange(vocab), -truth))
    assert row.results.logprobs[0] == pytest.approx(truth[token], abs=2e-5)
    assert row.results.ranks[0] == 1 + list(order).index(token)
    k = min(n_top, vocab)
    assert row.results.top_ids[0, :k].tolist() == order[:k].tolist()
    assert row.results.top_logprobs[0, :k] == pytest.approx(truth[order[:k]], abs=2e-5)
    assert np.isfinite(row.results.top_logprobs).all()


def test_score_gives_what_sample_reports() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((6, 300), np.float32)
    tokens = rng.integers(0, 300, 4).astype(np.int32)
    row, results = Row(300), Results(4, 7)
    row.native.score(logits, 2, tokens, 7, results.native())
    for i, token in enumerate(tokens):
        truth = oracle.logprobs(logits[2 + i])
        assert results.tokens[i] == token
        assert results.logprobs[i] == pytest.approx(truth[token], abs=2e-5)
        assert results.top_ids[i].tolist() == np.argsort(-truth)[:7].tolist()
        assert results.ranks[i] == 1 + (truth > truth[token]).sum()


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-5, 1e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    row = Row(1000)
    for seed in range(50):
        logits = np.random.default_rng(seed).standard_normal(1000).astype(np.float32) * 20
        token = row.sample(logits, Rules(temperature=temperature, top_p=0.9), seed=seed)
        assert row.status == 0
        assert token == int(np.argmax(logits))


@pytest.mark.parametrize("at", [0, 63, 64, 129, 130])
def test_ties_go_to_the_lowest_id(at: int) -> None:
    logits = np.zeros(131, np.float32)
    logits[[at, 130]] = 4.0
    row = Row(131)
    assert row.sample(logits, Rules(temperature=0.0)) == at
    assert row.sample(logits, Rules(temperature=1.0, top_k=1)) == at
    assert row.sample(logits, Rules(temperature=1.0, top_p=0.0)) == at


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 63, 64, 127, 128, 129])
def test_logits_that_are_not_finite_are_noticed(bad: float, at: int) -> None:
    logits = np.ones(130, np.float32)
    logits[at] = bad
    row = Row(130)
    row.sample(logits, Rules(temperature=0.0))
    assert row.status == 1
    logits[at] = 1.0
    row.sample(logits, Rules(temperature=0.0))
    assert row.status == 0


def test_forbidden_tokens_never_come() -> None:
    logits = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    forbidden = {i: -math.inf for i in range(70) if i not in (11, 66)}
    row = Row(70)
    for filters in ({}, {"top_p": 0.99, "typical_p": 0.9}, {"top_k": 50}, {"typical_p": 0.99}):
        rules = Rules(bias=forbidden, **filters)
        tokens = {row.sample(logits, rules, seed=seed) for seed in range(40)}
        assert tokens <= {11, 66}
        assert row.status == 0
    row.sample(logits, Rules(bias=dict.fromkeys(range(70), -math.inf)))
    assert row.status == 2


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([-3e38, 3e38, 2.9e38, 0.0], np.float32)
    row = Row(4)
    for rules in (Rules(), Rules(top_p=0.9), Rules(typical_p=0.9), Rules(temperature=0.002)):
        assert row.sample(logits, rules, n_top=4) == 1
        assert row.status == 0
        assert np.isfinite(row.results.logprobs[0])


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    n, vocab = 9, 500
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((n, vocab), np.float32) * 3
    logits[4, 100] = np.nan
    rows = np.zeros(n, ROW_DTYPE)
    for i in range(n):
        rows[i] = (i, 0, 1, 2 + i % 3, i % 4 * 10, 3, i % 2, 0.9, 0.0, 1.0, 1.1, 0.0, 0.2)
    history = rng.integers(0, vocab, (n, 8)).astype(np.int32)
    results = Results(n, 3)
    native = _native.BatchSampler(vocab, rows.view(np.uint8).reshape(n, -1), history,
                                  results.native())  # fmt: skip
    order = rng.permutation(n).tolist()
    one = np.ones(1, np.float32)
    biases = {i: rng.integers(0, vocab, 1).astype(np.int32) for i in (7, 0, 3, 4)}
    native.sample(logits, order, order, [(i, ids, one) for i, ids in biases.items()])
    together = [results.tokens.copy(), results.logprobs.copy(), results.status.copy()]
    for i in range(n):
        bias = [(0, biases[i], one)] if i in biases else []
        native.sample(logits, [order[i]], [order[i]], bias)
        assert results.status[0] == together[2][i] == (order[i] == 4)
        if order[i] != 4:
            assert results.tokens[0] == together[0][i]
            assert results.logprobs[0] == together[1][i]


def test_wrong_arguments_are_refused() -> None:
    row = Row(10)
    logits = np.zeros((2, 10), np.float32)
    for bad in (-1, 2):
        with pytest.raises(IndexError):
            row.native.sample(logits, [bad], [0], [])
    with pytest.raises(IndexError):
        row.native.sample(logits, [0], [1], [])
    with pytest.raises(ValueError):
        row.native.sample(logits, [0, 1], [0], [])
    with pytest.raises(ValueError):
        row.native.sample(logits[:, :9].copy(), [0], [0], [])
    ids, bias = np.zeros(2, np.int32), np.zeros(2, np.float32)
    with pytest.raises(IndexError):
        row.native.sample(logits, [0], [0], [(1, ids, bias)])
    with pytest.raises(ValueError):
        row.native.sample(logits, [0], [0], [(0, ids, bias[:1])])
    with pytest.raises(ValueError):
        row.native.score(logits, 1, np.zeros(2, np.int32), 1, Results(2, 1).native())
    with pytest.raises(IndexError):
        row.native.score(logits, 0, np.full(2, 10, np.int32), 1, Results(2, 1).native())
    with pytest.raises(ValueError):
        _native.BatchSampler(0, np.zeros((1, 56), np.uint8), row.history, Results(1, 1).native())
    with pytest.raises(ValueError):
        _native.BatchSampler(9, np.zeros((1, 55), np.uint8), row.history, Results(1, 1).native())


def test_tokens_outside_the_vocabulary_in_history_and_bias_are_passed_over() -> None:
    row = Row(10)
    logits = np.arange(10, dtype=np.float32)
    rules = Rules(temperature=0.0, repetition_penalty=2.0, bias={-5: 50.0, 10_000: 50.0})
    assert row.sample(logits, rules, prompt=[-1, 10, 2**31 - 1, 9]) == 8


def test_layout() -> None:
    assert ROW_DTYPE.itemsize == _native.SAMPLING_ROW_BYTES


def test_threads_change_no_result() -> None:
    """Rows of every kind, many enough to be shared among threads, again and again."""
    vocab, n, width = 5003, 40, 30
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((n, vocab)) * 3).astype(np.float32)
    logits[7, 100] = np.nan
    history = rng.integers(0, vocab, (n, width)).astype(np.int32)
    at, slots = rng.permutation(n).tolist(), rng.permutation(n).tolist()
    ids = rng.integers(0, vocab, (n, 2)).astype(np.int32)
    bias = rng.standard_normal((n, 2)).astype(np.float32)
    biases = [(i, ids[i], bias[i]) for i in range(n)]
    rows = np.zeros(n, ROW_DTYPE)
    for i in range(n):
        rows[i] = (
            i, i % 3, 10, width, (0, 40, 1)[i % 3], (-1, 5, 0)[i % 7 % 3],
            (0.0, 0.7, 1.3)[i % 5 % 3], (1.0, 0.9)[i % 2], (0.0, 0.01)[i % 4 % 2],
            (1.0, 0.8)[i % 6 == 0], (1.0, 1.2)[i % 3 == 1], (0.0, 0.5)[i % 4 == 1], 0.0,
        )  # fmt: skip
    expected: list[bytes] | None = None
    for threads in (1, 2, 3, 5):
        results = Results(n, 20)
        native = _native.BatchSampler(
            vocab, rows.view(np.uint8).reshape(n, -1), history, results.native(), threads
        )
        for _ in range(3):
            native.sample(logits, at, slots, biases)
            scores = Results(n, 20)
            native.score(np.nan_to_num(logits), 0, ids[:, 0].copy(), 20, scores.native())
            got = [a.tobytes() for r in (results, scores) for a in vars(r).values()]
            expected = expected or got
            assert got == expected
        assert int((results.status != 0).sum()) == 1
    with pytest.raises(ValueError, match="threads must be between 1 and 1024"):
        _native.BatchSampler(
            vocab, rows.view(np.uint8).reshape(n, -1), history, results.native(), 0
        )
