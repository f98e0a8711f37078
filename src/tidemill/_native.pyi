"""Types of the native module (csrc/bind_*.cpp). What is not spelled out here is Any."""

from typing import Any

import numpy as np
import numpy.typing as npt

def __getattr__(name: str) -> Any: ...

SAMPLING_ROW_BYTES: int

def philox_uniform(seed: int, stream: int, position: int) -> float: ...

class SamplingResults:
    def __init__(
        self,
        tokens: npt.NDArray[np.int32],
        logprobs: npt.NDArray[np.float32],
        ranks: npt.NDArray[np.int32],
        status: npt.NDArray[np.uint8],
        top_ids: npt.NDArray[np.int32],
        top_logprobs: npt.NDArray[np.float32],
    ) -> None: ...

class BatchSampler:
    def __init__(
        self,
        vocab_size: int,
        rows: npt.NDArray[np.uint8],
        history: npt.NDArray[np.int32],
        results: SamplingResults,
        threads: int = 1,
    ) -> None: ...
    def sample(
        self,
        logits: npt.NDArray[np.float32],
        at: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        bias_starts: npt.NDArray[np.int32],
        bias_ids: npt.NDArray[np.int32],
        bias: npt.NDArray[np.float32],
    ) -> None: ...
    def score(
        self,
        logits: npt.NDArray[np.float32],
        first: int,
        tokens: npt.NDArray[np.int32],
        n_top: int,
        results: SamplingResults,
    ) -> None: ...
