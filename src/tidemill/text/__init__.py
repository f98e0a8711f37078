"""Tokenizers, chat templates, incremental detokenising, stop strings.

``base.py`` is the contract; ``loading.py`` makes tokenizers from model files.
"""

from tidemill.text.base import Tokenizer
from tidemill.text.errors import ChatTemplateError, TokenizerError
from tidemill.text.gguf_tokenizer import GgufTokenizer, tokenizer_from_gguf
from tidemill.text.hf_tokenizer import HfTokenizer, tokenizer_from_hf
from tidemill.text.loading import load_tokenizer

__all__ = [
    "ChatTemplateError",
    "GgufTokenizer",
    "HfTokenizer",
    "Tokenizer",
    "TokenizerError",
    "load_tokenizer",
    "tokenizer_from_gguf",
    "tokenizer_from_hf",
]
