"""Small graphs recorded by hand, with random weights, and a check that two programs agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from support.batches import run_tokens
from tidemill.backends.base import KVCacheSpec
from tidemill.backends.reference import ReferenceRunner
from tidemill.program.graph import Graph, Tensor
from tidemill.program.ops import Program
from tidemill.weights.base import WeightTensor

Weights = Mapping[str, WeightTensor]


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, WeightTensor]:
    """F32 weights of these shapes, of a size that keeps values near one."""
    rng = np.random.RandomState(seed)
    return {
        name: WeightTensor.from_array(name, rng.standard_normal(shape) / np.sqrt(shape[-1]))
        for name, shape in shapes.items()
    }


def record(fn: Callable[[Graph], Tensor], weights: Weights) -> Program:
    graph = Graph({name: weight.shape for name, weight in weights.items()})
    return graph.program(fn(graph))


def reference_runner(program: Program, weights: Weights) -> ReferenceRunner:
    return ReferenceRunner(
        program,
        weights,
        kv=KVCacheSpec(n_blocks=16, block_size=4, dtype="f32"),
        max_batch_tokens=64,
        max_logit_rows=64,
    )


def logits(program: Program, weights: Weights) -> npt.NDArray[np.float32]:
    """Logits (11, vocab) of a sequence run in two chunks and a decode."""
    n_vocab = weights["token_embd.weight"].shape[0]
    tokens = np.random.RandomState(1).randint(0, n_vocab, 11)
    return run_tokens(reference_runner(program, weights), tokens, [7, 3, 1])
