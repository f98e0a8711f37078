"""Forms of names, the catalogue, and which files make up a model: nothing is fetched here."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill import store
from tidemill.store.catalogue import parse_catalogue
from tidemill.store.names import check_relative, folder_name, is_short_name, parse_reference
from tidemill.store.selection import QUANTISATION_ORDER, select, split_set

ANY_PATH = st.text(st.sampled_from("ab./\\~:\0\n *é"), max_size=12) | st.text(max_size=20)


@settings(derandomize=True, deadline=None)
@given(ANY_PATH)
def test_accepted_relative_paths_stay_inside(path: str):
    try:
        check_relative(path)
    except store.InvalidNameError:
        return
    root = Path("/root/folder")
    joined = root.joinpath(path)
    assert joined.is_relative_to(root)
    assert joined != root
    assert ".." not in joined.parts
    assert "\0" not in path


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(["hf://", "pypi://", "http://", "file://", ""]), ANY_PATH)
def test_folders_of_the_store_are_single_plain_names(scheme: str, rest: str):
    name = scheme + rest
    folder = None
    if "://" in name:
        try:
            reference = parse_reference(name)
        except store.InvalidNameError:
            return
        folder = folder_name(reference.canonical, str(reference))
        assert parse_reference(reference.canonical) == reference
    elif is_short_name(name):
        folder = folder_name(name, name)
    if folder is not None:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", folder)
        assert len(folder) <= 128


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ANY_PATH)
def test_any_name_is_resolved_or_refused_clearly(name: str):
    # Anything but a StoreError fails the test.
    with contextlib.suppress(store.StoreError):
        assert store.resolve(name, offline=True).exists()


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("hf://o/r", "hf://o/r"),
        ("hf://o/r/", "hf://o/r"),
        ("hf://o/r@v1.0/sub/f.gguf", "hf://o/r@v1.0/sub/f.gguf"),
        ("hf://o/r:Q8_0", "hf://o/r:Q8_0"),
        ("pypi://Some.Package_x==1.0+cpu#p/m.gguf", "pypi://some-package-x==1.0+cpu#p/m.gguf"),
        ("s3://bucket/key/", "s3://bucket/key/"),
        (f"https://h/x.gguf#sha256={'A' * 64}", f"https://h/x.gguf#sha256={'a' * 64}"),
    ],
)
def test_canonical_names(name: str, canonical: str):
    assert parse_reference(name).canonical == canonical


@pytest.mark.parametrize(
    "name",
    [
        "hf://", "hf://owner", "hf://owner/", "hf://../r", "hf://o/r@", "hf://o/r/../x.gguf",
        "hf://o/r:Q8_0/x.gguf", "hf://-o/r", "pypi://", "pypi://-e", "pypi://a==", "pypi://a==-1",
        "pypi://a#../x", "pypi://a#/x", "://x", "9p://x", "http://", "http://[::1/x.gguf",
        "http://h:99999/x.gguf", "file://", "a\0b", "", "x" * 5000, "file://x\ny",
    ],
)  # fmt: skip
def test_malformed_names(name: str):
    with pytest.raises(store.InvalidNameError):
        store.resolve(name, offline=True)


def test_folders_differ_when_names_do():
    names = ["hf://o/r", "hf://o/r@main", "hf://O/r", "pypi://o-r", "http://h/a?x=1", "http://h/a"]
    folders = {folder_name(n, str(parse_reference(n))) for n in names}
    assert len(folders) == len(names)


def test_catalogue_facts():
    catalogue = store.load_catalogue()
    smollm2, gemma3 = catalogue[store.DEFAULT_MODEL], catalogue["gemma3"]
    assert (smollm2.bytes, smollm2.license) == (98_362_432, "Apache-2.0")
    assert gemma3.bytes == 253_113_024
    assert [part.package[-5:] for part in gemma3.parts] == ["part1", "part2", "part3", "part4"]
    for entry in catalogue.values():
        assert entry.license
        assert entry.sha256
        assert entry.bytes


def test_the_users_catalogues_extend_and_replace(store_home, tmp_path):
    config = tmp_path / "config" / "tidemill"
    config.mkdir(parents=True)
    store_home.mkdir()
    (config / "catalogue.toml").write_text(
        '[mine]\nsource = "hf://a/b"\n[smollm2]\nsource = "hf://c/d"\n'
    )
    assert store.load_catalogue()["mine"].source == "hf://a/b"
    assert store.load_catalogue()["smollm2"].source == "hf://c/d"
    (store_home / "catalogue.toml").write_text('[mine]\nsource = "hf://e/f"\n')
    assert store.load_catalogue()["mine"].source == "hf://e/f"
    assert "gemma3" in store.load_catalogue()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "where: "),
        ("a = 1", r"\[a\]: is not a table"),
        ('[Upper]\nsource = "hf://a/b"', r"\[Upper\]: a name is lower-case"),
        ('["../x"]\nsource = "hf://a/b"', "a name is lower-case"),
        ('[a]\nsource = "hf://a/b"\nshasum = "1"', "unknown key 'shasum'; known are bytes"),
        ("[a]", "needs either source"),
        ('[a]\nsource = "hf://a/b"\nparts = ["hf://a/b"]', "needs either source"),
        ('[a]\nsource = "../model.gguf"', "is no URL"),
        ('[a]\nparts = ["hf://a/b", "hf://c/d"]', "file = "),
        ('[a]\nfile = "../x"\nparts = ["hf://a/b", "hf://c/d"]', "refused"),
        ('[a]\nsource = "hf://a/b"\nbytes = -1', "bytes must be a positive integer"),
        ('[a]\nsource = "hf://a/b"\nbytes = true', "bytes must be a positive integer"),
        ('[a]\nsource = "hf://a/b"\nsha256 = "12"', "sha256 must be 64 hex digits"),
        ('[a]\nsource = "hf://a/b"\nlicense = 3', "license must be a string"),
    ],
)
def test_malformed_catalogues(text: str, message: str):
    with pytest.raises(store.CatalogueError, match=message) as caught:
        parse_catalogue(text, "where")
    assert str(caught.value).startswith("where: ")


def test_unknown_names_get_suggestions(monkeypatch):
    with pytest.raises(store.ModelNotFoundError) as caught:
        store.resolve("smolm2")
    message = str(caught.value)
    assert "did you mean smollm2?" in message
    assert "Known names: gemma3, smollm2" in message
    assert "hf://owner/repo" in message
    with pytest.raises(store.ModelNotFoundError, match="hf://HuggingFaceTB/SmolLM2"):
        store.resolve("HuggingFaceTB/SmolLM2")


def test_local_paths(tmp_path, make_gguf, monkeypatch):
    model = tmp_path / "a.gguf"
    model.write_bytes(make_gguf(100))
    assert store.resolve(model) == model
    assert store.resolve(str(tmp_path)) == model
    monkeypatch.chdir(tmp_path)
    assert store.resolve("a.gguf") == Path("a.gguf")
    with pytest.raises(store.InvalidNameError, match="a local model already"):
        store.pull("a.gguf")
    (tmp_path / "b.gguf").write_bytes(make_gguf(100))
    with pytest.raises(store.AmbiguousModelError) as caught:
        store.resolve(tmp_path)
    assert caught.value.choices == (str(model), str(tmp_path / "b.gguf"))
    with pytest.raises(store.ModelNotFoundError, match=r"no file or folder 'absent\.gguf'"):
        store.resolve("absent.gguf")
    with pytest.raises(store.ModelNotFoundError, match="no file or folder"):
        store.resolve("./absent")
    for long in ("x" * 300, "./" + "x" * 300):
        with pytest.raises(store.ModelNotFoundError, match="too long"):
            store.resolve(long)


def test_local_split_model(tmp_path, make_gguf):
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    second.write_bytes(make_gguf(100))
    with pytest.raises(store.ModelNotFoundError, match=f"2 files; {re.escape(str(first))} is miss"):
        store.resolve(second)
    first.write_bytes(make_gguf(100))
    assert store.resolve(second) == first
    assert store.resolve(tmp_path) == first


def test_local_folder_in_hugging_face_layout(tmp_path, monkeypatch):
    folder = tmp_path / "gemma3"
    folder.mkdir()
    with pytest.raises(store.ModelNotFoundError, match=r"no \.gguf and no \.safetensors"):
        store.resolve(folder)
    (folder / "model.safetensors").write_bytes(b"s")
    with pytest.raises(store.ModelNotFoundError, match=r"no config\.json"):
        store.resolve(folder)
    (folder / "config.json").write_text("{}")
    assert store.resolve(folder) == folder
    with pytest.raises(store.InvalidNameError, match="name the folder"):
        store.resolve(folder / "model.safetensors")
    # A name of the catalogue is not hidden by a folder that happens to be here.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(store.OfflineError):
        store.resolve("gemma3", offline=True)
    assert store.resolve("./gemma3") == Path("gemma3")


def test_pickles_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"pickle")
    with pytest.raises(store.InvalidNameError, match="never loaded"):
        store.resolve(path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(store.ModelNotFoundError, match="only pickled weights"):
        store.resolve(tmp_path)


def chosen(*files: str, **options) -> str:
    return select(files, where="here", **options).entry


def test_quantisation_is_chosen_in_the_documented_order():
    available = [f"m-{label}.gguf" for label in QUANTISATION_ORDER]
    for label in QUANTISATION_ORDER:
        assert chosen(*available) == f"m-{label}.gguf"
        available.remove(f"m-{label}.gguf")
    assert chosen("m.q8_0.gguf", "m.f16.gguf", "mmproj-f16.gguf") == "m.q8_0.gguf"
    assert chosen("m-Q4_0_4_4.gguf", "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert chosen("m.gguf", "model.imatrix.gguf", "mmproj-m.gguf") == "m.gguf"
    assert chosen("m-IQ2_XXS.gguf", "config.json", "x.safetensors") == "m-IQ2_XXS.gguf"
    assert chosen("m-Q8_0.gguf", "m-Q4_K_M.gguf", quantisation="q8_0") == "m-Q8_0.gguf"


def test_no_guess_between_equals():
    for files in (("a-Q8_0.gguf", "b-Q8_0.gguf"), ("m-IQ1_S.gguf", "m-IQ2_S.gguf")):
        with pytest.raises(store.AmbiguousModelError) as caught:
            chosen(*files)
        assert caught.value.choices == files
    with pytest.raises(store.AmbiguousModelError, match="no Q2_K model"):
        chosen("a-Q8_0.gguf", quantisation="Q2_K")
    with pytest.raises(store.ModelNotFoundError, match="no GGUF files"):
        chosen("config.json", "model.safetensors", quantisation="Q2_K")


def test_split_sets():
    assert split_set("m.gguf") == ("m.gguf",)
    assert split_set("d/m-00002-of-00002.gguf") == (
        "d/m-00001-of-00002.gguf",
        "d/m-00002-of-00002.gguf",
    )
    for name in ("m-00003-of-00002.gguf", "m-00000-of-00002.gguf"):
        with pytest.raises(store.InvalidNameError, match="says that it is file"):
            split_set(name)


def test_duplicate_weights_of_a_folder_are_left_out():
    common = ["config.json", "tokenizer.json"]
    index = "model.safetensors.index.json"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    selection = select([*common, *shards, index, "consolidated.safetensors"], where="here")
    assert set(selection.files) == {*common, *shards, index}
    selection = select([*common, "model.safetensors", "consolidated.safetensors"], where="here")
    assert set(selection.files) == {*common, "model.safetensors"}
    nested = ["a/config.json", "a/x.safetensors", "b/config.json", "b/x.safetensors"]
    with pytest.raises(store.AmbiguousModelError):
        select(nested, where="here")
    assert select(nested, where="here", path="b").files == ("b/config.json", "b/x.safetensors")
