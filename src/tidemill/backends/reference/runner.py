"""The reference runner: one NumPy statement per operation, slow and plainly right.

It is the oracle that compiled backends are tested against. Weights are dequantised to float32
when first used; sums run in whatever order NumPy takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.backends.base import Batch, KVCacheSpec
from tidemill.backends.reference.batches import check_batch
from tidemill.backends.reference.kv import PagedKV
from tidemill.program.ops import (
    Activation,
    ActivationKind,
    Add,
    AddRmsNorm,
    Attention,
    Combine,
    Embed,
    ExpertLinear,
    Gated,
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
    ValueId,
)
from tidemill.weights.base import WeightTensor

Floats = npt.NDArray[np.float32]


class ReferenceRunner:
    """Interprets a program (original or optimised) over paged KV in float32."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, WeightTensor],
        *,
        kv: KVCacheSpec,
        max_batch_tokens: int,
        max_logit_rows: int,
    ) -> None:
        self.kv = kv
        self.max_batch_tokens = max_batch_tokens
        self.max_logit_rows = max_logit_rows
        self._program = program
        self._weights = weights
        embedding = next(op.weight for op in program.ops if isinstance(op, Embed))
        self._n_embeddings = weights[embedding].shape[0]
        self._dense: dict[str, Floats] = {}
        self._cache: PagedKV | None = PagedKV(kv, program.kv)
        self._hidden = np.empty((0, program.values[program.hidden].width), np.float32)

    @property
    def vocab_size(self) -> int:
        return self._program.values[self._program.logits].width

    def forward(self, batch: Batch) -> Floats:
        """Run one step; float32 logits (R, vocab_size). A batch that breaks the contract is a
        ``ValueError`` and changes nothing."""
        values = self.trace(batch)
        self._hidden = values[self._program.hidden][batch.hidden_rows]
        return values[self._program.logits]

    def hidden(self) -> Floats:
        """The last step's hidden states, float32 (H, d_model)."""
        return self._hidden

    def trace(self, batch: Batch) -> dict[ValueId, npt.NDArray[Any]]:
        """Run one step and keep every value, (rows, *shape) each: for tests of other backends."""
        cache = self._open()
        check_batch(
            batch,
            kv=self.kv,
            vocab_size=self._n_embeddings,
            max_tokens=self.max_batch_tokens,
            max_logit_rows=self.max_logit_rows,
        )
        values: dict[ValueId, npt.NDArray[Any]] = {}
        for op in self._program.ops:
            self._run(op, values, batch, cache)
        return values

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        cache = self._open()
        for source, destination in pairs:
            self._check_block(source)
            self._check_block(destination)
        for source, destination in pairs:
            cache.copy_block(source, destination)

    @property
    def block_bytes(self) -> int:
        return self._open().block_bytes

    @property
    def kv_identity(self) -> str:
        """NumPy takes sums in whatever order it likes."""
        return f"reference numpy {np.__version__}"

    def read_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        self._check_block(block)
        self._open().read_block(block, data)

    def write_block(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        self._check_block(block)
        self._open().write_block(block, data)

    @property
    def window(self) -> None:
        """This backend keeps all it has computed."""
        return None

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        self._cache = None
        self._dense.clear()

    def _open(self) -> PagedKV:
        if self._cache is None:
            raise RuntimeError("the runner is closed")
        return self._cache

    def _check_block(self, block: int) -> None:
        if not 0 <= block < self.kv.n_blocks:
            raise ValueError(f"KV block {block} is outside 0..{self.kv.n_blocks - 1}")

    def _dense_weight(self, name: str) -> Floats:
        if name not in self._dense:
            self._dense[name] = self._weights[name].dequantize()
        return self._dense[name]

    def _run(
        self, op: Op, values: dict[ValueId, npt.NDArray[Any]], batch: Batch, cache: PagedKV
    ) -> None:
        weight = self._dense_weight
        match op:
            case Embed():
                values[op.out] = weight(op.weight)[batch.tokens] * np.float32(op.scale)
            case Linear():
                biases = op.biases or (None,) * len(op.weights)
                parts = []
                for name, bias in zip(op.weights, biases, strict=True):
                    part = values[op.x] @ weight(name).T
                    parts.append(part if bias is None else part + weight(bias))
                values[op.out] = np.concatenate(parts, axis=-1)
            case RmsNorm():
                values[op.out] = rms_norm(values[op.x], weight(op.weight), op.eps)
            case AddRmsNorm():
                values[op.out_sum] = values[op.x] + values[op.y]
                values[op.out] = rms_norm(values[op.out_sum], weight(op.weight), op.eps)
            case Rope():
                values[op.out] = rope(values[op.x], batch.positions, op.spec)
            case Attention():
                values[op.out] = self._attention(op, values, batch, cache)
            case Add():
                values[op.out] = values[op.x] + values[op.y]
            case Mul():
                values[op.out] = values[op.x] * values[op.y]
            case Scale():
                values[op.out] = values[op.x] * np.float32(op.factor)
            case Softcap():
                cap = np.float32(op.cap)
                values[op.out] = cap * np.tanh(values[op.x] / cap)
            case Activation():
                values[op.out] = activate(values[op.x], op.kind)
            case Gated():
                gate, up = np.split(values[op.x], 2, axis=-1)
                values[op.out] = activate(gate, op.kind) * up
            case Slice():
                flat = values[op.x].reshape(len(values[op.x]), -1)
                values[op.out] = self._shaped(flat[:, op.start : op.stop], op.out)
            case Reshape():
                values[op.out] = self._shaped(values[op.x], op.out)
            case SelectRows():
                values[op.out] = values[op.x][batch.logit_rows]
            case Route():
                values[op.ids], values[op.weights] = route(values[op.x], op.k, op.normalise)
            case ExpertLinear():
                parts = [
                    expert_linear(values[op.x], values[op.ids], weight(name)) for name in op.weights
                ]
                values[op.out] = np.concatenate(parts, axis=-1)
            case Combine():
                values[op.out] = np.einsum("nk,nkd->nd", values[op.weights], values[op.x])

    def _shaped(self, x: npt.NDArray[Any], out: ValueId) -> npt.NDArray[Any]:
        return x.reshape(len(x), *self._program.values[out].shape)

    def _attention(
        self,
        op: Attention,
        values: Mapping[ValueId, npt.NDArray[Any]],
        batch: Batch,
        cache: PagedKV,
    ) -> Floats:
        q, k, v = values[op.q], values[op.k], values[op.v]
        out = np.empty((len(q), q.shape[1] * q.shape[2]), np.float32)
        for s, length in enumerate(batch.context_lens):
            rows = slice(batch.query_starts[s], batch.query_starts[s + 1])
            positions = batch.positions[rows].astype(np.int64)
            table = batch.block_tables[s]
            blocks = table[positions // self.kv.block_size].astype(np.int64)
            cache.store(op.layer, blocks, positions % self.kv.block_size, k[rows], v[rows])
            keys, vals = cache.gather(op.layer, table, int(length))
            out[rows] = attend(q[rows], keys, vals, positions, op).reshape(len(positions), -1)
        return out


def attend(
    q: Floats, k: Floats, v: Floats, positions: npt.NDArray[np.int64], op: Attention
) -> Floats:
    """Queries (n, n_heads, head_dim) at ``positions`` over keys at 0..len(k)-1."""
    group = q.shape[1] // k.shape[1]  # query heads that share a KV head
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(op.scale)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    distance = positions[:, None] - np.arange(len(k))[None, :]
    visible = distance >= 0
    if op.window is not None:
        visible &= distance < op.window
    scores = np.where(visible, scores, -np.inf)
    return np.asarray(np.einsum("hqk,khd->qhd", softmax(scores), v), np.float32)


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True), np.float32)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)


