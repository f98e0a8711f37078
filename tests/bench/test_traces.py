"""Traces in the columns of Azure and BurstGPT and our own, and in Mooncake's JSON. All made up."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from support.canned import always, canned
from tidemill.bench import traces
from tidemill.bench.arrivals import Closed, Gamma, Trace, variation
from tidemill.bench.client import Endpoint
from tidemill.bench.records import MIN_SECONDS
from tidemill.bench.run import Plan, run
from tidemill.bench.scenario import Scenario, ScenarioError, load, prepare, prepare_under, replay
from tidemill.bench.trace_files import TraceError
from tidemill.bench.traces import TraceFile
from tidemill.bench.workload import Fixed, Part, Shape, Size, Workload

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:06.9799600,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 02:00:02.009930+02:00,76,15
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,0,0,0,Conversation log
45.5,GPT-4,1087,0,1087,API log
118,GPT-4,417,276,693,"log, quoted"
"""
BURST_GPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,,2,ChatGPT,36,29,65,API log
"""
OURS = """timestamp,input_tokens,output_tokens,prefix_group,prefix_tokens
0,100,5,a,60
0.5,80,6,a,60
1,70,7,,
1.5,50,8,b,50
"""


MOONCAKE = """\
{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 500, "input_length": 1200, "output_length": 6, "hash_ids": [0, 1, 3]}

