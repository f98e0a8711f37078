"""What a model is and what it will need, read from its description alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.backends.base import KVCacheSpec, KVDtype, MemoryPlan
from tidemill.llm.loading import (
    BackendName,
    OpenModel,
    backend_named,
    check_size,
    origin_of,
    plan_memory,
)
from tidemill.llm.memory import BLOCK_SIZE
from tidemill.models.sources import Source
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint

_LAYER = re.compile(r"^blk\.\d+\.")


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The tensors that play one part (``attn_q`` of all layers), by storage type."""

    name: str
    tensors: int
    parameters: int
    bytes: int
    types: Mapping[str, int]
    """Storage type -> how many of the tensors have it."""

    @property
    def bits_per_weight(self) -> float:
        return 8.0 * self.bytes / self.parameters if self.parameters else 0.0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts from the files; ``config`` are the architecture's hyper-parameters."""

    name: str
    path: str
    format: str
    file_bytes: int
    title: str | None
    architecture: str
    parameters: int
    weight_bytes: int
    groups: tuple[TensorGroup, ...]
    config: Mapping[str, Any]
    context_length: int
    tokenizer: str
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    chat_template: str | None

    @property
    def bits_per_weight(self) -> float:
        return 8.0 * self.weight_bytes / self.parameters if self.parameters else 0.0


def describe_model(opened: OpenModel) -> ModelDescription:
    """Describe an open model; touches no weight data."""
    checkpoint, model, tokenizer = opened.checkpoint, opened.model, opened.tokenizer
    groups = _groups(model.weights.sources)
    config = {
        name: getattr(model.config, name)
        for name in model.config.__dataclass_fields__
        if isinstance(getattr(model.config, name), (int, float, str, bool, type(None)))
    }
    title = checkpoint.metadata.get("general.name") or checkpoint.metadata.get("_name_or_path")
    return ModelDescription(
        name=opened.name,
        path=str(opened.path),
        format=checkpoint.format,
        file_bytes=_file_bytes(checkpoint),
        title=title if isinstance(title, str) else None,
        architecture=model.config.architecture,
        parameters=sum(group.parameters for group in groups),
        weight_bytes=sum(group.bytes for group in groups),
        groups=groups,
        config=config,
        context_length=model.config.context_length,
        tokenizer=_tokenizer_kind(checkpoint.metadata),
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_ids=tuple(sorted(tokenizer.eos_ids)),
        chat_template=tokenizer.chat_template,
    )


def _file_bytes(checkpoint: Checkpoint) -> int:
    try:
        return sum(file.stat().st_size for file in checkpoint.files)
    except OSError:  # removed since they were opened, which leaves what is mapped of them
        return sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())


def plan_model(
    opened: OpenModel,
    *,
    context: int,
    sequences: int,
    kv_dtype: KVDtype = "f16",
    backend: BackendName = "cpu",
    max_batch_tokens: int = 512,
    threads: int = 1,
) -> MemoryPlan:
    """The memory for ``sequences`` sequences of ``context`` tokens each, all at once.

    Raises ValueError if that is beyond any machine."""
    check_size("max_sequences", sequences)
    return plan_memory(
        opened,
        backend_named(backend),
        KVCacheSpec(sequences * -(-context // BLOCK_SIZE), BLOCK_SIZE, kv_dtype),
        max_batch_tokens=max(max_batch_tokens, sequences),
        max_logit_rows=sequences,
        threads=threads,
        origin=origin_of(opened),
    )


def _groups(sources: Mapping[str, Source]) -> tuple[TensorGroup, ...]:
    members: dict[str, list[Source]] = {}
    for name, source in sources.items():
        members.setdefault(_LAYER.sub("", name).removesuffix(".weight"), []).append(source)
    groups = []
    for name, group in members.items():
        types: dict[str, int] = {}
        parameters = n_bytes = 0
        for source in group:
            count = 1
            for extent in source.shape:
                count *= extent
            types[source.type.name] = types.get(source.type.name, 0) + 1
            parameters += count
            n_bytes += source.type.nbytes(source.shape)
        groups.append(TensorGroup(name, len(group), parameters, n_bytes, types))
    return tuple(groups)


def _tokenizer_kind(metadata: Mapping[str, Any]) -> str:
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str):
        return "tokenizer.json"
    kinds = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE", "t5": "unigram"}
    pre = metadata.get("tokenizer.ggml.pre")
    return kinds.get(model, model) + (f", pre-tokenizer {pre}" if isinstance(pre, str) else "")
