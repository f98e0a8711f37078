from __future__ import annotations

import dataclasses
import json

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from support.batches import run_tokens
from support.tiny_models import (
    CASE,
    CASES,
    GGUF_CASES,
    TinyCase,
    expected,
    relative_error,
    weights_of,
    write_folder,
    write_gguf,
)
from tidemill.backends import reference
from tidemill.backends.base import KVCacheSpec
from tidemill.models import Model, load_model, trained_context
from tidemill.models.architectures import ARCHITECTURES
from tidemill.program.analysis import weight_names
from tidemill.program.ops import Attention
from tidemill.weights import open_checkpoint
from tidemill.weights.base import Checkpoint, CheckpointError, TensorType, WeightTensor


def assert_gives_the_recorded_logits(model: Model, case: TinyCase) -> None:
    tokens, rows, wanted = expected(case)
    runner = reference.compile(model, kv=KVCacheSpec(16, 4, "f32"))
    assert relative_error(run_tokens(runner, tokens, [len(tokens)])[rows], wanted) <= 1e-4


def folder_with(case: TinyCase, path, *, rename=lambda name: name, config=None, tensors=None):
    """A case's folder with tensors renamed or replaced, and config keys changed."""
    write_folder(case, path)
    weights = tensors if tensors is not None else load_file(path / "model.safetensors")
    save_file({rename(n): np.ascontiguousarray(w) for n, w in weights.items()},
              path / "model.safetensors")  # fmt: skip
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_model_describes_itself(case: TinyCase, tmp_path):
    checkpoint = open_checkpoint(write_folder(case, tmp_path))
    model = load_model(checkpoint)
    c, wanted = model.config, case.config
    assert (c.n_layers, c.d_model) == (wanted["num_hidden_layers"], 64)
    assert (c.n_heads, c.n_kv_heads) == (4, wanted["num_key_value_heads"])
    assert c.head_dim == (wanted.get("head_dim") or 16)
    assert (c.vocab_size, c.context_length) == (96, wanted["max_position_embeddings"])
    assert trained_context(checkpoint) == c.context_length
    assert c.tied_embeddings is wanted["tie_word_embeddings"]
    assert len(model.program.kv) == c.n_layers
    assert set(model.weights) == weight_names(model.program)
    for name, weight in model.weights.items():
        assert weight.name == name
        assert weight.shape == model.weights.sources[name].shape
        assert weight.type == model.weights.sources[name].type
        assert weight.data.nbytes == weight.n_weights * 4


@pytest.mark.parametrize("case", GGUF_CASES, ids=str)
def test_both_formats_give_the_same_program(case: TinyCase, tmp_path):
    options = {"max_context": case.max_context}
    hf = load_model(open_checkpoint(write_folder(case, tmp_path / "hf")), **options)
    gg = load_model(open_checkpoint(write_gguf(case, tmp_path / "m.gguf")), **options)
    assert set(hf.weights) == set(gg.weights)
    assert hf.program.kv == gg.program.kv
    assert [type(op) for op in hf.program.ops] == [type(op) for op in gg.program.ops]
    hf_windows, gg_windows = (
        [op.window for op in model.program.ops if isinstance(op, Attention)] for model in (hf, gg)
    )
    assert hf_windows == gg_windows
    assert hf.program.values == gg.program.values


def test_weights_are_views_on_the_file(tmp_path):
    checkpoint = open_checkpoint(write_gguf(CASE["llama"], tmp_path / "m.gguf"))
    model = load_model(checkpoint)
    name = "blk.1.ffn_down.weight"
    assert np.shares_memory(model.weights[name].data, checkpoint.tensors[name].data)


def test_quantised_files_keep_their_types(tmp_path):
    path = write_gguf(CASE["mixtral"], tmp_path / "m.gguf", quantise="Q4_1")
    model = load_model(open_checkpoint(path))
    assert model.weights["blk.0.attn_q.weight"].type is TensorType.Q4_1
    assert model.weights["blk.0.ffn_down_exps.weight"].type is TensorType.Q4_1
    assert model.weights["blk.0.attn_norm.weight"].type is TensorType.F32


# Experts come in four forms.


