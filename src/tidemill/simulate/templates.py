"""How many tokens a model's chat template adds to what is said, found out by using it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.simulate.traffic import Template
from tidemill.text import ChatTemplate, encode_chat
from tidemill.text.base import Tokenizer

_WORDS = ("river stone morning", "garden winter engine")
"""Two texts of as many tokens that have none in common at the same place, in most vocabularies."""


def template_of(tokenizer: Tokenizer) -> Template:
    """Zeros for a model without a template, and for what its template refuses."""
    if tokenizer.chat_template is None:
        return Template()
    chat = ChatTemplate.for_tokenizer(tokenizer)

    def ids(*messages: tuple[str, str]) -> list[int]:
        said: Sequence[Mapping[str, str]] = [
            {"role": role, "content": content} for role, content in messages
        ]
        return encode_chat(tokenizer, chat, said, add_generation_prompt=True).ids

    one, other = _WORDS
    plain = ids(("user", one))
    before = _common(plain, ids(("user", other)))
    words = len(ids(("user", f"{one} {one}"))) - len(plain)
    after = len(plain) - before - words
    try:
        system = ids(("system", one), ("user", one))
        before_system = _common(system, ids(("system", other), ("user", one)))
        after_system = len(system) - before_system - 2 * words - after
    except ValueError:
        before_system = after_system = 0
    try:
        talk = ids(("user", one), ("assistant", one), ("user", one))
        between = len(talk) - before - 3 * words - 2 * after
    except ValueError:
        between = 0
    return Template(*(max(0, n) for n in (before, before_system, after_system, after, between)))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n
