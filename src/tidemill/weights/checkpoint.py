"""From a path to a checkpoint: which kind of model is it?"""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.weights.base import Checkpoint, CheckpointError
from tidemill.weights.gguf import MAGIC, open_gguf
from tidemill.weights.mapped import map_file
from tidemill.weights.safetensors import INDEX_FILE, open_folder

_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_LATER_PART = r"(?si).*-(?!00001)\d{5}-of-\d{5}\.gguf"


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model: a GGUF file (any part of a split one), or a folder.

    A folder is in the Hugging Face layout (``config.json`` and safetensors), or holds one GGUF
    model. Opening reads and checks the headers; weights stay on disk until they are used.
    CheckpointError if there is no model, or it is damaged, hostile or of an unsupported kind.
    Files that need pickle are never read.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() in _PICKLES:
        raise CheckpointError(_refusal(path, path.name))
    if path.suffix.lower() == ".safetensors":
        raise CheckpointError(
            f"{path}: give the folder instead, with the config.json that belongs to this file"
        )
    if _is_gguf(path.name) or map_file(path)[:4].tobytes() == MAGIC:
        return open_gguf(path)
    raise CheckpointError(
        f"{path}: not a model file; a .gguf file or a folder with config.json and .safetensors "
        "files is needed"
    )


def _open_folder(folder: Path) -> Checkpoint:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from error
    safetensors = [name for name in names if name.endswith(".safetensors")]
    ggufs = [name for name in names if _is_gguf(name) and not re.fullmatch(_LATER_PART, name)]
    pickles = [name for name in names if Path(name).suffix.lower() in _PICKLES]
    if INDEX_FILE in names or (safetensors and ("config.json" in names or not ggufs)):
        return open_folder(folder)
    if len(ggufs) == 1:
        return open_gguf(folder / ggufs[0])
    if ggufs:
        raise CheckpointError(
            f"{folder}: {len(ggufs)} GGUF models are in this folder; give the path of one: "
            f"{', '.join(ggufs[:5])}{' ...' if len(ggufs) > 5 else ''}"
        )
    if pickles:
        raise CheckpointError(_refusal(folder, ", ".join(pickles[:3])))
    raise CheckpointError(
        f"{folder}: no model in this folder; a .gguf file, or config.json with .safetensors files, "
        "is needed"
    )


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _refusal(path: Path, names: str) -> str:
    return (
        f"{path}: {names}: weights in pickle format can run any code when they are loaded, so they "
        "are never read; get the model as safetensors or GGUF, or convert it where you trust it"
    )
