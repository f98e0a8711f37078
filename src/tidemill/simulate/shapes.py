"""The shape of a model without its weights: its recorded program, and what would be stored.

``models/*.toml`` have the hyper-parameters of well-known models, as their own config.json states
them, with its source. The tensors that such a checkpoint has follow from them, and the program is
recorded from these as from a real one, so that what is counted is what would be computed.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.models import Model, load_model
from tidemill.models.config import ModelConfig, common
from tidemill.models.hyper import MAX_VOCAB, Hyper
from tidemill.program.analysis import weights_of, writes
from tidemill.program.cost import BatchShape, SequenceShape, Stored, cost
from tidemill.program.ops import Attention, ExpertLinear, Linear, Op, Program
from tidemill.program.passes import optimise
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint, TensorType, WeightTensor

_FOLDER = Path(__file__).with_name("models")
_MOST_BYTES = 1 << 20  # of a file
_EXPERT_PARTS = {"w1": "up", "w3": "up", "w2": "down"}


class ShapeError(ValueError):
    """A model's shape is not known, or its file cannot be used; says what to do."""


@dataclass(frozen=True, slots=True)
class OpCount:
    """What operations of a kind need in a step, ``times`` of them alike.

    ``sharded``: whether tensor parallelism cuts it (products; norms and the like are computed by
    every device). ``head``: whether it gives the logits. ``weight_bytes`` as stored,
    ``weights`` in number, of those that are read; ``moved``: activations, in float32.
    """

    times: int
    sharded: bool
    head: bool
    weight_bytes: float
    weights: float
    moved: float
    flops: float


class Shape:
    """A model's program and its weights' types and shapes. ``source``: where that is from."""

    def __init__(
        self, name: str, config: ModelConfig, program: Program, weights: Mapping[str, Stored],
        source: str,
    ) -> None:  # fmt: skip
        self.name = name
        self.config = config
        self.program = optimise(program)
        self.weights = weights
        self.source = source
        self._counts = lru_cache(maxsize=256)(self._count)

    @classmethod
    def of_model(cls, name: str, model: Model, source: str) -> Shape:
        return cls(name, model.config, model.program, model.weights.sources, source)

    @cached_property
    def n_weights(self) -> int:
        return sum(math.prod(weight.shape) for weight in self.weights.values())

    def token_counts(self, tokens: int) -> list[OpCount]:
        """What a step of so many tokens needs before the logits, attention aside."""
        return self._counts(tokens, 1, "tokens")

    def row_counts(self, rows: int) -> list[OpCount]:
        """What so many rows of logits need, and what else is computed for these rows only."""
        return self._counts(rows, rows, "logits")

    def attention(self, context: int, kv_element_bytes: float) -> tuple[float, float]:
        """Bytes read and operations of a token that attends to ``context`` others, in all layers.
        Layers with a window see no more than that."""
        batch = BatchShape((SequenceShape(1, context),), 1, kv_element_bytes)
        found = [
            part
            for part in cost(self.program, self.weights, batch)
            if isinstance(part.op, Attention)
        ]
        return sum(part.kv_bytes for part in found), sum(part.flops for part in found)

    def kv_bytes(self, element_bytes: float) -> float:
        """Of one token in all layers."""
        return sum(2 * kv.n_kv_heads * kv.head_dim * element_bytes for kv in self.program.kv)

    def _count(self, tokens: int, rows: int, kind: str) -> list[OpCount]:
        batch = BatchShape((SequenceShape(tokens, tokens),), rows)
        found: Counter[tuple[bool, bool, float, float, float, float]] = Counter()
        for part in cost(self.program, self.weights, batch):
            op = part.op
            if isinstance(op, Attention) or self.program.values[writes(op)[-1]].rows != kind:
                continue
            head = self.program.logits in writes(op)
            stored, number = self._stored(op)
            weights = number * part.weight_bytes / stored if stored else 0.0
            moved = float(part.read_bytes + part.written_bytes)
            sharded = isinstance(op, Linear | ExpertLinear)
            found[sharded, head, part.weight_bytes, weights, moved, part.flops] += 1
        return [OpCount(times, *key) for key, times in found.items()]

    def _stored(self, op: Op) -> tuple[float, int]:
        """Bytes and number of an operation's weights."""
        weights = [self.weights[name] for name in weights_of(op)]
        return (
            float(sum(weight.type.nbytes(weight.shape) for weight in weights)),
            sum(math.prod(weight.shape) for weight in weights),
        )


