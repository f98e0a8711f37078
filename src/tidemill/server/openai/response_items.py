"""The output of ``/v1/responses``: items that grow as an answer comes, and the events of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.server.http import sse
from tidemill.server.tools import CallArguments, CallBegin, Content, Piece, Reasoning


class Items:
    """Items of one response. ``push`` and ``finish`` give the events of what they change;
    ``output`` is what there is so far. One item is open at a time."""

    def __init__(self, id: str) -> None:
        self.output: list[dict[str, Any]] = []
        self._id = id
        self._sequence = 0
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []  # of the open item

    def event(self, kind: str, **fields: Any) -> bytes:
        """The next event."""
        number, self._sequence = self._sequence, self._sequence + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)

    def push(self, piece: Piece, scores: list[dict[str, Any]] | None = None) -> Iterator[bytes]:
        """Take the next piece of the answer; ``scores`` are of the tokens of a text."""
        match piece:
            case Content(text):
                yield from self._within("message")
                yield self._text("response.output_text.delta", text, logprobs=scores or [])
                if scores and self._open is not None:
                    self._open["content"][0]["logprobs"] += scores
            case Reasoning(text):
                yield from self._within("reasoning")
                yield self._text("response.reasoning_text.delta", text)
            case CallBegin(_, id, name):
                yield from self.finish()
                yield from self._begin("function_call", call_id=id, name=name, arguments="")
            case CallArguments(_, text):
                self._texts.append(text)
                yield self._of_item("response.function_call_arguments.delta", delta=text)

    def finish(self, status: str = "completed") -> Iterator[bytes]:
        """End the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(self._texts)
        item["status"] = status
        place = {"item_id": item["id"], "output_index": len(self.output) - 1}
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self.event("response.function_call_arguments.done", **place, arguments=text,
                             name=item["name"])  # fmt: skip
        else:
            part = item["content"][0]
            part["text"] = text
            place_of_part = {**place, "content_index": 0}
            if item["type"] == "message":
                yield self.event("response.output_text.done", **place_of_part, text=text,
                                 logprobs=part["logprobs"])  # fmt: skip
            else:
                yield self.event("response.reasoning_text.done", **place_of_part, text=text)
            yield self.event("response.content_part.done", **place_of_part, part=part)
        yield self.event("response.output_item.done", output_index=place["output_index"], item=item)

    def _within(self, kind: str) -> Iterator[bytes]:
        """Whatever it takes for an item of that kind to be open."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.finish()
        if kind == "message":
            part: dict[str, Any] = {
                "type": "output_text", "text": "", "annotations": [], "logprobs": [],
            }  # fmt: skip
            yield from self._begin("message", role="assistant", content=[])
        else:
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin("reasoning", summary=[], content=[])
        assert self._open is not None
        yield self._of_item("response.content_part.added", content_index=0, part=part)
        self._open["content"].append(part)

    def _begin(self, kind: str, **fields: Any) -> Iterator[bytes]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        id = f"{prefix}_{self._id}_{len(self.output)}"
        self._open = {"id": id, "type": kind, "status": "in_progress", **fields}
        self._texts = []
        self.output.append(self._open)
        yield self.event(
            "response.output_item.added", output_index=len(self.output) - 1, item=self._open
        )

    def _text(self, kind: str, text: str, **fields: Any) -> bytes:
        self._texts.append(text)
        return self._of_item(kind, content_index=0, delta=text, **fields)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        assert self._open is not None
        return self.event(
            kind, item_id=self._open["id"], output_index=len(self.output) - 1, **fields
        )
