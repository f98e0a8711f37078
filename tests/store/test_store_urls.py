"""http(s):// with ranges, and file://, memory:// and the rest through fsspec."""

from __future__ import annotations

import hashlib
import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile

from tidemill import store

MiB = 1 << 20
PATH = "/models/tiny.gguf"


def test_http(server, make_gguf):
    content = make_gguf(2 * MiB)
    server.files[PATH] = content
    events: list[store.ProgressEvent] = []
    path = store.resolve(server.url + PATH, progress=events.append)
    assert path.read_bytes() == content
    assert events[-1] == store.ProgressEvent("download", "tiny.gguf", 2 * MiB, 2 * MiB)
    (model,) = store.list_models()
    assert model.sha256 == hashlib.sha256(content).hexdigest()
    assert store.resolve(server.url + PATH, offline=True) == path
    assert len(server.gets(PATH)) == 1


def test_http_checksum_in_the_fragment(server, make_gguf, store_home):
    content = make_gguf(1000)
    server.files[PATH] = content
    digest = hashlib.sha256(content).hexdigest()
    assert store.resolve(f"{server.url}{PATH}#sha256={digest}").read_bytes() == content
    with pytest.raises(store.IntegrityError, match=digest):
        store.resolve(f"{server.url}{PATH}#sha256={'0' * 64}")
    with pytest.raises(store.InvalidNameError, match="not understood"):
        store.resolve(f"{server.url}{PATH}#md5=1")
    assert len(list(store_home.rglob("*.gguf"))) == 1


def test_http_continues_only_the_same_version(server, make_gguf):
    server.files[PATH] = make_gguf(4 * MiB)
    server.behave(PATH, drop_after=2 * MiB, drops_left=1, etag='"v1"')
    assert store.resolve(server.url + PATH).read_bytes() == make_gguf(4 * MiB)
    second = server.gets(PATH)[1]
    assert second.headers["If-Range"] == '"v1"'
    assert second.sent < 3 * MiB + 1


@pytest.mark.parametrize("ignores_if_range", [False, True])
def test_http_starts_over_when_the_content_changed(server, make_gguf, ignores_if_range):
    new = make_gguf(3 * MiB, seed=2)
    server.files[PATH] = make_gguf(4 * MiB, seed=1)
    behaviour = server.behave(
        PATH, drop_after=2 * MiB, drops_left=1, etag='"v1"', ignores_if_range=ignores_if_range
    )

    def change(event: store.ProgressEvent) -> None:
        if event.done >= MiB:
            behaviour.etag = '"v2"'
            server.files[PATH] = new

    assert store.resolve(server.url + PATH, progress=change).read_bytes() == new


