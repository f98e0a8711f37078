"""Chromium, headless, and a page of the server in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

COMPLETIONS = "**/v1/chat/completions"

# Lets through half of the text of each streamed answer, the rest once ``window.held`` is false:
# what a page does in the middle of an answer can be looked at without a race. The answer is read
# whole before that, and halved by its text: how much of it comes in one event depends on how fast
# it is read. It comes in pieces that do not end where events do.
HOLDING = r"""
(() => {
  const fetchIt = window.fetch.bind(window);
  window.held = false;
  window.fetch = async (url, options) => {
    const response = await fetchIt(url, options);
    if (!window.held || !String(url).includes("chat/completions")) return response;
    const events = (await response.text()).split(/(?<=\n\n)/);
    const textOf = (event) => {
      if (!event.startsWith("data: {")) return "";
      return JSON.parse(event.slice(6)).choices[0]?.delta?.content ?? "";
    };
    const withText = (event, text) => {
      const data = JSON.parse(event.slice(6));
      data.choices[0].delta.content = text;
      return "data: " + JSON.stringify(data) + "\n\n";
    };
    let left = Math.ceil(events.reduce((sum, event) => sum + textOf(event).length, 0) / 2);
    let first = "";
    let second = "";
    for (const event of events) {
      const text = textOf(event);
      if (left <= 0) second += event;
      else if (text.length <= left) first += event;
      else {
        first += withText(event, text.slice(0, left));
        second += withText(event, text.slice(left));
      }
      left -= text.length;
    }
    const halves = [first, second].map((half) => new TextEncoder().encode(half));
    const body = new ReadableStream({
      async pull(controller) {
        if (!halves[0].length) {
          halves.shift();
          if (!halves.length) return controller.close();
          while (window.held) {
            if (options.signal.aborted) throw new DOMException("stopped", "AbortError");
            await new Promise((go) => setTimeout(go, 10));
          }
        }
        controller.enqueue(halves[0].slice(0, 250));
        halves[0] = halves[0].slice(250);
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
})();
"""


def chromium() -> str:
    """Its path: $TIDEMILL_BROWSER, or where Debian has it. Where the variable is set (as in CI) a
    browser that is missing fails the test; elsewhere the test is skipped."""
    given = os.environ.get("TIDEMILL_BROWSER")
    if given is not None:
        assert Path(given).is_file(), f"TIDEMILL_BROWSER: there is no {given}"
        return given
    if not Path("/usr/bin/chromium").is_file():
        pytest.skip("needs Chromium: apt-get install chromium, or TIDEMILL_BROWSER=/its/path")
    return "/usr/bin/chromium"


@contextmanager
def browsing() -> Iterator[Browser]:
    path = chromium()
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=120_000
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(
    browser: Browser, url: str, *, width: int = 1280, height: int = 800, **options: Any
) -> Iterator[Page]:
    """The page, with the model chosen. Whatever it logs as an error (a breach of its policy, say)
    fails the test; that an answer has an error status is the test's own affair."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(60_000)
    context.add_init_script(HOLDING)
    problems: list[str] = []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text)
                if message.type == "error" and "Failed to load resource" not in message.text
                else None
            ),
        )
        page.goto(url)
        yield page
        assert problems == []
    finally:
        context.close()


def accessible(page: Page) -> None:
    """By axe-core's rules, as the page is now."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def chosen(page: Page) -> Page:
    """Wait until the models are known."""
    expect(page.locator("#model")).not_to_have_value("")
    return page


def asked(page: Page, **more: Any) -> list[dict[str, Any]]:
    """The bodies of the chat requests from now on. Each goes to the server with ``more`` in it."""
    bodies: list[dict[str, Any]] = []

    def pass_on(route: Route) -> None:
        body = route.request.post_data_json
        bodies.append(body)
        route.continue_(post_data=json.dumps({**body, **more}))

    page.route(COMPLETIONS, pass_on)
    return bodies


def answering(page: Page, text: str) -> None:
    """Chats are answered with ``text`` from now on, in small pieces, not by the server."""
    events: list[Any] = [
        {"choices": [{"delta": {"content": text[at : at + 7]}}]} for at in range(0, len(text), 7)
    ]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    fulfilling(page, content_type="text/event-stream", body=body)


def fulfilling(page: Page, **answer: Any) -> None:
    """Chats get that answer from now on, whatever was routed before."""
    page.unroute(COMPLETIONS)
    page.route(COMPLETIONS, lambda route: route.fulfill(**answer))


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def finished(page: Page, answers: int = 1) -> None:
    """Wait until there are so many answers, and none is under way."""
    expect(page.locator(".message.assistant")).to_have_count(answers)
    expect(page.locator(".growing")).to_have_count(0)
