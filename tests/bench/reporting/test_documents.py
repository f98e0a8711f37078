from __future__ import annotations

import html.parser
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from support.recordings import MACHINE, at_rates, measurement
from tidemill.bench import reporting
from tidemill.bench.measures import Slo
from tidemill.bench.reporting import appendix, files, markdown, page, runs, words
from tidemill.bench.reporting.document import Document
from tidemill.bench.result import Measured, Measurement
from tidemill.bench.scenario import load

EVIL = '<script>alert("1")</script><img src=http://evil.example/x.png onerror=a()>|`*_[x](y)&amp;'


class Reader(html.parser.HTMLParser):
    """What is in a page: tags with their attributes, and text without that of pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("svg", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def made(*measured: Measurement) -> Document:
    return reporting.report(list(measured))


def said(*measured: Measurement) -> str:
    """The words of the page; without recordings, and so quickly without pictures."""
    return Reader(page.html(made(*(run._replace(recording=None) for run in measured)))).words


# ---- what is said


def test_two_engines_in_an_open_loop() -> None:
    found = said(measurement(speed=4.0), measurement(engine="llama.cpp"))
    assert "llama.cpp and tidemill, on 1 scenario: 2 runs" in found
    assert "0.5 requests/s" in found
    assert "TTFT p99" in found
    assert "SLO met by" in found
    assert "questions and short answers" in found.lower()


def test_a_closed_loop_and_what_it_was_asked() -> None:
    found = said(measurement("offline-batch"))
    assert "at a time" in found
    assert "With 32 at a time: tidemill makes" in found


def test_starts() -> None:
    found = said(
        measurement("cold-start"), measurement("cold-start", engine="llama.cpp", speed=0.5)
    )
    assert "Until its port answers" in found
    assert "tidemill, cold" in found
    assert "from cold" in found


def test_answers_that_are_checked() -> None:
    run = measurement("json-extraction")
    assert run.result.summary is not None
    right = run.result.summary.verdicts["right"]
    assert f"{right} of {right}" in said(run)


def test_tenants_have_rows_of_their_own() -> None:
    found = said(measurement("two-tenants"))
    for shape in load("two-tenants").shapes:
        assert f"tidemill: {shape.name}" in found


def test_errors_are_told_with_what_the_endpoint_said() -> None:
    found = said(measurement(failing=0.5))
    assert "http_503" in found
    assert "busy, come again" in found


def test_a_run_that_failed_throughout() -> None:
    found = said(measurement(failing=1.0))
    assert re.search(r"None of \d+ requests to tidemill was answered", found)
    assert "TTFT p90" not in found


def test_invalid_runs_are_flagged_before_all_else() -> None:
    run = measurement()
    assert run.result.summary is not None
    run.result.summary.invalid = "the load generator did not keep up"
    found = said(run)
    assert found.index("INVALID") < found.index("The run of tidemill is invalid")
    assert found.count("the load generator did not keep up") >= 1


def test_nothing() -> None:
    document = made()
    found = Reader(page.html(document)).words
    assert "Nothing was measured" in found
    assert "tidemill bench run" in found
    assert "tidemill bench run" in markdown.markdown(document, "x")


def test_a_result_without_its_recording_has_figures_and_no_distribution() -> None:
    document = made(measurement()._replace(recording=None))
    assert list(markdown.pictures(document.blocks)) == []
    assert "TTFT p50" in Reader(page.html(document)).words


def test_a_curve_has_a_table_and_its_best_rate() -> None:
    document = made(*at_rates([0.5, 1.0, 2.0], engine="tidemill", speed=4.0, series="s"))
    found = Reader(page.html(document)).words
    assert "tidemill at several loads" in found
    assert "tidemill answers 2 requests/s" in found


def test_what_differs_between_the_runs_is_said() -> None:
    other = msgspec.structs.replace(MACHINE, cpu="Another CPU")
    found = said(
        measurement(), measurement(engine="llama.cpp", machine=other, seed=3),
    )  # fmt: skip
    assert "the machine differs, cpu: Another CPU and Some CPU" in found
    assert "seeds, and so the prompts differ: 3 and 0" in found


# ---- labels


def labels(*measured: Measurement) -> list[str]:
    return [one.label for group in runs.group(measured) for one in group.every]


def target(**fields: object) -> Measured:
    return msgspec.structs.replace(measurement().result.target, **fields)


def test_a_label_says_as_little_as_will_do() -> None:
    assert labels(measurement(), measurement(engine="llama.cpp")) == ["llama.cpp", "tidemill"]
    assert labels(measurement(engine=None)) == ["127.0.0.1:8000"]


def test_labels_tell_models_and_versions_apart() -> None:
    found = labels(measurement(), measurement(target=target(model="/home/me/gemma3.gguf")))
    assert found == ["tidemill gemma3.gguf", "tidemill smollm2"]
    found = labels(measurement(), measurement(target=target(version="2.0", threads=4)))
    assert found == ["tidemill 1.2.3 2 threads", "tidemill 2.0 4 threads"]


def test_what_was_done_twice_is_told_apart() -> None:
    slower = msgspec.structs.replace(load("offline-batch"), load=load("edge-single-user").load)
    found = labels(measurement("offline-batch"), measurement(slower))
    assert len(set(found)) == 2
    assert all("at a time" in label for label in found)
    found = labels(measurement(), measurement(seed=1))
    assert found == ["tidemill (short-chat-tidemill-0)", "tidemill (short-chat-tidemill-1)"]


def test_a_point_without_others_is_a_run_like_any() -> None:
    lone = measurement(load("short-chat").scaled(0.5), series="a", id="lone")
    found = labels(measurement(), lone)
    assert found == ["tidemill (lone)", "tidemill (short-chat-tidemill-0)"]
    assert "tidemill (lone)" in said(measurement(), lone)


def test_runs_of_one_name_that_were_asked_otherwise_are_no_repeats() -> None:
    other = measurement(load("short-chat").scaled(0.5), name="a", id="other")
    found = labels(measurement(name="a", id="one"), other)
    assert found == ["tidemill (one)", "tidemill (other)"]
    repeats = runs.group([measurement(name="a"), measurement(name="a", seed=1)])
    assert [one.title for one in repeats[0].runs] == ["tidemill (1)", "tidemill (2)"]


def test_a_target_has_one_label_in_all_scenarios() -> None:
    found = labels(measurement(), measurement("rag"), measurement("rag", engine="llama.cpp"))
    assert set(found) == {"tidemill", "llama.cpp"}


# ---- again


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({}, ""),
        ({"seconds": 5.0}, " --seconds 5"),
        ({"timeout": 9.0}, " --timeout 9"),
        ({"load": load("offline-batch").load}, " --concurrency 32"),
        ({"load": load("code-completion").load}, None),  # bursts are no option
    ],
)
def test_commands_measure_the_same_again(change: dict[str, object], options: str | None) -> None:
    scenario = msgspec.structs.replace(load("short-chat"), **change)
    run = measurement(scenario, seconds=scenario.seconds, seed=7)
    command = appendix.command(run.result)
    start = "tidemill bench run --target tidemill:smollm2 --threads 2 --scenario short-chat"
    if options is None:
        assert command == f"{start}.toml --seed 7"
        assert "short-chat: not as this version of Tidemill has it" in said(run)
    else:
        assert command == f"{start}{options} --seed 7"


@pytest.mark.parametrize("factor", [0.1, 0.25, 0.33, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("name", ["rag", "json-extraction", "agentic-coding"])
def test_lengths_that_were_scaled_are_found_again(name: str, factor: float) -> None:
    scenario = load(name).scaled(factor)
    found = appendix._options(scenario)
    assert found is not None
    assert found[0] == "--scale"
    assert load(name).scaled(float(found[1])) == scenario


def test_another_program_is_named() -> None:
    run = measurement(engine="llama.cpp")
    run.result.target.command[0] = "/opt/my server"
    assert "--threads 2 --binary '/opt/my server' --scenario" in appendix.command(run.result)


def test_what_an_engine_was_started_with_beside_is_told() -> None:
    bare, run = measurement(), measurement(seed=1)
    run.result.target.arguments.extend(["--kv-dtype", "q8_0", "--name", "my own"])
    command = appendix.command(run.result)
    assert "--engine-args '--kv-dtype q8_0 --name '\"'\"'my own'\"'\"'' --scenario" in command
    found = said(bare, run)
    assert "tidemill --kv-dtype q8_0" in found  # which tells the two apart
    assert "Engine arguments" in found
    assert "--engine-args differ: none and --kv-dtype q8_0" in found


def test_commands_of_an_address() -> None:
    run = measurement(engine=None, slo=Slo(ttft=2.0))
    assert appendix.command(run.result) == (
        "tidemill bench run --target http://127.0.0.1:8000/v1 --model smollm2 "
        "--scenario short-chat --seconds 20 --slo ttft=2 --seed 0"
    )


# ---- as files


@pytest.fixture(scope="module")
def rich() -> Document:
    return made(
        measurement(speed=2.0, failing=0.2), measurement(engine="llama.cpp"),
        measurement("offline-batch")._replace(recording=None),
        measurement("cold-start"), measurement("cold-start", engine="llama.cpp"),
        measurement("two-tenants")._replace(recording=None),
        *at_rates([0.5, 1.0], engine="tidemill", speed=2.0, series="a"),
    )  # fmt: skip


def test_a_page_needs_nothing_but_itself(rich: Document) -> None:
    text = page.html(rich)
    tags = Reader(text).tags
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert (value or "").startswith("#"), (tag, name, value)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_links_lead_somewhere_and_ids_are_there_once(rich: Document) -> None:
    tags = Reader(page.html(rich)).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for _, attributes in tags if "href" in attributes}
    assert {link[1:] for link in links if link} <= set(ids)
    assert {
        f"#{name}"
        for name in ("summary", "scenario-short-chat", "scenario-cold-start", "reproduce")
    } <= links


def test_every_picture_has_words_in_its_place(rich: Document) -> None:
    found = list(markdown.pictures(rich.blocks))
    assert len(found) == 9
    for picture in found:
        assert len(picture.alt) > 40
        assert picture.caption
        assert re.fullmatch(r"[a-z0-9-]+_[a-z0-9-]+", picture.name)
    names = [picture.name for picture in found]
    assert len(names) == len(set(names))


def test_the_markdown_twin_has_the_same_words_and_numbers(rich: Document) -> None:
    ours = Reader(page.html(rich)).words
    theirs = markdown.markdown(rich, "pictures")
    theirs = re.sub(r"!\[.*\]\(.*\)", "", theirs).replace("\\", "")
    numbers = re.compile(r"\d[\d.,]*")
    contents = Reader(page._contents(rich)).words
    counted = sorted(numbers.findall(ours))
    for number in numbers.findall(contents):
        counted.remove(number)
    # Markdown has no list of contents.
    assert counted == sorted(numbers.findall(theirs))


def test_tables_of_markdown_have_as_many_cells_in_each_row(rich: Document) -> None:
    lines = markdown.markdown(rich, "pictures").splitlines()
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", before)) == len(re.findall(r"(?<!\\)\|", line))


def test_the_same_runs_give_the_same_bytes() -> None:
    once, again = (made(measurement(failing=0.1), measurement("cold-start")) for _ in range(2))
    assert page.html(once) == page.html(again)
    assert markdown.markdown(once, "x") == markdown.markdown(again, "x")


def test_the_order_in_which_runs_are_given_does_not_matter() -> None:
    a, b = measurement("cold-start"), measurement("cold-start", engine="llama.cpp")
    assert page.html(made(a, b)) == page.html(made(b, a))


def evil() -> Iterator[Measurement]:
    run = measurement(failing=0.5)
    assert run.result.summary is not None
    run.result.summary.examples = {"http_503": EVIL + "\x00\u202e\n# heading"}
    run.result.notes = [EVIL]
    run.result.target = Measured(
        url=f"http://host/{EVIL}", model=EVIL, engine=EVIL, version=EVIL,
        command=[EVIL, "a b"], arguments=[EVIL], extra={EVIL: EVIL},
    )  # fmt: skip
    run.result.id = EVIL
    run.result.machine = msgspec.structs.replace(MACHINE, cpu=EVIL, system="\ud800")
    yield run
    yield msgspec.structs.replace(run.result, series=EVIL), run.recording  # type: ignore[misc]


def test_strings_of_others_are_only_text(tmp_path: Path) -> None:
    run, point = evil()
    document = made(run, Measurement(*point))
    text = page.html(document)
    reader = Reader(text)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert "img" not in {tag for tag, _ in reader.tags}
    assert '<script>alert("1")</script>' in reader.words  # as text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\ud800-\udfff]", text)
    twin = markdown.markdown(document, "pictures")
    twin = re.sub(r"```console.*?```", "", twin, flags=re.DOTALL)  # there it is text
    assert not re.search(r"(?<!\\)<(script|img)", twin)
    assert "\n# heading" not in twin
    for picture in markdown.pictures(document.blocks):
        ElementTree.fromstring(picture.svg)
    files.write_html(document, tmp_path / "a.html")
    files.write_markdown(document, tmp_path / "a.md")


def test_files(rich: Document, tmp_path: Path) -> None:
    files.write_html(rich, tmp_path / "report.html")
    folder = files.write_markdown(rich, tmp_path / "my report.md")
    assert folder == tmp_path / "my report-pictures"
    text = (tmp_path / "my report.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\.svg\)", text)
    assert links
    for link in links:
        name = link.removeprefix("my%20report-pictures/")
        ElementTree.fromstring((folder / f"{name}.svg").read_text("utf-8"))
    assert len(list(folder.iterdir())) == len(links)


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(reporting.ReportError, match=r"pip install 'tidemill\[bench\]'"):
        reporting.report([])


# ---- words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n b\t c", "a b c"),
        ("a\x00b\u202ec\ud800", "a\ufffdb\ufffdc\ufffd"),
        ("x" * 100, "x" * 79 + "…"),
        ("", ""),
        ("日本語 é", "日本語 é"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert words.clean(text) == expected


def test_figures_as_words() -> None:
    assert [words.rate(v) for v in (None, 0, 0.123, 9.99, 42.42, 1234.5)] == [
        "–", "0", "0.12", "9.99", "42.4", "1\u202f234",
    ]  # fmt: skip
    assert [words.share(v) for v in (None, 0.0, 1.0, 0.9876)] == ["–", "0%", "100%", "98.8%"]
    assert words.ratio(2.345) == "2.35×"
    assert words.limits(Slo(ttft=1.0, e2e=0.25)) == "TTFT 1 s, E2E 250 ms"
    assert words.limits(None) == "–"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
