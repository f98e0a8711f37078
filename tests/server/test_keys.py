"""Where keys are kept: both kinds of store, and what becomes of the keys when they change."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidemill.cli.keys import key as key_group
from tidemill.server import keys as keys_module
from tidemill.server.config import ConfigError
from tidemill.server.key_database import KeyDatabase
from tidemill.server.key_file import KeyFile
from tidemill.server.key_stores import open_key_store
from tidemill.server.keys import Keys, KeyStore, digest_of


@pytest.fixture(params=["keys.db", "keys.toml"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.fixture
def database(tmp_path: Path) -> KeyDatabase:
    store = KeyDatabase(tmp_path / "keys.db")
    store.add_key("a", {}, digest_of("one"))
    return store


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "_RECHECK_SECONDS", 0.0)


def name_of(keys: Keys, key: str) -> str | None:
    tenant = keys.tenant(key)
    return None if tenant is None else tenant.name


def key(*arguments: object) -> Result:
    return CliRunner().invoke(key_group, [*map(str, arguments)])


# ---- both kinds


def test_a_tenant_comes_back_as_it_was_made(path: Path) -> None:
    settings = {
        "models": ["m", "n"], "priority": -2, "weight": 2.5, "admin": True,
        "requests_per_minute": 3, "tokens_per_minute": 4, "tokens_per_day": 5, "max_concurrent": 6,
        "burst_requests": 7, "burst_tokens": 8,
    }  # fmt: skip
    open_key_store(path).add_key('"é\n[x]', settings, digest_of("k"))
    (tenant,) = open_key_store(path).read()
    assert tenant.name == '"é\n[x]'
    assert tenant.sha256 == (digest_of("k"),)
    assert {n: getattr(tenant, n) for n in settings} == {**settings, "models": ("m", "n")}
    assert path.stat().st_mode & 0o077 == 0


def test_keys_come_and_go_while_it_runs(path: Path) -> None:
    open_key_store(path).add_key("a", {}, digest_of("one"))
    keys = Keys(open_key_store(path))
    assert (name_of(keys, "one"), name_of(keys, "two")) == ("a", None)
    open_key_store(path).add_key("b", {"priority": 3}, digest_of("two"))
    assert (name_of(keys, "one"), name_of(keys, "two")) == ("a", "b")
    assert keys.tenant(None) is None


@pytest.mark.parametrize("content", [b"\0\xff" * 5000, b"[[tenants]]\nname = 3\n", b"", None])
def test_what_is_broken_leaves_the_keys_as_they_were(
    path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_key_store(path)
    store.add_key("a", {}, digest_of("one"))
    if isinstance(store, KeyDatabase):
        store.close()
    good = path.read_bytes()
    keys = Keys(open_key_store(path))
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with caplog.at_level(logging.INFO, "tidemill.server"):
        for _ in range(5):
            kept = name_of(keys, "one")
    if content == b"" and path.suffix == ".toml":
        assert kept is None  # an empty text is a text with no tenants
        return
    assert kept == "a"
    assert 1 <= len(caplog.records) <= 2  # not at every request
    for record in caplog.records:
        assert "the keys stay as they were" in record.message
        assert str(path) in record.message
    path.unlink(missing_ok=True)
    path.write_bytes(good)
    open_key_store(path).add_key("b", {}, digest_of("two"))
    assert name_of(keys, "two") == "b"


def test_what_is_no_file_of_keys_holds_nobody_up(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pipes that nobody writes to, devices without end, folders, texts without end."""
    store = open_key_store(path)
    store.add_key("a", {}, digest_of("one"))
    if isinstance(store, KeyDatabase):
        store.close()
    keys = Keys(open_key_store(path))
    path.unlink()
    for make in (os.mkfifo, lambda p: p.symlink_to("/dev/zero"), Path.mkdir):
        make(path)
        assert name_of(keys, "one") == "a"
        with pytest.raises(ConfigError, match=str(path)):
            open_key_store(path)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    path.touch()
    os.truncate(path, 1 << 40)
    assert name_of(keys, "one") == "a"
    assert all("the keys stay as they were" in record.message for record in caplog.records)


