"""The web page's live view, its Markdown, and whether everybody can use it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.browsing import accessible, answering, chosen, finished, page_of, send
from support.serving import Server

DOCUMENT = """# Title

Some *emphasis*, **strength**, `code`, ~~gone~~ and a [link](https://example.org/a).

1. one
   - nested
2. two

| left | right |
|:---|---:|
| a | 1 |

```python
print("a line that is much too long for the width of any phone that has ever been made, really")
```

> quoted

averyveryverylongwordwithoutanyplacetobreakitatallwhichphoneshavetocutsomewhereorscrollsideways
"""


def markup(page: Page, text: str) -> str:
    """What Markdown becomes, without classes and copy buttons."""
    html: str = page.evaluate(
        """async (text) => {
            const { render } = await import("/web/markdown.js");
            const box = document.createElement("div");
            render(box, text);
            for (const each of box.querySelectorAll("button")) each.remove();
            return box.innerHTML;
        }""",
        text,
    )
    return re.sub(r' (class|tabindex|role|aria-label|target|rel)="[^"]*"', "", html)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*b* **c** ***d***", "<p><em>b</em> <strong>c</strong> <strong><em>d</em></strong></p>"),
        ("2 * 3 * 4, snake_case_name", "<p>2 * 3 * 4, snake_case_name</p>"),
        ("**open *and never closed", "<p>**open *and never closed</p>"),
        (r"\*no\* `a*b*` ``x`y``", "<p>*no* <code>a*b*</code> <code>x`y</code></p>"),
        ("# A #\ntext", "<h3>A</h3><p>text</p>"),
        ("- a\n- b\n  1. c\n\nd", "<ul><li>a</li><li>b<ol><li>c</li></ol></li></ul><p>d</p>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("- a\n\n  more\n- b", "<ul><li>a<p>more</p></li><li>b</li></ul>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
        (
            "~~~js\na\n\n  b\n~~~\nc",
            "<figure><figcaption><span>js</span></figcaption>"
            "<pre><code>a\n\n  b</code></pre></figure><p>c</p>",
        ),
        (
            "|a|b|\n|-|-|\n|1 \\| 2|",
            "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
            "<tbody><tr><td>1 | 2</td><td></td></tr></tbody></table></div>",
        ),
        ("<b>&amp;", "<p>&lt;b&gt;&amp;amp;</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ("[x](//evil.test) [y](JAVASCRIPT://a)", "<p>[x](//evil.test) [y](JAVASCRIPT://a)</p>"),
        (
            "[x](https://a.test/b_(c)) see https://a.test/d_e. <https://f.test>",
            '<p><a href="https://a.test/b_(c)">x</a> see <a href="https://a.test/d_e">'
            'https://a.test/d_e</a>. <a href="https://f.test/">https://f.test</a></p>',
        ),
    ],
)  # fmt: skip
def test_markdown(page: Page, text: str, expected: str) -> None:
    assert markup(page, text) == expected


def test_markdown_that_grows_is_what_it_is_at_once(page: Page) -> None:
    same = page.evaluate(
        """async (text) => {
            const { render } = await import("/web/markdown.js");
            const [grown, whole] = [0, 1].map(() => document.createElement("div"));
            let kept = 0;
            for (let end = 0; end <= text.length; end++) {
                const first = grown.firstChild;
                render(grown, text.slice(0, end));
                kept += first !== null && first === grown.firstChild;
            }
            render(whole, text);
            return [grown.innerHTML === whole.innerHTML, kept];
        }""",
        DOCUMENT,
    )
    assert same[0]
    assert same[1] > len(DOCUMENT) - 20  # blocks that are there already stay


@pytest.mark.parametrize(
    "text",
    [
        "x" + "*" * 20_000, "*a " * 10_000, "[" * 20_000, "[a](" * 5_000, "`a``b" * 5_000,
        "> " * 5_000 + "x",
        "- " * 5_000 + "x", "|" * 20_000 + "\n" + "|-" * 10_000, "  " * 20_000, "_*" * 10_000,
        "http://" * 5_000, "\n".join(" " * n + "- a" for n in range(300)), "<http://" * 5_000,
    ],
)  # fmt: skip
def test_markdown_meant_to_harm_is_shown(page: Page, text: str) -> None:
    # Bounded by the page's own limits: a parser that is quadratic in these would take minutes.
    assert len(markup(page, text)) >= len(text.strip()) / 50


def test_prometheus_text_is_read(page: Page) -> None:
    text = (
        "# HELP a words\n# TYPE a gauge\n"
        'a{model_name="x",b="q\\"uo,te}\\n"} 2.5e1\na{model_name="y"} 3 1700000000\n'
        'h_bucket{le="0.1",model_name="x"} 5\nh_bucket{le="0.2",model_name="x"} 10\n'
        'h_bucket{le="+Inf",model_name="x"} 10\n\nplain +Inf\n'
    )
    found: dict[str, Any] = page.evaluate(
        """async (text) => {
            const p = await import("/web/prometheus.js");
            const all = p.parse(text);
            const h = p.histogram(all, "h");
            return {
                label: all.a[0].labels.b, sum: p.sum(all, "a"), one: p.sum(all, "a", "y"),
                none: p.sum(all, "b"), most: p.largest(all, "a"),
                plain: all.plain[0].value === Infinity,
                q: [0.25, 0.5, 0.75, 1].map((q) => p.quantile(h, q)),
                nothing: p.quantile(p.between(h, h), 0.5), reset: p.between(h, h.slice(0, 1)),
                more: [p.increase(3, 5), p.increase(5, 3), p.increase(null, 3)],
            };
        }""",
        text,
    )
    assert found["label"] == 'q"uo,te}\n'
    assert (found["sum"], found["one"], found["none"], found["most"]) == (28, 3, None, 25)
    assert found["plain"]
    assert found["q"] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert found["nothing"] is None
    assert found["reset"] == [[0.1, 5]]
    assert found["more"] == [2, 3, 3]


def test_the_live_view_shows_what_the_server_does(page: Page, server: Server) -> None:
    page.get_by_role("link", name="Live").click()
    expect(page.locator(".state")).to_have_text("Ready")
    expect(page.locator(".summary")).to_contain_text("tiny")
    body = {
        "model": "tiny", "max_tokens": 40, "ignore_eos": True,
        "messages": [{"role": "user", "content": "What is there to see here?"}],
    }  # fmt: skip
    for _ in range(2):
        assert server.post("/v1/chat/completions", body)[0] == 200
    seconds = re.compile(r"\d+ ms|\d+(\.\d)? s|< 1 ms")
    for name in ("Time to first token", "Time between tokens"):
        values = page.get_by_role("region", name=name).locator("dd")
        for at in range(3):
            expect(values.nth(at)).to_have_text(seconds)
    hits = page.get_by_role("region", name="Prefix hits").locator("dd")
    expect(hits).to_have_text(re.compile(r"^\d.* %$"))
    expect(page.get_by_role("region", name="KV cache").locator("dd")).to_have_text(
        re.compile(r"^\d.* %$")
    )
    expect(page.get_by_role("region", name="Requests").locator("dd")).to_have_text(["0", "0"])
    answered = re.compile(r"Since the start: (1 answer|[1-9]\d* answers) ")
    expect(page.locator(".facts")).to_have_text(answered)
    lines = page.get_by_role("region", name="Tokens per second").locator("path.line").first
    expect(lines).to_have_attribute("d", re.compile(r"M.*L"))
    expect(page.get_by_role("img", name=re.compile("KV cache in use.*used"))).to_be_visible()
    # Gone, it says so; back again, it goes on.
    page.route("**/metrics", lambda route: route.abort())
    expect(page.locator(".state")).to_have_text("Not reachable")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/metrics")
    expect(page.locator(".state")).to_have_text("Ready")


def test_numbers_are_worded_as_they_are(page: Page) -> None:
    """One is no plural; a little is not told as nothing, and nearly all not as all."""
    found = page.evaluate(
        """async () => {
            const { formatCount, formatNumber, formatShare } = await import("/web/dom.js");
            const shares = [0, 0.0001, 0.004, 0.0996, 0.5, 0.9999, 1];
            return {
                shares: shares.map(formatShare),
                counts: [0, 1, 2, 20000].map((count) => formatCount(count, "answer")),
                numbers: [9.96, 99.5, 12345, 999600, 1234567].map(formatNumber),
            };
        }"""
    )
    assert found["shares"] == ["0 %", "< 0.1 %", "0.4 %", "10 %", "50 %", "99 %", "100 %"]
    assert found["counts"] == ["0 answers", "1 answer", "2 answers", "20 k answers"]
    assert found["numbers"] == ["10.0", "99.5", "12 k", "1.0 M", "1.2 M"]


def test_energy_is_shown_where_a_meter_is(page: Page, server: Server) -> None:
    _, _, data = server.request("GET", "/metrics")
    text = re.sub(r"(?m)^vllm:generation_tokens_total.*\n", "", data.decode())
    joules = 0

    def answer(route: Route) -> None:
        nonlocal joules
        joules += 30
        metered = (
            f'tidemill:energy_joules_total{{meter="package-0"}} {joules}\n'
            f'vllm:generation_tokens_total{{model_name="tiny"}} {joules / 1.5}\n'
        )
        route.fulfill(body=text + metered, content_type="text/plain")

    page.get_by_role("link", name="Live").click()
    expect(page.locator(".facts")).to_contain_text("answers")
    card = page.get_by_role("region", name="Energy per token")
    expect(card).to_have_count(0)
    page.route("**/metrics", answer)
    expect(card.locator("dd")).to_have_text("1.5 J")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_everybody_can_use_it(browser: Browser, server: Server, width: int, scheme: str) -> None:
    # All of axe-core's rules: names, roles, landmarks, contrast ...
    with page_of(browser, server.url, width=width, color_scheme=scheme) as page:
        chosen(page)
        answering(page, DOCUMENT)
        send(page, DOCUMENT)
        finished(page)
        fits(page)
        accessible(page)
        page.get_by_role("button", name="Settings of this conversation").click()
        fits(page)
        accessible(page)
        page.get_by_role("button", name="Close settings").click()
        page.get_by_role("link", name="Live").click()
        expect(page.locator(".state")).to_have_text("Ready")
        fits(page)
        accessible(page)


def fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    beyond = page.evaluate(
        """() => [...document.querySelectorAll(
                ".scroll, .messages, .message, .live, .composer, .bar"
            )]
            .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
            .map((e) => e.className)"""
    )
    assert beyond == []


def test_the_keyboard_is_enough(page: Page) -> None:
    answering(page, "Yes.")
    prompt = page.get_by_label("Message", exact=True)
    expect(prompt).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(prompt).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    finished(page)
    expect(page.locator(".message.user .as-typed")).to_have_text("one\ntwo")
    expect(prompt).to_be_focused()
    expect(page.locator("#spoken")).to_have_text("Yes.")
    # Every stop on the way round has a visible ring, and a name.
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => {
                const e = document.activeElement;
                if (e === document.body) return null;
                const style = getComputedStyle(e);
                const row = e.id === "prompt" ? getComputedStyle(e.parentNode) : style;
                const name = e.id || e.ariaLabel || e.textContent;
                return [e.tagName + name, row.outlineStyle !== "none"];
            }"""
        )
        if at is None:
            continue  # the end of the page: next comes its beginning
        assert at[1], f"no ring around {at[0]}"
        seen.add(at[0])
    assert {
        "BUTTONnew",
        "SELECTmodel",
        "TEXTAREAprompt",
        "BUTTONsend",
        "BUTTONCopy message",
    } <= seen


def test_motion_is_reduced_where_it_is_not_wanted(browser: Browser, server: Server) -> None:
    with page_of(browser, server.url, reduced_motion="reduce") as page:
        moving = page.evaluate(
            """async () => {
                const dots = document.createElement("p");
                dots.className = "dots";
                dots.append(document.createElement("i"));
                document.body.append(dots);
                return getComputedStyle(dots.firstChild).animationName;
            }"""
        )
        assert moving == "none"


@pytest.mark.parametrize("width", [360, 1280])
def test_the_description_of_the_api_can_be_read(
    browser: Browser, server: Server, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    try:
        page.goto(f"{server.url}/docs")
        first = page.locator("summary", has_text="/v1/chat/completions")
        first.click()
        expect(page.get_by_role("cell", name="messages", exact=True).first).to_be_visible()
        expect(page.locator("details[open] td").first).to_have_text("model")  # it is required
        accessible(page)
        fits(page)
    finally:
        page.close()
