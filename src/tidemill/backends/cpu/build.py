"""From lowered instructions to a native executor: the memory is mapped, nothing is loaded yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill import _native
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.cpu.instructions import (
    Attention,
    Blocks,
    Domain,
    EmbedRows,
    ExpertProduct,
    HeadTransform,
    Input,
    Instruction,
    Lowered,
    Place,
    Product,
    RopeAngles,
    Rotation,
    RowChain,
    RowStep,
)
from tidemill.backends.cpu.lowering import GROUP, WeightInfo, lower
from tidemill.backends.cpu.memory import MemoryMap, Sizes, map_memory
from tidemill.program.ops import ActivationKind, Program
from tidemill.program.passes import PASSES, Pass, optimise
from tidemill.records import dataclass
from tidemill.weights.base import CheckpointError, TensorType

# Rows up to which threads quantise for themselves instead of meeting at a barrier.
SMALL_ROWS = 2

# Far above what any machine can use; the executor counts rows and blocks in 32 bits.
_MOST_ROWS = 1 << 20
_MOST_BLOCKS = (1 << 31) - 1
_MOST_THREADS = 1024

_KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 2}
_ACTIVATIONS: dict[ActivationKind, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2}


@dataclass(frozen=True, slots=True)
class Built:
    """A native executor before it takes memory, and which weight goes where in it.

    ``tables`` are those that are read from the file, in place; ``window`` is the longest one of the
    layers that have one."""

    executor: Any
    matrices: dict[str, int]
    vectors: dict[str, int]
    tables: dict[str, int]
    window: int | None


def build(
    program: Program,
    weights: Mapping[str, WeightInfo],
    *,
    kv: KVCacheSpec,
    max_batch_tokens: int,
    max_logit_rows: int,
    threads: int,
    isa: str = "",
    passes: tuple[Pass, ...] = PASSES,
) -> Built:
    """Compile a recorded program. ``isa`` names a kernel table, "" the best one; ``passes`` rewrite
    the program first, and change no result. Raises ``CheckpointError`` for weights that cannot be
    packed and ``ValueError`` for limits that make no sense."""
    if kv.dtype not in _KV_TYPES:
        raise ValueError(f"unknown KV dtype {kv.dtype!r}; use one of {', '.join(_KV_TYPES)}")
    for name, value, most in (
        ("KV blocks", kv.n_blocks, _MOST_BLOCKS),
        ("KV block size", kv.block_size, _MOST_ROWS),
        ("max_batch_tokens", max_batch_tokens, _MOST_ROWS),
        ("max_logit_rows", max_logit_rows, _MOST_ROWS),
        ("threads", threads, _MOST_THREADS),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{name} must be at least 1 and at most {most}")
    lowered = _lower(program, weights, passes)
    return _Builder(
        program, lowered, weights, kv, max_batch_tokens, max_logit_rows, threads, isa
    ).built


@dataclass(frozen=True, slots=True)
class _LastLowered:
    program: Program
    weights: dict[str, tuple[TensorType, tuple[int, ...]]]
    passes: tuple[Pass, ...]
    lowered: Lowered


_last: _LastLowered | None = None
_last_map: tuple[Lowered, Sizes, MemoryMap] | None = None


def _lower(
    program: Program, weights: Mapping[str, WeightInfo], passes: tuple[Pass, ...]
) -> Lowered:
    """The optimised program's instructions. The last ones are kept: whoever sizes a KV cache
    plans the same program several times before it compiles it, and lowering takes longest."""
    global _last
    kinds = {name: (info.type, info.shape) for name, info in weights.items()}
    last = _last
    if (
        last is None
        or last.program is not program
        or last.weights != kinds
        or last.passes != passes
    ):
        lowered = lower(optimise(program, passes), weights)
        last = _last = _LastLowered(program, kinds, passes, lowered)
    return last.lowered


def _map(lowered: Lowered, sizes: Sizes) -> MemoryMap:
    """Where the memory of a lowered program lies; the last one is kept for the same reason."""
    global _last_map
    last = _last_map
    if last is None or last[0] is not lowered or last[1] != sizes:
        last = _last_map = (lowered, sizes, map_memory(lowered, sizes))
    return last[2]


class _Builder:
    def __init__(
        self,
        program: Program,
        lowered: Lowered,
        weights: Mapping[str, WeightInfo],
        kv: KVCacheSpec,
        max_batch_tokens: int,
        max_logit_rows: int,
        threads: int,
        isa: str,
    ) -> None:
        self.weights = weights
        sizes = Sizes(
            max_tokens=max_batch_tokens,
            max_logits=max_logit_rows,
            small_rows=SMALL_ROWS,
            block_bytes=_native.ACTIVATION_BLOCK_BYTES,
            block_width=GROUP,
        )
        self.map = _map(lowered, sizes)
        attentions = [i for i in lowered.instructions if isinstance(i, Attention)]
        groups = [i.n_heads // program.kv[i.layer].n_kv_heads for i in attentions]
        unlimited = {i.layer for i in attentions if not i.window}
        windows = [i.window for i in attentions if i.layer not in unlimited]
        self.executor = _native.Executor(
            max_tokens=max_batch_tokens,
            max_logits=max_logit_rows,
            small_rows=SMALL_ROWS,
            threads=threads,
            n_blocks=kv.n_blocks,
            block_size=kv.block_size,
            kv_type=_KV_TYPES[kv.dtype],
            vocab_size=program.values[program.logits].width,
            group=max(groups, default=1),
            shared_bytes=self.map.shared_total,
            replica_bytes=self.map.replica_total,
            isa=isa,
        )
        self.matrices: dict[str, int] = {}
        self.vectors: dict[str, int] = {}
        self.tables: dict[str, int] = {}
        self.rotations: dict[Rotation, int] = {}
        self.kv_layers = [
            self.executor.add_kv_layer(shape.n_kv_heads, shape.head_dim, layer not in unlimited)
            for layer, shape in enumerate(program.kv)
        ]
        for instruction, barriers in zip(lowered.instructions, self.map.barriers, strict=True):
            self._add(instruction, barriers)
        self._tie_tables()
        self.executor.set_logits(self._view(lowered.logits))
        self.executor.set_hidden(self._view(lowered.hidden), lowered.hidden.width)
        self.built = Built(
            self.executor, self.matrices, self.vectors, self.tables, max(windows, default=None)
        )

    # ---- weights

    def _matrix(self, name: str) -> int:
        if name not in self.matrices:
            info = self.weights[name]
            count = info.shape[0] if len(info.shape) == 3 else 1
            rows, cols = info.shape[-2:]
            try:
                index = self.executor.add_matrix(int(info.type), rows, cols, count)
            except ValueError as error:
                raise CheckpointError(
                    f"tensor {name!r} ({info.type.name}, shape {info.shape}): {error}"
                ) from error
            self.matrices[name] = index
        return self.matrices[name]

    def _vector(self, name: str) -> int:
        if name not in self.vectors:
            (size,) = self.weights[name].shape
            self.vectors[name] = self.executor.add_vector(size)
        return self.vectors[name]

    def _table(self, name: str) -> int:
        if name not in self.tables:
            info = self.weights[name]
            rows, cols = info.shape
            self.tables[name] = self.executor.add_table(int(info.type), rows, cols)
        return self.tables[name]

    def _tie_tables(self) -> None:
        """Look up rows in the packed matrix where there is one (tied embeddings), so that the
        file's pages are not resident beside it."""
        for name in self.tables.keys() & self.matrices.keys():
            self.executor.tie_table(self.tables.pop(name), self.matrices[name])

    def _rotation(self, rotation: Rotation) -> int:
        if rotation not in self.rotations:
            spec = rotation.spec
            place = Place(rotation.angles, 0, rotation.angles.width)
            self.rotations[rotation] = self.executor.add_rope_table(
                len(spec.inv_freq), spec.style == "interleaved", self._view(place)
            )
        return self.rotations[rotation]

    # ---- places

    def _view(self, place: Place) -> Any:
        offset = self.map.shared[place.buffer] + 4 * place.start
        return _native.View(offset, place.buffer.width)

    def _blocks(self, blocks: Blocks) -> Any:
        return _native.Blocks(
            self.map.shared[blocks],
            self.map.replica.get(blocks, 0),
            blocks.width // GROUP,
            blocks.replicated,
        )

    def _input(self, x: Input) -> tuple[Any, Any, bool]:
        blocks = self._blocks(x.blocks) if x.blocks is not None else None
        floats = self._view(x.floats) if x.floats is not None else None
        return blocks, floats, x.gather

    # ---- instructions

    def _add(self, instruction: Instruction, barriers: tuple[bool, bool]) -> None:
        add = self.executor
        match instruction:
            case RopeAngles():
                rotation = instruction.rotation
                spec = rotation.spec
                table = self._rotation(rotation)
                add.rope_angles("rope angles", barriers, table, spec.inv_freq, spec.magnitude)
            case EmbedRows():
                table = self._table(instruction.weight)
                view = self._view(instruction.out)
                add.embed("embedding", barriers, table, view, instruction.scale)
            case RowChain():
                self._add_chain(instruction, barriers)
            case Product():
                self._add_product(instruction, barriers)
            case ExpertProduct():
                add.expert_product(
                    "+".join(instruction.weights), barriers, _domain(instruction.domain),
                    self._parts(instruction.weights, (None,) * len(instruction.weights)),
                    *self._input(instruction.x), instruction.per_expert,
                    self._view(instruction.ids), instruction.k, self._view(instruction.out),
                )  # fmt: skip
            case Attention():
                add.attention(
                    f"blk.{instruction.layer}.attention", barriers,
                    self.kv_layers[instruction.layer], instruction.n_heads,
                    *(
                        self._view(place)
                        for place in (instruction.q, instruction.k, instruction.v, instruction.out)
                    ),
                    *self._transform(instruction.q_transform),
                    *self._transform(instruction.k_transform),
                    instruction.scale, instruction.softcap, instruction.window,
                )  # fmt: skip

    def _transform(self, transform: HeadTransform) -> tuple[int, float, int]:
        norm = self._vector(transform.norm) if transform.norm is not None else -1
        rope = self._rotation(transform.rope) if transform.rope is not None else -1
        return norm, transform.eps, rope

    def _parts(self, weights: tuple[str, ...], biases: tuple[str | None, ...]) -> list[Any]:
        parts = []
        column = 0
        for name, bias in zip(weights, biases, strict=True):
            bias_index = self._vector(bias) if bias is not None else -1
            parts.append(_native.Part(self._matrix(name), column, bias_index))
            column += self.weights[name].shape[-2]
        return parts

    def _add_product(self, product: Product, barriers: tuple[bool, bool]) -> None:
        gate = None
        if product.gate is not None:
            out = product.gate.out
            gate = _native.ProductGate(
                _ACTIVATIONS[product.gate.kind],
                product.gate.width,
                self._blocks(out) if isinstance(out, Blocks) else None,
                self._view(out) if isinstance(out, Place) else None,
            )
        self.executor.product(
            "+".join(product.weights), barriers, _domain(product.domain),
            self._parts(product.weights, product.biases), *self._input(product.x),
            self._view(product.out) if product.out is not None else None, product.softcap, gate,
        )  # fmt: skip

    def _add_chain(self, chain: RowChain, barriers: tuple[bool, bool]) -> None:
        slots = [
            _native.Slot(
                slot.width,
                self._view(slot.place) if slot.place is not None else None,
                slot.is_input,
                slot.gather,
            )
            for slot in chain.slots
        ]
        self.executor.row_chain(
            "+".join(step.weight or step.kind.lower() for step in chain.steps), barriers,
            _domain(chain.domain), slots, [self._row_op(step) for step in chain.steps],
            [self._blocks(blocks) for blocks in chain.blocks],
        )  # fmt: skip

    def _row_op(self, step: RowStep) -> Any:
        op = _native.RowOp()
        op.kind = getattr(_native.RowOpKind, step.kind)
        op.x, op.x_col = step.x
        op.y, op.y_col = step.y
        op.out, op.out_col = step.out
        op.ids, op.spare = step.ids, step.spare
        op.width, op.heads, op.factor = step.width, step.heads, step.factor
        op.activation = _ACTIVATIONS[step.activation]
        op.normalise = step.normalise
        op.index = step.blocks
        if step.weight is not None:
            op.index = self._vector(step.weight)
        if step.rope is not None:
            op.index = self._rotation(step.rope)
        return op


def _domain(domain: Domain) -> Any:
    return getattr(_native.Domain, domain.upper())