def fused_experts(case: TinyCase) -> dict[str, np.ndarray]:
    """As ``save_pretrained(save_original_format=False)`` of Transformers 5 names them."""
    n = case.config.get("num_experts") or case.config["num_local_experts"]
    names = ("w1", "w3", "w2") if "mixtral" in case.name else ("gate_proj", "up_proj", "down_proj")
    weights = weights_of(case)
    for layer in range(case.config["num_hidden_layers"]):
        block = "block_sparse_moe" if "mixtral" in case.name else "mlp"
        old, new = f"model.layers.{layer}.{block}.", f"model.layers.{layer}.mlp."
        gate, up, down = (
            np.stack([weights.pop(f"{old}experts.{e}.{name}.weight") for e in range(n)])
            for name in names
        )
        weights[new + "experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        weights[new + "experts.down_proj"] = down
        weights[new + "gate.weight"] = weights.pop(old + "gate.weight")
    return weights


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_fused_experts_of_transformers_5(name: str, tmp_path):
    case = CASE[name]
    path = folder_with(case, tmp_path, tensors=fused_experts(case))
    assert_gives_the_recorded_logits(load_model(open_checkpoint(path)), case)


def rewrite_gguf(case: TinyCase, path, change) -> None:
    """The case's GGUF with its tensors passed through ``change`` (name -> array)."""
    source = gguf.GGUFReader(write_gguf(case, path.with_suffix(".source")))
    writer = gguf.GGUFWriter(str(path), case.gguf_arch)
    for key, entry in source.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, entry.contents(), entry.types[0])
    for name, values in change({t.name: np.array(t.data) for t in source.tensors}).items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_one_tensor_per_expert_in_old_gguf(tmp_path):
    def change(tensors):
        out = {}
        for name, values in tensors.items():
            if name.endswith("_exps.weight"):
                stem = name.removesuffix("_exps.weight")
                out.update({f"{stem}.{e}.weight": matrix for e, matrix in enumerate(values)})
            else:
                out[name] = values
        return out

    rewrite_gguf(CASE["mixtral"], tmp_path / "m.gguf", change)
    model = load_model(open_checkpoint(tmp_path / "m.gguf"))
    assert model.weights["blk.0.ffn_up_exps.weight"].shape == (4, 96, 64)
    assert_gives_the_recorded_logits(model, CASE["mixtral"])


def test_fused_gate_and_up_experts_in_gguf(tmp_path):
    def change(tensors):
        for layer in range(3):
            gate, up = (tensors.pop(f"blk.{layer}.ffn_{n}_exps.weight") for n in ("gate", "up"))
            tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], axis=1)
        return tensors

    rewrite_gguf(CASE["qwen3moe"], tmp_path / "m.gguf", change)
    model = load_model(open_checkpoint(tmp_path / "m.gguf"))
    assert_gives_the_recorded_logits(model, CASE["qwen3moe"])


def test_stacking_touches_no_data_until_asked(tmp_path):
    checkpoint = open_checkpoint(write_folder(CASE["mixtral"], tmp_path))
    model = load_model(checkpoint)
    source = model.weights.sources["blk.0.ffn_gate_exps.weight"]
    assert (source.shape, source.type) == ((4, 96, 64), TensorType.F32)
    for e, tensor in enumerate(source.tensors):
        stored = checkpoint.tensors[f"model.layers.0.block_sparse_moe.experts.{e}.w1.weight"]
        assert np.shares_memory(tensor.data, stored.data)
    first, second = (model.weights["blk.0.ffn_gate_exps.weight"].data for _ in range(2))
    assert not np.shares_memory(first, second)  # made when asked for, and not kept


# Names around the language model, and configs of other times.


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_multimodal_gemma(prefix: str, tmp_path):
    case = CASE["gemma3"]
    text = {k: v for k, v in case.config.items() if k not in ("architectures", "pad_token_id")}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16},
    }
    tensors = {name.replace("model.", prefix, 1): w for name, w in weights_of(case).items()}
    tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.zeros((2, 2), "f4")
    tensors["multi_modal_projector.mm_input_projection_weight"] = np.zeros((2, 2), np.float32)
    path = folder_with(case, tmp_path, config=config, tensors=tensors)
    assert_gives_the_recorded_logits(load_model(open_checkpoint(path)), case)


