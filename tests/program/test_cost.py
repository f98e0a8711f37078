from __future__ import annotations

import pytest

from support.programs import random_weights, record
from support.tiny_models import CASE, write_folder, write_gguf
from tidemill.models import load_model
from tidemill.program.cost import BatchShape, OpCost, SequenceShape, cost
from tidemill.program.graph import Graph, Tensor
from tidemill.program.ops import (
    Attention,
    Embed,
    ExpertLinear,
    Linear,
    Op,
    Reshape,
    SelectRows,
)
from tidemill.program.passes import optimise
from tidemill.weights import open_checkpoint

PREFILL = BatchShape((SequenceShape(10, 10),), logit_rows=1)


def of_kind(costs: list[OpCost], kind: type[Op]) -> list[OpCost]:
    return [c for c in costs if isinstance(c.op, kind)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load_model(open_checkpoint(write_folder(CASE["llama"], tmp_path_factory.mktemp("m"))))


def test_a_product_costs_its_matrix_once_and_two_operations_per_weight_and_row(llama):
    costs = cost(llama.program, llama.weights, PREFILL)
    query = next(c for c in of_kind(costs, Linear) if c.op.weights == ("blk.0.attn_q.weight",))
    assert query.weight_bytes == 64 * 64 * 4
    assert query.flops == 2 * 10 * 64 * 64
    assert (query.read_bytes, query.written_bytes) == (10 * 64 * 4, 10 * 64 * 4)
    assert query.bytes == 64 * 64 * 4 + 2 * 10 * 64 * 4
    head = of_kind(costs, Linear)[-1]
    assert head.flops == 2 * 1 * 64 * 96  # of the one logit row


def test_storage_types_count(tmp_path):
    model = load_model(
        open_checkpoint(write_gguf(CASE["llama"], tmp_path / "m.gguf", quantise="Q8_0"))
    )
    costs = cost(model.program, model.weights.sources, PREFILL)
    query = next(c for c in of_kind(costs, Linear) if c.op.weights == ("blk.0.attn_q.weight",))
    assert query.weight_bytes == 64 * 64 * 34 / 32


def test_views_are_free_and_embeddings_cost_their_rows(llama):
    costs = cost(llama.program, llama.weights, PREFILL)
    assert all(c.bytes == 0 and c.flops == 0 for c in of_kind(costs, Reshape))
    assert of_kind(costs, Embed)[0].weight_bytes == pytest.approx(10 * 64 * 4)
    assert of_kind(costs, SelectRows)[0].written_bytes == 64 * 4


def pairs_and_keys(new: int, context: int, window: int | None) -> tuple[int, int]:
    """By looking: how many (token, key) pairs are attended, and how many keys are seen at all."""
    seen: set[int] = set()
    pairs = 0
    for p in range(context - new, context):
        keys = range(0 if window is None else max(0, p - window + 1), p + 1)
        pairs += len(keys)
        seen.update(keys)
    return pairs, len(seen)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize(("new", "context"), [(1, 1), (1, 9), (5, 5), (4, 12), (12, 12), (1, 3)])
def test_attention_counts_the_pairs_that_are_visible(window, new: int, context: int):
    weights = random_weights({"token_embd.weight": (10, 8), "output.weight": (10, 8)})

    def model(g: Graph) -> Tensor:
        heads = g.embed("token_embd").heads(4, 2)
        return g.logits(
            next(iter(g.layers(1))).attention(heads, heads, heads, window=window), "output"
        )

    batch = BatchShape((SequenceShape(new, context),), logit_rows=1, kv_element_bytes=2)
    attention = of_kind(cost(record(model, weights), weights, batch), Attention)[0]
    pairs, keys = pairs_and_keys(new, context, window)
    assert attention.flops == pairs * 4 * (4 * 2 + 5)
    assert attention.kv_bytes == (keys + new) * 2 * 4 * 2 * 2


def test_sequences_add_up(llama):
    one, two = SequenceShape(3, 30), SequenceShape(1, 100)
    together = cost(llama.program, llama.weights, BatchShape((one, two), logit_rows=2))
    apart = [cost(llama.program, llama.weights, BatchShape((s,), logit_rows=1)) for s in (one, two)]
    for both, a, b in zip(together, *apart, strict=True):
        assert both.flops == pytest.approx(a.flops + b.flops)
        assert both.kv_bytes == a.kv_bytes + b.kv_bytes
    layer = of_kind(together, Linear)[0]
    assert layer.weight_bytes == of_kind(apart[0], Linear)[0].weight_bytes  # shared by both


def test_experts_cost_what_is_chosen(tmp_path):
    model = load_model(open_checkpoint(write_folder(CASE["mixtral"], tmp_path)))
    one = BatchShape((SequenceShape(1, 1),), logit_rows=1)
    gate = of_kind(cost(model.program, model.weights.sources, one), ExpertLinear)[0]
    assert gate.weight_bytes == pytest.approx(2 * 96 * 64 * 4)  # two of four experts
    assert gate.flops == 2 * 2 * 96 * 64
    many = BatchShape((SequenceShape(60, 60),), logit_rows=1)
    gate = of_kind(cost(model.program, model.weights.sources, many), ExpertLinear)[0]
    assert gate.weight_bytes == pytest.approx(4 * 96 * 64 * 4)  # all of them, almost surely


def test_merging_changes_no_weight_bytes_and_saves_activation_bytes(llama):
    before = cost(llama.program, llama.weights, PREFILL)
    after = cost(optimise(llama.program), llama.weights, PREFILL)
    assert sum(c.weight_bytes for c in after) == pytest.approx(sum(c.weight_bytes for c in before))
    products = [
        sum(c.flops for c in costs if isinstance(c.op, (Linear, Attention)))
        for costs in (before, after)
    ]
    assert products[0] == products[1]
    assert sum(c.bytes for c in after) < sum(c.bytes for c in before)


def test_impossible_sequences_are_refused():
    with pytest.raises(ValueError, match="0 new tokens"):
        SequenceShape(0, 5)
    with pytest.raises(ValueError, match="6 new tokens in a context of 5"):
        SequenceShape(6, 5)
