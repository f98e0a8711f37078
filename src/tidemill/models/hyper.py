"""Hyper-parameters read from either kind of checkpoint, each one checked.

A GGUF file says ``llama.block_count`` where a Hugging Face config says ``num_hidden_layers``.
``Hyper`` takes both names and reads the one that applies, so that an architecture states its
hyper-parameters once. Values are bounded: a hostile or damaged header ends as a
``CheckpointError`` that names the key, before anything is recorded or allocated.
"""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tidemill.weights.base import Checkpoint, CheckpointError

# No model comes near these; they keep products of hyper-parameters well inside 64 bits.
MAX_LAYERS = 2048
MAX_HEADS = 8192
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_CONTEXT = 1 << 28
MAX_EXPERTS = 4096


class Hyper:
    """Typed, bounded reads of a checkpoint's metadata.

    Every method takes the GGUF key (without the ``<architecture>.`` prefix) and the Hugging Face
    key; None means that this format has no such key. A missing key gives ``default``, or an error
    where there is none. ``hf_defaults`` are values that an architecture's Hugging Face configs
    leave out.
    """

    def __init__(
        self, checkpoint: Checkpoint, hf_defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.is_gguf = checkpoint.format == "gguf"
        # The file that the metadata comes from, for errors.
        self.file = checkpoint.files[0] if self.is_gguf else checkpoint.folder / "config.json"
        self.metadata: Mapping[str, Any] = checkpoint.metadata
        if not self.is_gguf:
            text = checkpoint.metadata.get("text_config")  # the language part of a larger model
            text = text if isinstance(text, Mapping) else {}
            self.metadata = {**(hf_defaults or {}), **checkpoint.metadata, **text}
        self.prefix = f"{checkpoint.metadata.get('general.architecture')}." if self.is_gguf else ""

    def key(self, gguf: str | None, hf: str | None) -> str | None:
        name = gguf if self.is_gguf else hf
        return None if name is None else self.prefix + name

    def raw(self, gguf: str | None, hf: str | None) -> Any:
        """The value as it is in the file; None if absent."""
        key = self.key(gguf, hf)
        return None if key is None else self.metadata.get(key)

    def fail(self, gguf: str | None, hf: str | None, problem: str) -> CheckpointError:
        key = self.key(gguf, hf) or gguf or hf
        return CheckpointError(f"{self.file}: hyper-parameter {key!r} {problem}")

    def integer(
        self,
        gguf: str | None,
        hf: str | None,
        default: int | None = None,
        *,
        low: int = 1,
        high: int = MAX_WIDTH,
    ) -> int:
        value = self.raw(gguf, hf)
        if value is None:
            if default is None:
                raise self.fail(gguf, hf, "is missing")
            return default
        if isinstance(value, (np.ndarray, list, tuple)):
            # Some converters write one entry per layer; only a uniform model can be recorded.
            entries = list(value[: MAX_LAYERS + 1])
            uniform = all(isinstance(e, numbers.Integral) and e == entries[0] for e in entries)
            if not uniform or not 1 <= len(entries) <= MAX_LAYERS:
                raise self.fail(gguf, hf, "differs from layer to layer, which is not supported")
            value = entries[0]
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
            raise self.fail(gguf, hf, f"must be a whole number, not {reprlib.repr(value)}")
        result = int(value)
        if not low <= result <= high:
            raise self.fail(gguf, hf, f"is {reprlib.repr(result)}, outside {low}..{high}")
        return result

    def optional_integer(
        self, gguf: str | None, hf: str | None, *, low: int = 1, high: int = MAX_CONTEXT
    ) -> int | None:
        """As ``integer``; absent (and zero, which some files write for it) is None."""
        value = self.raw(gguf, hf)
        if value is None or (isinstance(value, numbers.Integral) and value == 0):
            return None
        return self.integer(gguf, hf, low=low, high=high)

    def number(
        self,
        gguf: str | None,
        hf: str | None,
        default: float | None = None,
        *,
        low: float = 0.0,
        high: float = math.inf,
    ) -> float:
        """A finite number with low < value < high."""
        value = self.raw(gguf, hf)
        if value is None:
            if default is None:
                raise self.fail(gguf, hf, "is missing")
            return default
        return self.check_number(value, gguf, hf, low=low, high=high)

    def optional_number(self, gguf: str | None, hf: str | None) -> float | None:
        """A positive number; absent (and zero) is None."""
        value = self.raw(gguf, hf)
        if value is None or (isinstance(value, numbers.Real) and value == 0):
            return None
        return self.number(gguf, hf)

    def check_number(
        self,
        value: Any,
        gguf: str | None,
        hf: str | None,
        *,
        low: float = 0.0,
        high: float = math.inf,
    ) -> float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
            raise self.fail(gguf, hf, f"must be a number, not {reprlib.repr(value)}")
        try:
            result = float(value)
        except OverflowError:  # JSON has integers of any length
            result = math.inf
        if not (math.isfinite(result) and low < result < high):
            raise self.fail(gguf, hf, f"is {reprlib.repr(value)}, outside {low}..{high}")
        return result

    def flag(self, gguf: str | None, hf: str | None, default: bool) -> bool:
        value = self.raw(gguf, hf)
        if value is None:
            return default
        if not isinstance(value, (bool, np.bool_)):
            raise self.fail(gguf, hf, f"must be true or false, not {reprlib.repr(value)}")
        return bool(value)

    def text(self, gguf: str | None, hf: str | None, default: str) -> str:
        value = self.raw(gguf, hf)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(gguf, hf, f"must be a string, not {reprlib.repr(value)}")
        return value

    def per_layer(self, gguf: str | None, hf: str | None, n_layers: int) -> list[Any] | None:
        """A list with one entry per layer; None if absent."""
        value = self.raw(gguf, hf)
        if value is None:
            return None
        if not isinstance(value, (np.ndarray, Sequence)) or isinstance(value, str):
            raise self.fail(gguf, hf, f"must have one entry per layer, not {reprlib.repr(value)}")
        if len(value) != n_layers:
            raise self.fail(gguf, hf, f"has {len(value)} entries for {n_layers} layers")
        return list(value)

    def sliding(self, n_layers: int) -> list[bool] | None:
        """Which layers attend through a window, from Hugging Face's ``layer_types``."""
        types = self.per_layer(None, "layer_types", n_layers)
        if types is None:
            return None
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise self.fail(None, "layer_types", f"has {reprlib.repr(kind)}: not supported")
        return [kind == "sliding_attention" for kind in types]

    def activation(self, expected: tuple[str, ...], default: str) -> None:
        """Refuse a Hugging Face config that asks for another activation than recorded."""
        found = self.text(None, "hidden_activation", self.text(None, "hidden_act", default))
        if found not in expected:
            supported = ", ".join(expected)
            raise self.fail(None, "hidden_act", f"is {reprlib.repr(found)}; supported: {supported}")
