"""Which formats a model uses, by what its chat template writes."""

from __future__ import annotations

from tidemill.server.tools.reasoning import REASONING


def detect(template_source: str) -> str | None:
    """The tool call format (``parser.FORMATS``) of a chat template; None if it has none of those.

    A template writes the calls of earlier turns as the model itself does, so the markers of its
    format are in the source.
    """
    source = template_source
    if "<|channel|>" in source and "<|message|>" in source:
        return "harmony"
    if "<｜tool▁calls▁begin｜>" in source:
        return "deepseek"
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<tool_call>" in source and "<function=" in source and "<parameter=" in source:
        return "qwen3_coder"
    if "<tool_call>" in source and "<arg_key>" not in source and "<tool_calls>" not in source:
        # Others write something else between the same tags.
        return "hermes" if '"name"' in source or '\\"name\\"' in source else None
    if "<|python_start|>" in source or "<|tool_call_start|>" in source:
        return "pythonic"
    if "func_name1(" in source or "```tool_code" in source:
        return "pythonic"
    if "<function=" in source:
        return None  # functionary's: another format after the same tag
    if "<|python_tag|>" in source or (
        "<|start_header_id|>" in source and '"parameters": ' in source
    ):
        return "llama3"
    return None


def detect_reasoning(template_source: str) -> str | None:
    """The reasoning format (``reasoning.REASONING``) of a chat template, or None."""
    for name, tags in REASONING.items():
        if tags.close in template_source or tags.open in template_source:
            return name
    return None


def opens_reasoning(prompt: str, reasoning: str | None) -> bool:
    """Whether a rendered prompt ends with an open reasoning, so that the answer begins in it."""
    return reasoning is not None and prompt.rstrip().endswith(REASONING[reasoning].open)
