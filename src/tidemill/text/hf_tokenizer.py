"""Tokenizers from folders in Hugging Face layout (``tokenizer.json`` and the files beside it)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from tidemill.records import dataclass
from tidemill.text.byte_pairs import library_ids
from tidemill.text.errors import TokenizerError, library_errors
from tidemill.text.special_tokens import end_markers
from tidemill.text.vocabulary import SPACE_MARK, Spelling, TokenType, Vocabulary, is_byte_token
from tidemill.text.vocabulary_tokenizer import GUARD, VocabularyTokenizer

_MAX_FILE_BYTES = 256 << 20
_MAX_TOKENS = 1 << 24


class HfTokenizer(VocabularyTokenizer):
    """A tokenizer that the ``tokenizers`` library runs as ``tokenizer.json`` describes it.

    ``prefix`` and ``suffix`` are the ids that ``add_special`` puts around a text.
    """

    def __init__(
        self,
        library: Tokenizer,
        vocabulary: Vocabulary,
        *,
        prefix: Sequence[int],
        suffix: Sequence[int],
        **common: Any,
    ) -> None:
        super().__init__(vocabulary, **common)
        self._library = library
        self._guarded: Tokenizer | None = None
        self._lock = threading.Lock()
        self._prefix = list(prefix)
        self._suffix = list(suffix)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """See ``Tokenizer.encode``. A text that itself begins with BOS (``parse_special``) gets
        no second one."""
        self._require_text(text)
        with self._lock, library_errors("cannot encode the text"):
            # Whether special tokens are looked for is a state of the library's object.
            self._library.encode_special_tokens = not parse_special
            ids = library_ids(self._library, text)
        if not add_special:
            return ids
        if self._prefix and ids[: len(self._prefix)] == self._prefix:
            return ids + self._suffix
        return self._prefix + ids + self._suffix

    def encode_guarded(self, text: str) -> list[int]:
        self._require_text(text)
        with self._lock, library_errors("cannot encode the text"):
            if self._guarded is None:
                self._guarded = _guarded_copy(self._library)
            return library_ids(self._guarded, text)


def tokenizer_from_hf(folder: Path, *, vocab_size: int | None = None) -> HfTokenizer:
    """The tokenizer of a model folder.

    Reads tokenizer.json, and where they exist tokenizer_config.json, special_tokens_map.json,
    generation_config.json, chat_template.jinja and additional_chat_templates/. ``vocab_size`` is
    the number of the model's logits, if that is more than the tokenizer has tokens.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{folder} has no tokenizer.json; save the tokenizer with transformers"
            " (AutoTokenizer.from_pretrained(...).save_pretrained(...)) to get one"
        )
    with library_errors(f"{path} is not a valid tokenizer"):
        library = Tokenizer.from_buffer(_read(path))
        # A file may ask for truncation or padding, which have no place before a model.
        library.no_truncation()
        library.no_padding()
    special_tokens = _read_json(folder / "special_tokens_map.json")
    config = {**special_tokens, **_read_json(folder / "tokenizer_config.json")}
    generation = _read_json(folder / "generation_config.json")

    decoder = _decoder(library, path)
    vocabulary, ids, control = _vocabulary(library, decoder, path)
    bos = _named_id(config, "bos_token", ids)
    eos = _named_id(config, "eos_token", ids)
    if bos is None:
        bos = next(iter(_id_list(generation, "bos_token_id", len(vocabulary))), None)
    generation_eos = _id_list(generation, "eos_token_id", len(vocabulary))
    if eos is None:
        eos = next(iter(generation_eos), None)
    named = [] if eos is None else [eos]
    eos_ids = frozenset((*named, *generation_eos, *end_markers(ids, vocabulary.types)))

    # As in transformers since version 5, add_bos_token and add_eos_token of tokenizer_config.json
    # do not count: the post-processor of tokenizer.json has them already.
    prefix, suffix = _surrounding_ids(library, path)
    return HfTokenizer(
        library,
        vocabulary,
        prefix=prefix,
        suffix=suffix,
        bos_id=bos,
        eos_id=eos,
        eos_ids=eos_ids,
        special_ids=eos_ids.union(control),
        chat_templates=_chat_templates(folder, config),
        strips_leading_space=decoder.strips_leading_space,
        vocab_size=vocab_size,
    )