def test_multimodal_gemma_configs_leave_out_usual_values(tmp_path):
    """As published with the 4B model: the text part names five values."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "model_type": "gemma3_text",
            "num_hidden_layers": 1,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    wide = {**CASE["gemma3"].config, "num_hidden_layers": 1, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256}  # fmt: skip
    case = TinyCase("wide", wide, None)
    path = folder_with(case, tmp_path, config=config)
    c = load_model(open_checkpoint(path)).config
    assert (c.n_heads, c.n_kv_heads, c.head_dim, c.context_length) == (8, 4, 256, 131072)
    assert c.attention_scale == 1 / 16
    assert c.global_rope.inv_freq[1] == pytest.approx(1e6 ** (-2 / 256) / 8)
    assert c.local_rope.inv_freq[1] == pytest.approx(1e4 ** (-2 / 256))


def test_a_head_beside_tied_embeddings_is_left_out(tmp_path):
    case = CASE["llama3"]
    tensors = {**weights_of(case), "lm_head.weight": np.zeros((96, 64), np.float32)}
    path = folder_with(case, tmp_path, tensors=tensors)
    assert_gives_the_recorded_logits(load_model(open_checkpoint(path)), case)


def test_rotation_tables_are_ignored(tmp_path):
    case = CASE["llama"]
    tensors = dict(weights_of(case))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    path = folder_with(case, tmp_path, tensors=tensors)
    assert_gives_the_recorded_logits(load_model(open_checkpoint(path)), case)


def test_tied_is_inferred_where_the_config_is_silent(tmp_path):
    for name in ("llama", "llama3"):
        case = CASE[name]
        config = {k: v for k, v in case.config.items() if k != "tie_word_embeddings"}
        path = folder_with(case, tmp_path / name, config=config)
        assert_gives_the_recorded_logits(load_model(open_checkpoint(path)), case)


def test_old_gguf_scale_key(tmp_path):
    case = CASE["llama_linear"]
    checkpoint = open_checkpoint(write_gguf(case, tmp_path / "m.gguf"))
    metadata = dict(checkpoint.metadata)
    metadata["llama.rope.scale_linear"] = metadata.pop("llama.rope.scaling.factor")
    del metadata["llama.rope.scaling.type"]
    assert_gives_the_recorded_logits(
        load_model(dataclasses.replace(checkpoint, metadata=metadata)), case
    )


# Refusals.


def changed(checkpoint: Checkpoint, *, metadata=(), tensors=(), without=()) -> Checkpoint:
    return dataclasses.replace(
        checkpoint,
        metadata={**checkpoint.metadata, **dict(metadata)},
        tensors={k: v for k, v in {**checkpoint.tensors, **dict(tensors)}.items()
                 if k not in without},
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Checkpoints by case name and format."""
    folder = tmp_path_factory.mktemp("cases")
    opened = {}
    for name in ("llama", "gemma2", "gemma3", "phi3_long", "qwen3moe", "smollm3", "qwen3_yarn",
                 "llama3", "gemma3_layer_types", "qwen2_window", "smollm3_window"):  # fmt: skip
        case = CASE[name]
        opened[name, "safetensors"] = open_checkpoint(write_folder(case, folder / name))
        if case.gguf_arch:
            path = write_gguf(case, folder / f"{name}.gguf")
            opened[name, "gguf"] = open_checkpoint(path)
    return opened


def test_unknown_architectures_are_named_with_the_known_ones(files):
    gguf_file = changed(files["llama", "gguf"], metadata={"general.architecture": "mamba"})
    for load in (load_model, trained_context):
        with pytest.raises(CheckpointError, match=r"'mamba'.*is not supported; supported: llama, "):
            load(gguf_file)
    hf = changed(files["llama", "safetensors"], metadata={"architectures": ["MambaForCausalLM"]})
    with pytest.raises(CheckpointError, match=r"MambaForCausalLM.*supported: LlamaForCausalLM"):
        load_model(hf)


def test_the_model_type_stands_in_for_a_missing_class(files):
    config = changed(files["llama", "safetensors"], metadata={"architectures": None})
    assert load_model(config).config.architecture == "llama"


def test_every_row_of_the_table_is_tried_by_a_case():
    tried = {case.config["architectures"][0] for case in CASES}
    for row in ARCHITECTURES:
        assert tried & set(row.hf), row.hf
        assert row.gguf is None or row.gguf in {case.gguf_arch for case in CASES}


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_missing_tensor_is_named(files, form: str):
    name = {"gguf": "blk.1.ffn_up.weight", "safetensors": "model.layers.1.mlp.up_proj.weight"}[form]
    with pytest.raises(CheckpointError, match=r"'blk\.1\.ffn_up\.weight' is missing"):
        load_model(changed(files["llama", form], without=[name]))


def test_a_missing_head_or_embedding_is_named(files):
    with pytest.raises(CheckpointError, match=r"'output\.weight' is missing"):
        load_model(changed(files["llama", "safetensors"], without=["lm_head.weight"]))
    with pytest.raises(CheckpointError, match="embedding matrix is missing"):
        load_model(changed(files["llama", "gguf"], without=["token_embd.weight"]))


