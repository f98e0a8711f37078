"""The CPU backend over hand-recorded programs, and models of random weights in any storage type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from support.programs import record
from tidemill import _native
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.cpu.build import build
from tidemill.backends.cpu.runner import CpuRunner
from tidemill.backends.reference import ReferenceRunner
from tidemill.program.graph import Graph, Tensor
from tidemill.program.ops import Program
from tidemill.weights.base import TensorType, WeightTensor

ISAS: list[str] = _native.available_isas()
KV = KVCacheSpec(n_blocks=32, block_size=8, dtype="f32")


def cpu_runner(
    program: Program,
    weights: Mapping[str, WeightTensor],
    *,
    kv: KVCacheSpec = KV,
    max_batch_tokens: int = 64,
    max_logit_rows: int = 64,
    threads: int = 2,
    isa: str = "",
) -> CpuRunner:
    """A runner for a recorded program and its weights, without a model around them."""
    built = build(
        program, weights, kv=kv, max_batch_tokens=max_batch_tokens,
        max_logit_rows=max_logit_rows, threads=threads, isa=isa,
    )  # fmt: skip
    vocab = program.values[program.logits].width
    runner = CpuRunner(built, kv, max_batch_tokens, max_logit_rows, vocab_size=vocab)
    runner.load(built, weights)
    return runner


def both_runners(
    fn: Callable[[Graph], Tensor], weights: Mapping[str, WeightTensor], **options: Any
) -> tuple[CpuRunner, ReferenceRunner]:
    """The same graph on this backend and on the reference."""
    program = record(fn, weights)
    reference = ReferenceRunner(
        program, weights, kv=options.get("kv", KV), max_batch_tokens=64, max_logit_rows=64
    )
    return cpu_runner(program, weights, **options), reference


def q8_0_tensor(name: str, values: npt.NDArray[Any]) -> WeightTensor:
    """``values`` (rows, cols) in Q8_0 blocks; what they hold exactly is ``.dequantize()``."""
    rows = np.asarray(values, np.float32).reshape(-1, 32)
    scale = (np.abs(rows).max(-1, keepdims=True) / 127).astype(np.float16)
    steps = np.rint(rows / np.maximum(scale.astype(np.float32), 1e-9)).astype(np.int8)
    blocks = np.concatenate([scale.view(np.uint8), steps.view(np.uint8)], axis=1)
    return WeightTensor(name, TensorType.Q8_0, values.shape, blocks.reshape(-1))
