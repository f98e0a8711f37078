"""A model's text to the parts of an assistant message, and messages to what templates take.

Pure: no I/O. ``pieces`` is what comes out; ``parser`` puts the parts together; each format of tool
calls is a file with a grammar, over ``scanner``, ``steps`` and ``values``; ``reasoning`` splits
thinking off; ``detect`` finds a model's formats; ``messages`` is the way back.
"""

from tidemill.server.tools.detect import detect, detect_reasoning, opens_reasoning
from tidemill.server.tools.messages import TemplateInput, TemplateTraits, for_template
from tidemill.server.tools.parser import FORMATS, Parser, parser_for
from tidemill.server.tools.pieces import (
    CallArguments,
    CallBegin,
    Content,
    Message,
    Piece,
    Reasoning,
    ToolCall,
    assemble,
)
from tidemill.server.tools.reasoning import REASONING

__all__ = [
    "FORMATS",
    "REASONING",
    "CallArguments",
    "CallBegin",
    "Content",
    "Message",
    "Parser",
    "Piece",
    "Reasoning",
    "TemplateInput",
    "TemplateTraits",
    "ToolCall",
    "assemble",
    "detect",
    "detect_reasoning",
    "for_template",
    "opens_reasoning",
    "parser_for",
]
