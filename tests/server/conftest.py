from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.serving import Server, serving
from support.tiny_chat_model import write_chat_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def server(tiny_chat_model: Path) -> Iterator[Server]:
    """A server of the tiny model, under the name "tiny" and the alias-free rest of its settings as
    they come. Tests leave it as they found it."""
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as found:
        yield found


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What to serve for answers of tens of thousands of tokens, which on no machine end before a
    test has done what it does meanwhile, even if one of its processes stands still for a while."""
    path = write_chat_model(tmp_path_factory.mktemp("endless") / "tiny.gguf", context=65536)
    return (str(path), "--context", "65536")


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The server's page, with the model chosen."""
    from support.browsing import chosen, page_of

    with page_of(browser, server.url) as found:
        yield chosen(found)
