"""What lies on disk: full disks, damage, removal, changes of the catalogue."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket

import pytest

from tidemill import store
from tidemill.store import layout, transfer

MiB = 1 << 20
REPO = "acme/tiny"
FILE = "tiny-Q8_0.gguf"


@pytest.fixture
def stored(hub_server, make_gguf) -> store.StoredModel:
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    return store.pull(f"hf://{REPO}")


def test_space_is_checked_before_anything_is_fetched(
    hub_server, store_home, make_gguf, monkeypatch
):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}
    usage = transfer.shutil.disk_usage
    free = transfer.SPARE_BYTES + 4 * MiB - 1
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda p: usage(p)._replace(free=free))
    with pytest.raises(store.DiskFullError, match=r"4\.2 MB are needed and 4\.2 MB are free"):
        store.resolve(f"hf://{REPO}")
    assert [r.path for r in hub_server.requests] == [f"/api/models/{REPO}"]
    assert list((store_home / "downloads").iterdir()) == []
    free += 1
    assert store.resolve(f"hf://{REPO}").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_leaves_nothing(hub_server, store_home, make_gguf, monkeypatch, code):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}

    class FullDisk:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, chunk):
            if self._file.tell() >= 2 * MiB:
                raise OSError(code, "No space left on device")
            return self._file.write(chunk)

    monkeypatch.setattr(transfer, "open", lambda *a: FullDisk(open(*a)), raising=False)  # noqa: SIM115
    with pytest.raises(store.DiskFullError, match=r"the disk is full .* set TIDEMILL_HOME"):
        store.resolve(f"hf://{REPO}")
    assert list((store_home / "downloads").iterdir()) == []
    assert store.list_models() == []
    monkeypatch.undo()


def test_a_limit_of_the_system_leaves_nothing(hub_server, store_home, make_gguf, start_pull):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}
    prelude = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * MiB}, {2 * MiB}))\n"
    )
    output = start_pull(f"hf://{REPO}", prelude=prelude).communicate(timeout=60)[0]
    assert "error DiskFullError" in output
    assert list((store_home / "downloads").iterdir()) == []
    assert store.list_models() == []


def test_a_store_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "file" / "store"))
    with pytest.raises(store.StoreError, match="cannot write to the store"):
        store.resolve("smollm2")
    assert store.list_models() == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("where", ["create", "write", "publish", "discard"])
def test_a_disk_that_refuses_is_explained(
    hub_server, store_home, make_gguf, monkeypatch, code, where
):
    """Whatever the system refuses, and when: one kind of error, and no model that is half there."""
    hub_server.repos[REPO] = {FILE: make_gguf(1 * MiB)}

    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    place = {
        "create": (transfer.Workspace, "create"),
        "write": (transfer.os, "fsync"),
        "publish": (layout, "publish"),
        "discard": (layout, "discard"),
    }[where]
    monkeypatch.setattr(*place, refuse)
    with pytest.raises(store.StoreError, match=r"cannot (write to the store|put .* in place)"):
        store.pull(f"hf://{REPO}")
    monkeypatch.undo()
    monkeypatch.setenv("TIDEMILL_HOME", str(store_home))
    assert [m.path.stat().st_size for m in store.list_models()] in ([], [MiB])


def test_a_store_that_can_only_be_read(stored, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("mkdir", "unlink", "open", "rename", "replace"):
        monkeypatch.setattr(layout.os, name, refuse)
    assert store.resolve(stored.name) == stored.path
    assert store.pull(stored.name) == stored
    assert store.list_models() == [stored]
    for act in (lambda: store.pull(stored.name, force=True), lambda: store.remove(stored.name)):
        with pytest.raises(store.StoreError, match=r"cannot (write to|remove).*Read-only"):
            act()
    assert store.list_models() == [stored]


def test_installed_models_need_no_network_and_no_lock(stored, monkeypatch, hub_server):
    def no_network(*arguments):
        raise AssertionError("the network was used")

    def no_lock(*arguments):
        raise AssertionError("the store was locked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(layout, "lock_file", no_lock)
    assert store.resolve(stored.name) == stored.path
    assert store.list_models() == [stored]


def test_damage_is_noticed_and_mended(stored, make_gguf):
    stored.path.write_bytes(b"GGUF cut off")
    assert store.list_models() == []
    with pytest.raises(store.OfflineError):
        store.resolve(stored.name, offline=True)
    assert store.resolve(stored.name).read_bytes() == make_gguf(200_000)


SECRET = {"name": "../../../secret", "bytes": 6, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "change",
    [
        {"entry": "../../../secret"},
        {"entry": "other.gguf"},
        {"entry": SECRET["name"], "files": [SECRET]},
        {"entry": ".", "files": [SECRET]},
        {"files": None},
        {"format": 2},
    ],
)
def test_a_tampered_manifest_is_no_model(stored, store_home, change):
    (store_home.parent / "secret").write_text("secret")
    manifest = stored.path.with_name("model.json")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"name": "renamed"}))
    assert [model.name for model in store.list_models()] == ["renamed"]
    manifest.write_text(json.dumps(content | change))
    assert store.list_models() == []


def test_remove(stored, store_home):
    assert store.remove(stored.name) > 200_000
    assert not stored.path.exists()
    assert list((store_home / "models").iterdir()) == []
    assert list((store_home / "downloads").iterdir()) == []
    with pytest.raises(store.ModelNotFoundError):
        store.remove(stored.name)


@pytest.mark.parametrize("name", ["../models", "..", "/etc", ".", "hf://../x", ""])
def test_remove_stays_inside_the_store(stored, name):
    with pytest.raises(store.StoreError):
        store.remove(name)
    assert stored.path.exists()


def test_remove_drops_an_unfinished_pull(hub_server, make_gguf, store_home):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}

    def interrupt(event: store.ProgressEvent) -> None:
        if event.done >= MiB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(f"hf://{REPO}", progress=interrupt)
    assert [name for name, _ in store.list_unfinished()] == [f"hf://{REPO}"]
    store.remove(f"hf://{REPO}")
    assert store.list_unfinished() == []


def test_a_pull_that_brought_nothing_leaves_nothing(server, hub_server, store_home):
    names = (f"{server.url}/none.gguf", "memory://nowhere/a.gguf", "hf://no/such", f"hf://{REPO}")
    hub_server.repos[REPO] = {"pytorch_model.bin": b"x"}
    for name in names:
        with pytest.raises(store.StoreError):
            store.pull(name)
        assert store.list_unfinished() == []
        assert list((store_home / "downloads").iterdir()) == []


def test_an_interrupted_pull_keeps_what_it_has(hub_server, store_home, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}

    def unfinished_after(least: int) -> list[int]:
        def interrupt(event: store.ProgressEvent) -> None:
            if event.done >= least:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.pull(f"hf://{REPO}", progress=interrupt)
        return [size for _, size in store.list_unfinished()]

    assert unfinished_after(0) == []
    (size,) = unfinished_after(2 * MiB)
    assert size >= 2 * MiB
    store.pull(f"hf://{REPO}")
    assert store.list_unfinished() == []


def test_leftovers_of_a_removal_that_was_killed_go_with_the_next(stored, store_home):
    trash = store_home / "downloads" / ".trash-0"
    trash.mkdir()
    (trash / "big.gguf").write_bytes(b"x")
    store.remove(stored.name)
    assert not trash.exists()


def write_catalogue(store_home, url: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    text = f'[mine]\nsource = "{url}"\nsha256 = "{digest}"\nbytes = {len(content)}\n'
    store_home.mkdir(exist_ok=True)
    (store_home / "catalogue.toml").write_text(text)


def test_a_changed_catalogue_entry_is_fetched_anew(server, store_home, make_gguf):
    old, new = make_gguf(1000, seed=1), make_gguf(1000, seed=2)
    server.files |= {"/old.gguf": old, "/new.gguf": new}
    write_catalogue(store_home, f"{server.url}/old.gguf", old)
    assert store.resolve("mine").read_bytes() == old
    write_catalogue(store_home, f"{server.url}/new.gguf", new)
    with pytest.raises(store.OfflineError):
        store.resolve("mine", offline=True)
    assert store.resolve("MINE").read_bytes() == new
    assert len(store.list_models()) == 1


def test_a_moved_catalogue_entry_is_not_fetched_anew(server, store_home, make_gguf):
    content = make_gguf(1000)
    server.files["/old.gguf"] = content
    write_catalogue(store_home, f"{server.url}/old.gguf", content)
    path = store.resolve("mine")
    write_catalogue(store_home, f"{server.url}/elsewhere.gguf", content)
    assert store.resolve("mine") == path


def test_a_model_outlives_its_catalogue_entry(server, store_home, make_gguf):
    content = make_gguf(1000)
    server.files["/old.gguf"] = content
    write_catalogue(store_home, f"{server.url}/old.gguf", content)
    path = store.resolve("mine")
    (store_home / "catalogue.toml").unlink()
    assert store.resolve("mine") == path
    with pytest.raises(store.ModelNotFoundError, match="in no catalogue any more"):
        store.pull("mine", force=True)
    assert store.remove("mine") > 1000


def test_parts_may_come_from_different_places(server, hub_server, store_home, make_gguf):
    content = make_gguf(3 * MiB)
    hub_server.repos[REPO] = {"a.part0": content[:MiB]}
    server.files["/a.part1"] = content[MiB:]
    digest = hashlib.sha256(content).hexdigest()
    store_home.mkdir()
    (store_home / "catalogue.toml").write_text(
        f'[mine]\nfile = "a.gguf"\nsha256 = "{digest}"\n'
        f'parts = ["hf://{REPO}/a.part0", "file://{store_home}/a.part1"]\n'
    )
    (store_home / "a.part1").write_bytes(content[MiB:])
    assert store.resolve("mine").read_bytes() == content


def test_home_follows_the_environment(monkeypatch, tmp_path):
    assert store.home() == tmp_path / "store"
    monkeypatch.delenv("TIDEMILL_HOME")
    assert store.home() == tmp_path / "cache" / "tidemill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.home() == tmp_path / ".cache" / "tidemill"


def test_sizes_for_people():
    sizes = [0, 999, 1000, 98_362_432, 999_949_999, 999_950_000, 2 * 10**12]
    assert [store.format_bytes(size) for size in sizes] == [
        "0 B", "999 B", "1.0 kB", "98.4 MB", "999.9 MB", "1.0 GB", "2.0 TB",
    ]  # fmt: skip