def shape_names() -> list[str]:
    """The shapes that come with Tidemill."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_shape(name: str) -> Shape:
    """A model's shape: by its name in ``models/``, from a config.json of Hugging Face
    (``path/config.json``), or of a model itself (a GGUF file, a folder, a name that ``tidemill
    list`` shows). Raises ShapeError, CheckpointError, StoreError."""
    if name in shape_names():
        return _from_file(_FOLDER / f"{name}.toml")
    if name.endswith(".json"):
        path = Path(name)
        return shape_from_config(path.parent.name or path.stem, _json(path), str(path))
    from tidemill.store import resolve
    from tidemill.store.base import StoreError
    from tidemill.weights import open_checkpoint

    try:
        path = resolve(name, offline=True)
    except StoreError as error:
        raise ShapeError(
            f"{error}\nShapes known without weights: {', '.join(shape_names())}; a config.json "
            "of Hugging Face will do too"
        ) from None
    model = load_model(open_checkpoint(path))
    return Shape.of_model(name, model, path.name)


@lru_cache(maxsize=32)
def _from_file(path: Path) -> Shape:
    table = tomllib.loads(path.read_text("utf-8"))
    return shape_from_config(path.stem, table["config"], table["source"]["url"])


def shape_from_config(name: str, config: Mapping[str, Any], source: str) -> Shape:
    """Of the checkpoint that would go with a config.json. Raises CheckpointError (the config is
    not sound, or of an architecture that Tidemill does not know), ShapeError."""
    return Shape.of_model(name, load_model(imagined(name, config)), source)


def imagined(name: str, config: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of bfloat16 weights with the tensors that ``config`` implies. They take no
    memory, and have no values."""
    file = Path(name) / "model.safetensors"
    empty = Checkpoint("safetensors", (file,), config, {})
    hyper = Hyper(empty)
    vocab = hyper.integer(None, "vocab_size", high=MAX_VOCAB)
    tied = hyper.flag(None, "tie_word_embeddings", False)
    fields = common(hyper, vocab_size=vocab, tied_embeddings=tied)
    # These two are read by no architecture's own config, but decide which tensors there are.
    kind = hyper.text(None, "model_type", "")
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, fields["d_model"])}
    for layer in range(fields["n_layers"]):
        shapes |= {
            f"model.layers.{layer}.{part}": shape
            for part, shape in _layer_shapes(kind, fields).items()
        }
    shapes["model.norm.weight"] = (fields["d_model"],)
    if not tied:
        shapes["lm_head.weight"] = (vocab, fields["d_model"])
    tensors = {full: _valueless(full, shape) for full, shape in shapes.items()}
    return Checkpoint("safetensors", (file,), config, tensors)


def _layer_shapes(kind: str, f: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    if kind not in ("llama", "mistral", "mixtral", "qwen2", "qwen3"):
        raise ShapeError(
            f"the tensors of a model of type {kind!r} do not follow from its config here (llama, "
            "mistral, mixtral, qwen2 and qwen3 do); give the model itself"
        )
    width, d_ff = f["d_model"], f["d_ff"]
    q, kv = f["n_heads"] * f["head_dim"], f["n_kv_heads"] * f["head_dim"]
    outputs = {"q": q, "k": kv, "v": kv}
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        **{f"self_attn.{name}_proj.weight": (n, width) for name, n in outputs.items()},
        "self_attn.o_proj.weight": (width, q),
    }
    if kind == "qwen2":
        shapes |= {f"self_attn.{name}_proj.bias": (n,) for name, n in outputs.items()}
    if kind == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (f["head_dim"],) for name in "qk"}
    matrices = {"up": (d_ff, width), "down": (width, d_ff)}
    if f["n_experts"]:
        shapes["block_sparse_moe.gate.weight"] = (f["n_experts"], width)
        for expert in range(f["n_experts"]):
            shapes |= {
                f"block_sparse_moe.experts.{expert}.{part}.weight": matrices[form]
                for part, form in _EXPERT_PARTS.items()
            }
    else:
        shapes |= {
            f"mlp.{name}_proj.weight": matrices["down" if name == "down" else "up"]
            for name in ("gate", "up", "down")
        }
    return shapes


def _valueless(name: str, shape: tuple[int, ...]) -> WeightTensor:
    """Of the right size, over one byte of memory."""
    data = np.broadcast_to(np.uint8(0), (TensorType.BF16.nbytes(shape),))
    return WeightTensor(name, TensorType.BF16, shape, data)


def _json(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        content = json.loads(data) if len(data) <= _MOST_BYTES else None
    except OSError as error:
        raise ShapeError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ShapeError(f"{path}: not a config.json of a model")
    return content
