"""Settings from file, environment and flags; what cannot be is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.server.config import ConfigError, ModelConfig, as_toml, load_config


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nmax_waiting = 1\nhost = "::1"')
    config = load_config(
        file, {"TIDEMILL_PORT": "2", "TIDEMILL_MAX_WAITING": "2"}, {"port": 3, "host": None}
    )
    assert (config.port, config.max_waiting, config.host) == (3, 2, "::1")
    assert config.request_seconds == 3600


def test_what_is_printed_can_be_read_back(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "models": [{"source": 'a "quoted" \\ path/mödel.gguf', "aliases": ["x", "y"]}],
        "allow_origins": ["*"],
        "keep_alive_seconds": 2.5,
    }
    config = load_config(None, {}, flags)
    assert load_config(write(tmp_path, as_toml(config)), {}, {}) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 99999", "port"),
        ('port = "x"', "port"),
        ("prot = 1", "prot"),
        ("[[models]]\nname = 'x'", "source"),
        ("[[models]]\nsource = 'x'\nthreads = 0", "threads"),
        ("[[models]]\nsource = 'x'\nname = 'a b'", "a b"),
        ("[[models]]\nsource = 'a/x'\n[[models]]\nsource = 'b/x'", "two models"),
        ("drain_seconds = -1", "drain_seconds"),
        ("port = ", "TOML"),
        ("a = " + "[" * 5000, "TOML"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(write(tmp_path, text), {}, {})
    assert "serve.toml" in str(caught.value)


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="TIDEMILL_PORT"):
        load_config(None, {"TIDEMILL_PORT": "many"}, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_config(tmp_path / "none.toml", {}, {})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2", "smollm2"),
        ("/models/Qwen 3.GGUF", "Qwen-3"),
        ("hf://owner/repo", "repo"),
        ("folder/", "folder"),
    ],
)
def test_a_model_is_called_by_the_end_of_its_source(source: str, name: str) -> None:
    assert ModelConfig(source=source).name == name
