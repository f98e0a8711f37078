"""The interview as a page: the same questions and checks, safe, and for everybody."""

from __future__ import annotations

import re
import threading
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient

from support.advice import TODAY
from support.browsing import accessible, page_of
from tidemill.advise import flips, report
from tidemill.advise.advice import advise
from tidemill.advise.answers import Answers, defaults, from_values, read, write
from tidemill.advise.evidence import Evidence
from tidemill.advise.facts import load_engines
from tidemill.advise.page import application, serve
from tidemill.advise.questions import QUESTIONS
from tidemill.advise.scores import DIMENSIONS, WEIGHTS
from tidemill.presentation.document import Block

ENGINES = load_engines()
IDS = tuple(id for id, engine in ENGINES.items() if "component" not in engine.classes)
HERE = "http://127.0.0.1"


def blocks(answers: Answers, weights: Any) -> list[Block]:
    advice = advise(answers, ENGINES, today=TODAY, weights=weights)
    return report.blocks(advice, flips.find(answers, ENGINES, Evidence(), weights))


def client_of(answers: Answers, **weights: float) -> TestClient:
    app = application(answers, weights or WEIGHTS, IDS, blocks)  # type: ignore[arg-type]
    return TestClient(app, base_url=HERE)


@pytest.fixture
def client() -> TestClient:
    return client_of(defaults())


