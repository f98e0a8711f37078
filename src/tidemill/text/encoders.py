"""Encoders of plain text for each kind of GGUF vocabulary.

An encoder gets the text between special tokens, never the special tokens themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidemill.text.byte_pairs import Encode, library_encode
from tidemill.text.errors import TokenizerError, library_errors
from tidemill.text.spm import SpmEncoder
from tidemill.text.vocabulary import SPACE_MARK, TokenType, Vocabulary, is_text


def spm_encoder(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    scores: npt.NDArray[np.float64],
    unknown_id: int | None,
    prefix_space: bool,
) -> Encode:
    """SentencePiece BPE with byte fallback."""
    byte_ids = _byte_ids(vocabulary)
    # SentencePiece never produces control, user-defined or byte tokens by merging.
    hidden = vocabulary.ids_of(TokenType.USER_DEFINED, TokenType.BYTE)
    encoder = SpmEncoder(
        vocabulary.ids,
        array("d", scores.tobytes()),
        hidden=(*special_ids, *hidden, *(byte_ids or ())),
        unused=vocabulary.ids_of(TokenType.UNUSED),
        byte_ids=byte_ids,
        unknown_id=unknown_id,
        prefix_space=prefix_space,
    )
    return encoder.encode


def unigram_encoder(
    vocabulary: Vocabulary,
    special_ids: frozenset[int],
    scores: npt.NDArray[np.float64],
    unknown_id: int | None,
    *,
    charsmap: bytes | None,
    collapse_spaces: bool,
    prefix_space: bool,
) -> Encode:
    """Unigram language model, as T5 uses it."""
    from tokenizers import Regex, Tokenizer, models, normalizers

    if unknown_id is None:
        raise TokenizerError("a t5 vocabulary needs tokenizer.ggml.unknown_token_id")
    byte_ids = vocabulary.ids_of(TokenType.BYTE)
    byte_fallback = len(byte_ids) == 256
    kept = set(vocabulary.ids_of(TokenType.NORMAL, TokenType.UNDEFINED)) - special_ids
    if byte_fallback:
        kept.update(byte_ids)
    # Normalised text has no spaces left, so a name with a space is one that text never matches.
    # Score 0 is the highest and leaves the lowest one, from which the library derives the score
    # of unknown characters, as it is.
    pieces = [
        (text, float(scores[i])) if i in kept and is_text(text) else (f" {i}", 0.0)
        for i, text in enumerate(vocabulary.texts)
    ]
    with library_errors("cannot build the unigram model"):
        tokenizer = Tokenizer(models.Unigram(pieces, unknown_id, byte_fallback))
        steps: list[normalizers.Normalizer] = []
        if charsmap:
            steps.append(normalizers.Precompiled(charsmap))
        if collapse_spaces:
            steps.append(normalizers.Replace(Regex("^ +| +$"), ""))
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        if prefix_space:
            steps.append(normalizers.Prepend(" "))
        steps.append(normalizers.Replace(" ", SPACE_MARK))
        tokenizer.normalizer = normalizers.Sequence(steps)
    return library_encode(tokenizer)


def _byte_ids(vocabulary: Vocabulary) -> Sequence[int] | None:
    """The ids of the 256 byte tokens, None if they are not all there."""
    found = [vocabulary.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    complete = [i for i in found if i is not None]
    return complete if len(complete) == 256 else None
