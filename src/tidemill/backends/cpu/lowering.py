"""From an optimised program to the executor's instructions.

Four things happen on the way:
- row-wise operations in a row become one chain, whose intermediate values live in the first-level
  cache; a value that only meets quantised matrices leaves its chain quantised;
- norms and rotations of single heads move into the attention that reads them, a gate or a cap
  into the product before it;
- slices and reshapes become places in other buffers;
- from the last attention on, only those rows are computed that logits or hidden states are wanted
  of, and from the hidden state on those of logits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemill import _native
from tidemill.backends.cpu.chains import Chains, View
from tidemill.backends.cpu.instructions import (
    Attention,
    Blocks,
    Buffer,
    Domain,
    EmbedRows,
    ExpertProduct,
    Gate,
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
    Slot,
    is_gathered,
)
from tidemill.program import ops
from tidemill.program.analysis import reads, writes
from tidemill.program.ops import Op, Program, RopeSpec, ValueId
from tidemill.weights.base import TensorType

GROUP: int = _native.ACTIVATION_GROUP

_ROW_WISE = (
    ops.RmsNorm, ops.AddRmsNorm, ops.Add, ops.Mul, ops.Scale, ops.Activation, ops.Rope, ops.Route,
    ops.Combine,
)  # fmt: skip
_ROW_WISE_ALONE = (ops.Gated, ops.Softcap)  # unless the product before takes them over


class WeightInfo(Protocol):
    """Storage type and shape of a weight, known without its data."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def lower(program: Program, weights: Mapping[str, WeightInfo]) -> Lowered:
    """Lower an optimised program; only types and shapes of the weights are looked at."""
    return _Lowering(program, weights).run()


