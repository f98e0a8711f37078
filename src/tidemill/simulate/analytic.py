"""Step times from data sheets: the roofline of each operation, for what is not at hand.

An operation takes the longer of the time to move its bytes and the time to compute its products
(Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009), at the share of the stated figures
that is assumed to be reached. Operations follow each other, so their times add up.

Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019) divides the products of every layer by
``n`` devices, which add their results up twice a layer. An all-reduce of b bytes over a ring moves
2 (n - 1) / n b bytes over each link in 2 (n - 1) transfers (Patarasuk and Yuan 2009).

Pipeline parallelism gives each stage a part of the layers. The step's tokens are split evenly into
as many micro-batches as there are stages (at most one for each token), of which each stage has one
at a time. A sequence's next token can begin when its last one has left the last stage, so that the
stages never drain while there are as many micro-batches: a step then takes as many times as there
are stages what the slowest of them takes for one micro-batch. With fewer micro-batches stages idle
(the bubble), and it takes as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from tidemill.records import dataclass
from tidemill.simulate.base import FrontEnd, ReplicaSpec
from tidemill.simulate.profiles import Hardware, KindAssumptions, Precision, assumptions
from tidemill.simulate.shapes import OpCount, Shape
from tidemill.simulate.step_table import StepTable, interpolate

KVFormat = Literal["f16", "fp8", "q8_0"]
KV_BYTES: dict[KVFormat, float] = {"f16": 2.0, "fp8": 1.0, "q8_0": 1.0625}

_ATTENTION_CONTEXT = 2048  # at which attention's cost for each token of context is taken
_BLOCK = 16


class DoesNotFitError(ValueError):
    """A deployment is not possible: the message says why, and what would be."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored, and what computes with them.

    bits: of a weight in the products of the layers, scales included; head_bits: of the embedding
    and the matrix that gives the logits, which many formats leave alone. gpu, cpu: the types in
    which they can be multiplied there, best first.
    """

    bits: float
    head_bits: float
    gpu: tuple[Precision, ...]
    cpu: tuple[Precision, ...]


FORMATS: dict[str, WeightFormat] = {
    "f32": WeightFormat(32, 32, ("f32",), ("f32",)),
    "bf16": WeightFormat(16, 16, ("bf16", "f32"), ("bf16", "f32")),
    "fp8": WeightFormat(8, 16, ("fp8", "bf16", "f32"), ("bf16", "f32")),
    "int8": WeightFormat(8, 16, ("int8", "bf16", "f32"), ("int8", "f32")),
    # 4 bits and a scale and a zero for each 128 weights; unpacked for products in 16 bits.
    "int4": WeightFormat(4.16, 16, ("bf16", "f32"), ("int8", "f32")),
    # GGUF: activations are quantised to int8 on CPUs.
    "q8_0": WeightFormat(8.5, 8.5, ("bf16", "f32"), ("int8", "f32")),
    "q4_k": WeightFormat(4.5, 6.5625, ("bf16", "f32"), ("int8", "f32")),
}

_BY_BITS = {
    "gpu": {4: "int4", 8: "int8", 16: "bf16"},
    "cpu": {4: "q4_k", 8: "q8_0", 16: "bf16"},
}
BITS = (4, 8, 16)


def format_of(hardware: Hardware, bits: int) -> str:
    """What weights of so many BITS are usually stored as on hardware of that kind."""
    return "fp8" if bits == 8 and "fp8" in hardware.flops else _BY_BITS[hardware.kind][bits]


def analytic(
    hardware: Hardware,
    shape: Shape,
    *,
    weights: str | None = "bf16",
    kv: KVFormat = "f16",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    max_context: int = 8192,
    max_sequences: int | None = None,
    max_batch_tokens: int | None = None,
    max_prefill_tokens: int | None = None,
    hour: float | None = None,
) -> ReplicaSpec:
    """One engine on ``tensor_parallel`` x ``pipeline_parallel`` devices.

    ``weights``: one of FORMATS; None: as a model's own file has them. Limits of the engine are
    what engines of the hardware's kind have by default. ``hour``: price of a device for an hour,
    in place of the profile's. Raises DoesNotFitError, ValueError, HardwareError.
    """
    gpu = hardware.kind == "gpu"
    limits = (256, 8192, 8192) if gpu else (64, 512, 256)
    sequences = limits[0] if max_sequences is None else max_sequences
    batch = limits[1] if max_batch_tokens is None else max_batch_tokens
    prefill = min(limits[2], batch) if max_prefill_tokens is None else max_prefill_tokens
    context = min(max_context, shape.config.context_length)
    cut = _Cut(tensor_parallel, pipeline_parallel)
    cut.check(hardware, shape)
    costs = _Costs(hardware, shape, weights, kv, cut)
    devices = cut.devices
    currency = ""
    if hour is None and hardware.price is not None:
        hour, currency = hardware.price.hour.value, hardware.price.currency
    spread = "" if devices == 1 else f" x {devices} (TP {cut.tensor}, PP {cut.pipeline})"
    stored = "as stored" if weights is None else weights
    name = f"{hardware.id or hardware.name}{spread}, {shape.name} {stored}"
    return ReplicaSpec(
        name=name,
        step_time=costs.table(max(batch, sequences), sequences),
        n_blocks=costs.n_blocks(context),
        max_context=context,
        block_size=_BLOCK,
        max_sequences=sequences,
        max_batch_tokens=batch,
        max_prefill_tokens=prefill,
        front=_front_end(assumptions().of(hardware)),
        devices=devices,
        hour=None if hour is None else hour * devices,
        currency=currency,
    )


def _front_end(kind: KindAssumptions) -> FrontEnd:
    request, token = kind.request, kind.prompt_token
    return FrontEnd(request.value, token.value, f"{request.kind}: {request.note}")


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a model is spread over devices."""

    tensor: int
    pipeline: int

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline

    def check(self, hardware: Hardware, shape: Shape) -> None:
        config = shape.config
        if self.tensor < 1 or self.pipeline < 1:
            raise ValueError("tensor and pipeline parallelism are at least 1")
        if config.n_heads % self.tensor:
            raise DoesNotFitError(
                f"{shape.name} has {config.n_heads} attention heads, which cannot be shared by "
                f"{self.tensor} devices evenly"
            )
        if self.pipeline > config.n_layers:
            raise DoesNotFitError(
                f"{shape.name} has {config.n_layers} layers, too few for {self.pipeline} stages"
            )
        if self.devices == 1:
            return
        joined = 1 if hardware.link is None else hardware.link.devices
        if self.devices > joined:
            raise DoesNotFitError(
                f"{hardware.name}: {self.devices} devices for one engine, but "
                f"{'there is no link between any' if joined == 1 else f'{joined} are joined'}"
            )

    def kv_share(self, shape: Shape) -> float:
        """Of the KV cache of a layer on a device; heads that are fewer than devices are copied."""
        return 1 / min(self.tensor, shape.config.n_kv_heads)

    def layer_share(self, shape: Shape) -> float:
        """Of the layers, those in the largest stage."""
        return -(-shape.config.n_layers // self.pipeline) / shape.config.n_layers


class _Costs:
    def __init__(
        self, hardware: Hardware, shape: Shape, weights: str | None, kv: KVFormat, cut: _Cut
    ) -> None:
        self.hardware = hardware
        self.shape = shape
        self.cut = cut
        self.kind = assumptions().of(hardware)
        self.kv_element = KV_BYTES[kv]
        if weights is not None and weights not in FORMATS:
            raise ValueError(f"no weight format {weights!r}; there are {', '.join(FORMATS)}")
        self.format = None if weights is None else FORMATS[weights]
        efficiency = hardware.efficiency or self.kind.efficiency
        gpu = hardware.kind == "gpu"
        # What is not a known format is a GGUF file's own: products as of q4_k.
        products = self.format or FORMATS["q4_k"]
        self.bandwidth = hardware.bandwidth.value * efficiency.memory.value
        self.rate = hardware.rate(products.gpu if gpu else products.cpu) * efficiency.compute.value
        self.vector_rate = hardware.rate(("f32", "bf16"))
        self.attention_rate = (
            hardware.rate(("bf16", "f32") if gpu else ("f32",)) * efficiency.attention.value
        )
        self.element = 2.0 if gpu else 4.0  # bytes of an activation
        self.source = (
            f"data sheets of {hardware.name}, with {efficiency.memory.value:.0%} of the "
            f"bandwidth and {efficiency.compute.value:.0%} of the arithmetic assumed; "
            f"nothing was measured"
        )

    def table(self, tokens: int, rows: int) -> StepTable:
        byte_cost, flops = self.shape.attention(_ATTENTION_CONTEXT, self.kv_element)
        share = self.cut.kv_share(self.shape)
        computing = flops / self.cut.tensor / self.attention_rate
        reading = byte_cost * share / self.bandwidth
        return StepTable(
            _table(tokens, lambda n: self.kind.step.value + self.layers(n)),
            _table(rows, self.head),
            per_prompt_context=computing / _ATTENTION_CONTEXT,
            per_decode_context=max(computing, reading) / _ATTENTION_CONTEXT,
            per_prompt_read=reading / _ATTENTION_CONTEXT,
            origin="data sheet",
            source=self.source,
            band=self.kind.band.value,
            stages=self.cut.pipeline,
        )

    def layers(self, tokens: int) -> float:
        """Seconds of all layers for ``tokens``, without attention to the context."""
        n = self._micro_batch(tokens)
        seconds = self._seconds(self.shape.token_counts(n))
        width = self.shape.config.d_model * self.element
        seconds += 2 * self.shape.config.n_layers * self.all_reduce(n * width)
        seconds *= self.cut.pipeline * self.cut.layer_share(self.shape)
        if self.cut.pipeline > 1:
            seconds += self.cut.pipeline * self.transfer(n * width)
        return seconds

    def head(self, rows: int) -> float:
        """Seconds of so many rows of logits. They are computed in the last stage, for which all
        others wait."""
        n = self._micro_batch(rows)
        seconds = self._seconds(self.shape.row_counts(n))
        if self.cut.tensor > 1:  # every device has a part of the logits, and one needs them all
            share = (self.cut.tensor - 1) / self.cut.tensor
            seconds += self.transfer(share * n * self.shape.config.vocab_size * self.element)
        return seconds * self.cut.pipeline

    def _micro_batch(self, tokens: int) -> int:
        return -(-tokens // min(self.cut.pipeline, tokens))

    def _seconds(self, counts: list[OpCount]) -> float:
        return sum(op.times * self._op(op) for op in counts)

    def _op(self, op: OpCount) -> float:
        devices = self.cut.tensor if op.sharded else 1
        moved = self._weight_bytes(op) + op.moved * self.element / 4
        rate = self.rate if op.sharded else self.vector_rate
        return max(moved / self.bandwidth, op.flops / rate) / devices

    def _weight_bytes(self, op: OpCount) -> float:
        if self.format is None or not op.sharded:
            return op.weight_bytes
        return op.weights * (self.format.head_bits if op.head else self.format.bits) / 8

    def all_reduce(self, n_bytes: float) -> float:
        """Seconds until the devices of a tensor parallel group have the sum of what each has."""
        n = self.cut.tensor
        if n == 1:
            return 0.0
        assert self.hardware.link is not None
        bandwidth, latency = self.hardware.link.bandwidth.value, self.hardware.link.latency.value
        return 2 * (n - 1) / n * n_bytes / bandwidth + 2 * (n - 1) * latency

    def transfer(self, n_bytes: float) -> float:
        """Seconds from one device to another."""
        assert self.hardware.link is not None
        return n_bytes / self.hardware.link.bandwidth.value + self.hardware.link.latency.value

    def n_blocks(self, context: int) -> int:
        """KV blocks that fit beside the weights. Raises DoesNotFitError."""
        usable = self.hardware.memory.value * self.kind.usable_memory.value
        weights = self.device_weights()
        layers = self.cut.layer_share(self.shape)
        token = self.shape.kv_bytes(self.kv_element) * layers * self.cut.kv_share(self.shape)
        blocks = int((usable - weights) // (token * _BLOCK))
        needed = -(-context // _BLOCK)
        if blocks < needed:
            raise DoesNotFitError(
                f"{self.shape.name} does not fit into {self.hardware.name}: of "
                f"{usable / 1e9:.1f} GB that can be used of a device, weights take "
                f"{weights / 1e9:.1f} GB and the KV cache of one sequence of {context} tokens "
                f"{needed * _BLOCK * token / 1e9:.2f} GB; spread it over more devices, take fewer "
                "bits per weight or a shorter context"
            )
        return blocks

    def device_weights(self) -> float:
        """Bytes on the device that has the most."""
        layers = embedding = output = 0.0
        ends = ("token_embd.weight", "output.weight")
        for name, weight in self.shape.weights.items():
            stored = float(weight.type.nbytes(weight.shape))
            if self.format is not None and len(weight.shape) > 1:
                bits = self.format.head_bits if name in ends else self.format.bits
                stored = math.prod(weight.shape) * bits / 8
            if name.startswith("blk."):
                layers += stored
            elif name == "token_embd.weight":
                embedding = stored
            else:
                output += stored
        outer = max(embedding, output) if self.cut.pipeline > 1 else embedding + output
        return (layers * self.cut.layer_share(self.shape) + outer) / self.cut.tensor


def _table(upto: int, seconds: Callable[[int], float]) -> list[float]:
    return interpolate({0: 0.0, **{n: seconds(n) for n in _places(upto)}}, upto)


def _places(upto: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 ... ``upto``: between them, times are nearly straight lines."""
    places = {1, upto}
    n = 2
    while n < upto:
        places |= {n, min(upto, n * 3 // 2)}
        n *= 2
    return sorted(places)
