"""Which files of a folder, repository, bucket or wheel make up one model.

Works on names alone (``/``-separated, relative), so every kind of source chooses alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tidemill.records import dataclass
from tidemill.store.base import AmbiguousModelError, InvalidNameError, ModelNotFoundError

# Which quantisation is taken when a repository offers several and none is named: first the usual
# compromise, then its neighbours by size, then more bits, then fewer. Only types that can be run.
QUANTISATION_ORDER = (
    "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4",
    "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0",
    "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
    "BF16", "F16", "F32",
)  # fmt: skip

# Files of a Hugging Face folder that a loader reads, besides the weights.
_FOLDER_FILES = frozenset({
    "config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
})  # fmt: skip
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

# The name that a split GGUF gives each of its files: <stem>-00001-of-00003.gguf, counted from 1.
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.I)
# GGUF files that go with a model but are none: vision projectors, importance matrices.
_COMPANION = r"(?i)mmproj|imatrix"


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of one model. ``entry`` is what a loader opens: one of them, or "" (the folder)."""

    files: tuple[str, ...]
    entry: str


def is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def split_set(path: str) -> tuple[str, ...]:
    """All files of the split GGUF that ``path`` is one of, in order; just ``path`` if not split.

    Raises:
        InvalidNameError: the numbers in the name contradict each other.
    """
    match = _SPLIT.fullmatch(path)
    if match is None:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise InvalidNameError(f"{path!r} says that it is file {number} of {count}")
    return tuple(
        f"{match['stem']}-{i:05d}-of-{count:05d}{match['suffix']}" for i in range(1, count + 1)
    )


def select(
    listing: Iterable[str],
    *,
    where: str,
    path: str | None = None,
    quantisation: str | None = None,
    choice: Callable[[str], str] = str,
) -> Selection:
    """Choose the files of the model that ``path`` names, or of the one that lies in ``listing``.

    Args:
        listing: every file there is.
        where: what the listing is of, for errors.
        path: a file or folder of the listing; None looks at all of it.
        quantisation: take the GGUF model whose name says this.
        choice: turns a path of the listing into the model name to suggest for it.

    Raises:
        ModelNotFoundError: no such file, or nothing there that can be loaded.
        AmbiguousModelError: several models, and nothing tells which one.
        InvalidNameError: ``path`` is of a kind that cannot be loaded.
    """
    files = sorted(set(listing))
    if path is not None and path in files:
        return _named(path, files, where)
    prefix = f"{path}/" if path else ""
    inside = [file for file in files if file.startswith(prefix)]
    if not inside and prefix:
        models = [choice(file) for file in files if is_gguf(file)]
        hint = "; it has" + "".join(f"\n  {model}" for model in models[:50]) if models else ""
        raise ModelNotFoundError(f"{where} has no {path!r}{hint}")
    ggufs = [file for file in inside if is_gguf(file) and not re.search(_COMPANION, _base(file))]
    if ggufs or quantisation:
        chosen = _choose_gguf(ggufs, where, quantisation, choice)
        return _complete(chosen, files, where)
    return _folder(prefix, inside, where, choice)


def _named(path: str, files: Sequence[str], where: str) -> Selection:
    if is_gguf(path):
        return _complete(path, files, where)
    if path.lower().endswith(_PICKLES):
        raise InvalidNameError(
            f"{path!r} of {where} may hold pickled code, which is never loaded; "
            "name a .gguf file or a folder with safetensors"
        )
    if path.lower().endswith((".safetensors", ".json")):
        raise InvalidNameError(
            f"{path!r} of {where} is one file of a model in Hugging Face layout; "
            "name the folder that it is in"
        )
    # A wheel or bucket may carry part of a file under any name; what is joined is checked later.
    return Selection((path,), path)


def _complete(path: str, files: Sequence[str], where: str) -> Selection:
    parts = split_set(path)
    if missing := [part for part in parts if part not in files]:
        raise ModelNotFoundError(
            f"{where} has {path!r} but not all of the split model: "
            f"{len(missing)} of {len(parts)} files are missing, the first is {missing[0]!r}"
        )
    return Selection(parts, parts[0])


def _choose_gguf(
    ggufs: Sequence[str], where: str, quantisation: str | None, choice: Callable[[str], str]
) -> str:
    models = list(dict.fromkeys(split_set(file)[0] for file in ggufs))
    wanted = (quantisation,) if quantisation else QUANTISATION_ORDER
    if len(models) == 1 and not quantisation:
        return models[0]
    for label in wanted:
        fitting = [model for model in models if _has_label(model, label)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise AmbiguousModelError(
                f"{where} has several {label} models; name one of", [choice(m) for m in fitting]
            )
    if quantisation:
        if not models:
            raise ModelNotFoundError(f"{where} has no GGUF files, so no {quantisation} either")
        raise AmbiguousModelError(
            f"{where} has no {quantisation} model; it has", [choice(m) for m in models]
        )
    raise AmbiguousModelError(
        f"{where} has several models; name one of", [choice(m) for m in models]
    )


def _has_label(path: str, label: str) -> bool:
    """Whether the file's name says that it has this quantisation, as a word of its own."""
    return (
        re.search(rf"(?<![A-Z0-9]){re.escape(label)}(?![A-Z0-9_])", _base(path), re.IGNORECASE)
        is not None
    )


def _folder(
    prefix: str, inside: Sequence[str], where: str, choice: Callable[[str], str]
) -> Selection:
    place = f"{where}, folder {prefix!r}," if prefix else where
    names = {file.removeprefix(prefix) for file in inside if file.startswith(prefix)}
    top = {name for name in names if "/" not in name}
    weights = {name for name in top if name.endswith(".safetensors")}
    if not weights:
        # One folder further down will do, as in a wheel.
        folders = sorted(
            folder
            for folder in {file.rpartition("/")[0] for file in inside if "/" in file}
            if f"{folder}/config.json" in inside
            and any(re.fullmatch(re.escape(folder) + r"/[^/]+\.safetensors", f) for f in inside)
        )
        if len(folders) == 1:
            return _folder(f"{folders[0]}/", inside, where, choice)
        if folders:
            raise AmbiguousModelError(
                f"{place} has several models; name one of", [choice(folder) for folder in folders]
            )
        if any(name.lower().endswith(_PICKLES) for name in names):
            raise ModelNotFoundError(
                f"{place} holds only pickled weights (.bin, .pt), which are never loaded because "
                "they can run code; look for a conversion to safetensors or GGUF"
            )
        raise ModelNotFoundError(f"{place} has no .gguf and no .safetensors files")
    if "config.json" not in top:
        raise ModelNotFoundError(
            f"{place} has safetensors but no config.json, so it is not in Hugging Face layout"
        )
    # Some repositories hold the same weights again in their makers' own layout.
    if _INDEX in top:
        named = {name for name in weights if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)}
        weights = named or weights
    elif "model.safetensors" in weights:
        weights = {"model.safetensors"}
    wanted = weights | (top & _FOLDER_FILES) | (top & {_INDEX})
    return Selection(tuple(prefix + name for name in sorted(wanted)), "")


def _base(path: str) -> str:
    return path.rpartition("/")[2]