def test_a_broken_store_is_an_error_at_the_start(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0 and then nothing")
    with pytest.raises(ConfigError, match=str(path)):
        Keys(open_key_store(path))
    with pytest.raises(ConfigError, match="No such file"):
        Keys(open_key_store(path.with_stem("none")))


def test_the_kind_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    open_key_store(tmp_path / "a.db").add_key("a", {}, digest_of("one"))
    (tmp_path / "a.db").rename(tmp_path / "a.toml")
    assert isinstance(open_key_store(tmp_path / "a.toml"), KeyDatabase)
    (tmp_path / "b.db").write_text("tenants = []\n")
    assert isinstance(open_key_store(tmp_path / "b.db"), KeyFile)


# ---- the file


def test_two_tenants_of_one_name_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[[tenants]]\nname = "a"\n' * 2)
    with pytest.raises(ConfigError, match="two tenants called 'a'"):
        Keys(KeyFile(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [("sha256 = ['abc']", "no SHA-256"), ("burst_tokens = 5", "without tokens_per_minute"),
     ("tokens_per_day = 0", "tokens_per_day"), ("tokens_per_dya = 1", "tokens_per_dya"),
     ("weight = nan", "weight")],
)  # fmt: skip
def test_what_a_tenant_cannot_have(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[[tenants]]\nname = "a"\n{line}\n')
    with pytest.raises(ConfigError, match=said):
        Keys(KeyFile(path))


def test_what_is_written_by_hand_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('# mine\n[[tenants]]\nname = "a"  # first\n')
    assert key("new", "b", "-f", path).exit_code == 0
    assert path.read_text().startswith('# mine\n[[tenants]]\nname = "a"  # first\n\n[[tenants]]')
    before = path.read_text()
    for arguments in (["revoke", "a"], ["set", "a", "--weight", "2"], ["new", "a"]):
        result = key(*arguments, "-f", path)
        assert result.exit_code != 0
    assert path.read_text() == before


# ---- the database


def test_keys_are_rotated_and_withdrawn(database: KeyDatabase) -> None:
    keys = Keys(KeyDatabase(database.path))
    database.add_key("a", {}, digest_of("two"))
    assert (name_of(keys, "one"), name_of(keys, "two")) == ("a", "a")
    assert database.revoke("a", digest_of("one")[:8].upper()) == 1
    assert (name_of(keys, "one"), name_of(keys, "two")) == (None, "a")
    with pytest.raises(ConfigError, match="no key whose hash begins with '%'"):
        database.revoke("a", "%")
    assert database.revoke("a") == 1
    assert name_of(keys, "two") is None
    with pytest.raises(ConfigError, match="no tenant 'a'"):
        database.revoke("a")


def test_settings_change_and_are_cleared(database: KeyDatabase) -> None:
    keys = Keys(KeyDatabase(database.path))
    database.change("a", {"tokens_per_minute": 5, "models": ["m"], "priority": 1})
    database.change("a", {"models": None, "priority": 2})
    tenant = keys.tenant("one")
    assert tenant is not None
    assert (tenant.models, tenant.priority, tenant.tokens_per_minute) == ((), 2, 5)
    for wrong in ({"weight": -1}, {"nonsense": 1}, {"tokens_per_minute": None, "burst_tokens": 1}):
        with pytest.raises(ConfigError):
            database.change("a", wrong)
    with pytest.raises(ConfigError, match="see `key set`"):
        database.add_key("a", {"priority": 3}, digest_of("three"))
    with pytest.raises(ConfigError):
        database.add_key("b", {}, digest_of("one"))
    assert [t.name for t in database.read()] == ["a"]


_ADD_KEYS = """
import sys
from pathlib import Path
from tidemill.server.key_database import KeyDatabase
from tidemill.server.keys import digest_of

store, name = KeyDatabase(Path(sys.argv[1]), patience=60), sys.argv[2]  # disks may be slow
for i in range(20):
    store.add_key(f"{name}{i % 3}", {}, digest_of(f"{name} {i}"))
    store.add_usage({(name, 7): 10, ("all", 7): 1}, 7)
"""


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"  # which the first of them makes
    processes = [
        subprocess.Popen([sys.executable, "-c", _ADD_KEYS, path, f"p{i}"]) for i in range(3)
    ]
    for process in processes:
        assert process.wait(120) == 0
    tenants = KeyDatabase(path).read()
    assert len(tenants) == 9
    assert sum(len(tenant.sha256) for tenant in tenants) == 60
    assert KeyDatabase(path).add_usage({}, 7) == {
        ("p0", 7): 200, ("p1", 7): 200, ("p2", 7): 200, ("all", 7): 60
    }  # fmt: skip


def test_a_reader_waits_for_no_writer(database: KeyDatabase) -> None:
    keys = Keys(KeyDatabase(database.path, patience=0.0))
    writer = sqlite3.connect(database.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM keys")
    assert name_of(keys, "one") == "a"
    with pytest.raises(ConfigError, match="locked"):
        KeyDatabase(database.path, patience=0.0).add_usage({("a", 1): 1}, 1)
    writer.execute("COMMIT")
    assert name_of(keys, "one") is None
    writer.close()


def test_usage_adds_up(database: KeyDatabase) -> None:
    assert database.add_usage({("a", 5): 10}, 6) == {("a", 5): 10}
    assert database.add_usage({("a", 6): 1, ("b", 6): 2}, 6) == {("a", 6): 1, ("b", 6): 2}
    assert KeyDatabase(database.path).add_usage({("a", 6): 4}, 6) == {("a", 6): 5, ("b", 6): 2}
    store: KeyStore = KeyFile(database.path.with_name("keys.toml"))
    assert store.add_usage({("a", 6): 4}, 6) == {}


def test_what_others_have_used_is_no_change_of_the_keys(
    database: KeyDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(KeyDatabase(database.path))
    tenant = keys.tenant("one")
    with caplog.at_level(logging.INFO, "tidemill.server"):
        for _ in range(3):
            database.add_usage({("a", 5): 10}, 5)
            assert keys.tenant("one") is tenant
    assert caplog.records == []


def test_usage_that_could_not_be_told_is_not_added(database: KeyDatabase) -> None:
    """Or it would be, once more, with the next."""

    def no_reading(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_SELECT else sqlite3.SQLITE_OK

    database._database().set_authorizer(no_reading)
    with pytest.raises(ConfigError):
        database.add_usage({("a", 5): 10}, 5)
    assert database.add_usage({("a", 5): 10}, 5) == {("a", 5): 10}


# ---- the commands


def test_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    made = key("new", "a", "-f", path, "--model", "m", "--tokens-per-day", 100)
    assert made.exit_code == 0
    one = made.output.strip()
    two = key("new", "a", "-f", path).output.strip()
    assert one != two
    assert one.encode() not in path.read_bytes()
    keys = Keys(open_key_store(path))
    assert name_of(keys, one) == name_of(keys, two) == "a"
    assert key("set", "a", "-f", path, "--weight", 2, "--clear", "models").exit_code == 0
    listed = key("list", "-f", path).output
    assert listed == (
        f"a: {digest_of(one)[:8]} {digest_of(two)[:8]}, weight 2.0, tokens_per_day 100\n"
    )
    assert key("revoke", "a", "-f", path, "--key", digest_of(one)[:8]).exit_code == 0
    assert (name_of(keys, one), name_of(keys, two)) == (None, "a")
    assert key("revoke", "a", "-f", path).exit_code == 0
    assert key("list", "-f", path).output == ""


@pytest.mark.parametrize(
    "arguments",
    [["set", "a"], ["set", "a", "--weight", "1", "--clear", "weight"],
     ["set", "b", "--weight", "1"], ["set", "a", "--burst-tokens", "1"],
     ["new", "a", "--weight", "0"], ["revoke", "b"], ["revoke", "a", "--key", ""]],
)  # fmt: skip
def test_commands_that_cannot_be(database: KeyDatabase, arguments: list[str]) -> None:
    result = key(*arguments, "-f", database.path)
    assert result.exit_code != 0
    assert len(database.read()) == 1
