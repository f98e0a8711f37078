from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import Server, serving


@pytest.fixture(scope="session")
def server(tiny_chat_model: Path) -> Iterator[Server]:
    """A server of the tiny model, under the name "tiny" and the alias-free rest of its settings as
    they come. Tests leave it as they found it."""
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as found:
        yield found
