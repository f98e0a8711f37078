"""The operation set: what a model's forward step is recorded as.

A program is a flat list of operations over *values*. A value is a matrix with one row per token
of the batch (or per requested logit row, after ``SelectRows``); ``shape`` is the shape of one
row, so a hidden state is ``(d_model,)`` and queries are ``(n_heads, head_dim)``. All values are
float32, except the expert ids of ``Route`` (int32). Operations name their values by id and their
weights by name; they are plain data, so that any backend can interpret, compile or cost them.
"""

from __future__ import annotations

import math
from typing import Literal

from tidemill.records import dataclass

ValueId = int


@dataclass(frozen=True, slots=True)
class Value:
    """One result in a program: ``shape`` per row; ``rows`` says what a row stands for."""

    id: ValueId
    shape: tuple[int, ...]
    rows: Literal["tokens", "logits"] = "tokens"
    dtype: Literal["f32", "i32"] = "f32"

    @property
    def width(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding with everything about scaling already worked out.

    Pair ``i`` is turned by ``position * inv_freq[i]`` and scaled by ``magnitude``. ``half`` pairs
    (i, i + dim/2) as in GPT-NeoX and Hugging Face layouts; ``interleaved`` pairs (2i, 2i + 1) as
    in GGUF files of the llama family. Only the first ``2 * len(inv_freq)`` elements of a head
    are turned, the rest pass through.
    """

    inv_freq: tuple[float, ...]
    style: Literal["half", "interleaved"]
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class KVShape:
    """One attention layer's share of the KV cache, per token (K and V are of the same shape)."""

    n_kv_heads: int
    head_dim: int


ActivationKind = Literal["silu", "gelu_tanh", "gelu"]


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = scale * weight[token[t]]"""

    out: ValueId
    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x @ W^T (+ b), W the row-wise concatenation of ``weights`` (the merge pass makes
    lists of more than one). ``biases`` is empty or has one name (or None) per weight."""

    x: ValueId
    out: ValueId
    weights: tuple[str, ...]
    biases: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Over the last axis: out = x / sqrt(mean(x^2) + eps) * weight. A head-shaped x is
    normalised per head, with a weight of ``head_dim``."""

    x: ValueId
    out: ValueId
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate x of shape (heads, head_dim) by each token's position."""

    x: ValueId
    out: ValueId
    spec: RopeSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """Append k, v to KV layer ``layer`` and attend causally over the sequence's cache.

    q is (n_heads, head_dim), k and v (n_kv_heads, head_dim), out (n_heads * head_dim,). A token
    at position p sees positions max(0, p - window + 1) .. p. With ``softcap`` c the scores s
    become c * tanh(s / c) (Gemma 2).
    """

    q: ValueId
    k: ValueId
    v: ValueId
    out: ValueId
    layer: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Add:
    x: ValueId
    y: ValueId
    out: ValueId


@dataclass(frozen=True, slots=True)
class Mul:
    x: ValueId
    y: ValueId
    out: ValueId


@dataclass(frozen=True, slots=True)
class Scale:
    x: ValueId
    out: ValueId
    factor: float


@dataclass(frozen=True, slots=True)
class Softcap:
    """out = cap * tanh(x / cap)"""

    x: ValueId
    out: ValueId
    cap: float


@dataclass(frozen=True, slots=True)
class Activation:
    x: ValueId
    out: ValueId
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class Slice:
    """out = x[start:stop] along a flat row, reshaped to the out value's shape."""

    x: ValueId
    out: ValueId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same row under another shape (never moves data)."""

    x: ValueId
    out: ValueId


@dataclass(frozen=True, slots=True)
class SelectRows:
    """Keep only the rows whose logits were asked for: rows 'tokens' -> 'logits'."""

    x: ValueId
    out: ValueId


@dataclass(frozen=True, slots=True)
class Route:
    """Pick k experts per token from router scores x of shape (n_experts,).

    Weights are softmax(x) at the chosen experts; with ``normalise`` they are rescaled to sum to
    one. ids is int32 (k,), weights (k,), in falling order of score (ties: lower id first).
    """

    x: ValueId
    ids: ValueId
    weights: ValueId
    k: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class ExpertLinear:
    """out[j] = x_j @ W[ids[j]]^T for the k chosen experts. x is (d,) — shared by all of them —
    or (k, d); the weight is (experts, out, in); out is (k, out). ``weights`` may name several
    stacks, whose rows are concatenated per expert (the merge pass)."""

    x: ValueId
    ids: ValueId
    out: ValueId
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """out = sum_j weights[j] * x[j], x of shape (k, d)."""

    x: ValueId
    weights: ValueId
    out: ValueId


@dataclass(frozen=True, slots=True)
class Gated:
    """Made by a pass: out = act(x[..., :f]) * x[..., f:], x of width 2f along the last axis."""

    x: ValueId
    out: ValueId
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class AddRmsNorm:
    """Made by a pass: out_sum = x + y; out = rms_norm(out_sum)."""

    x: ValueId
    y: ValueId
    out_sum: ValueId
    out: ValueId
    weight: str
    eps: float


Op = (
    Embed
    | Linear
    | RmsNorm
    | Rope
    | Attention
    | Add
    | Mul
    | Scale
    | Softcap
    | Activation
    | Slice
    | Reshape
    | SelectRows
    | Route
    | ExpertLinear
    | Combine
    | Gated
    | AddRmsNorm
)


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded forward step: ``ops`` in order, ``values`` by id (passes leave some that no
    operation has any more), the ids of the results.

    ``logits`` has rows 'logits' and shape (vocab,); ``hidden`` is the final normed hidden state,
    rows 'tokens' (for embeddings). ``kv`` has one entry per attention layer.
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    logits: ValueId
    hidden: ValueId
    kv: tuple[KVShape, ...]
