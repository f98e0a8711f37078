"""The graph builder: a model function runs once against it and a ``Program`` comes out.

Weights are named relative to a scope and without their suffix: in layer 3, ``"attn_q"`` is
``blk.3.attn_q.weight``, and ``blk.3.attn_q.bias`` beside it is added where the checkpoint has
one. The builder knows the shape of every weight and checks each operation as it is recorded:
a weight that is missing or misshapen is a ``CheckpointError``, operands that do not fit each other
are a ``GraphError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from tidemill.program.ops import (
    Activation,
    ActivationKind,
    Add,
    Attention,
    Combine,
    Embed,
    ExpertLinear,
    KVShape,
    Linear,
    Mul,
    Op,
    Program,
    Reshape,
    RmsNorm,
    Rope,
    RopeSpec,
    Route,
    Scale,
    SelectRows,
    Slice,
    Softcap,
    Value,
)
from tidemill.records import dataclass
from tidemill.weights.base import CheckpointError

Shape = tuple[int, ...]


class GraphError(ValueError):
    """Operands of a recorded operation do not fit each other; the message shows their shapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value being recorded; ``shape`` is that of one row (one token)."""

    graph: Graph
    value: Value

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def width(self) -> int:
        return self.value.width

    def __repr__(self) -> str:
        return f"Tensor({self.value.rows}, {self.shape}, {self.value.dtype})"

    def __add__(self, other: Tensor) -> Tensor:
        out = self.graph.elementwise("add", self, other)
        self.graph.emit(Add(self.value.id, other.value.id, out.value.id))
        return out

    def __mul__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            out = self.graph.elementwise("multiply", self, other)
            self.graph.emit(Mul(self.value.id, other.value.id, out.value.id))
            return out
        out = self.graph.like(self)
        self.graph.emit(Scale(self.value.id, out.value.id, float(other)))
        return out

    __rmul__ = __mul__

    def reshape(self, *shape: int) -> Tensor:
        """The same row under another shape."""
        if math.prod(shape) != self.width:
            raise GraphError(f"cannot view a row of shape {self.shape} as {shape}")
        if shape == self.shape:
            return self
        out = self.graph.new(shape, self.value.rows)
        self.graph.emit(Reshape(self.value.id, out.value.id))
        return out

    def heads(self, n_heads: int, head_dim: int) -> Tensor:
        """The row (n_heads * head_dim,) seen as (n_heads, head_dim)."""
        if self.width != n_heads * head_dim:
            raise GraphError(
                f"a row of shape {self.shape} does not hold {n_heads} heads of {head_dim}"
            )
        return self.reshape(n_heads, head_dim)

    def split(self, *widths: int) -> tuple[Tensor, ...]:
        """Cut the flat row into pieces of these widths, in order."""
        if sum(widths) != self.width or any(width < 1 for width in widths):
            raise GraphError(f"cannot split a row of shape {self.shape} into widths {widths}")
        pieces = []
        start = 0
        for width in widths:
            out = self.graph.new((width,), self.value.rows)
            self.graph.emit(Slice(self.value.id, out.value.id, start, start + width))
            pieces.append(out)
            start += width
        return tuple(pieces)


def _activation(x: Tensor, kind: ActivationKind) -> Tensor:
    out = x.graph.like(x)
    x.graph.emit(Activation(x.value.id, out.value.id, kind))
    return out


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)"""
    return _activation(x, "silu")


def gelu(x: Tensor) -> Tensor:
    """GELU by the error function."""
    return _activation(x, "gelu")


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by the tanh approximation (``gelu_pytorch_tanh``)."""
    return _activation(x, "gelu_tanh")


def softcap(x: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(x / cap); None leaves x alone."""
    if cap is None:
        return x
    out = x.graph.like(x)
    x.graph.emit(Softcap(x.value.id, out.value.id, cap))
    return out


