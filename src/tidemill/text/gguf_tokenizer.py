"""Tokenizers from the metadata of GGUF files (keys ``tokenizer.ggml.*``).

Source of the keys and their meaning: the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill._native import Texts
from tidemill.records import dataclass
from tidemill.text.byte_pairs import ByteLevelEncoder, Encode
from tidemill.text.encoders import spm_encoder, unigram_encoder
from tidemill.text.errors import TokenizerError
from tidemill.text.gguf_metadata import TokenizerMetadata
from tidemill.text.matcher import TokenMatcher
from tidemill.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from tidemill.text.special_tokens import end_markers
from tidemill.text.vocabulary import SPACE_MARK, Spelling, TokenType, Vocabulary
from tidemill.text.vocabulary_tokenizer import GUARD, VocabularyTokenizer

log = logging.getLogger(__name__)

# Ids that hold where a file does not name them, as the formats' first converters assumed.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "gpt2": {"bos": 11, "eos": 11},
}


class GgufTokenizer(VocabularyTokenizer):
    """A tokenizer whose special tokens are found here and whose plain text an encoder encodes.

    The encoder is made when it is first needed.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        make_encoder: Callable[[], Encode],
        add_bos: bool,
        add_eos_id: int | None,
        swallow_right: frozenset[int],
        **common: Any,
    ) -> None:
        super().__init__(vocabulary, **common)
        self._make_encoder = make_encoder
        self._encoder: Encode | None = None
        self._lock = threading.Lock()
        self._add_bos = add_bos
        self._add_eos_id = add_eos_id
        self._swallow_right = swallow_right

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """See ``Tokenizer.encode``. A text that itself begins with BOS (``parse_special``) gets
        no second one."""
        self._require_text(text)
        matcher = self._all_matcher if parse_special else self._user_matcher
        ids: list[int] = []
        for part in matcher.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._encode_plain(part))
        if add_special:
            if self._add_bos and self._bos_id is not None and ids[:1] != [self._bos_id]:
                ids.insert(0, self._bos_id)
            if self._add_eos_id is not None:
                ids.append(self._add_eos_id)
        return ids

    def encode_guarded(self, text: str) -> list[int]:
        self._require_text(text)
        ids: list[int] = []
        for part in self._all_matcher.split(text):
            if isinstance(part, int):
                ids.append(part)
            elif plain := part.replace(GUARD, ""):
                ids.extend(self._encode_plain(plain))
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        if self._encoder is None:
            with self._lock:
                if self._encoder is None:
                    self._encoder = self._make_encoder()
        return self._encoder(text)

    @cached_property
    def _user_matcher(self) -> TokenMatcher:
        """User-defined tokens are found in any text."""
        return self._matcher(self.vocabulary.ids_of(TokenType.USER_DEFINED))

    @cached_property
    def _all_matcher(self) -> TokenMatcher:
        user_defined = self.vocabulary.ids_of(TokenType.USER_DEFINED)
        return self._matcher([*user_defined, *self._special_ids])

    def _matcher(self, ids: list[int]) -> TokenMatcher:
        texts = self.vocabulary.texts
        return TokenMatcher({texts[i]: i for i in ids}, self._swallow_right)


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How plain text becomes tokens, and what the kind of vocabulary adds around it by default."""

    make_encoder: Callable[[], Encode]
    add_bos: bool
    add_eos: bool
    prefix_space: bool


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, pre: str | None = None) -> GgufTokenizer:
    """The tokenizer that a GGUF file describes.

    ``pre`` overrides the file's ``tokenizer.ggml.pre`` by a name of PRE_TOKENIZERS (byte-level BPE
    only). Raises TokenizerError for vocabularies that are damaged or of an unsupported kind, and
    for an unknown or missing pre-tokenizer that is not overridden: a wrong one gives no error
    later, only worse text.
    """
    keys = TokenizerMetadata(metadata)
    model = keys.text("model")
    if model not in _DEFAULT_IDS:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}; supported are {', '.join(sorted(_DEFAULT_IDS))}"
        )
    vocabulary = _vocabulary(keys, byte_level=model == "gpt2")
    bos, eos, unknown = (
        _special_id(keys, name, model, vocabulary) for name in ("bos", "eos", "unknown")
    )
    eot, eom = (keys.token_id(f"{name}_token_id", len(vocabulary)) for name in ("eot", "eom"))
    eos_ids = frozenset(i for i in (eos, eot, eom) if i is not None)
    eos_ids = eos_ids.union(end_markers(vocabulary.ids, vocabulary.types))
    special_ids = eos_ids.union(vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN))

    if model == "gpt2":
        scheme = _byte_level_scheme(keys, vocabulary, special_ids, pre)
    elif model == "llama":
        scheme = _spm_scheme(keys, vocabulary, special_ids, unknown)
    else:
        scheme = _unigram_scheme(keys, vocabulary, special_ids, unknown)

    add_bos, add_eos = keys.flag("add_bos_token"), keys.flag("add_eos_token")
    if add_bos is None:
        add_bos = scheme.add_bos and bos is not None
    if add_eos is None:
        add_eos = scheme.add_eos and eos is not None
    for wanted, token_id, name in ((add_bos, bos, "bos"), (add_eos, eos, "eos")):
        if wanted and token_id is None:
            raise TokenizerError(
                f"tokenizer.ggml.add_{name}_token is set, but there is no valid"
                f" tokenizer.ggml.{name}_token_id"
            )
    return GgufTokenizer(
        vocabulary,
        make_encoder=scheme.make_encoder,
        add_bos=add_bos,
        add_eos_id=eos if add_eos else None,
        swallow_right=_swallow_right(metadata, model, vocabulary, special_ids),
        bos_id=bos,
        eos_id=eos,
        eos_ids=eos_ids,
        special_ids=special_ids,
        chat_templates=keys.chat_templates(),
        strips_leading_space=scheme.prefix_space,
    )


def _vocabulary(keys: TokenizerMetadata, *, byte_level: bool) -> Vocabulary:
    texts = keys.texts("tokens")
    if not texts:
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty")
    numbers = keys.numbers("token_type", len(texts))
    if numbers is None:
        types = bytes((TokenType.NORMAL,)) * len(texts)
    else:
        known = np.isin(numbers, [int(kind) for kind in TokenType])
        types = np.where(known, numbers, TokenType.UNDEFINED).astype(np.uint8).tobytes()
    if not byte_level:
        # Older converters wrote the spaces of user-defined tokens as SentencePiece does.
        user_defined = np.flatnonzero(np.frombuffer(types, np.uint8) == TokenType.USER_DEFINED)
        marked = [i for i in user_defined.tolist() if SPACE_MARK in texts[i]]
        if marked:
            changed = list(texts)
            for i in marked:
                changed[i] = changed[i].replace(SPACE_MARK, " ")
            texts = Texts(changed)
    spelling = Spelling.BYTE_LEVEL if byte_level else Spelling.SENTENCEPIECE
    vocabulary = Vocabulary(texts, types, spelling)
    if (twice := vocabulary.ids.twice) is not None:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has {texts[twice[0]]!r} twice, as {twice[0]} and {twice[1]}"
        )
    return vocabulary


def _special_id(
    keys: TokenizerMetadata, name: str, model: str, vocabulary: Vocabulary
) -> int | None:
    token_id = keys.token_id(f"{name}_token_id", len(vocabulary))
    if token_id is not None:
        return token_id
    default = _DEFAULT_IDS[model].get(name)
    if default is None or default >= len(vocabulary):
        return None
    # Other byte-level vocabularies than Falcon's have an ordinary token at its place.
    if model == "gpt2" and vocabulary.types[default] != TokenType.CONTROL:
        return None
    return default


def _byte_level_scheme(
    keys: TokenizerMetadata,
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    override: str | None,
) -> _Scheme:
    pre = _pre_tokenizer(keys.text("pre"), override)
    merges = keys.texts("merges")
    if merges is None:
        raise TokenizerError("tokenizer.ggml.merges is missing")

    def make_encoder() -> Encode:
        return ByteLevelEncoder(vocabulary, special_ids, merges, pre).encode

    return _Scheme(make_encoder, add_bos=pre.add_bos, add_eos=False, prefix_space=False)


def _pre_tokenizer(name: str | None, override: str | None) -> PreTokenizer:
    known = ", ".join(sorted(PRE_TOKENIZERS))
    if override is not None:
        if override not in PRE_TOKENIZERS:
            raise TokenizerError(f"unknown pre-tokenizer {override!r}; known are: {known}")
        if override != name:
            log.warning("pre-tokenizer %r used on request instead of the file's %r", override, name)
        return PRE_TOKENIZERS[override]
    if not name:
        raise TokenizerError(
            "the file does not name its pre-tokenizer (tokenizer.ggml.pre), and a wrong one would"
            " quietly degrade the model; give it by name (--pre-tokenizer; in Python"
            f" pre_tokenizer=), one of: {known}"
        )
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, which is not known; if it splits text like one of"
            f" these, give that name (--pre-tokenizer; in Python pre_tokenizer=): {known}"
        )
    return PRE_TOKENIZERS[name]


def _spm_scheme(
    keys: TokenizerMetadata,
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    unknown_id: int | None,
) -> _Scheme:
    scores = _scores(keys, vocabulary)
    prefix_space = keys.flag("add_space_prefix") is not False

    def make_encoder() -> Encode:
        return spm_encoder(vocabulary, special_ids, scores, unknown_id, prefix_space)

    return _Scheme(make_encoder, add_bos=True, add_eos=False, prefix_space=prefix_space)


def _unigram_scheme(
    keys: TokenizerMetadata,
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    unknown_id: int | None,
) -> _Scheme:
    scores = _scores(keys, vocabulary)
    charsmap = keys.data("precompiled_charsmap")
    collapse_spaces = keys.flag("remove_extra_whitespaces") is True
    prefix_space = keys.flag("add_space_prefix") is True

    def make_encoder() -> Encode:
        return unigram_encoder(
            vocabulary,
            special_ids,
            scores,
            unknown_id,
            charsmap=charsmap,
            collapse_spaces=collapse_spaces,
            prefix_space=prefix_space,
        )

    return _Scheme(make_encoder, add_bos=False, add_eos=True, prefix_space=prefix_space)


def _scores(keys: TokenizerMetadata, vocabulary: Vocabulary) -> npt.NDArray[np.float64]:
    scores = keys.numbers("scores", len(vocabulary))
    if scores is None:
        raise TokenizerError("tokenizer.ggml.scores is missing")
    scores = scores.astype(np.float64)
    if not np.isfinite(scores).all():
        raise TokenizerError("tokenizer.ggml.scores has entries that are not finite")
    return scores


def _swallow_right(
    metadata: Mapping[str, Any], model: str, vocabulary: Vocabulary, special_ids: frozenset[int]
) -> frozenset[int]:
    """Phi-3's added tokens swallow the white space that follows; GGUF has no key for that."""
    name = f"{metadata.get('general.architecture')} {metadata.get('general.name')}".lower()
    if model != "llama" or not ("phi3" in name or "phi-3" in name):
        return frozenset()
    texts = vocabulary.texts
    found = special_ids.union(vocabulary.ids_of(TokenType.USER_DEFINED))
    return frozenset(i for i in found if texts[i] not in ("<unk>", "<s>", "<|endoftext|>"))
