"""A report as a reader has it before them: in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from support.browsing import accessible, page_of
from support.recordings import at_rates, measurement
from tidemill.bench import reporting
from tidemill.bench.reporting import files


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    runs = [
        measurement(scenario, engine=engine, speed=speed, failing=0.05)
        for scenario in ("short-chat", "cold-start")
        for engine, speed in (("tidemill", 2.0), ("llama.cpp", 1.0))
    ]
    runs += at_rates([0.5, 1.0], engine="tidemill", speed=2.0, series="a")
    files.write_html(reporting.report(runs), path)
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_everybody_can_read_it(browser: Browser, address: str, width: int, scheme: str) -> None:
    with page_of(browser, address, width=width, color_scheme=scheme) as page:
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_nothing_is_fetched(browser: Browser, address: str) -> None:
    with page_of(browser, "about:blank") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert asked == [address]


def test_pictures_have_their_colours_on_both_papers(browser: Browser, address: str) -> None:
    found = []
    for scheme in ("light", "dark"):
        with page_of(browser, address, color_scheme=scheme) as page:
            found.append(stroke(page))
    assert found[0] != found[1]


def stroke(page: Page) -> str:
    """The colour of the first line that is drawn in one of an engine's."""
    return str(
        page.evaluate(
            "getComputedStyle(document.querySelector('[style*=\"stroke:var(--series\"]')).stroke"
        )
    )


def test_words_of_a_picture_stay_in_it(browser: Browser, address: str) -> None:
    with page_of(browser, address) as page:
        beyond = page.evaluate(
            """[...document.querySelectorAll("figure svg")].flatMap((svg) => {
                const box = svg.getBoundingClientRect();
                return [...svg.querySelectorAll("text")]
                  .filter((text) => {
                    const at = text.getBoundingClientRect();
                    return at.left < box.left - 1 || at.right > box.right + 1
                      || at.top < box.top - 1 || at.bottom > box.bottom + 1;
                  })
                  .map((text) => text.textContent);
            })"""
        )
        assert beyond == []


def test_it_can_be_printed(browser: Browser, address: str, tmp_path: Path) -> None:
    with page_of(browser, address, color_scheme="dark") as page:
        page.emulate_media(media="print")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"  # whatever the screen has