@dataclass(frozen=True, slots=True)
class _Decoder:
    """What the ``decoder`` of a tokenizer.json says about how tokens spell bytes."""

    spelling: Spelling
    byte_fallback: bool
    strips_leading_space: bool


def _decoder(library: Tokenizer, path: Path) -> _Decoder:
    state = None if library.decoder is None else json.loads(library.decoder.__getstate__())
    steps = [] if state is None else state.get("decoders", [state])
    spelling: Spelling | None = None
    byte_fallback = strips = False
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                spelling = Spelling.BYTE_LEVEL
            case {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}:
                spelling, strips = Spelling.SENTENCEPIECE, scheme != "never"
            case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
                spelling = Spelling.SENTENCEPIECE
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                strips = start > 0
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case _:
                raise TokenizerError(f"{path}: decoder {step.get('type')!r} is not supported")
    if spelling is None:
        raise TokenizerError(
            f"{path}: its decoder does not say how tokens spell text; byte-level and"
            " SentencePiece vocabularies are supported"
        )
    return _Decoder(spelling, byte_fallback, strips)


def _vocabulary(
    library: Tokenizer, decoder: _Decoder, path: Path
) -> tuple[Vocabulary, dict[str, int], list[int]]:
    """The token list, the id of each text, and the ids of the control tokens."""
    ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
    added = library.get_added_tokens_decoder()
    size = max([*ids.values(), *added, -1]) + 1
    if not 0 < size <= _MAX_TOKENS:
        raise TokenizerError(f"{path}: token ids up to {size - 1:,}; at most {_MAX_TOKENS:,}")
    texts = [""] * size
    for text, token_id in ids.items():
        texts[token_id] = text
    types = bytearray((TokenType.NORMAL,)) * size
    if decoder.byte_fallback:
        for text, token_id in ids.items():
            if is_byte_token(text):
                types[token_id] = TokenType.BYTE
    for token_id, token in added.items():
        texts[token_id] = token.content
        types[token_id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    if decoder.spelling is Spelling.SENTENCEPIECE:
        for token_id in added:
            texts[token_id] = texts[token_id].replace(SPACE_MARK, " ")
    control = [token_id for token_id, token in added.items() if token.special]
    return Vocabulary(texts, bytes(types), decoder.spelling), ids, control


def _surrounding_ids(library: Tokenizer, path: Path) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    with library_errors(f"{path}: cannot encode a text"):
        plain = library.encode("a", add_special_tokens=False).ids
        whole = library.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        stop = start + len(plain)
        if whole[start:stop] == plain:
            return whole[:start], whole[stop:]
    raise TokenizerError(f"{path}: its post-processor does more than to add tokens around a text")


def _guarded_copy(library: Tokenizer) -> Tokenizer:
    """A copy that drops GUARD characters after it has looked for special tokens."""
    state = json.loads(library.to_str())
    for token in state.get("added_tokens", ()):
        # Special tokens that are matched after normalisation would see the guard gone.
        token["normalized"] = token["normalized"] and not token["special"]
    copy = Tokenizer.from_str(json.dumps(state))
    drop = normalizers.Replace(GUARD, "")
    rest = [] if copy.normalizer is None else [copy.normalizer]
    copy.normalizer = normalizers.Sequence([drop, *rest])
    return copy


def _named_id(config: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> int | None:
    """The id of a special token that is given as a text or as an added-token record."""
    value = config.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is None:
        return None
    if not isinstance(value, str):
        raise TokenizerError(f"tokenizer_config.json: {key} is a {type(value).__name__}")
    return ids.get(value)


def _id_list(config: Mapping[str, Any], key: str, n_tokens: int) -> list[int]:
    value = config.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int):
            raise TokenizerError(f"generation_config.json: {key} has {item!r}, not a token id")
    return [item for item in values if 0 <= item < n_tokens]


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. Files of their own take precedence over tokenizer_config.json."""
    found: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        for item in value:
            match item:
                case {"name": str(name), "template": str(template)}:
                    found[name] = template
                case _:
                    raise TokenizerError(
                        "tokenizer_config.json: chat_template has an entry that is not a name and"
                        " a template"
                    )
    elif value is not None:
        raise TokenizerError(f"tokenizer_config.json: chat_template is a {type(value).__name__}")
    main = folder / "chat_template.jinja"
    if main.is_file():
        found["default"] = _read_text(main)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _read_text(path)
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise TokenizerError(f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    return data


def _read_text(path: Path) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value
