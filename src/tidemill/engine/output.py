"""From the tokens of one sample to its text, with stop strings looked for on the way."""

from __future__ import annotations

from tidemill.engine.base import Request
from tidemill.text.base import Tokenizer
from tidemill.text.detokenize import IncrementalDetokenizer, TokenTexts
from tidemill.text.stops import StopStrings


class OutputText:
    """Joined, the pieces it gives are the decoded tokens up to the first stop string."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, tokenizer: Tokenizer, texts: TokenTexts, request: Request) -> None:
        params = request.params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special=params.skip_special_tokens,
            after=request.prompt_token_ids if request.continues_text else (),
            texts=texts,
        )
        self._stops = StopStrings(params.stop) if params.stop else None

    def push(self, token_id: int, *, may_stop: bool) -> tuple[str, str | None]:
        """What may be shown after ``token_id``, and the stop string it completed, if any. Text
        of tokens that may not stop is not searched (before min_tokens)."""
        text = self._detokenizer.push(token_id)
        if self._stops is None or not may_stop:
            return text, None
        return self._stops.push(text)

    def flush(self) -> tuple[str, str | None]:
        """What was held back, at the end; it may still hold a stop string."""
        text = self._detokenizer.flush()
        if self._stops is None:
            return text, None
        shown, stop = self._stops.push(text)
        return (shown, stop) if stop is not None else (shown + self._stops.flush(), None)