def test_qwen2_must_have_its_biases(files):
    gone = "model.layers.2.self_attn.k_proj.bias"
    with pytest.raises(CheckpointError, match=r"'blk\.2\.attn_k\.bias' is missing"):
        load_model(changed(files["qwen2_window", "safetensors"], without=[gone]))


def test_extra_tensors_are_named(files):
    extra = WeightTensor.from_array("blk.0.surprise.weight", np.zeros((2, 2), np.float32))
    with pytest.raises(CheckpointError, match=r"'blk\.0\.surprise\.weight'.*of another model"):
        load_model(changed(files["llama", "gguf"], tensors={"blk.0.surprise.weight": extra}))
    for name in ("model.layers.0.mlp.surprise.weight", "surprise.weight", "surprise"):
        with pytest.raises(CheckpointError, match=r"surprise.*not part of this architecture"):
            load_model(changed(files["llama", "safetensors"], tensors={name: extra}))


def test_a_tensor_of_another_shape_is_named(files):
    wrong = WeightTensor.from_array("x", np.zeros((33, 64), np.float32))
    for name, message in (
        ("blk.0.attn_k.weight", "2 heads of 16"),
        ("blk.0.ffn_norm.weight", r"'blk\.0\.ffn_norm\.weight' has shape \(33, 64\)"),
        ("blk.0.ffn_down.weight", "takes rows of 64"),
        ("token_embd.weight", "33"),
        ("output.weight", "33 logits for a vocabulary of 96"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_model(changed(files["llama", "gguf"], tensors={name: wrong}))


def test_incomplete_experts_are_named(files):
    checkpoint = files["qwen3moe", "safetensors"]
    gone = "model.layers.1.mlp.experts.2.up_proj.weight"
    with pytest.raises(CheckpointError, match="expert 2 is missing"):
        load_model(changed(checkpoint, without=[gone]))
    other = WeightTensor.from_array(gone, np.zeros((32, 32), np.float32))
    with pytest.raises(CheckpointError, match=r"experts\.2\.up_proj.*unlike the layer's other"):
        load_model(changed(checkpoint, tensors={gone: other}))


def test_quantised_folders_are_refused(files):
    config = {"quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(CheckpointError, match=r"quantization_config.*GGUF"):
        load_model(changed(files["llama", "safetensors"], metadata=config))


@pytest.mark.parametrize(
    ("name", "form", "key", "value", "message"),
    [
        ("llama", "gguf", "llama.block_count", 0, "'llama.block_count' is 0, outside 1..2048"),
        ("llama", "gguf", "llama.block_count", 1 << 40, "outside 1..2048"),
        ("llama", "gguf", "llama.block_count", None, "'llama.block_count' is missing"),
        ("llama", "gguf", "llama.block_count", 2.5, "must be a whole number, not 2.5"),
        ("llama", "gguf", "llama.block_count", 2, r"not part .*'blk\.2\."),
        ("llama", "gguf", "llama.block_count", 4, r"'blk\.3\.attn_norm\.weight' is missing"),
        ("llama", "gguf", "llama.attention.head_count", 3, "does not divide"),
        ("llama", "gguf", "llama.attention.head_count", 1 << 31, "outside"),
        ("llama", "gguf", "llama.attention.key_length", 15, "must be even"),
        ("llama", "gguf", "llama.attention.value_length", 8, "must equal the key length 16"),
        ("llama", "gguf", "llama.embedding_length", 128, "d_model is 128"),
        ("llama", "gguf", "llama.attention.layer_norm_rms_epsilon", float("nan"), "outside"),
        ("llama", "gguf", "llama.rope.freq_base", -1.0, "outside"),
        ("llama", "gguf", "llama.rope.dimension_count", 1000, "outside"),
        ("llama", "gguf", "llama.rope.scaling.type", "dilated", "'dilated', which is not supp"),
        ("llama", "gguf", "llama.rope.scaling.type", "longrope", "is missing"),
        ("llama", "gguf", "llama.rope.scaling.factor", 1e-320, "not finite"),
        ("llama", "gguf", "llama.feed_forward_length", [96, 96, 48], "differs from layer to layer"),
        ("qwen3moe", "gguf", "qwen3moe.expert_count", 0, "'qwen3moe.expert_count' is missing"),
        ("qwen3moe", "gguf", "qwen3moe.expert_used_count", 7, "outside 1..6"),
        ("gemma3", "gguf", "gemma3.attention.sliding_window_pattern", [True], "1 entries for 7"),
        ("qwen3_yarn", "gguf", "qwen3.rope.scaling.yarn_beta_fast", 1e308, "is 1e.308, outside"),
        ("qwen3_yarn", "gguf", "qwen3.rope.scaling.yarn_beta_slow", 5e-324, "is 5e-324, outside"),
        ("llama", "safetensors", "rms_norm_eps", 10**400, r"eps' is 10+\.\.\.0+, outside"),
        ("llama", "safetensors", "hidden_act", "relu", "'hidden_act' is 'relu'"),
        ("llama", "safetensors", "hidden_size", "64", "must be a whole number"),
        ("llama", "safetensors", "hidden_size", True, "must be a whole number"),
        ("llama", "safetensors", "num_hidden_layers", None, "'num_hidden_layers' is missing"),
        ("llama", "safetensors", "tie_word_embeddings", "no", "must be true or false"),
        ("llama3", "safetensors", "rope_scaling", [1], "must be an object"),
        ("llama3", "safetensors", "rope_scaling", {"rope_type": "llama3"}, "low_freq_factor"),
        ("llama", "safetensors", "rope_scaling", {"rope_type": "ntk"}, "'ntk', which is not supp"),
        ("phi3_long", "safetensors", "original_max_position_embeddings", 1, "is 1"),
        ("phi3_long", "safetensors", "rope_scaling",
         {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}, "8 positive rope"),
        ("phi3_long", "safetensors", "rope_scaling",
         {"type": "longrope", "long_factor": "x" * 8}, "must be a list of numbers"),
        ("phi3_long", "safetensors", "rope_scaling",
         {"type": "longrope", "long_factor": [10**400] * 8}, "long_factor' is 10.*, outside"),
        ("gemma3_layer_types", "safetensors", "layer_types", ["chunked_attention"] * 3, "chunked"),
        ("gemma3", "safetensors", "use_bidirectional_attention", True, "only causal"),
        ("smollm3_window", "safetensors", "no_rope_layers", [1, 0], "2 entries for 4 layers"),
    ],
)  # fmt: skip
def test_bad_hyper_parameters_are_named(files, name, form, key, value, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(changed(files[name, form], metadata={key: value}))
    file = files[name, form].files[0]
    where = file if key.startswith(f"{CASE[name].gguf_arch}.") else file.with_name("config.json")
    if "hyper-parameter" in str(caught.value):
        assert str(caught.value).startswith(f"{where}: ")
    else:
        assert str(caught.value).startswith(f"{file}: ")


def test_a_context_below_one_is_refused(files):
    with pytest.raises(ValueError, match="max_context"):
        load_model(files["llama", "gguf"], max_context=0)


def test_uniform_per_layer_values_are_taken(files):
    metadata = {
        "llama.feed_forward_length": np.full(3, 96, np.uint32),
        "llama.attention.head_count_kv": [2, 2, 2],
    }
    assert load_model(changed(files["llama", "gguf"], metadata=metadata)).config.n_kv_heads == 2


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.sampled_from([0, 1, 2, 3, 7, 2**31, 2**63, 10**400, 5e-324, 1e308]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "yarn", "linear", "llama3", "longrope", "x" * 50]),
    st.lists(st.integers(-2, 9), max_size=8),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", 1]), max_size=8),
    st.dictionaries(
        st.sampled_from(["rope_type", "factor", "rope_theta", "long_factor", "full_attention",
                         "beta_fast", "beta_slow",
                         "sliding_attention", "original_max_position_embeddings"]),
        st.one_of(st.floats(), st.integers(-3, 300), st.just("yarn"), st.none(),
                  st.lists(st.floats(), max_size=8)),
    ),
    st.just(np.array([3, 3, 3], np.int32)),
    st.just(np.array([[1, 2], [3, 4]])),
)  # fmt: skip


@settings(max_examples=400, derandomize=True, deadline=None)
@given(data=st.data())
def test_hostile_metadata_loads_or_is_refused(files, data):
    """Whatever a header says: a model, or a CheckpointError; never another error."""
    key = data.draw(st.sampled_from(sorted(files)))
    checkpoint = files[key]
    names = sorted(set(checkpoint.metadata) | {
        "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "head_dim",
        "mlp_only_layers", "text_config", "llama.rope.scaling.type", "llama.rope.scaling.factor",
        "qwen3.rope.scaling.yarn_beta_fast", "qwen3.rope.scaling.yarn_beta_slow",
        "gemma3.attention.sliding_window_pattern", "partial_rotary_factor",
    })  # fmt: skip
    changes = data.draw(st.dictionaries(st.sampled_from(names), NASTY, min_size=1, max_size=3))
    try:
        model = load_model(changed(checkpoint, metadata=changes))
    except CheckpointError:
        return
    assert set(model.weights) == weight_names(model.program)
