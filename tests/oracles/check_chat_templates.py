"""Render the chat templates that llama.cpp's source collects with Transformers and with Tidemill.

    PYTHONPATH=src python tests/oracles/check_chat_templates.py LLAMA_CPP/models/templates

Needs transformers (5 or later). Every template meets several conversations, with and without
tools; the two texts must be equal, or both must refuse. The templates are other people's, so
nothing is recorded: run.sh fetches llama.cpp's source and runs this.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from tidemill.text.chat import ChatTemplate
from tidemill.text.errors import ChatTemplateError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get <weather> & more",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Stadt Zürich"},
                    "update": {"type": "boolean"},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": 'Hello "you" é'}
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Bern", "n": 1.5}},
}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "user": ([USER], {}),
    "turns": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Hi\n"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Go"},
        ],
        {},
    ),
    "finished": (
        [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}],
        {"add_generation_prompt": False},
    ),
    "tools": ([USER], {"tools": TOOLS}),
    "called": (
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": CALL["id"], "name": "get_weather", "content": "3"},
            {"role": "user", "content": "thanks"},
        ],
        {"tools": TOOLS},
    ),
    "quiet": ([USER], {"enable_thinking": False}),
}
TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
# These mark text as safe, which makes the reference escape HTML in the middle of a prompt.
ESCAPED = {"meetkai-functionary-medium-v3.1.jinja"}


def ours(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    try:
        return ChatTemplate(source, special_tokens=TOKENS).render(messages, **options)
    except ChatTemplateError:
        return None


def theirs(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    options = {"add_generation_prompt": True, **options}
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=source, **TOKENS, **options
        )
    except Exception:  # whatever a template may raise
        return None
    return str(rendered[0])


def main() -> None:
    paths = sorted(Path(sys.argv[1]).glob("*.jinja"))
    equal = refused = 0
    different: list[str] = []
    for path in paths:
        source = path.read_text()
        for name, (messages, options) in CONVERSATIONS.items():
            expected = theirs(source, messages, options)
            if ours(source, messages, options) != expected:
                different.append(f"{path.name} ({name})")
            elif expected is None:
                refused += 1
            else:
                equal += 1
    print(f"{len(paths)} templates: {equal} renderings equal, {refused} refused by both")
    wrong = [item for item in different if item.split(" (")[0] not in ESCAPED]
    if wrong or equal < 200:
        raise SystemExit("different: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