{"output_length": 7, "timestamp": 500.5, "input_length": 700, "hash_ids": [0, 4], "model": "m"}
{"timestamp": 2000, "input_length": 30, "output_length": 8, "hash_ids": [5]}
{"timestamp": 2500, "input_length": 30, "output_length": 9, "hash_ids": [5]}
{"timestamp": 3000, "input_length": 30, "output_length": 9}
{"timestamp": 3000, "input_length": 30, "output_length": 0}
"""


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def offsets(trace: TraceFile) -> list[float]:
    stamps = traces.read(trace).timestamps
    return [stamp - stamps[0] for stamp in stamps]


@pytest.mark.parametrize(
    ("text", "times", "sizes"),
    [
        (AZURE_2023, [0, 0.052, 3], [(4808, 10), (3180, 8), (110, 27)]),
        (AZURE_2024, [0, 0.99007, 2], [(2162, 5), (2399, 6), (76, 15)]),
        (BURST_GPT, [0, 113], [(472, 18), (417, 276)]),
        (BURST_GPT_3, [0, 51], [(906, 446), (36, 29)]),
        ("timestamp\n1\n2\n\n4\n", [0, 1, 3], []),
        ("\ufeffGeneratedTokens,timestamp , CONTEXTTOKENS\r\n7,1,8.0\r\n", [0], [(8, 7)]),
        ('"timestamp","note"\n"1","a\nb"\n"2",""', [0, 1], []),
    ],
)
def test_columns(
    tmp_path: Path, text: str, times: list[float], sizes: list[tuple[int, int]]
) -> None:
    trace = TraceFile(write(tmp_path, text))
    assert offsets(trace) == pytest.approx(times, abs=1e-5)
    assert [(s.input, s.output) for s in traces.read(trace).sizes] == sizes


def test_prefix_groups(tmp_path: Path) -> None:
    found = traces.read(TraceFile(write(tmp_path, OURS)))
    shared = (Part("a", 60),)
    # What only one request has is no beginning that is shared.
    assert found.sizes == (Size(100, 5, shared), Size(80, 6, shared), Size(70, 7), Size(50, 8))
    assert "trace: 40% of the tokens of prompts are in beginnings that are shared" in found.notes
    workload = Workload((Shape("trace", Fixed(1)),), 3, found.sizes)
    probe, *prompts = [workload.prompt(i).text.split() for i in range(5)]
    assert [len(prompt) for prompt in prompts] == [100, 80, 70, 50]
    assert len(probe) == 100
    assert prompts[0][:60] == prompts[1][:60] == probe[:60]
    assert prompts[0][60:80] != prompts[1][60:80]
    assert prompts[3] != prompts[0][:50]
    assert workload.prompt(2).max_tokens == 6
    other = Workload((Shape("trace", Fixed(1)),), 4, found.sizes)
    assert other.prompt(1).text.split()[:60] != prompts[0][:60]


def test_mooncake_traces(tmp_path: Path) -> None:
    found = traces.read(TraceFile(write(tmp_path, MOONCAKE, "t.jsonl")))
    assert found.timestamps == (0, 0.5, 0.5005, 2, 2.5, 3)
    two, short = (Part("0", 512), Part("1", 512)), (Part("5", 30),)
    # The last part of a prompt is shorter; that of a prompt that another repeats is shared too.
    assert found.sizes == (
        Size(1300, 5, two), Size(1200, 6, two), Size(700, 7, two[:1]), Size(30, 8, short),
        Size(30, 9, short), Size(30, 9),
    )  # fmt: skip
    assert any("1 rows without tokens" in note for note in found.notes)
    workload = Workload((Shape("trace", Fixed(1)),), 3, found.sizes)
    first, second, third, fourth, fifth, sixth = (
        workload.prompt(i).text.split() for i in range(1, 7)
    )
    assert [len(prompt) for prompt in (first, second, third)] == [1300, 1200, 700]
    assert first[:1024] == second[:1024]
    assert first[:512] == third[:512]
    assert first[512:520] != third[512:520]
    assert first[1024:1032] != second[1024:1032]
    assert fourth == fifth != sixth


def test_mooncake_traces_that_are_scaled_and_cut_still_share(tmp_path: Path) -> None:
    file = write(tmp_path, MOONCAKE, "t.jsonl")
    scaled = traces.read(TraceFile(file, scale=0.25)).sizes
    assert [size.input for size in scaled[:3]] == [325, 300, 175]
    assert scaled[0].parts == scaled[1].parts == (Part("0", 128), Part("1", 128))
    assert scaled[2].parts == (Part("0", 128),)
    cut = traces.read(TraceFile(file, context=1200)).sizes
    room = int((1200 - 256) / 1.25)
    assert cut[0] == Size(room - 5, 5, (Part("0", 512), Part("1", room - 5 - 512)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "is no request of a trace: Object missing required field `timestamp`"),
        ('{"timestamp": 9e3, "input_length": 9}', "missing required field `output_length`"),
        ('{"timestamp": "x", "input_length": 9, "output_length": 9}', "Expected `float`"),
        ('{"timestamp": 9e99, "input_length": 9, "output_length": 9}', "Expected `float` <= "),
        ('{"timestamp": NaN, "input_length": 9, "output_length": 9}', "is no request of a trace"),
        ('{"timestamp": 9e3, "input_length": -1, "output_length": 9}', "Expected `int` >= 0"),
        ('{"timestamp": 9e3, "input_length": 1e9, "output_length": 9}', "input_length"),
        ('{"timestamp": 9e3, "input_length": 9, "output_length": 9, "hash_ids": [""]}', "hash_ids"),
        (
            '{"timestamp": 9e3, "input_length": 512, "output_length": 9, "hash_ids": [1, 2]}',
            "has 2 hash_ids for 512 tokens: each stands for 512",
        ),
        ('{"timestamp": 1, "input_length": 9, "output_length": 9}', "comes before the one above"),
        ("[" * 100_000, "is no request of a trace"),
        ("timestamp,input_tokens", "is no request of a trace"),
        ('{"timestamp": 9e3, "x": "' + "y" * (1 << 20) + '"}', "is too long"),
    ],
)  # fmt: skip
def test_what_is_no_line_of_a_trace(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(TraceError, match=f"t.csv, line 9 .*{re.escape(said)}"):
        traces.read(TraceFile(write(tmp_path, f"{MOONCAKE}{line}\n")))


def test_a_rate_makes_it_faster_or_slower(tmp_path: Path) -> None:
    file = write(tmp_path, OURS)  # 4 requests in 2 s
    for rate, speed in ((2.0, 1.0), (5.0, 2.5), (0.5, 0.25)):
        prepared = prepare(replay(TraceFile(file, rate=rate), None))
        assert prepared.load == Trace((0.0, 0.5, 1.0, 1.5), speed)
        assert prepared.scenario.seconds == pytest.approx(4 / rate)
    assert TraceFile(file, speed=3.0).at(5.0) == TraceFile(file, rate=5.0)
    with pytest.raises(ValueError, match="speed or rate, not both"):
        TraceFile(file, speed=3.0, rate=5.0)
    at_once = write(tmp_path, "timestamp,input_tokens,output_tokens\n1,2,3\n1,2,3\n", "once.csv")
    with pytest.raises(TraceError, match="all requests came at once, which is no rate"):
        traces.read(TraceFile(at_once, rate=1.0))


def test_a_closed_loop_has_a_traces_requests_again_and_again(tmp_path: Path) -> None:
    scenario = replay(TraceFile(write(tmp_path, OURS)), None)
    prepared = prepare_under(scenario, Closed(3), 7.0, 2.0, 5)
    assert prepared.load == prepared.scenario.load == Closed(3)
    assert (prepared.scenario.seconds, prepared.scenario.warmup) == (7.0, 2.0)
    assert prepared.context == prepare(scenario).context
    prompts = [prepared.workload.prompt(i) for i in range(1, 9)]
    assert [len(p.text.split()) for p in prompts] == [100, 80, 70, 50] * 2
    assert prompts[0].text != prompts[4].text
    assert [p.max_tokens for p in prompts[:4]] == [5, 6, 7, 8]


def test_what_failed_when_it_was_recorded_is_left_out_and_said(tmp_path: Path) -> None:
    notes = traces.read(TraceFile(write(tmp_path, BURST_GPT))).notes
    assert any("2 rows without tokens" in note for note in notes)
    assert not any(
        "left out" in note for note in traces.read(TraceFile(write(tmp_path, OURS))).notes
    )


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"start": 0.5}, [0, 0.5, 1]),
        ({"start": 0.4, "end": 1.5}, [0, 0.5]),
        ({"limit": 2}, [0, 0.5]),
        ({"start": 1, "limit": 1}, [0]),
    ],
)
def test_a_part(tmp_path: Path, fields: dict[str, float], times: list[float]) -> None:
    assert offsets(TraceFile(write(tmp_path, OURS), **fields)) == times  # type: ignore[arg-type]


def test_a_part_is_read_no_further_than_it_goes(tmp_path: Path) -> None:
    file = write(tmp_path, OURS + "nonsense\n")
    assert len(traces.read(TraceFile(file, limit=4)).timestamps) == 4
    assert len(traces.read(TraceFile(file, end=1.2)).timestamps) == 3
    with pytest.raises(TraceError, match="line 6 has 1 fields"):
        traces.read(TraceFile(file))


def test_lengths_are_made_to_fit_and_it_is_said(tmp_path: Path) -> None:
    file = write(tmp_path, AZURE_2023)
    scaled = traces.read(TraceFile(file, scale=0.1))
    assert [(s.input, s.output) for s in scaled.sizes] == [(481, 1), (318, 1), (11, 3)]
    assert any("0.1 times what they were" in note for note in scaled.notes)
    cut = traces.read(TraceFile(file, context=2048))
    room = int((2048 - 256) / 1.25)
    assert cut.sizes == (Size(room - 10, 10), Size(room - 8, 8), Size(110, 27))
    assert any("2 of 3 requests were shortened to 2048 tokens" in note for note in cut.notes)
    assert prepare(replay(TraceFile(file, context=2048), None)).context == 2048
    long = write(tmp_path, AZURE_2023.replace(",10\n", ",9999\n"), "long.csv")
    both = traces.read(TraceFile(long, context=2048, limit=1)).sizes
    assert both == (Size(room // 2, room - room // 2),)
    prefixes = traces.read(TraceFile(write(tmp_path, OURS), scale=0.5)).sizes
    assert prefixes[0] == Size(50, 2, (Part("a", 30),))
    tight = traces.read(TraceFile(write(tmp_path, OURS.replace("100,5", "900,5")), context=513))
    assert tight.sizes[0] == Size(200, 5, (Part("a", 60),))


def test_what_was_replayed_can_be_recognised(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (note,) = [n for n in traces.read(TraceFile(write(tmp_path, text))).notes if "SHA" in n]
        return note.rpartition(" ")[2]

    assert digest(OURS) == digest(OURS.replace("a,60", "a,60 "))
    assert digest(OURS) != digest(OURS.replace("a,60", "a,61"))
    assert digest(OURS) != digest(OURS.replace("0.5,", "0.6,"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("timestamp\n", "has no requests"),
        ("when,how\n1,2\n", "has no column timestamp; it has 'when', 'how'"),
        ("timestamp;ContextTokens\n", "no column timestamp; it has 'timestamp;ContextTokens'"),
        ("timestamp,ContextTokens\n1,2\n", "no column output_tokens"),
        ("timestamp,prefix_group,prefix_tokens\n1,a,2\n", "no column input_tokens"),
        ("timestamp,Timestamp\n1,2\n", "'timestamp' and 'Timestamp' mean the same"),
        (OURS.replace("0.5,", "x,"), "line 3, column 'timestamp': 'x' is no number of seconds"),
        (OURS.replace("0.5,", "nan,"), "line 3, column 'timestamp': 'nan'"),
        (OURS.replace("0.5,", "inf,"), "line 3, column 'timestamp': 'inf'"),
        (OURS.replace("0.5,", "1e300,"), "line 3, column 'timestamp': '1e300'"),
        (OURS.replace("0.5,", "-1,"), "line 3, column 'timestamp': '-1' is before"),
        (OURS.replace(",80,", ",,"), "line 3, column 'input_tokens': ''"),
        (OURS.replace(",80,", ",-1,"), "'-1' is no whole number"),
        (OURS.replace(",80,", ",1e9,"), "'1e9' is no whole number"),
        (OURS.replace(",80,", ",1.5,"), "'1.5' is no whole number"),
        (OURS.replace(",80,", ",nan,"), "'nan' is no whole number"),
        (OURS.replace(",80,", f",{'9' * 5000},"), "is no whole number"),
        (OURS.replace(",80,", ",8\0,"), "is no whole number"),
        (OURS.replace(",80,6,a,60", ",80,6,a"), "line 3 has 4 fields, and not 5"),
        (
            OURS.replace("80,6,a,60", "80,6,a,81"),
            "column 'prefix_tokens': '81' is more than the 80",
        ),
        (OURS.replace("80,6,a,60", "80,6,,60"), "needs a prefix_group"),
        (OURS + '2,5,5,"a', "line 6"),
        (OURS + "2" * 100_000, "line 6 is too long"),
        ("timestamp" * 100_000, "line 1 is too long"),
        (b"timestamp\n1\n\xff\xfe\n", "no text in UTF-8"),
        (OURS.encode("utf-16"), "no text in UTF-8"),
        (b"\x1f\x8b\x08" + bytes(range(256)), "no text in UTF-8"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(TraceError, match=f"t.csv.*{re.escape(said)}"):
        traces.read(TraceFile(write(tmp_path, text)))


def test_too_many_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_REQUESTS", 3)
    file = write(tmp_path, OURS)
    assert len(traces.read(TraceFile(file, limit=3)).timestamps) == 3
    with pytest.raises(TraceError, match=r"more than 3 requests.*--limit"):
        traces.read(TraceFile(file))


def test_a_part_with_nothing_in_it(tmp_path: Path) -> None:
    file = write(tmp_path, OURS)
    with pytest.raises(TraceError, match="has no requests from --from to --to"):
        traces.read(TraceFile(file, start=99))
    with pytest.raises(ValueError, match="nothing in it"):
        TraceFile(file, start=5, end=5)
    with pytest.raises(FileNotFoundError):
        traces.read(TraceFile("none.csv"))


# ---- what comes of it


def test_bursts_are_replayed_as_they_came(tmp_path: Path) -> None:
    """Bursts of about 300 requests, and silences between them: a variation as that of Azure's code
    trace, 13, which no short run of gamma arrivals has."""
    rng = random.Random(5)
    now, lines = 0.0, ["timestamp"]
    for _ in range(12):
        for _ in range(300):
            now += rng.expovariate(6)
            lines.append(f"{now:.4f}")
        now += rng.expovariate(1 / 60)
    found = traces.read(TraceFile(write(tmp_path, "\n".join(lines))))
    due = list(Trace(found.timestamps, speed=20).due(random.Random()))
    bursts = variation(due)
    assert bursts is not None
    assert bursts == pytest.approx(variation(found.timestamps))
    assert 10 < bursts < 25
    assert f"variation of {bursts:.2f}" in found.notes[0]


def test_the_bursts_of_code_completion_are_those_that_it_says() -> None:
    """Arrivals of its kind have the variation that its source names; long runs show it."""
    scenario = load("code-completion")
    assert isinstance(scenario.load, Gamma)
    due = list(itertools.islice(scenario.load.due(random.Random(1)), 50_000))
    bursts = variation(due)
    assert bursts == pytest.approx(1 / scenario.load.burstiness**0.5, rel=0.05)
    assert f"{bursts:.1f}" in scenario.source


def test_variations() -> None:
    assert variation([0, 1, 2, 3]) == 0
    assert variation([0.0, 0.0, 4.0]) == 1
    assert variation([0.0, 1.0]) is None
    assert variation([2.0, 2.0, 2.0]) is None
    times = list(itertools.islice(Gamma(3.0).due(random.Random(1)), 20_000))
    assert variation(times) == pytest.approx(1, abs=0.03)


def test_a_trace_alone_is_replayed_to_its_end(tmp_path: Path) -> None:
    scenario = replay(TraceFile(write(tmp_path, OURS, "My Trace!.csv"), speed=2.0), None)
    assert scenario.name == "my-trace"
    prepared = prepare(scenario)
    # 4 requests with gaps of 0.5 s, twice as fast
    assert prepared.scenario.warmup == 0
    assert prepared.scenario.seconds == pytest.approx(1.0)
    assert prepared.load == Trace((0.0, 0.5, 1.0, 1.5), 2.0)
    assert prepared.context == round(105 * 1.25) + 256
    assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


def test_a_scenario_gives_what_a_trace_does_not_have(tmp_path: Path) -> None:
    times = TraceFile(write(tmp_path, "timestamp\n0\n3\n"))
    with pytest.raises(ScenarioError, match="no columns input_tokens and output_tokens"):
        prepare(replay(times, None))
    rag = load("rag")
    prepared = prepare(replay(times, rag), seed=2)
    assert prepared.workload == Workload(rag.shapes, 2)
    assert prepared.context == rag.context
    assert any("lengths, they are the scenario's" in note for note in prepared.notes)
    sized = prepare(replay(TraceFile(write(tmp_path, OURS, "sized.csv")), rag))
    assert fmean(size.input for size in sized.workload.recorded) == 75
    for name, said in (("tool-calling", "do not go with a trace"), ("cold-start", "no requests")):
        with pytest.raises(ScenarioError, match=f"{name} with a trace: .*{said}"):
            replay(times, load(name))


def test_a_trace_in_a_scenario_file(tmp_path: Path) -> None:
    file = write(tmp_path, OURS)
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nsummary = "mine"\n[load]\nkind = "trace"\nfile = "t.csv"\nspeed = 3\n'
    )
    scenario = load(str(path))
    assert scenario.load == TraceFile(file, speed=3.0)
    assert scenario.scaled(0.5).load == TraceFile(file, speed=3.0, scale=0.5)
    path.write_text(path.read_text().replace("speed = 3", "speed = 0"))
    with pytest.raises(ScenarioError, match="speed"):
        load(str(path))
    path.write_text('name = "mine"\nsummary = "mine"\n[load]\nkind = "closed"\nconcurrency = 1\n')
    with pytest.raises(ScenarioError, match="shapes"):
        load(str(path))
    assert prepare(load("voice-turn")).load == Closed(2)


def test_requests_are_sent_as_they_were_recorded(tmp_path: Path) -> None:
    events = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
    prepared = prepare(replay(TraceFile(write(tmp_path, OURS), speed=5.0), None))
    assert isinstance(prepared.load, Trace)
    with canned(always(head % len(events) + events)) as server:
        plan = Plan(
            endpoint=Endpoint(server.url, "m"), workload=prepared.workload, load=prepared.load,
            seconds=prepared.scenario.seconds, warmup=prepared.scenario.warmup,
        )  # fmt: skip
        recording = asyncio.run(run(plan))
    _, *records = sorted(recording.records, key=lambda r: r.due)  # after the probe
    assert not any(r.warmup for r in records)
    assert [r.due - records[0].due for r in records] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [r.asked for r in records] == [5, 6, 7, 8]
    sent = {}
    for request in server.requests[1:]:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        sent[body["max_tokens"]] = len(body["messages"][0]["content"].split())
    assert sent == {5: 100, 6: 80, 7: 70, 8: 50}


@pytest.mark.parametrize("speed", [1.0, 1e6])
def test_requests_that_came_at_once(tmp_path: Path, speed: float) -> None:
    """A window has some length, however short they make it: it is divided by."""
    path = tmp_path / "once.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n" + "5,3,2\n" * 3)
    found = prepare(replay(TraceFile(str(path), speed=speed), None))
    assert found.scenario.seconds == MIN_SECONDS
    assert isinstance(found.load, Trace)
    assert [*found.load.due(random.Random(0))] == [0, 0, 0]


def test_lengths_that_no_model_has_room_for(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n5,300000,2\n")
    with pytest.raises(TraceError, match="a request of 300002000000 tokens"):
        traces.read(TraceFile(str(path), scale=1e6))
    (size,) = traces.read(TraceFile(str(path), scale=1e6, context=4000)).sizes
    assert size.input + size.output < 4000
