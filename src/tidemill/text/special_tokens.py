"""Which tokens end a generation, for files that name only one of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidemill._native import TextIndex
from tidemill.text.vocabulary import TokenType

# Texts that only ever mark the end of a turn or message. Some converters typed them as normal
# tokens by mistake, so the type is not asked.
END_MARKERS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
)
# The same for code models that write file after file: padding, repository and file separators.
FILE_MARKERS = (
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
)
# Texts that can also be plain content ("</s>" is the end of struck-through HTML in Gemma): they
# count only as control tokens.
END_CONTROLS = ("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<PAD>", "[PAD]", "<REPO>")


def end_markers(ids: Mapping[str, int] | TextIndex, types: Sequence[int]) -> Iterator[int]:
    """The ids among ``ids`` that end a generation by what they are called."""
    for text in (*END_MARKERS, *FILE_MARKERS):
        # In OpenAI's harmony format <|end|> closes a message and the turn goes on.
        if text == "<|end|>" and ("<|call|>" in ids or "<|calls|>" in ids):
            continue
        if text in ids:
            yield ids[text]
    for text in END_CONTROLS:
        if text in ids and types[ids[text]] == TokenType.CONTROL:
            yield ids[text]