class Fields(HTMLParser):
    """What a browser would send of a page's form, as it is."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self._select = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        match tag:
            case "select":
                self._select = str(given["name"])
            case "option" if self._select and "selected" in given:
                self.pairs.append((self._select, str(given["value"])))
            case "input":
                tickable = given.get("type") in ("radio", "checkbox")
                if not tickable or "checked" in given:
                    self.pairs.append((str(given["name"]), given.get("value") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""


def query(*pairs: tuple[str, str], **changes: str) -> str:
    return "?" + urlencode([*pairs, *changes.items()])


# ---- the form ----------------------------------------------------------------------------------


def test_every_question_is_asked_with_its_choices_and_help(client: TestClient) -> None:
    html = client.get("/").text
    fields = Fields(html)
    for question in QUESTIONS:
        assert question.key in fields.ids
        assert escaped(question.ask) in html
        assert escaped(question.help) in html
        for choice, meaning in (question.choices or {}).items():
            assert f'value="{choice}"' in html
            assert escaped(meaning) in html
    assert len(fields.ids) == len(set(fields.ids))


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("'", "&#39;").replace('"', "&#34;")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "case.stage": "production", "case.current": "ollama", "load.workload": "rag",
            "load.peak_concurrency": 200, "load.ttft_ms": 512.5, "load.bottleneck": "attention",
            "hardware.servers": ["nvidia", "cpu-x86"], "hardware.edge": ["cpu-arm"],
            "hardware.gpus": 4, "hardware.gpu_memory_gb": 80.0, "model.name": "org/a & b <c>",
            "data.access_control": True, "data.audit": True, "budget.per_month": 1e6,
        },
        {"hardware.servers": [], "hardware.edge": ["cpu-arm"], "model.parameters_b": 0.135},
    ],
)  # fmt: skip
def test_what_is_filled_in_comes_back(values: dict[str, Any]) -> None:
    answers = from_values(values)
    client = client_of(answers)
    pairs = Fields(client.get("/").text).pairs
    sent = client.get("/answers.toml" + query(*pairs))
    assert sent.status_code == 200
    assert sent.text == write(answers)
    assert read(sent.text, "here", IDS).get(QUESTIONS[0]) == answers.stage
    # And the form again, from the address of the advice.
    assert Fields(client.get("/" + query(*pairs)).text).pairs == pairs


def test_empty_fields_are_not_answered(client: TestClient) -> None:
    html = client.get("/advice?load.peak_concurrency=&model.parameters_b=+&case.stage=tuning").text
    assert ">4 (assumed)<" in html
    assert ">tuning<" in html


@pytest.mark.parametrize(
    ("pairs", "field", "message"),
    [
        ({"load.peak_concurrency": "many"}, "load.peak_concurrency", "'many' is not a whole"),
        ({"load.peak_concurrency": "2.5"}, "load.peak_concurrency", "'2.5' is not a whole number"),
        ({"load.peak_concurrency": "9" * 5000}, "load.peak_concurrency", "is not a whole number"),
        ({"load.ttft_ms": "nan"}, "load.ttft_ms", "nan is not a finite number"),
        ({"load.ttft_ms": "-1"}, "load.ttft_ms", "-1.0 is not between 1 and 1e+09"),
        ({"case.stage": "prodction"}, "case.stage", "did you mean production?"),
        ({"case.current": "vlm"}, "case.current", "no engine 'vlm' is known; did you mean vllm?"),
        ({"hardware.servers": "nvidia"}, "hardware.gpus", "hardware.servers has nvidia"),
        ({"hardware.servers": "nvidia"}, "hardware.servers", "but hardware.gpus is 0"),
        ({"data.audit": "yes"}, "data.access_control", "data.audit is true, but"),
        ({"data.audit": "perhaps"}, "data.audit", "neither yes nor no"),
        ({"weight.performance": "much"}, "weight.performance", "'much' is not a number"),
        ({"weight.cost": "0"}, "weight.performance", "at least one must be more than 0"),
        ({"load.peak": "3"}, "", "load.peak: there is no such question"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_field(
    client: TestClient, pairs: dict[str, str], field: str, message: str
) -> None:
    pairs = {"weight.cost": "1"} | pairs
    for path in ("/advice", "/answers.toml", "/advice.md", "/"):
        answer = client.get(path + query(*pairs.items()))
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert message in unescaped(answer.text)
        if field:
            at_field = re.search(rf'id="{field}-wrong-1">([^<]*)<', answer.text)
            assert at_field is not None
            assert message in unescaped(at_field[1])
    assert Fields(answer.text).pairs  # what was typed is still there
    for name, text in pairs.items():
        if name in ("load.ttft_ms", "case.current"):
            assert (name, text) in Fields(answer.text).pairs


def unescaped(html: str) -> str:
    return html.replace("&#39;", "'").replace("&#34;", '"').replace("&gt;", ">")


def test_all_contradictions_are_shown_at_once(client: TestClient) -> None:
    wrong = {"hardware.servers": "nvidia", "data.audit": "yes", "weight.cost": "1"}
    html = client.get("/advice" + query(*wrong.items())).text
    assert html.count('class="wrong"') == 4  # two answers each


# ---- the advice --------------------------------------------------------------------------------


def test_the_advice_has_every_part(client: TestClient) -> None:
    answer = client.get("/advice?weight.performance=1&load.peak_concurrency=2")
    assert answer.status_code == 200
    html = answer.text
    for heading in (
        "Configuration", "Scores (weights: performance 1, cost 0, ecosystem 0)", "Risks",
        "The others, and why not", "What to measure next", "What would change the decision",
        "Numbers, and where they come from", "The answers", "Sources",
    ):  # fmt: skip
        assert f">{heading}</h" in html
    assert '<svg class="share"' in html
    assert "tidemill bench run" in html
    for id in IDS:
        assert escaped(ENGINES[id].name) in html
    assert 'href="/?weight.performance=1&amp;load.peak_concurrency=2"' in html


def test_downloads(client: TestClient) -> None:
    toml = client.get("/answers.toml?weight.cost=1&load.peak_concurrency=9")
    assert toml.headers["content-disposition"] == 'attachment; filename="answers.toml"'
    assert read(toml.text, "it").peak_concurrency == 9
    markdown = client.get("/advice.md?weight.cost=1&load.peak_concurrency=9")
    assert markdown.headers["content-disposition"] == 'attachment; filename="advice.md"'
    assert markdown.text.startswith("# Which inference engine")


# ---- safety ------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_nothing_typed_becomes_markup(client: TestClient) -> None:
    for path in ("/", "/advice"):
        for name in ("model.name", "case.current", "load.ttft_ms", "weight.cost", HOSTILE):
            html = client.get(path + query(("weight.performance", "1"), (name, HOSTILE))).text
            assert "<script>alert" not in html
            assert "<img src=x" not in html
            assert "&lt;script&gt;" in html


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_without_end_is_said_to_be_none(client: TestClient, digits: int) -> None:
    for name in ("load.peak_concurrency", "load.ttft_ms", "weight.cost"):
        answer = client.get("/advice" + query(("weight.performance", "1"), (name, "9" * digits)))
        assert answer.status_code == 422


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8123", 200), ("localhost:8123", 200), ("127.0.0.1", 200),
        ("evil.example", 400), ("evil.example:8123", 400), ("127.0.0.1.evil.example", 400),
        ("localhost.evil.example:1", 400), ("", 400),
    ],
)  # fmt: skip
def test_it_answers_by_its_own_name_only(client: TestClient, host: str, status: int) -> None:
    for path in ("/", "/advice", "/page.css", "/base.css"):
        assert client.get(path, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("site", "status"),
    [(None, 200), ("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403)],
)
def test_other_pages_cannot_make_it_work(client: TestClient, site: str, status: int) -> None:
    answer = client.get("/", headers={"sec-fetch-site": site} if site else {})
    assert answer.status_code == status
    assert client.get("/", headers={"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/advice", "/base.css", "/page.css", "/page.js", "/icon.svg", "/none"]
)
def test_the_policy_lets_nothing_in(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_it_needs_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/advice"):
        html = client.get(path).text
        assert not re.search(r'(?:src|action)="(?!/)', html)
        for link in re.findall(r"<link[^>]*>", html):
            assert 'href="/' in link
        assert "style=" not in html
    for path in ("/base.css", "/page.css", "/page.js", "/icon.svg"):
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "url(" not in text


def test_only_reading(client: TestClient) -> None:
    assert client.post("/advice").status_code == 405
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.get("/form.html").status_code == 404


# ---- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> str:
    """The page, served as it is, in a thread."""
    ready = threading.Event()
    found: list[str] = []

    def on_ready(url: str) -> None:
        found.append(url)
        ready.set()

    app = application(defaults(), WEIGHTS, IDS, blocks)
    thread = threading.Thread(target=serve, args=(app, 0, on_ready), daemon=True)
    thread.start()
    assert ready.wait(60)
    return found[0]


def test_it_listens_on_the_loopback_interface(address: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    assert httpx.get(address, timeout=60).status_code == 200


def test_it_works_without_javascript(browser: Browser, address: str) -> None:
    with page_of(browser, address, java_script_enabled=False) as page:
        page.get_by_label("nvidia").first.check()
        page.get_by_role("button", name="Advise").click()
        expect(page.get_by_role("alert")).to_contain_text("hardware.gpus is 0")
        gpus = page.get_by_label("How many GPUs in one server?")
        expect(gpus).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("nvidia").first).to_be_checked()
        gpus.fill("2")
        page.get_by_label("Most requests at the same time?").fill("64")
        page.get_by_role("button", name="Advise").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(
            "Which inference engine, for this case"
        )
        expect(page.locator("article")).to_contain_text("many requests at once")
        with page.expect_download() as download:
            page.get_by_role("link", name="Answers (TOML)").click()
        assert read(download.value.path().read_text(), "it").gpus == 2
        page.get_by_role("link", name="Change the answers").click()
        expect(page.get_by_label("Most requests at the same time?")).to_have_value("64")


def test_commands_are_copied(browser: Browser, address: str) -> None:
    with page_of(
        browser, f"{address}advice?weight.cost=1",
        permissions=["clipboard-read", "clipboard-write"],
    ) as page:  # fmt: skip
        page.get_by_role("button", name="Copy").first.click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        first = page.locator("pre").first.text_content()
        assert page.evaluate("navigator.clipboard.readText()") == first


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_everybody_can_use_it(browser: Browser, address: str, width: int, scheme: str) -> None:
    case = {"hardware.servers": "nvidia", "hardware.edge": "cpu-arm", "weight.cost": "1"}
    right = {**case, "hardware.gpus": "2", "load.peak_concurrency": "64"}
    with page_of(browser, address, width=width, color_scheme=scheme) as page:
        for path in ("", "advice" + query(*case.items()), "advice" + query(*right.items())):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            accessible(page)


def test_every_weight_has_a_field(client: TestClient) -> None:
    pairs = dict(Fields(client.get("/").text).pairs)
    assert {name: float(pairs[f"weight.{name}"]) for name in DIMENSIONS} == dict(WEIGHTS)