@dataclass(frozen=True, slots=True)
class Experts:
    """The k experts that the router chose for each token, and how much each one weighs."""

    layer: Layer
    ids: Tensor
    weights: Tensor

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Every chosen expert's product: (k, out), from x of (d,) shared or (k, d)."""
        graph = self.layer.graph
        weight = self.layer.weight_name(name)
        n_experts, d_out, d_in = graph.weight_shape(weight, rank=3)
        k = self.ids.width
        if n_experts < k:
            raise CheckpointError(
                f"tensor {weight!r} stacks {n_experts} experts, but {k} are chosen per token"
            )
        if x.shape not in ((d_in,), (k, d_in)):
            raise GraphError(
                f"experts {weight!r} take rows of ({d_in},) or ({k}, {d_in}), not {x.shape}"
            )
        out = graph.new((k, d_out), x.value.rows)
        graph.emit(ExpertLinear(x.value.id, self.ids.value.id, out.value.id, (weight,)))
        return out

    def combine(self, x: Tensor) -> Tensor:
        """The weighted sum of the experts' results: (k, d) to (d,)."""
        if len(x.shape) != 2 or x.shape[0] != self.weights.width:
            raise GraphError(f"cannot combine {self.weights.width} experts from shape {x.shape}")
        graph = self.layer.graph
        out = graph.new(x.shape[1:], x.value.rows)
        graph.emit(Combine(x.value.id, self.weights.value.id, out.value.id))
        return out


class _Scope:
    """Operations that name weights, relative to a prefix."""

    def __init__(self, graph: Graph, prefix: str) -> None:
        self.graph = graph
        self._prefix = prefix

    def weight_name(self, name: str) -> str:
        return f"{self._prefix}{name}.weight"

    def linear(self, x: Tensor, name: str, *, needs_bias: bool = False) -> Tensor:
        """x @ W^T, plus the bias where the checkpoint has one (or must): (in,) to (out,)."""
        weight = self.weight_name(name)
        d_out, d_in = self.graph.weight_shape(weight, rank=2)
        if x.shape != (d_in,):
            raise CheckpointError(
                f"tensor {weight!r} takes rows of {d_in}, but the model gives it shape {x.shape}"
            )
        bias = f"{self._prefix}{name}.bias"
        biases: tuple[str, ...] = ()
        if needs_bias or bias in self.graph.weights:
            self.graph.expect_shape(bias, (d_out,))
            biases = (bias,)
        out = self.graph.new((d_out,), x.value.rows)
        self.graph.emit(Linear(x.value.id, out.value.id, (weight,), biases))
        return out

    def rms_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """RMS norm over the last axis (per head for a head-shaped x)."""
        weight = self.weight_name(name)
        self.graph.expect_shape(weight, x.shape[-1:])
        out = self.graph.like(x)
        self.graph.emit(RmsNorm(x.value.id, out.value.id, weight, eps))
        return out


