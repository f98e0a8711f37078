"""The web page's chat in a browser, with a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import (
    COMPLETIONS,
    answering,
    asked,
    chosen,
    finished,
    fulfilling,
    page_of,
    send,
)
from support.serving import Server, serving
from tidemill.server.keys import digest_of


def set_most_tokens(page: Page, count: int) -> None:
    page.get_by_role("button", name="Settings of this conversation").click()
    page.get_by_label("Most tokens").fill(str(count))
    page.get_by_role("button", name="Close settings").click()


def answers(page: Page) -> list[str]:
    return page.locator(".message.assistant .markdown").all_inner_texts()


def shown(page: Page) -> str:
    return page.locator(".message.assistant .markdown").last.inner_text()


def test_an_answer_streams_and_is_measured(page: Page) -> None:
    bodies = asked(page, ignore_eos=True, seed=1)
    set_most_tokens(page, 800)
    page.evaluate("window.held = true")
    send(page, "Hello there")
    expect(page.locator(".message.user")).to_contain_text("Hello there")
    expect(page.locator(".message.assistant .markdown")).not_to_be_empty()
    expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    early = shown(page)
    page.evaluate("window.held = false")
    finished(page)
    assert len(shown(page)) > len(early)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    stats = page.locator(".message.assistant .stats")
    expect(stats).to_contain_text("tok/s")
    expect(stats).to_contain_text("first token after")
    expect(stats).to_contain_text("800 tokens")
    (body,) = bodies
    assert body["model"] == "tiny"
    assert body["messages"] == [{"role": "user", "content": "Hello there"}]
    assert (body["max_tokens"], body["stream"]) == (800, True)


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stop(page: Page, server: Server, how: str) -> None:
    asked(page, ignore_eos=True, seed=1)
    set_most_tokens(page, 800)
    page.evaluate("window.held = true")
    send(page, "Go on and on")
    expect(page.locator(".message.assistant .markdown")).not_to_be_empty()
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name="Stop the answer").click()
    finished(page)
    expect(page.locator(".message.assistant .stats")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert shown(page)


def test_settings_and_attachments_reach_the_server(page: Page) -> None:
    bodies = asked(page)
    page.get_by_role("button", name="Settings of this conversation").click()
    for label, value in (
        ("System prompt", "Be brief."), ("Temperature", "0.5"), ("Top p", "0.9"),
        ("Most tokens", "8"), ("Seed", "7"), ("Stop at", "END\n###"),
    ):  # fmt: skip
        page.get_by_label(label).fill(value)
    page.get_by_label("Temperature").fill("9")
    expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Temperature").fill("0.25")
    expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "false")
    fenced = "a\n```\nb\n"
    page.set_input_files(
        "#files", {"name": "notes.md", "mimeType": "text/plain", "buffer": fenced.encode()}
    )
    expect(page.locator("#attachments")).to_contain_text("notes.md")
    expect(page.locator("#attachments")).to_contain_text("8 B")
    send(page, "Sum it up")
    finished(page)
    (body,) = bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"File notes.md:\n````\n{fenced}````\n\nSum it up"},
    ]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.25, 0.9, 8)
    assert (body["seed"], body["stop"]) == (7, ["END", "###"])
    page.reload()
    page.get_by_role("button", name="Settings of this conversation").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(page.get_by_label("Seed")).to_have_value("7")


def test_the_model_is_chosen_for_a_conversation(
    browser: Browser, tiny_chat_model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        f'[[models]]\nsource = "{tiny_chat_model}"\nname = "first"\naliases = ["second"]\n'
        "threads = 1\n"
    )
    with serving("--config", str(config)) as server, page_of(browser, server.url) as page:
        chosen(page)
        bodies = asked(page, max_tokens=4)
        model = page.get_by_role("combobox", name="Model")
        expect(model).to_have_value("first")
        model.select_option("second")
        send(page, "Hello")
        finished(page)
        page.get_by_role("button", name="New conversation").click()
        expect(model).to_have_value("second")  # as it was chosen last
        model.select_option("first")
        send(page, "Hello again")
        finished(page)
        page.locator("#conversations").get_by_role("button", name="Hello", exact=True).click()
        expect(model).to_have_value("second")
        assert [body["model"] for body in bodies] == ["second", "first"]


def test_attachments_are_bounded_and_text(page: Page) -> None:
    def attach(name: str, data: bytes) -> None:
        page.set_input_files("#files", {"name": name, "mimeType": "x/x", "buffer": data})

    error = page.locator("#composer-error")
    attach("large.txt", b"x" * 1_000_001)
    expect(error).to_contain_text("large.txt (1.0 MB) is too large")
    for data in (b"a\0b", b"\xff\xfe\xfa"):
        attach("picture.png", data)
        expect(error).to_contain_text("picture.png is not a text file")
    expect(page.locator("#attachments li")).to_have_count(0)
    attach("half.txt", b"x" * 600_000)
    expect(error).to_be_hidden()
    attach("other-half.txt", b"x" * 600_000)
    expect(error).to_contain_text("other-half.txt")
    page.get_by_role("button", name="Remove half.txt").click()
    expect(page.locator("#attachments li")).to_have_count(0)
    transfer = page.evaluate_handle(
        "() => { const t = new DataTransfer();"
        " t.items.add(new File(['dropped'], 'dropped.txt')); return t; }"
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("#chat", event, {"dataTransfer": transfer})
    expect(page.locator("#attachments")).to_contain_text("dropped.txt")


def test_edit_regenerate_and_undo(page: Page) -> None:
    bodies = asked(page)
    set_most_tokens(page, 6)
    send(page, "First")
    finished(page)
    send(page, "Second")
    finished(page, 2)
    # An answer can be put right by hand; it is what the model then sees.
    answer = page.locator(".message.assistant").first
    answer.get_by_role("button", name="Edit message").click()
    answer.get_by_label("Text of the message").fill("As I say.")
    answer.get_by_role("button", name="Save").click()
    assert answers(page)[0] == "As I say."
    page.locator(".message.assistant").last.get_by_role("button", name="Regenerate").click()
    finished(page, 2)
    assert [m["content"] for m in bodies[2]["messages"]] == ["First", "As I say.", "Second"]
    # An edited question is answered anew, without what came after it.
    question = page.locator(".message.user").first
    question.get_by_role("button", name="Edit message").click()
    question.get_by_label("Text of the message").fill("Once more")
    question.get_by_role("button", name="Save and answer").click()
    finished(page, 1)
    assert [m["content"] for m in bodies[3]["messages"]] == ["Once more"]
    expect(page.locator(".message")).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".message")).to_have_count(4)
    assert answers(page)[0] == "As I say."
    page.locator(".message").last.get_by_role("button", name="Delete message").click()
    expect(page.locator(".message")).to_have_count(3)
    # A message can be answered again from its own place.
    page.locator(".message.user").last.get_by_role("button", name="Answer this again").click()
    finished(page, 2)
    assert len(bodies) == 5


def test_conversations_are_kept_renamed_exported_deleted(page: Page, tmp_path: Path) -> None:
    asked(page)
    set_most_tokens(page, 5)
    send(page, "Keep this")
    finished(page)
    before = page.locator(".message").all_inner_texts()
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert page.locator(".message").all_inner_texts() == before
    listed = page.locator("#conversations")
    expect(listed.locator("li")).to_have_text(["Keep this"])
    listed.get_by_role("button", name="Rename “Keep this”").click()
    page.get_by_label("Name of the conversation").fill("A name / of <b>mine</b>")
    page.keyboard.press("Enter")
    expect(listed.locator("li")).to_have_text(["A name / of <b>mine</b>"])
    with page.expect_download() as download:
        listed.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "A-name-of-b-mine-b.json"
    download.value.save_as(tmp_path / "export.json")
    exported = json.loads((tmp_path / "export.json").read_text())
    assert [m["role"] for m in exported["messages"]] == ["user", "assistant"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)
    send(page, "Another")
    finished(page)
    expect(listed.locator("li")).to_have_text(["Another", "A name / of <b>mine</b>"])
    listed.get_by_role("button", name="A name", exact=False).first.click()
    expect(page.locator(".message.user")).to_contain_text("Keep this")
    listed.get_by_role("button", name="Delete “A name").click()
    expect(listed.locator("li")).to_have_text(["Another"])
    expect(page.locator(".message")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(listed.locator("li")).to_have_count(2)


def test_errors_are_shown_where_they_happened(page: Page) -> None:
    page.route(COMPLETIONS, lambda route: route.abort())
    send(page, "Hello")
    problem = page.locator(".message.assistant .problem")
    expect(problem).to_contain_text("does not answer")
    refusal = {"error": {"message": "the queue is <full>", "type": "x", "param": None, "code": "y"}}
    fulfilling(page, status=429, json=refusal, headers={"retry-after": "3"})
    problem.get_by_role("button", name="Try again").click()
    expect(problem).to_contain_text("the queue is <full> (try again in 3 s)")
    begun = 'data: {"choices": [{"delta": {"content": "Half an ans"}}]}\n\n'
    broken = begun + f"data: {json.dumps({'error': {'message': 'the worker died'}})}\n\n"
    for body, words in ((broken, "the worker died"), (begun, "broke off")):
        fulfilling(page, content_type="text/event-stream", body=body)
        problem.get_by_role("button", name="Try again").click()
        expect(problem).to_contain_text(words)
        expect(page.locator(".message.assistant .markdown")).to_have_text("Half an ans")
    page.unroute(COMPLETIONS)
    bodies = asked(page, max_tokens=5)
    problem.get_by_role("button", name="Try again").click()
    finished(page)
    expect(problem).to_have_count(0)
    assert [m["content"] for m in bodies[0]["messages"]] == ["Hello"]


def test_a_key_is_asked_for_and_forgotten(
    browser: Browser, tiny_chat_model: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[tenants]]\nname = "me"\nsha256 = ["{digest_of("secret-key")}"]\n')
    options = ("--name", "tiny", "--threads", "1", "--api-key-file", str(keys))
    with (
        serving(str(tiny_chat_model), *options) as server,
        page_of(browser, server.url) as page,
    ):
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("needs an API key")
        for key in ("wrong", "secret-key"):
            expect(dialog).to_be_visible()
            page.get_by_label("API key", exact=True).fill(key)
            page.get_by_role("button", name="Use this key").click()
            if key == "wrong":
                expect(dialog).to_contain_text("not known here")
        chosen(page)
        expect(dialog).to_be_hidden()
        bodies = asked(page, max_tokens=4)
        send(page, "Hello")
        finished(page)
        assert len(bodies) == 1
        stored: dict[str, Any] = page.evaluate("({...localStorage})")
        assert "secret-key" not in json.dumps(stored)
        assert "secret-key" in page.evaluate("Object.values({...sessionStorage})")


ATTACK = """<script>window.hit = 1</script><img src=x onerror="window.hit = 1">

