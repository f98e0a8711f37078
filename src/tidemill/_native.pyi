"""Types of the native module (csrc/bind_*.cpp). What is not spelled out here is Any."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

def __getattr__(name: str) -> Any: ...

class Texts(Sequence[str]):
    def __init__(self, texts: list[str]) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, i: int, /) -> str: ...
    @overload
    def __getitem__(self, i: slice, /) -> list[str]: ...

class TextIndex:
    def __init__(self, texts: Texts) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, text: str, /) -> bool: ...
    def __getitem__(self, text: str, /) -> int: ...
    @overload
    def get(self, text: str) -> int | None: ...
    @overload
    def get(self, text: str, default: int) -> int: ...
    def items(self) -> list[tuple[str, int]]: ...
    def merges_are_plain(self, merges: Texts, excluded: list[int]) -> bool: ...
    @property
    def twice(self) -> tuple[int, int] | None: ...

def read_gguf_strings(
    data: npt.NDArray[np.uint8], offset: int, count: int
) -> tuple[Texts, int]: ...

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
        at: Sequence[int],
        slots: Sequence[int],
        biases: Sequence[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]],
        masks: Sequence[tuple[int, npt.NDArray[np.uint32]]] = ...,
    ) -> list[int]: ...
    def score(
        self,
        logits: npt.NDArray[np.float32],
        first: int,
        tokens: npt.NDArray[np.int32],
        n_top: int,
        results: SamplingResults,
    ) -> None: ...

class TableRows:
    def __init__(
        self,
        history: npt.NDArray[np.int32],
        blocks: npt.NDArray[np.int32],
        rows: npt.NDArray[np.uint8],
        block_size: int,
        tokens: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        query_starts: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
        logit_rows: npt.NDArray[np.int32],
    ) -> None: ...
    def fill(self, spans: Sequence[tuple[int, int, int, int]]) -> tuple[int, int, int]: ...
    def append(self, slot: int, token: int) -> None: ...