class Layer(_Scope):
    """One transformer layer: weights are under ``blk.<index>.``"""

    def __init__(self, graph: Graph, index: int) -> None:
        super().__init__(graph, f"blk.{index}.")
        self.index = index

    def rope(self, x: Tensor, spec: RopeSpec) -> Tensor:
        """Turn the heads of x (heads, head_dim) by each token's position."""
        if len(x.shape) != 2 or 2 * len(spec.inv_freq) > x.shape[1]:
            raise GraphError(
                f"cannot rotate {2 * len(spec.inv_freq)} elements of heads in shape {x.shape}"
            )
        out = self.graph.like(x)
        self.graph.emit(Rope(x.value.id, out.value.id, spec))
        return out

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Causal attention over the sequence's KV cache: (n_heads * head_dim,).

        ``scale`` is head_dim ** -0.5 unless given. With ``window`` w a token sees itself and the
        w - 1 positions before it.
        """
        if len(q.shape) != 2 or len(k.shape) != 2 or k.shape != v.shape:
            raise GraphError(f"attention of q {q.shape}, k {k.shape}, v {v.shape}")
        n_heads, head_dim = q.shape
        if k.shape[1] != head_dim or n_heads % k.shape[0]:
            raise GraphError(f"query heads {q.shape} do not divide over KV heads {k.shape}")
        if window is not None and window < 1:
            raise GraphError(f"attention window {window} must be at least 1")
        graph = self.graph
        out = graph.new((n_heads * head_dim,), "tokens")
        graph.emit(
            Attention(
                q.value.id,
                k.value.id,
                v.value.id,
                out.value.id,
                layer=graph.add_kv(KVShape(k.shape[0], head_dim)),
                scale=head_dim**-0.5 if scale is None else scale,
                window=window,
                softcap=softcap,
            )
        )
        return out

    def route(self, scores: Tensor, k: int, *, normalise: bool) -> Experts:
        """Choose k experts from router scores (n_experts,)."""
        if len(scores.shape) != 1 or not 1 <= k <= scores.width:
            raise GraphError(f"cannot choose {k} experts from scores of shape {scores.shape}")
        ids = self.graph.new((k,), scores.value.rows, "i32")
        weights = self.graph.new((k,), scores.value.rows)
        self.graph.emit(Route(scores.value.id, ids.value.id, weights.value.id, k, normalise))
        return Experts(self, ids, weights)


class Graph(_Scope):
    """Records a program against weights of known shape (row-major, see ``WeightTensor``)."""

    def __init__(self, weights: Mapping[str, Shape]) -> None:
        super().__init__(self, "")
        self.weights = weights
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._kv: list[KVShape] = []
        self._hidden: Tensor | None = None

    def layers(self, n: int) -> Iterator[Layer]:
        return (Layer(self, index) for index in range(n))

    def embed(self, name: str, *, scale: float = 1.0) -> Tensor:
        """The embedding of each token of the batch: (d_model,)."""
        weight = self.weight_name(name)
        _, d_model = self.weight_shape(weight, rank=2)
        out = self.new((d_model,), "tokens")
        self.emit(Embed(out.value.id, weight, scale))
        return out

    def logits(self, x: Tensor, name: str) -> Tensor:
        """Logits (vocab,) of the requested rows from the final hidden state x."""
        if x.value.rows != "tokens":
            raise GraphError("logits need the hidden state of all tokens")
        self._hidden = x
        selected = self.new(x.shape, "logits")
        self.emit(SelectRows(x.value.id, selected.value.id))
        return self.linear(selected, name)

    def program(self, logits: Tensor) -> Program:
        """What was recorded, with ``logits`` as its result."""
        if self._hidden is None or logits.value.rows != "logits":
            raise GraphError("a model function must return g.logits(...)")
        return Program(
            ops=tuple(self._ops),
            values=tuple(self._values),
            logits=logits.value.id,
            hidden=self._hidden.value.id,
            kv=tuple(self._kv),
        )

    # What the recording methods above are made of.

    def new(
        self,
        shape: Shape,
        rows: Literal["tokens", "logits"],
        dtype: Literal["f32", "i32"] = "f32",
    ) -> Tensor:
        value = Value(len(self._values), shape, rows, dtype)
        self._values.append(value)
        return Tensor(self, value)

    def like(self, x: Tensor) -> Tensor:
        return self.new(x.shape, x.value.rows)

    def elementwise(self, verb: str, x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape or x.value.rows != y.value.rows:
            raise GraphError(f"cannot {verb} {x} and {y}")
        return self.like(x)

    def emit(self, op: Op) -> None:
        self._ops.append(op)

    def add_kv(self, shape: KVShape) -> int:
        self._kv.append(shape)
        return len(self._kv) - 1

    def weight_shape(self, weight: str, *, rank: int) -> Shape:
        shape = self.weights.get(weight)
        if shape is None:
            raise CheckpointError(f"tensor {weight!r} is missing from the checkpoint")
        if len(shape) != rank or min(shape) < 1:
            raise CheckpointError(
                f"tensor {weight!r} has shape {shape}; expected {rank} dimensions of at least 1"
            )
        return shape

    def expect_shape(self, weight: str, shape: Shape) -> None:
        found = self.weight_shape(weight, rank=len(shape))
        if found != shape:
            raise CheckpointError(f"tensor {weight!r} has shape {found}; expected {shape}")
