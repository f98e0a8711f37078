"""A GGUF file with its weights as F32: what the model would be without quantisation."""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.weights import open_checkpoint


def write_f32(gguf_path: Path, target: Path) -> Path:
    """Write ``target`` with the metadata and the dequantised weights of ``gguf_path``, atomically;
    nothing is done if it is there and no older."""
    import gguf

    if target.exists() and target.stat().st_mtime_ns >= gguf_path.stat().st_mtime_ns:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    reader = gguf.GGUFReader(gguf_path)
    checkpoint = open_checkpoint(gguf_path)
    writer = gguf.GGUFWriter(partial, checkpoint.metadata["general.architecture"])
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(
            name, field.contents(), field.types[0], field.types[-1] if is_array else None
        )
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    try:
        for name, tensor in checkpoint.tensors.items():
            writer.add_tensor(name, tensor.dequantize())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
