"""From a checkpoint's tensor names to the names that programs use, which are those of GGUF."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from tidemill.models.sources import AsStored, PlusOne, Source, split_gate_up, stack
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint, CheckpointError, WeightTensor

GLOBAL = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

# Expert matrices of a layer under any of their usual names, one tensor per expert.
EXPERT = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}

# Compiled when first used, as a model has names of one kind only.
_HF_LAYER = r"layers\.(\d{1,5})\.(.+)\.(weight|bias)"
_HF_EXPERT = r"layers\.(\d{1,5})\.(?:mlp|block_sparse_moe)\.experts\.(\d{1,5})\.(\w+)\.weight"
_HF_FUSED_EXPERTS = (
    r"layers\.(\d{1,5})\.(?:mlp|block_sparse_moe)\.experts\.(gate_up_proj|down_proj)"
)
_GGUF_EXPERT = re.compile(r"blk\.(\d{1,5})\.ffn_(gate|up|down)\.(\d{1,5})\.weight")
_GGUF_FUSED_EXPERTS = re.compile(r"blk\.(\d{1,5})\.ffn_gate_up_exps\.weight")

# Tensors that hold no weights of the recorded program: rotation tables, which are worked out from
# the hyper-parameters (or read there), and the other halves of multimodal checkpoints.
_NOT_WEIGHTS = re.compile(
    r".*\.inv_freq|.*\.masked_bias|.*\.attn_rot_embd\.weight|rope_freqs\.weight|rope_factors_(long|short)\.weight"
    r"|(model\.)?(vision_tower|multi_modal_projector)\..*"
)


@dataclass(frozen=True, slots=True)
class HFNames:
    """An architecture's names in Hugging Face checkpoints: module path -> GGUF stem.

    ``layer`` adds to (or overrides) ``LAYER``; names in ``plus_one`` are GGUF stems of norms that
    are stored less one.
    """

    layer: Mapping[str, str] = field(default_factory=dict)
    plus_one: frozenset[str] = frozenset()


def canonical(checkpoint: Checkpoint, names: HFNames, *, tied: bool) -> dict[str, Source]:
    """Every weight of the checkpoint under its GGUF name."""
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if not _NOT_WEIGHTS.fullmatch(name)
    }
    if checkpoint.format == "gguf":
        return _from_gguf(tensors)
    return _from_hf(tensors, names, tied)


class _Collected:
    """Sources by name; refuses a name twice, and stacks experts once all are seen."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self._experts: dict[str, dict[int, WeightTensor]] = defaultdict(dict)

    def add(self, name: str, source: Source) -> None:
        if name in self.sources or name in self._experts:
            raise CheckpointError(f"the checkpoint has tensor {name!r} twice, in different forms")
        self.sources[name] = source

    def add_expert(self, name: str, index: int, tensor: WeightTensor) -> None:
        if name in self.sources:
            raise CheckpointError(f"the checkpoint has tensor {name!r} twice, in different forms")
        self._experts[name][index] = tensor

    def finish(self) -> dict[str, Source]:
        stacks = {name: stack(name, tensors) for name, tensors in self._experts.items()}
        return {**self.sources, **stacks}


def _from_gguf(tensors: Mapping[str, WeightTensor]) -> dict[str, Source]:
    collected = _Collected()
    for name, tensor in tensors.items():
        if match := _GGUF_EXPERT.fullmatch(name):  # written before experts were stacked in files
            layer, part, expert = match.groups()
            collected.add_expert(f"blk.{layer}.ffn_{part}_exps.weight", int(expert), tensor)
        elif match := _GGUF_FUSED_EXPERTS.fullmatch(name):
            gate, up = split_gate_up(name, tensor)
            collected.add(f"blk.{match[1]}.ffn_gate_exps.weight", gate)
            collected.add(f"blk.{match[1]}.ffn_up_exps.weight", up)
        else:
            collected.add(name, AsStored(tensor))
    return collected.finish()


def _from_hf(tensors: Mapping[str, WeightTensor], names: HFNames, tied: bool) -> dict[str, Source]:
    layer_stems = {**LAYER, **names.layer}
    collected = _Collected()
    for full_name, tensor in tensors.items():
        name = _strip_prefix(full_name)
        if match := re.fullmatch(_HF_EXPERT, name):
            layer, expert, module = match.groups()
            if module not in EXPERT:
                raise _unknown(full_name)
            collected.add_expert(f"blk.{layer}.{EXPERT[module]}.weight", int(expert), tensor)
        elif match := re.fullmatch(_HF_FUSED_EXPERTS, name):
            layer, module = match.groups()
            if module == "down_proj":
                collected.add(f"blk.{layer}.ffn_down_exps.weight", AsStored(tensor))
            else:
                gate, up = split_gate_up(full_name, tensor)
                collected.add(f"blk.{layer}.ffn_gate_exps.weight", gate)
                collected.add(f"blk.{layer}.ffn_up_exps.weight", up)
        else:
            if match := re.fullmatch(_HF_LAYER, name):
                layer, module, suffix = match.groups()
                stem, prefix = layer_stems.get(module), f"blk.{layer}."
            else:
                module, _, suffix = name.rpartition(".")
                stem, prefix = GLOBAL.get(module), ""
            if stem is None:
                raise _unknown(full_name)
            if stem == "output" and tied:
                continue  # a copy of the embedding
            source = PlusOne(tensor) if stem in names.plus_one else AsStored(tensor)
            collected.add(f"{prefix}{stem}.{suffix}", source)
    return collected.finish()


def _strip_prefix(name: str) -> str:
    for prefix in ("language_model.model.", "model.language_model.", "language_model.", "model."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _unknown(name: str) -> CheckpointError:
    return CheckpointError(f"tensor {name!r} is not part of this architecture")