def test_http_starts_over_when_the_range_is_past_the_end(server, make_gguf):
    new = make_gguf(MiB // 2, seed=2)
    server.files[PATH] = make_gguf(4 * MiB, seed=1)
    server.behave(PATH, drop_after=2 * MiB, drops_left=1, etag='"same"')

    def change(event: store.ProgressEvent) -> None:
        if event.done >= MiB:
            server.files[PATH] = new

    assert store.resolve(server.url + PATH, progress=change).read_bytes() == new


def test_http_without_validator_starts_over(server, make_gguf):
    server.files[PATH] = make_gguf(4 * MiB)
    server.behave(PATH, drop_after=2 * MiB, drops_left=1)
    assert store.resolve(server.url + PATH).read_bytes() == make_gguf(4 * MiB)
    assert all(request.headers["Range"] is None for request in server.gets(PATH))


def test_http_server_that_ignores_ranges(server, make_gguf):
    server.files[PATH] = make_gguf(4 * MiB)
    server.behave(PATH, drop_after=2 * MiB, drops_left=1, etag='"v1"', ranges=False)
    assert store.resolve(server.url + PATH).read_bytes() == make_gguf(4 * MiB)


def test_http_without_a_length(server, make_gguf):
    server.files[PATH] = make_gguf(2 * MiB)
    server.behave(PATH, chunked=True)
    events: list[store.ProgressEvent] = []
    path = store.resolve(server.url + PATH, progress=events.append)
    assert path.read_bytes() == make_gguf(2 * MiB)
    assert events[-1].total is None


def test_http_truncated_chunks_are_no_model(server, make_gguf):
    server.files[PATH] = make_gguf(2 * MiB)
    server.behave(PATH, chunked=True, drop_after=MiB, drops_left=1000)
    server.behaviours[PATH].etag = None
    with pytest.raises(store.DownloadError, match="gave up"):
        store.resolve(server.url + PATH)
    assert store.list_models() == []


def test_http_compressed_content_is_refused(server, make_gguf):
    server.files[PATH] = make_gguf(1000)
    server.behave(PATH, encoding="gzip")
    with pytest.raises(store.DownloadError, match="compressed content unasked"):
        store.resolve(server.url + PATH)


def test_http_statuses(server):
    with pytest.raises(store.ModelNotFoundError, match="no such file"):
        store.resolve(server.url + "/absent.gguf")
    server.files[PATH] = b""
    for status, message in ((403, "access denied"), (418, "HTTP 418")):
        server.behave(PATH, statuses=[status])
        with pytest.raises(store.DownloadError, match=message):
            store.resolve(server.url + PATH)
        assert len(server.gets(PATH)) == 1
        server.requests.clear()


def test_http_login_page_is_no_model(server, store_home):
    server.files[PATH] = b"<html>please log in</html>"
    with pytest.raises(store.IntegrityError, match=r"no GGUF file.*login"):
        store.resolve(server.url + PATH)
    assert not list(store_home.rglob("*.gguf"))


def test_http_split_model(server, make_gguf):
    for number in (1, 2):
        server.files[f"/m-0000{number}-of-00002.gguf"] = make_gguf(1000, seed=number)
    path = store.resolve(f"{server.url}/m-00002-of-00002.gguf")
    assert path.name == "m-00001-of-00002.gguf"
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == make_gguf(1000, seed=2)


@pytest.mark.parametrize("host", ["a..b", "\N{SNOWMAN}.example"])
def test_http_hosts_that_cannot_be(host: str):
    with pytest.raises(store.InvalidNameError, match="is no URL"):
        store.resolve(f"http://{host}/x.gguf")


def test_http_names_only_gguf_files(server):
    with pytest.raises(store.InvalidNameError, match=r"does not end in \.gguf"):
        store.resolve(f"{server.url}/model.safetensors")


def test_secrets_of_a_url_are_not_written_down(server, make_gguf, store_home):
    server.files[PATH] = make_gguf(1000)
    path = store.resolve(f"http://user:hunter2@127.0.0.1:{server.port}{PATH}?sig=hunter2")
    (model,) = store.list_models()
    assert model.name == server.url + PATH
    everything = str(list(store_home.rglob("*"))) + (path.parent / "model.json").read_text()
    assert "hunter2" not in everything
    assert store.remove(model.name) > 1000
    assert store.list_models() == []


def test_file_url(tmp_path, make_gguf):
    (tmp_path / "a.gguf").write_bytes(make_gguf(2 * MiB))
    url = f"file://{tmp_path}/a.gguf"
    # It never leaves this machine, so it works offline.
    path = store.resolve(url, offline=True)
    assert path.read_bytes() == make_gguf(2 * MiB)
    assert path != tmp_path / "a.gguf"
    with pytest.raises(store.ModelNotFoundError, match="not found"):
        store.resolve(f"file://{tmp_path}/b.gguf")


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def test_memory_file(memory, make_gguf):
    memory.pipe_file("/bucket/a.gguf", make_gguf(2 * MiB))
    assert store.resolve("memory://bucket/a.gguf").read_bytes() == make_gguf(2 * MiB)


def test_memory_folder(memory):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"):
        memory.pipe_file(f"/bucket/model/{name}", name.encode())
    folder = store.resolve("memory://bucket/model")
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "model.json"}


