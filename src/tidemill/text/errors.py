"""What this room raises on bad input. Both are ValueErrors: the input is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TokenizerError(ValueError):
    """A tokenizer description is damaged, hostile or unsupported, or a text or id is invalid.

    The message says what was wrong, in which key or file, and what to do.
    """


class TextTooLongError(TokenizerError):
    """A text has more characters than its caller has tokens for."""


class ChatTemplateError(ValueError):
    """A chat template is missing, invalid, refused the messages, or went over its limits."""


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the ``tokenizers`` library raises while doing ``what`` into TokenizerError.

    Its constructors raise bare ``Exception`` on bad input, and a panic in its native code arrives
    as an exception that derives from BaseException only.
    """
    try:
        yield
    except (TokenizerError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise TokenizerError(f"{what}: {error}") from error