class _Lowering:
    def __init__(self, program: Program, weights: Mapping[str, WeightInfo]) -> None:
        self.program = program
        self.weights = weights
        self.maker = {value: op for op in program.ops for value in writes(op)}
        self.users: dict[ValueId, list[Op]] = defaultdict(list)
        for op in program.ops:
            for value in reads(op):
                self.users[value].append(op)
        self.late = self._late_values()
        # Operations that another instruction takes over: the id of the operation's first result.
        self.absorbed: set[ValueId] = set()
        self.heads: dict[ValueId, tuple[ValueId, HeadTransform]] = {}
        self.rotations: dict[RopeSpec, Rotation] = {}
        self.gates: dict[ValueId, ops.Linear] = {}
        self.caps: dict[ValueId, ops.Linear] = {}
        for op in program.ops:
            match op:
                case ops.Attention():
                    self._absorb_head_transform(op.q)
                    self._absorb_head_transform(op.k)
                case ops.Gated():
                    self._absorb_gate(op)
                case ops.Softcap():
                    self._absorb_cap(op)
                case _:
                    pass
        self.chains = Chains(
            [op for op in program.ops if not self._is_absorbed(op)], self.domain, self._is_row_wise
        )
        self.instructions: list[Instruction] = []
        self.places: dict[ValueId, Place] = {}
        self.blocks: dict[tuple[ValueId, Domain], Blocks] = {}
        self.chain: RowChain | None = None
        self.slots: dict[ValueId, tuple[int, int]] = {}  # values of the open chain

    def run(self) -> Lowered:
        body: list[Op] = [op for op in self.program.ops if not self._is_absorbed(op)]
        for op in body:
            if isinstance(op, View):
                self._alias(op)
            elif self._is_row_wise(op):
                self._enter_chain(op)
                self._row_step(op)
            else:
                self._close_chain()
                self._emit(op)
        self._close_chain()
        hidden = self._selected(self.program.hidden)
        angles = [RopeAngles(rotation) for rotation in self.rotations.values()]
        return Lowered(
            (*angles, *self.instructions),
            self.places[self.program.logits],
            hidden,
        )

    # ---- questions about the program

    def width(self, value: ValueId) -> int:
        return self.program.values[value].width

    def shape(self, value: ValueId) -> tuple[int, ...]:
        return self.program.values[value].shape

    def domain(self, value: ValueId) -> Domain:
        if self.program.values[value].rows == "logits":
            return "logits"
        return "selected" if value in self.late else "tokens"

    def _late_values(self) -> frozenset[ValueId]:
        """Values that only selected rows need: all that is made from them ends in SelectRows."""
        late: set[ValueId] = set()
        for op in reversed(self.program.ops):
            if isinstance(op, ops.Attention | ops.Embed):
                continue
            outs = writes(op)
            selects = isinstance(op, ops.SelectRows)
            used = [user for value in outs for user in self.users[value]]
            if (
                selects
                or self.program.logits in outs
                or (
                    used
                    and all(
                        isinstance(user, ops.SelectRows)
                        or (not isinstance(user, ops.Attention) and set(writes(user)) <= late)
                        for user in used
                    )
                )
            ):
                late.update(outs)
        return frozenset(late)

    def _is_row_wise(self, op: Op) -> bool:
        return isinstance(op, _ROW_WISE) or (
            isinstance(op, _ROW_WISE_ALONE) and op.out not in self.gates and op.out not in self.caps
        )

    def _is_absorbed(self, op: Op) -> bool:
        return writes(op)[0] in self.absorbed

    def _sole_user(self, value: ValueId) -> bool:
        return len(self.users[value]) == 1 and value != self.program.hidden

    def _is_quantised(self, name: str) -> bool:
        return bool(_native.needs_quantized_input(int(self.weights[name].type)))

    def _needs(self, value: ValueId) -> tuple[bool, bool]:
        """Whether products read a value quantised, and whether anything reads it as floats
        outside of the chain that makes it. Views count as what they view."""
        quantised, floats = False, value in (self.program.logits, self.program.hidden)
        for user in self.users[value]:
            if self._is_absorbed(user):
                user_reads_floats = True
                if isinstance(user, ops.Linear):  # taken over by a gate or a cap
                    user_reads_floats = not all(map(self._is_quantised, user.weights))
                    quantised |= any(map(self._is_quantised, user.weights))
                floats |= user_reads_floats
                continue
            match user:
                case ops.ExpertLinear() if user.ids == value:
                    floats = True
                case ops.Linear() | ops.ExpertLinear():
                    kinds = [self._is_quantised(name) for name in user.weights]
                    quantised |= any(kinds)
                    floats |= not all(kinds)
                case ops.Slice() | ops.Reshape() | ops.SelectRows():
                    below = self._needs(user.out)
                    # A chain quantises whole values, and for its own rows.
                    same = not isinstance(user, ops.Slice) and not is_gathered(
                        self.domain(value), self.domain(user.out)
                    )
                    quantised |= below[0] and same
                    floats |= below[1] or (below[0] and not same)
                case _:
                    floats |= not self.chains.together(self._source(value), user)
        return quantised, floats

    def _source(self, value: ValueId) -> Op:
        """The operation that computes what a value views."""
        op = self.maker[value]
        while isinstance(op, View):
            op = self.maker[op.x]
        return op

    # ---- what other instructions take over

    def _absorb_head_transform(self, value: ValueId) -> None:
        """norm and rotation between a linear and attention become part of attention."""
        if value in self.heads:
            return
        steps: list[Op] = []
        source = value
        norm, eps, rotation = None, 0.0, None
        op = self.maker[source]
        if isinstance(op, ops.Rope) and self._sole_user(source):
            rotation = op.spec
            steps.append(op)
            source = op.x
            op = self.maker[source]
        if (
            isinstance(op, ops.RmsNorm)
            and self._sole_user(source)
            and self.weights[op.weight].shape == (self.shape(value)[-1],)
        ):
            norm, eps = op.weight, op.eps
            steps.append(op)
            source = op.x
        self.absorbed.update(writes(op)[0] for op in steps)
        rope = self._rotation(rotation) if rotation is not None else None
        self.heads[value] = (source, HeadTransform(norm, eps, rope))

    def _absorb_gate(self, op: ops.Gated) -> None:
        linear = self.maker[op.x]
        if not isinstance(linear, ops.Linear) or not self._sole_user(op.x):
            return
        width = self.width(op.out)
        rows = [self.weights[name].shape[0] for name in linear.weights]
        halves = rows in ([2 * width], [width, width]) and width % GROUP == 0
        if halves and len(self.shape(op.x)) == 1 and self.domain(op.x) == self.domain(op.out):
            self.gates[op.out] = linear
            self.absorbed.add(linear.out)

    def _absorb_cap(self, op: ops.Softcap) -> None:
        linear = self.maker[op.x]
        if isinstance(linear, ops.Linear) and self._sole_user(op.x):
            self.caps[op.out] = linear
            self.absorbed.add(linear.out)

    def _rotation(self, spec: RopeSpec) -> Rotation:
        if spec not in self.rotations:
            self.rotations[spec] = Rotation(spec, Buffer("tokens", 2 * len(spec.inv_freq)))
        return self.rotations[spec]

    # ---- places

    def _new_place(self, value: ValueId) -> Place:
        width = self.width(value)
        place = Place(Buffer(self.domain(value), width), 0, width)
        self.places[value] = place
        return place

    def _alias(self, op: View) -> None:
        start = op.start if isinstance(op, ops.Slice) else 0
        if op.x in self.slots:
            slot, column = self.slots[op.x]
            self.slots[op.out] = (slot, column + start)
        if op.x in self.places:
            place = self.places[op.x]
            self.places[op.out] = Place(place.buffer, place.start + start, self.width(op.out))
        if not isinstance(op, ops.Slice):
            blocks = self.blocks.get((op.x, self.domain(op.x)))
            domain = self.domain(op.out)
            if blocks is not None and not is_gathered(blocks.domain, domain):
                self.blocks[op.out, domain] = blocks

    def _selected(self, value: ValueId) -> Place:
        """Where the selected rows of a value are: copied there if it has a row for every token."""
        place = self.places[value]
        if is_gathered(place.buffer.domain, "selected"):
            self.chain = RowChain("selected")
            copy = Place(Buffer("selected", place.width), 0, place.width)
            x, out = self._slot(value), (self._spare_slot(place.width, copy), 0)
            self.chain.steps.append(RowStep("COPY", x, out, width=place.width))
            self._close_chain()
            place = copy
        return place

    # ---- chains

    def _enter_chain(self, op: Op) -> None:
        if self.chain is not None and not self.chains.starts_at(op):
            return
        self._close_chain()
        self.chain = RowChain(self.domain(writes(op)[0]))

    def _close_chain(self) -> None:
        if self.chain is not None:
            self.instructions.append(self.chain)
        self.chain = None
        self.slots.clear()

    def _slot(self, value: ValueId) -> tuple[int, int]:
        """Where the open chain finds a value: made in it, or read from its place."""
        assert self.chain is not None
        if value not in self.slots:
            place = self.places[value]
            gather = is_gathered(place.buffer.domain, self.chain.domain)
            self.chain.slots.append(Slot(place.width, place, is_input=True, gather=gather))
            self.slots[value] = (len(self.chain.slots) - 1, 0)
        return self.slots[value]

    def _spare_slot(self, width: int, place: Place | None = None) -> int:
        assert self.chain is not None
        self.chain.slots.append(Slot(width, place))
        return len(self.chain.slots) - 1

    def _result(self, value: ValueId) -> tuple[int, int]:
        """A slot for a result of the open chain, in shared memory if others read it."""
        _, floats = self._needs(value)
        place = self._new_place(value) if floats else None
        self.slots[value] = (self._spare_slot(self.width(value), place), 0)
        return self.slots[value]

    def _quantise(self, value: ValueId) -> None:
        """Add a quantised copy of a value to the open chain."""
        assert self.chain is not None
        blocks = Blocks(self.chain.domain, self.width(value), replicated=True)
        self.chain.blocks.append(blocks)
        self.chain.steps.append(
            RowStep(
                "QUANTIZE", self._slot(value), width=self.width(value),
                blocks=len(self.chain.blocks) - 1,
            )
        )  # fmt: skip
        self.blocks[value, self.chain.domain] = blocks

    def _row_step(self, op: Op) -> None:
        assert self.chain is not None
        match op:
            case ops.RmsNorm():
                self._norm(op.x, op.out, op.weight, op.eps)
            case ops.AddRmsNorm():
                self._binary("ADD", op.x, op.y, op.out_sum)
                self._norm(op.out_sum, op.out, op.weight, op.eps)
            case ops.Add():
                self._binary("ADD", op.x, op.y, op.out)
            case ops.Mul():
                self._binary("MUL", op.x, op.y, op.out)
            case ops.Scale():
                self._unary("SCALE", op.x, op.out, factor=op.factor)
            case ops.Softcap():
                self._unary("SOFTCAP", op.x, op.out, factor=op.cap)
            case ops.Activation():
                self._unary("ACTIVATION", op.x, op.out, activation=op.kind)
            case ops.Gated():
                width = self.shape(op.out)[-1]
                self._unary(
                    "GATED", op.x, op.out, activation=op.kind, width=width,
                    heads=self.width(op.out) // width,
                )  # fmt: skip
            case ops.Rope():
                heads, width = self.shape(op.x)
                self._unary(
                    "ROPE", op.x, op.out, width=width, heads=heads, rope=self._rotation(op.spec)
                )
            case ops.Route():
                x = self._slot(op.x)
                ids, weights = self._result(op.ids), self._result(op.weights)
                n_experts = self.width(op.x)
                self.chain.steps.append(
                    RowStep(
                        "ROUTE", x, weights, ids=ids[0], spare=self._spare_slot(n_experts),
                        width=n_experts, heads=op.k, normalise=op.normalise,
                    )
                )  # fmt: skip
            case ops.Combine():
                k, width = self.shape(op.x)
                x, y = self._slot(op.x), self._slot(op.weights)
                out = self._result(op.out)
                self.chain.steps.append(RowStep("COMBINE", x, out, y, width=width, heads=k))
            case _:
                raise NotImplementedError(f"operation {type(op).__name__}")
        for value in writes(op):
            if self._needs(value)[0]:
                self._quantise(value)

    def _unary(self, kind: str, x: ValueId, out: ValueId, **fields: object) -> None:
        assert self.chain is not None
        step = RowStep(kind, self._slot(x), width=self.width(out))
        for name, field in fields.items():
            setattr(step, name, field)
        step.out = self._result(out)
        self.chain.steps.append(step)

    def _binary(self, kind: str, x: ValueId, y: ValueId, out: ValueId) -> None:
        assert self.chain is not None
        a, b = self._slot(x), self._slot(y)
        self.chain.steps.append(RowStep(kind, a, self._result(out), b, width=self.width(out)))

    def _norm(self, x: ValueId, out: ValueId, weight: str, eps: float) -> None:
        width = self.weights[weight].shape[0]
        self._unary(
            "RMS_NORM", x, out, width=width, heads=self.width(out) // width, weight=weight,
            factor=eps,
        )  # fmt: skip

    # ---- everything else

    def _emit(self, op: Op) -> None:
        match op:
            case ops.Embed():
                self.instructions.append(EmbedRows(op.weight, self._new_place(op.out), op.scale))
            case ops.Linear():
                self._product(op, op.out)
            case ops.Softcap():
                self._product(self.caps[op.out], op.out, cap=op.cap)
            case ops.Gated():
                self._gated_product(op)
            case ops.ExpertLinear():
                self._expert_product(op)
            case ops.Attention():
                self._attention(op)
            case _:
                raise NotImplementedError(f"operation {type(op).__name__}")

    def _input(self, x: ValueId, weights: Sequence[str], domain: Domain) -> Input:
        kinds = [self._is_quantised(name) for name in weights]
        blocks = None
        if any(kinds):
            if (x, domain) not in self.blocks:
                self.chain = RowChain(domain)
                self._quantise(x)
                self._close_chain()
            blocks = self.blocks[x, domain]
        floats = None if all(kinds) else self.places[x]
        gather = floats is not None and is_gathered(floats.buffer.domain, domain)
        return Input(blocks, floats, gather)

    def _biases(self, op: ops.Linear) -> tuple[str | None, ...]:
        return op.biases or (None,) * len(op.weights)

    def _product(self, op: ops.Linear, out: ValueId, cap: float = 0.0) -> None:
        domain = self.domain(out)
        x = self._input(op.x, op.weights, domain)
        place = self._new_place(out)
        self.instructions.append(
            Product(domain, op.weights, self._biases(op), x, place, softcap=cap)
        )

    def _gated_product(self, op: ops.Gated) -> None:
        linear, domain, width = self.gates[op.out], self.domain(op.out), self.width(op.out)
        x = self._input(linear.x, linear.weights, domain)
        quantised, floats = self._needs(op.out)
        out: Blocks | Place
        if quantised and not floats:
            out = Blocks(domain, width, replicated=False)
            self.blocks[op.out, domain] = out
        else:
            out = self._new_place(op.out)
        gate = Gate(op.kind, width, out)
        self.instructions.append(
            Product(domain, linear.weights, self._biases(linear), x, None, gate)
        )

    def _expert_product(self, op: ops.ExpertLinear) -> None:
        domain = self.domain(op.out)
        x = self._input(op.x, op.weights, domain)
        out = self._new_place(op.out)
        self.instructions.append(
            ExpertProduct(
                domain, op.weights, x, len(self.shape(op.x)) == 2, self.places[op.ids],
                self.shape(op.out)[0], out,
            )
        )  # fmt: skip

    def _attention(self, op: ops.Attention) -> None:
        q, q_transform = self.heads[op.q]
        k, k_transform = self.heads[op.k]
        self.instructions.append(
            Attention(
                op.layer, self.shape(op.q)[0], self.places[q], self.places[k], self.places[op.v],
                self._new_place(op.out), q_transform, k_transform, op.scale, op.softcap or 0.0,
                op.window or 0,
            )
        )  # fmt: skip