<b>bold</b> [a](javascript:window.hit=1) [b](data:text/html,x) [c](/metrics) ![d](http://x.test/y.png)

```html"><img src=x onerror=window.hit=1>
</code></pre><script>window.hit = 1</script>
```

| <i>a</i> | b |
|---|---|
| <svg onload=window.hit=1> | [x](https://ok.test/"onmouseover="window.hit=1) |

# <u>heading</u>
- <iframe src=javascript:window.hit=1>
"""


def test_markup_stays_text(page: Page) -> None:
    outside: list[str] = []
    page.on("request", lambda request: outside.append(request.url))
    answering(page, ATTACK)
    send(page, ATTACK)
    finished(page)
    page.reload()  # and again from what was kept
    expect(page.locator(".message")).to_have_count(2)
    assert page.evaluate("window.hit") is None
    forbidden = "script, img, iframe, svg[onload], b, i:not(.dots i), u, [onerror], [onmouseover]"
    assert page.locator(f".message :is({forbidden})").count() == 0
    answer = page.locator(".message.assistant")
    for text in ("<script>window.hit = 1</script>", "<b>bold</b>", "<iframe", "<u>heading</u>"):
        expect(answer).to_contain_text(text)
    expect(page.locator(".message.user")).to_contain_text("<script>window.hit = 1</script>")
    links = answer.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel, a.target])")
    assert [link[0] for link in links][:1] == ["http://x.test/y.png"]
    assert all(href.startswith(("http://x.test/", "https://ok.test/")) for href, _, _ in links)
    assert {(rel, target) for _, rel, target in links} == {("noopener noreferrer", "_blank")}
    assert not [url for url in outside if "x.test" in url or "ok.test" in url]
    expect(page.locator("#conversations li")).to_contain_text("<script>")
