"""Requests that follow each other, that are checked, and that come from several tenants."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from typing import Any

import pytest

from support.canned import always, canned
from tidemill.bench.apart import run_apart
from tidemill.bench.arrivals import Closed, Gamma, Load
from tidemill.bench.client import Endpoint
from tidemill.bench.measures import summarise
from tidemill.bench.records import Recording
from tidemill.bench.run import Plan, Progress, run
from tidemill.bench.tasks import Task, Tool
from tidemill.bench.workload import Fixed, Shape, Workload

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: "
TALK = Shape("talk", Fixed(3), Fixed(4), prefix=6, system=True, turns=3, pause=0.01)


def stream(delta: dict[str, Any]) -> bytes:
    """An answer in one piece."""
    choice = {"choices": [{"delta": delta, "finish_reason": "stop"}]}
    data = b"data: " + json.dumps(choice).encode() + b"\n\ndata: [DONE]\n\n"
    return HEAD + b"%d\r\n\r\n" % len(data) + data


def carry_out(
    shapes: tuple[Shape, ...], load: Load, answer: dict[str, Any] | None = None, **fields: Any
) -> tuple[Recording, list[bytes]]:
    """A short run, and the requests that came of it: in a closed loop, on any machine some."""

    def reply(connection: socket.socket, number: int) -> bool:
        connection.sendall(stream(answer or {"content": f"answer {number}"}))
        return True

    with canned(reply) as server:
        plan = Plan(
            endpoint=Endpoint(server.url, "m", **fields), workload=Workload(shapes), load=load,
            seconds=0.4 if isinstance(load, Closed) else 1.0, warmup=0.05, requests=20,
        )  # fmt: skip
        return asyncio.run(run(plan)), list(server.requests)


def body(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("load", [Closed(1), Gamma(20.0)], ids=["closed", "open"])
def test_a_turn_has_all_before_it_and_what_was_answered(load: Load) -> None:
    recording, requests = carry_out((TALK,), load)
    answers = {f"answer {i}" for i in range(len(requests))}
    by_length: dict[int, list[Any]] = {}
    for request in requests:
        messages = body(request)["messages"]
        assert [m["role"] for m in messages] == [
            "system", *["user", "assistant"] * ((len(messages) - 2) // 2), "user",
        ]  # fmt: skip
        assert {m["content"] for m in messages if m["role"] == "assistant"} <= answers
        by_length.setdefault(len(messages), []).append(messages)
    if isinstance(load, Closed):  # which goes on until so many have been answered
        assert set(by_length) == {2, 4, 6}
    assert set(by_length) <= {2, 4, 6}
    assert len({messages[0]["content"] for all_ in by_length.values() for messages in all_}) == 1
    # What a turn begins with is another request, whole, of the turn before.
    for messages in by_length.get(6, []):
        assert messages[:4] in by_length[4]
    for record in recording.records:
        assert record.error is None
        assert record.turn in (0, 1, 2)
    talks: dict[int, list[Any]] = {}
    for record in sorted(recording.records, key=lambda r: r.sent):
        talks.setdefault(record.index, []).append(record)
    for index, talk in talks.items():
        if index == 0:  # the probe, and nothing after it
            continue
        assert [r.turn for r in talk] == list(range(len(talk)))
        for before, after in itertools.pairwise(talk):
            assert after.due >= before.ended + TALK.pause - 1e-3


def test_a_conversation_ends_with_its_first_error() -> None:
    def refuse(connection: socket.socket, number: int) -> bool:
        if number == 0:
            connection.sendall(stream({"content": "yes"}))
        else:
            connection.sendall(b"HTTP/1.1 503 Gone\r\nContent-Length: 0\r\n\r\n")
        return True

    with canned(refuse) as server:
        plan = Plan(
            endpoint=Endpoint(server.url, "m"), workload=Workload((TALK,)), load=Closed(1),
            seconds=0.3, warmup=0.0,
        )  # fmt: skip
        recording = asyncio.run(run(plan))
    assert {r.turn for r in recording.records} == {0}


TASK = Task("Count $n.", {"n": (4, 5)}, ("n",), schema={"type": "object"})
CALL = Task("Call $n.", {"n": (4,)}, ("n",), tools=(Tool("f", "", {}),), call="f")


def test_answers_are_checked() -> None:
    shape = Shape("task", None, Fixed(9), task=TASK)
    recording, requests = carry_out((shape,), Closed(1), {"content": '{"n": 4}'})
    asked = body(requests[0])
    assert asked["response_format"]["type"] == "json_schema"
    assert asked["messages"][-1]["content"] in ("Count 4.", "Count 5.")
    for record in recording.records:
        wanted = (
            "right" if "4" in body(requests[record.index])["messages"][0]["content"] else "wrong"
        )
        assert record.verdict == wanted
    summary = summarise(recording)
    assert set(summary.verdicts) == {"right", "wrong"}
    assert sum(summary.verdicts.values()) == summary.good


def test_calls_are_checked_however_they_are_cut() -> None:
    shape = Shape("call", None, Fixed(9), task=CALL)
    whole = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"n": 4}'}}]}
    recording, _ = carry_out((shape,), Closed(1), whole)
    assert {r.verdict for r in recording.records} == {"right"}
    no_call, _ = carry_out((shape,), Closed(1), {"content": "I will not."})
    assert {r.verdict for r in no_call.records} == {"malformed"}


def test_tenants_use_their_own_keys() -> None:
    shapes = tuple(Shape(name, Fixed(3), Fixed(4), tenant=name) for name in ("a", "b", "c"))
    _, requests = carry_out(shapes, Closed(1), api_key="all", keys={"a": "for-a", "b": "for-b"})
    keys = {
        line for request in requests for line in request.split(b"\r\n")
        if line.startswith(b"Authorization")
    }  # fmt: skip
    assert keys == {b"Authorization: Bearer " + key for key in (b"for-a", b"for-b", b"all")}


def test_progress_is_told() -> None:
    told: list[Progress] = []
    with canned(always(stream({"content": "x"}))) as server:
        plan = Plan(
            endpoint=Endpoint(server.url, "m"), workload=Workload((TALK,)), load=Closed(1),
            seconds=1.6, warmup=0.0, requests=500,  # which do not end all at once after a pause
        )  # fmt: skip
        recording = run_apart(plan, told.append)
    assert [p.sent for p in told] == sorted(p.sent for p in told)
    measuring = [p for p in told if p.phase == "measuring"]
    assert [p.left for p in measuring] == sorted((p.left for p in measuring), reverse=True)
    last = measuring[-1]
    assert 0 < last.ended <= len(recording.records)
    assert last.in_flight in (0, 1)
    assert last.failed == 0
    assert last.left <= 1.6
    assert last.request_rate > 0
    assert last.output_rate >= last.request_rate
    assert last.ttft_p50 is not None
    assert last.ttft_p99 is not None
    assert 0 < last.ttft_p50 <= last.ttft_p99


def test_pauses_end_with_the_window() -> None:
    """What would be due in an hour is not waited for."""
    talk = Shape("talk", Fixed(3), Fixed(4), turns=3, pause=3600)
    recording, _ = carry_out((talk,), Gamma(40.0))
    assert recording.records
    assert {r.turn for r in recording.records} == {0}
