"""Typed reading of the ``tokenizer.*`` keys of a GGUF file; every misfit is a TokenizerError."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill._native import Texts
from tidemill.text.errors import TokenizerError
from tidemill.text.vocabulary import clean_texts

log = logging.getLogger(__name__)

_CHAT_TEMPLATE = "tokenizer.chat_template"


class TokenizerMetadata:
    """Reads ``tokenizer.ggml.<key>``; a missing key gives None."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def _get(self, key: str) -> tuple[str, Any]:
        name = f"tokenizer.ggml.{key}"
        return name, self._metadata.get(name)

    def text(self, key: str) -> str | None:
        name, value = self._get(key)
        if value is None or isinstance(value, str):
            return value
        raise TokenizerError(f"{name} is a {type(value).__name__}, not a text")

    def flag(self, key: str) -> bool | None:
        name, value = self._get(key)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        raise TokenizerError(f"{name} is a {type(value).__name__}, not true or false")

    def token_id(self, key: str, n_tokens: int) -> int | None:
        """A special token's id. Out of range it counts as absent (files use -1 for "none")."""
        name, value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise TokenizerError(f"{name} is a {type(value).__name__}, not a token id")
        if 0 <= value < n_tokens:
            return int(value)
        log.warning(
            "%s is %d, outside the %d tokens of the vocabulary: ignored", name, value, n_tokens
        )
        return None

    def texts(self, key: str) -> Texts | None:
        name, value = self._get(key)
        if value is None:
            return None
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
            raise TokenizerError(f"{name} is a {type(value).__name__}, not an array of texts")
        return clean_texts(value, name)

    def numbers(self, key: str, n_tokens: int) -> npt.NDArray[Any] | None:
        """A number for each token."""
        name, value = self._get(key)
        if value is None:
            return None
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise TokenizerError(f"{name} is not an array of numbers") from error
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise TokenizerError(f"{name} is not an array of numbers")
        if len(array) != n_tokens:
            raise TokenizerError(f"{name} has {len(array):,} entries for {n_tokens:,} tokens")
        return array

    def data(self, key: str) -> bytes | None:
        """An array of bytes."""
        name, value = self._get(key)
        if value is None or isinstance(value, bytes):
            return value
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise TokenizerError(f"{name} is not an array of bytes") from error
        if array.ndim != 1 or array.dtype not in (np.dtype(np.int8), np.dtype(np.uint8)):
            raise TokenizerError(f"{name} is not an array of bytes")
        return array.tobytes()

    def chat_templates(self) -> dict[str, str]:
        """All chat templates by name; the unnamed one is "default"."""
        found: dict[str, str] = {}
        for key, value in self._metadata.items():
            if key == _CHAT_TEMPLATE or key.startswith(f"{_CHAT_TEMPLATE}."):
                if not isinstance(value, str):
                    raise TokenizerError(f"{key} is a {type(value).__name__}, not a text")
                found[key[len(_CHAT_TEMPLATE) + 1 :] or "default"] = value
        return found
