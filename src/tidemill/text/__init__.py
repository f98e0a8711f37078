"""Tokenizers, chat templates, incremental detokenising, stop strings.

``base.py`` is the contract; ``loading.py`` makes tokenizers from model files, ``chat.py`` turns
messages into prompts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.text.base import Tokenizer
    from tidemill.text.builtin_templates import BUILTIN_TEMPLATES
    from tidemill.text.chat import ChatPrompt, ChatTemplate, encode_chat
    from tidemill.text.detokenize import IncrementalDetokenizer
    from tidemill.text.errors import ChatTemplateError, TokenizerError
    from tidemill.text.gguf_tokenizer import tokenizer_from_gguf
    from tidemill.text.hf_tokenizer import tokenizer_from_hf
    from tidemill.text.loading import load_tokenizer
    from tidemill.text.pretokenizers import PRE_TOKENIZERS
    from tidemill.text.stops import StopStrings

_HOMES = {
    "BUILTIN_TEMPLATES": "builtin_templates",
    "PRE_TOKENIZERS": "pretokenizers",
    "ChatPrompt": "chat",
    "ChatTemplate": "chat",
    "ChatTemplateError": "errors",
    "IncrementalDetokenizer": "detokenize",
    "StopStrings": "stops",
    "Tokenizer": "base",
    "TokenizerError": "errors",
    "encode_chat": "chat",
    "load_tokenizer": "loading",
    "tokenizer_from_gguf": "gguf_tokenizer",
    "tokenizer_from_hf": "hf_tokenizer",
}
__all__ = [
    "BUILTIN_TEMPLATES",
    "PRE_TOKENIZERS",
    "ChatPrompt",
    "ChatTemplate",
    "ChatTemplateError",
    "IncrementalDetokenizer",
    "StopStrings",
    "Tokenizer",
    "TokenizerError",
    "encode_chat",
    "load_tokenizer",
    "tokenizer_from_gguf",
    "tokenizer_from_hf",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: who only needs stop strings does not pay for Jinja and the tokenizers.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
