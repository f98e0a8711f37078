"""Every architecture, from both formats, against recorded logits of Transformers."""

from __future__ import annotations

import pytest

from support.batches import run_tokens
from support.tiny_models import (
    CASE,
    CASES,
    GGUF_CASES,
    TinyCase,
    expected,
    relative_error,
    tokens_of,
    write_folder,
    write_gguf,
)
from tidemill.backends import reference
from tidemill.backends.base import KVCacheSpec
from tidemill.models import Model, load_model
from tidemill.weights import open_checkpoint

TOLERANCE = 1e-4  # of the largest logit
KV = KVCacheSpec(n_blocks=20, block_size=4, dtype="f32")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    """(case, format) -> Model, each written and loaded once."""
    loaded: dict[tuple[str, str], Model] = {}

    def get(case: TinyCase, form: str) -> Model:
        if (case.name, form) not in loaded:
            folder = tmp_path_factory.mktemp(case.name)
            path = (
                write_gguf(case, folder / "model.gguf")
                if form == "gguf"
                else write_folder(case, folder)
            )
            loaded[case.name, form] = load_model(
                open_checkpoint(path), max_context=case.max_context
            )
        return loaded[case.name, form]

    return get


BOTH_FORMATS = [pytest.param(case, "safetensors", id=f"{case}-safetensors") for case in CASES] + [
    pytest.param(case, "gguf", id=f"{case}-gguf") for case in GGUF_CASES
]


def chunkings(n: int) -> dict[str, list[int]]:
    return {"prefill": [n], "decode": [1] * n, "chunked": [7, 1, 12, n - 20]}


@pytest.mark.parametrize("optimised", [False, True], ids=["recorded", "optimised"])
@pytest.mark.parametrize("way", ["prefill", "decode", "chunked"])
@pytest.mark.parametrize(("case", "form"), BOTH_FORMATS)
def test_logits_equal_transformers(models, case: TinyCase, form: str, way: str, optimised: bool):
    tokens, rows, wanted = expected(case)
    runner = reference.compile(models(case, form), kv=KV, optimised=optimised)
    found = run_tokens(runner, tokens, chunkings(len(tokens))[way])[rows]
    assert relative_error(found, wanted) <= TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_records_are_of_the_tokens_that_the_case_has(case: TinyCase):
    tokens, rows, wanted = expected(case)
    assert tokens.tolist() == tokens_of(case).tolist()
    assert wanted.shape == (len(rows), case.config["vocab_size"])


# What sets an architecture apart, taken away: the records must notice. Otherwise a model that
# ignores, say, its window would pass above.
DISTINCTIVE = [
    ("llama", {"rope_theta": 20000.0}, None),
    ("llama3", {"rope_scaling": None}, None),
    ("llama_linear", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, None),
    ("llama_yarn", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, None),
    ("llama_yarn", {"rope_parameters": {
        "rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}, None),
    ("llama_yarn_betas", {"rope_parameters": {
        **CASE["llama_yarn_betas"].config["rope_parameters"], "beta_slow": 1.0}}, None),
    ("llama_yarn_mscale", {"rope_parameters": {
        **CASE["llama_yarn_mscale"].config["rope_parameters"], "truncate": True}}, None),
    ("llama_yarn_mscale", {"rope_parameters": {
        **CASE["llama_yarn_mscale"].config["rope_parameters"], "mscale": 0.8}}, None),
    ("mistral", {"sliding_window": None}, None),
    ("mistral", {"sliding_window": 9}, None),
    ("smollm3", {"no_rope_layer_interval": 100}, None),
    ("smollm3_window", {"use_sliding_window": False}, None),
    ("qwen2_window", {"max_window_layers": 2}, None),
    ("qwen3_yarn", {"rope_scaling": None}, None),
    ("gemma2", {"attn_logit_softcapping": 50.0}, None),
    ("gemma2", {"final_logit_softcapping": 30.0}, None),
    ("gemma2", {"sliding_window": 64}, None),
    ("gemma2_scalar", {"query_pre_attn_scalar": 32}, None),
    ("gemma3", {"sliding_window_pattern": 2}, None),
    ("gemma3", {"sliding_window": 7}, None),
    ("gemma3", {"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6}}}, None),
    ("gemma3", {"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e6},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}}, None),
    ("gemma3_layer_types", {"rope_local_base_freq": 20000.0}, None),
    ("phi3", {"sliding_window": None}, None),
    ("phi3_partial", {"partial_rotary_factor": 0.75}, None),
    ("phi3_short", {}, 128),
    ("phi3_long", {}, 32),
    ("qwen3moe", {"norm_topk_prob": False}, None),
    ("qwen3moe_raw", {"norm_topk_prob": True}, None),
    ("mixtral", {"num_experts_per_tok": 1}, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "max_context"),
    DISTINCTIVE,
    ids=[f"{i}-{name}" for i, (name, _, _) in enumerate(DISTINCTIVE)],
)
def test_records_notice_what_is_distinctive(tmp_path, name: str, changes: dict, max_context):
    case = CASE[name]
    weights_case = TinyCase(name, {**case.config, **changes}, None)
    model = load_model(
        open_checkpoint(write_folder(weights_case, tmp_path)),
        max_context=max_context or case.max_context,
    )
    tokens, rows, wanted = expected(case)
    runner = reference.compile(model, kv=KV)
    found = run_tokens(runner, tokens, [len(tokens)])[rows]
    assert relative_error(found, wanted) > 20 * TOLERANCE
