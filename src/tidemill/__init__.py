"""Tidemill: one LLM inference system, from a laptop to a fleet.

>>> from tidemill import LLM, SamplingParams
>>> LLM("smollm2").generate(["Why is the sky blue?"], SamplingParams(max_tokens=64))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Grammar",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

if TYPE_CHECKING:
    from tidemill.engine.params import SamplingParams
    from tidemill.llm import LLM, AsyncLLM, CompletionOutput, RequestOutput
    from tidemill.text.grammar import Grammar


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `tidemill --help` does not pay for NumPy and the kernels.
    if name == "SamplingParams":
        from tidemill.engine.params import SamplingParams

        return SamplingParams
    if name == "Grammar":
        from tidemill.text.grammar import Grammar

        return Grammar
    if name in __all__:
        from tidemill import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