def test_memory_folder_with_several_models(memory, make_gguf):
    memory.pipe_file("/bucket/a.gguf", make_gguf(100))
    memory.pipe_file("/bucket/b.gguf", make_gguf(200))
    with pytest.raises(store.AmbiguousModelError) as caught:
        store.resolve("memory://bucket")
    assert caught.value.choices == ("memory://bucket/a.gguf", "memory://bucket/b.gguf")
    assert store.resolve(caught.value.choices[1]).stat().st_size == 200


def test_memory_split_model(memory, make_gguf):
    for number in (1, 2):
        name = f"/b/m-0000{number}-of-00002.gguf"
        memory.pipe_file(name, make_gguf(1000, seed=number))
    path = store.resolve("memory://b/m-00001-of-00002.gguf")
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == make_gguf(1000, seed=2)


class FailingFile:
    """Gives two chunks, then loses its connection; the ones opened after it do not."""

    def __init__(self, file, opened: list[int]):
        self.file, self.opened, self.left = file, opened, 2

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def seek(self, offset):
        self.opened.append(offset)
        self.file.seek(offset)

    def read(self, count):
        if self.left == 0 and len(self.opened) == 1:
            raise ConnectionResetError("reset by peer")
        self.left -= 1
        return self.file.read(count)


@pytest.fixture
def failing_opens(memory, monkeypatch) -> list[int]:
    """Makes the memory file system fail once; the list has the offset of every open."""
    opened: list[int] = []
    whole_open = type(memory).open
    monkeypatch.setattr(
        type(memory), "open", lambda *a, **k: FailingFile(whole_open(*a, **k), opened)
    )
    return opened


def test_a_failing_filesystem_is_continued(memory, make_gguf, failing_opens):
    memory.pipe_file("/bucket/a.gguf", make_gguf(3 * MiB))
    assert store.resolve("memory://bucket/a.gguf").read_bytes() == make_gguf(3 * MiB)
    assert failing_opens == [0, 2 * MiB]


def test_a_file_that_changed_at_its_source_is_started_over(memory, make_gguf, failing_opens):
    new = make_gguf(3 * MiB, seed=2)
    memory.pipe_file("/bucket/a.gguf", make_gguf(3 * MiB))

    def change(event: store.ProgressEvent) -> None:
        if event.done == 2 * MiB:
            memory.store["/bucket/a.gguf"] = MemoryFile(memory, "/bucket/a.gguf", new)

    path = store.resolve("memory://bucket/a.gguf", progress=change)
    assert path.read_bytes() == new
    assert failing_opens == [0, 0]


@pytest.mark.parametrize(
    ("scheme", "module", "package"),
    [
        ("s3", "s3fs", "'tidemill[fsspec]'"),
        ("gs", "gcsfs", "gcsfs"),
        ("gcs", "gcsfs", "gcsfs"),
        ("abfs", "adlfs", "adlfs"),
    ],
)
def test_other_schemes_say_what_to_install(monkeypatch, store_home, scheme, module, package):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    known = sys.modules["fsspec.registry"]._registry  # what was imported before
    monkeypatch.delitem(known, scheme, raising=False)
    expected = f"{scheme}:// needs {module}, which is not installed: pip install {package}"
    with pytest.raises(store.MissingDependencyError) as caught:
        store.resolve(f"{scheme}://bucket/a.gguf")
    assert str(caught.value) == expected
    assert store.list_unfinished() == []
    assert list((store_home / "downloads").iterdir()) == []


def test_unknown_schemes():
    with pytest.raises(store.InvalidNameError, match="no kind of model name that is known"):
        store.resolve("gopher://bucket/a.gguf")
    with pytest.raises(store.InvalidNameError, match="chain of URLs"):
        store.resolve("simplecache::memory://bucket/a.gguf")


def test_offline_refuses_every_network_form(monkeypatch):
    monkeypatch.setenv("TIDEMILL_OFFLINE", "1")
    for name in ("hf://a/b", "pypi://a", "http://h/a.gguf", "s3://b/a.gguf", "smollm2", "gemma3"):
        with pytest.raises(store.OfflineError, match=f"tidemill pull {name}"):
            store.resolve(name)
    monkeypatch.delenv("TIDEMILL_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(store.OfflineError):
        store.resolve("smollm2")