def rope(x: Floats, positions: npt.NDArray[np.int32], spec: RopeSpec) -> Floats:
    """x (n, heads, head_dim); angles in float64."""
    angles = positions[:, None].astype(np.float64) * np.asarray(spec.inv_freq)
    cos, sin = (
        (spec.magnitude * f(angles))[:, None, :].astype(np.float32) for f in (np.cos, np.sin)
    )
    n = len(spec.inv_freq)
    if spec.style == "half":
        first, second = slice(0, n), slice(n, 2 * n)
    else:
        first, second = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
    out = x.copy()
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out


def activate(x: Floats, kind: ActivationKind) -> Floats:
    match kind:
        case "silu":
            return np.asarray(x * sigmoid(x), np.float32)
        case "gelu_tanh":
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
            return np.asarray(0.5 * x * (1 + np.tanh(inner)), np.float32)
        case "gelu":
            return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2))), np.float32)


def sigmoid(x: Floats) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x.astype(np.float64))))


def _erf(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def route(scores: Floats, k: int, normalise: bool) -> tuple[npt.NDArray[np.int32], Floats]:
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(softmax(scores), ids, axis=-1)
    if normalise:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    return ids.astype(np.int32), chosen


def expert_linear(x: Floats, ids: npt.NDArray[np.int32], stack: Floats) -> Floats:
    """x (n, d) or (n, k, d), ids (n, k), stack (experts, out, d) -> (n, k, out)."""
    n, k = ids.shape
    inputs = np.broadcast_to(x[:, None, :], (n, k, x.shape[-1])) if x.ndim == 2 else x
    out = np.empty((n, k, stack.shape[1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        out[chosen] = inputs[chosen] @ stack[expert].T
    return out
