"""What web pages share: their files, the headers of answers, whose requests are foreign."""

from __future__ import annotations

import re

import pytest

from tidemill.presentation import pages

PACKAGES = ("tidemill.server.web", "tidemill.advise.page")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_page_has_its_files_and_those_of_every_page(package: str) -> None:
    found = pages.files(package)
    assert {"base.css", "icon.svg"} < found.keys()
    assert not any(name.endswith(".py") for name in found)
    assert found["base.css"].type == "text/css; charset=utf-8"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_colour_that_is_used_is_known(package: str) -> None:
    found = pages.files(package)
    texts = {name: file.content.decode() for name, file in found.items()}
    known = {name for text in texts.values() for name in re.findall(r"(--[\w-]+):", text)}
    for name, text in texts.items():
        assert set(re.findall(r"var\((--[\w-]+)", text)) <= known, name


def test_dark_pages_have_a_colour_for_each_of_light_ones() -> None:
    css = pages.files(PACKAGES[0])["base.css"].content.decode()
    light, dark = (
        dict(re.findall(r"(--[\w-]+): ([^;]+);", part)) for part in css.split("@media", 1)
    )
    assert light.keys() - dark.keys() == {"--mono", "--sans"}
    assert dark.keys() <= light.keys()


def test_every_page_links_to_what_it_has() -> None:
    for package in PACKAGES:
        found = pages.files(package)
        for name, file in found.items():
            if name.endswith(".html"):
                linked = re.findall(
                    r'(?:href|src)="(?:web)?/?([\w-]+\.(?:css|js|svg))"', file.content.decode()
                )
                assert set(linked) <= found.keys(), name


def test_a_policy_is_that_of_all_pages_and_more() -> None:
    headers = pages.answer_headers("form-action 'self'", "connect-src 'self'")
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert policy[-2:] == ["form-action 'self'", "connect-src 'self'"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://here:80"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": ""}, True),
        ({"origin": "http://here:80"}, False),
        ({"origin": "http://here"}, True),
        ({"origin": "null"}, True),
        ({"origin": ""}, True),
    ],
)
def test_whose_request_it_is(headers: dict[str, str], foreign: bool) -> None:
    assert pages.is_foreign({"host": "here:80", **headers}) is foreign


def test_an_origin_without_a_host_is_foreign() -> None:
    assert pages.is_foreign({"origin": "http://here"})
