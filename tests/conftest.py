"""Models that tests run on: a tiny one that they write, and the two real ones of the catalogue."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The same examples everywhere; how long they take says something of the machine alone.
settings.register_profile(
    "tidemill", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidemill")

# A shell that starts us in the background makes us, and every child, ignore Ctrl-C; the tests that
# press it would then test nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF with random weights, a byte-level tokenizer and ChatML's template."""
    from support.tiny_chat_model import write_chat_model

    return write_chat_model(tmp_path_factory.mktemp("tiny") / "tiny-chat.gguf")


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """``real_model("smollm2")`` is the file of a real model.

    From $TIDEMILL_TEST_MODELS/<name>.gguf if that is set, else from the model store, which
    downloads it once. A model that cannot be had fails the test: it is never skipped.
    """

    def find(name: str) -> Path:
        folder = os.environ.get("TIDEMILL_TEST_MODELS")
        if folder is not None:
            path = Path(folder) / f"{name}.gguf"
            assert path.is_file(), f"{path} is missing (TIDEMILL_TEST_MODELS is set)"
            return path
        from tidemill import store

        return store.resolve(name)

    return find


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from support.browsing import browsing

    with browsing() as found:
        yield found
