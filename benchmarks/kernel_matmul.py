"""Rates of the matmul kernels on one thread: GMAC/s, and GB/s of packed weights.

    python benchmarks/kernel_matmul.py [--types Q4_1,Q8_0] [--isa avx2] [--tokens 1,8] [--json F]

Each figure is the best of several runs, in the thread's own CPU time, so that a busy machine
disturbs it as little as possible. Weights are random bytes with sane scales; the default shapes are
those of SmolLM2-135M. A single token is memory-bound once the matrix is larger than the caches:
its GB/s are to be read against the memory bandwidth that ``tidemill doctor`` measures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill import _native
from tidemill.weights.base import TensorType

SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576))
SUPER_SHAPES = ((576, 512), (1536, 512), (576, 1536), (49152, 512))
TOKENS = (1, 2, 4, 8, 16, 64, 512)

# Where the f16 scales lie in a block; the other bytes may be anything.
_F16_AT = {
    TensorType.Q4_0: (0,), TensorType.Q4_1: (0, 2), TensorType.Q5_0: (0,), TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,), TensorType.Q2_K: (80, 82), TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2), TensorType.Q5_K: (0, 2), TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,), TensorType.IQ4_XS: (0,),
}  # fmt: skip


def random_matrix(type_: TensorType, rows: int, cols: int, seed: int = 0) -> _native.PackedMatrix:
    """A packed matrix of random weights of moderate size."""
    rng = np.random.default_rng(seed)
    data: npt.NDArray[Any]
    if type_ is TensorType.F32:
        data = rng.standard_normal(rows * cols, dtype=np.float32).view(np.uint8)
    elif type_ is TensorType.F16:
        data = rng.standard_normal(rows * cols, dtype=np.float32).astype(np.float16).view(np.uint8)
    elif type_ is TensorType.BF16:
        words = rng.standard_normal(rows * cols, dtype=np.float32).view(np.uint32) >> 16
        data = words.astype(np.uint16).view(np.uint8)
    else:
        n_blocks = rows * cols // type_.block_weights
        blocks = rng.integers(0, 256, (n_blocks, type_.block_bytes), dtype=np.uint8)
        for offset in _F16_AT.get(type_, ()):
            scales = rng.uniform(0.001, 0.01, n_blocks).astype(np.float16)
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(n_blocks, 2)
        if type_ is TensorType.MXFP4:
            blocks[:, 0] = 120
        data = blocks.reshape(-1)
    return _native.PackedMatrix(data, int(type_), rows, cols)


def seconds(matrix: _native.PackedMatrix, x: npt.NDArray[np.float32], isa: str) -> float:
    """Best CPU seconds of one product, quantising x left out as far as repeats can."""
    work = matrix.rows * matrix.cols * len(x)
    repeats = max(2, min(2000, int(2e8 // work)))
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        matrix.matmul(x, isa, repeats=repeats)
        best = min(best, (time.thread_time() - start) / repeats)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the matmul kernels on one thread.")
    parser.add_argument("--types", default="Q4_1,Q4_0,Q4_K,Q6_K,Q8_0,F16,F32")
    parser.add_argument("--isa", default="", help="kernel table; default: the best of this CPU")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--rows-limit", type=int, default=1 << 30, help="skip taller matrices")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]
    isa = args.isa or _native.isa_name()
    results = []
    print(f"kernels: {isa}; GMAC/s (GB/s of weights), one thread", file=sys.stderr)
    print(f"{'type':8}{'rows x cols':>14}" + "".join(f"{f'T={t}':>16}" for t in tokens))
    for name in args.types.split(","):
        type_ = TensorType[name]
        for rows, cols in SUPER_SHAPES if type_.block_weights == 256 else SHAPES:
            if rows > args.rows_limit:
                continue
            matrix = random_matrix(type_, rows, cols)
            line = f"{name:8}{f'{rows} x {cols}':>14}"
            for count in tokens:
                x = np.random.default_rng(1).standard_normal((count, cols), dtype=np.float32)
                time_ = seconds(matrix, x, isa)
                gmacs = rows * cols * count / time_ / 1e9
                gbytes = matrix.nbytes / time_ / 1e9
                line += f"{f'{gmacs:.1f} ({gbytes:.1f})':>16}"
                results.append(
                    {"isa": isa, "type": name, "rows": rows, "cols": cols, "tokens": count,
                     "gmacs_per_s": gmacs, "gbytes_per_s": gbytes}
                )  # fmt: skip
            print(line, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
