"""hf:// against a server that speaks the Hub's protocol."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest

from support.waiting import until
from tidemill import store

REPO = "acme/tiny"
FILE = "tiny-Q4_K_M.gguf"
CDN = f"/cdn/acme--tiny/{FILE}"
MiB = 1 << 20


def test_one_file_is_fetched_verified_and_described(hub_server, store_home, make_gguf):
    content = make_gguf(3 * MiB)
    hub_server.repos[REPO] = {FILE: content, "README.md": b"hello"}
    hub_server.cards[REPO] = {"license": "apache-2.0"}
    events: list[store.ProgressEvent] = []
    path = store.resolve(f"hf://{REPO}", progress=events.append)

    assert path.read_bytes() == content
    assert path.is_relative_to(store_home / "models")
    assert events[0].done == 0
    assert events[-1] == store.ProgressEvent("download", FILE, 3 * MiB, 3 * MiB)
    assert [event.done for event in events] == sorted(event.done for event in events)
    (model,) = store.list_models()
    assert model.name == f"hf://{REPO}"
    assert model.license == "apache-2.0"
    assert model.bytes == 3 * MiB
    assert model.sha256 == hashlib.sha256(content).hexdigest()
    assert model.revision == "c0ffee" + "0" * 34
    assert list((store_home / "downloads").iterdir()) == []
    assert json.loads((path.parent / "model.json").read_text())["entry"] == FILE


def test_the_second_time_nothing_is_asked(hub_server, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    path = store.resolve(f"hf://{REPO}/{FILE}")
    asked = len(hub_server.requests)
    assert store.resolve(f"hf://{REPO}/{FILE}") == path
    assert store.resolve(f"hf://{REPO}/{FILE}", offline=True) == path
    assert store.pull(f"hf://{REPO}/{FILE}").path == path
    assert len(hub_server.requests) == asked


def test_force_fetches_again_and_replaces(hub_server, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    first = store.pull(f"hf://{REPO}")
    hub_server.repos[REPO] = {FILE: make_gguf(300_000, seed=1)}
    assert store.pull(f"hf://{REPO}").bytes == 200_000
    second = store.pull(f"hf://{REPO}", force=True)
    assert second.path == first.path
    assert second.path.read_bytes() == make_gguf(300_000, seed=1)


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(hub_server, make_gguf, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    store.pull(f"hf://{REPO}")
    by_path = {request.path: request.headers for request in hub_server.requests}
    resolve = next(path for path in by_path if "/resolve/" in path)
    assert by_path[resolve]["Authorization"] == "Bearer hf_secret"
    assert by_path[f"/api/models/{REPO}"]["Authorization"] == "Bearer hf_secret"
    assert by_path[CDN]["Authorization"] is None


def test_killed_download_leaves_no_model_and_the_next_one_continues(
    hub_server, store_home, make_gguf, start_pull
):
    content = make_gguf(4 * MiB)
    hub_server.repos[REPO] = {FILE: content}
    behaviour = hub_server.behave(CDN, stall_after=3 * MiB)
    process = start_pull(f"hf://{REPO}")
    partial = store_home / "downloads"
    assert behaviour.stalled.wait(60)
    # Three chunks are under way; at least one reaches the file whatever the client buffers.
    until(lambda: [p for p in partial.glob(f"*/partial/{FILE}") if p.stat().st_size >= MiB])
    process.send_signal(signal.SIGKILL)
    process.wait()
    behaviour.resume.set()
    (part,) = partial.glob(f"*/partial/{FILE}")
    kept = part.stat().st_size
    assert MiB <= kept <= 3 * MiB

    assert store.list_models() == []
    with pytest.raises(store.OfflineError, match="tidemill pull hf://acme/tiny"):
        store.resolve(f"hf://{REPO}", offline=True)
    assert store.list_unfinished()[0][0] == f"hf://{REPO}"

    hub_server.behaviours.clear()
    hub_server.requests.clear()
    events: list[store.ProgressEvent] = []
    path = store.resolve(f"hf://{REPO}", progress=events.append)
    assert path.read_bytes() == content
    assert hub_server.sent(CDN) == len(content) - kept
    assert hub_server.gets(CDN)[0].headers["Range"] == f"bytes={kept}-"
    assert events[0].done == kept
    assert store.list_unfinished() == []


def test_partial_of_another_version_is_not_continued(hub_server, store_home, make_gguf, start_pull):
    hub_server.repos[REPO] = {FILE: make_gguf(4 * MiB)}
    behaviour = hub_server.behave(CDN, stall_after=3 * MiB)
    process = start_pull(f"hf://{REPO}")
    assert behaviour.stalled.wait(60)
    partial = store_home / "downloads"
    until(lambda: any(p.stat().st_size for p in partial.glob(f"*/partial/{FILE}")))
    process.kill()
    process.wait()
    behaviour.resume.set()
    hub_server.behaviours.clear()
    hub_server.requests.clear()
    changed = make_gguf(4 * MiB, seed=9)
    hub_server.repos[REPO] = {FILE: changed}
    assert store.resolve(f"hf://{REPO}").read_bytes() == changed
    assert hub_server.sent(CDN) == 4 * MiB


def test_finished_files_of_an_unfinished_pull_are_kept_if_they_are_still_the_same(
    hub_server, make_gguf
):
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    files = {name: make_gguf(200_000, seed=i) for i, name in enumerate(names)}
    hub_server.repos[REPO] = files
    cdn = [f"/cdn/acme--tiny/{name}" for name in names]
    hub_server.behave(cdn[2], statuses=[503] * 5)
    with pytest.raises(store.DownloadError):
        store.resolve(f"hf://{REPO}")
    files[names[0]] = make_gguf(200_000, seed=7)
    hub_server.requests.clear()
    path = store.resolve(f"hf://{REPO}")
    for name in names:
        assert path.with_name(name).read_bytes() == files[name]
    assert [hub_server.sent(url) for url in cdn] == [200_000, 0, 200_000]


def test_two_processes_at_once_download_once(hub_server, make_gguf, start_pull):
    content = make_gguf(2 * MiB)
    hub_server.repos[REPO] = {FILE: content}
    behaviour = hub_server.behave(CDN, stall_after=MiB)
    first = start_pull(f"hf://{REPO}")
    assert behaviour.stalled.wait(60)
    second = start_pull(f"hf://{REPO}")
    # The second one says that it waits while the first one is in the middle.
    assert second.stdout.readline() == "wait\n"
    behaviour.resume.set()
    outputs = [process.communicate(timeout=60)[0].split() for process in (first, second)]
    paths = {output[-1] for output in outputs}
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == content
    assert hub_server.sent(CDN) == 2 * MiB
    assert len(hub_server.gets(f"/api/models/{REPO}")) == 1


def test_a_waiting_process_takes_over_when_the_first_is_killed(hub_server, make_gguf, start_pull):
    content = make_gguf(2 * MiB)
    hub_server.repos[REPO] = {FILE: content}
    behaviour = hub_server.behave(CDN, stall_after=MiB)
    first = start_pull(f"hf://{REPO}")
    assert behaviour.stalled.wait(60)
    second = start_pull(f"hf://{REPO}")
    assert second.stdout.readline() == "wait\n"
    behaviour.stall_after = None
    first.kill()
    first.wait()
    behaviour.resume.set()
    output = second.communicate(timeout=60)[0].split()
    assert Path(output[-1]).read_bytes() == content


def test_altered_content_is_refused_with_both_checksums(hub_server, store_home, make_gguf):
    content, altered = make_gguf(200_000), make_gguf(200_000, seed=5)
    hub_server.repos[REPO] = {FILE: content}
    hub_server.altered[FILE] = altered
    with pytest.raises(store.IntegrityError) as caught:
        store.resolve(f"hf://{REPO}")
    assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert hashlib.sha256(altered).hexdigest() in str(caught.value)
    assert store.list_models() == []
    assert not list(store_home.rglob("*.gguf"))
    # Nothing of the bad content is used by the next pull.
    hub_server.altered.clear()
    assert store.resolve(f"hf://{REPO}").read_bytes() == content


def test_small_files_are_verified_by_their_git_hash(hub_server, folder_repo):
    hub_server.repos[REPO] = folder_repo
    hub_server.altered["config.json"] = folder_repo["config.json"].replace(b"llama", b"gemma")
    with pytest.raises(store.IntegrityError, match="Git blob"):
        store.resolve(f"hf://{REPO}")
    assert store.list_models() == []


def test_longer_content_than_announced_is_cut_off(hub_server, store_home, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    hub_server.behave(CDN, overlong=b"x" * 100_000)
    with pytest.raises(store.IntegrityError, match="longer than the 200000 bytes"):
        store.resolve(f"hf://{REPO}")
    assert not list(store_home.rglob("*.gguf"))


def test_dropped_connections_are_continued(hub_server, make_gguf):
    content = make_gguf(4 * MiB)
    hub_server.repos[REPO] = {FILE: content}
    hub_server.behave(CDN, drop_after=MiB, drops_left=3)
    assert store.resolve(f"hf://{REPO}").read_bytes() == content
    requests = hub_server.gets(CDN)
    assert len(requests) == 4
    assert all(request.headers["Range"] for request in requests[1:])


def test_a_dead_server_is_given_up_and_what_arrived_is_kept(hub_server, store_home, make_gguf):
    content = make_gguf(4 * MiB)
    hub_server.repos[REPO] = {FILE: content}
    hub_server.behave(CDN, statuses=[503] * 100)
    with pytest.raises(store.DownloadError, match="answers 503; gave up after 5 tries"):
        store.resolve(f"hf://{REPO}")
    assert len(hub_server.gets(CDN)) == 5


def test_a_busy_api_is_asked_again(hub_server, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    hub_server.api_statuses = [503, 429]
    assert store.resolve(f"hf://{REPO}").exists()


def test_a_mirror_that_lists_names_only(hub_server, folder_repo):
    hub_server.lists_blobs = False
    hub_server.repos[REPO] = folder_repo
    folder = store.resolve(f"hf://{REPO}")
    assert (folder / "model.safetensors").read_bytes() == folder_repo["model.safetensors"]
    assert any(request.method == "HEAD" for request in hub_server.requests)
    hub_server.altered["model.safetensors"] = bytes(len(folder_repo["model.safetensors"]))
    with pytest.raises(store.IntegrityError, match="sha256"):
        store.pull(f"hf://{REPO}", force=True)
    # The one that was here is here still.
    assert store.resolve(f"hf://{REPO}", offline=True) == folder


@pytest.fixture
def folder_repo() -> dict[str, bytes]:
    return {
        "README.md": b"about",
        "config.json": b'{"model_type": "llama"}',
        "generation_config.json": b"{}",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": b"s" * 150_000,
        "pytorch_model.bin": b"pickle" * 100,
        "training_args.bin": b"pickle",
        "onnx/model.onnx": b"onnx",
        "modeling_custom.py": b"import os",
    }


def test_a_folder_takes_what_a_loader_reads_and_never_code_or_pickles(hub_server, folder_repo):
    hub_server.repos[REPO] = folder_repo
    folder = store.resolve(f"hf://{REPO}")
    assert folder.is_dir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.json",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    fetched = {request.path for request in hub_server.requests}
    assert not any(path.endswith((".bin", ".py", ".onnx")) for path in fetched)


def test_a_split_model_comes_whole(hub_server, make_gguf):
    names = [f"Q8_0/big-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub_server.repos[REPO] = {name: make_gguf(120_000, seed=i) for i, name in enumerate(names)}
    path = store.resolve(f"hf://{REPO}/{names[1]}")
    assert path.name == "big-Q8_0-00001-of-00003.gguf"
    for name in names:
        local = path.parent / name.rpartition("/")[2]
        assert local.read_bytes() == hub_server.repos[REPO][name]
    del hub_server.repos[REPO][names[2]]
    with pytest.raises(store.ModelNotFoundError, match="1 of 3 files are missing"):
        store.pull(f"hf://{REPO}", force=True)


def test_revisions_are_kept_apart(hub_server, make_gguf):
    hub_server.repos[REPO] = {FILE: make_gguf(200_000)}
    pinned = store.resolve(f"hf://{REPO}@v1/{FILE}")
    assert pinned.parent != store.resolve(f"hf://{REPO}/{FILE}").parent
    with pytest.raises(store.ModelNotFoundError, match="no such revision"):
        store.resolve(f"hf://{REPO}@v2/{FILE}")


def test_errors_say_what_to_do(hub_server, make_gguf):
    hub_server.gated.add("acme/gated")
    with pytest.raises(store.DownloadError, match=r"accept its terms.*HF_TOKEN"):
        store.resolve("hf://acme/gated")
    with pytest.raises(store.ModelNotFoundError, match=r"no such model repository.*HF_TOKEN"):
        store.resolve("hf://acme/absent")
    hub_server.repos[REPO] = {FILE: make_gguf(1000), "a-Q8_0.gguf": make_gguf(1000)}
    with pytest.raises(store.ModelNotFoundError, match=rf"(?s)has no 'b.gguf'.*hf://{REPO}/{FILE}"):
        store.resolve(f"hf://{REPO}/b.gguf")


def test_hostile_file_names_are_refused(hub_server, store_home, make_gguf):
    hub_server.repos[REPO] = {"..\\evil.gguf": make_gguf(1000)}
    with pytest.raises(store.InvalidNameError, match="refused"):
        store.resolve(f"hf://{REPO}")
    assert not list(store_home.rglob("*.gguf"))


def test_unreachable_endpoint(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(store.DownloadError, match=r"hf://acme/tiny: .*gave up"):
        store.resolve(f"hf://{REPO}")
