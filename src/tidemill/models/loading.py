"""From a checkpoint to a model: hyper-parameters, recorded program, weights by its names."""

from __future__ import annotations

from tidemill.models.architectures import Architecture, find_architecture
from tidemill.models.config import ModelConfig, common, context_length
from tidemill.models.hyper import MAX_VOCAB, Hyper
from tidemill.models.names import canonical
from tidemill.models.sources import ModelWeights, Source
from tidemill.program.analysis import weight_names
from tidemill.program.graph import Graph, GraphError
from tidemill.program.ops import Program
from tidemill.records import dataclass
from tidemill.weights.base import Checkpoint, CheckpointError


@dataclass(frozen=True, slots=True)
class Model:
    """What backends compile. ``weights`` has exactly the weights that ``program`` names."""

    config: ModelConfig
    program: Program
    weights: ModelWeights


def trained_context(checkpoint: Checkpoint) -> int:
    """Tokens of a sequence that a checkpoint was trained for, told without recording its program.
    Raises ``CheckpointError`` for an unknown architecture, or where it is missing."""
    return context_length(Hyper(checkpoint, find_architecture(checkpoint).hf_defaults))


def load_model(checkpoint: Checkpoint, *, max_context: int | None = None) -> Model:
    """Record the program of a checkpoint and name its weights.

    ``max_context`` is the most tokens of a sequence that will be served (the trained context
    unless given): LongRoPE models choose their rotation by it. Touches no weight data but small
    rotation tables. Raises ``CheckpointError`` where the checkpoint is of an unknown
    architecture, incomplete, inconsistent, or has tensors that the architecture has no use for.
    """
    architecture = find_architecture(checkpoint)
    hyper = Hyper(checkpoint, architecture.hf_defaults)
    where = checkpoint.files[0]
    if max_context is not None and max_context < 1:
        raise ValueError(f"max_context must be at least 1, not {max_context}")
    try:
        if not hyper.is_gguf and hyper.metadata.get("quantization_config") is not None:
            raise CheckpointError(
                "quantised Hugging Face checkpoints (quantization_config) are not supported; "
                "take the original model, or a GGUF file of it"
            )
        tied = _tied(hyper)
        sources = canonical(checkpoint, architecture.names, tied=tied)
        embedding = sources.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError("the token embedding matrix is missing or not a matrix")
        vocab_size = embedding.shape[0]
        if not 1 <= vocab_size <= MAX_VOCAB:
            raise CheckpointError(f"a vocabulary of {vocab_size} tokens is not supported")
        base = common(hyper, vocab_size=vocab_size, tied_embeddings=tied)
        config = architecture.config(hyper, base, max_context or base["context_length"])
        _check_embedding(embedding, config)
        program, weights = _record(architecture, config, sources)
    except GraphError as error:
        raise CheckpointError(
            f"{where}: hyper-parameters and tensors do not fit together: {error}"
        ) from error
    except CheckpointError as error:
        if str(error).startswith((f"{where}: ", f"{hyper.file}: ")):
            raise
        raise CheckpointError(f"{where}: {error}") from error
    return Model(config, program, weights)


def _record(
    architecture: Architecture, config: ModelConfig, sources: dict[str, Source]
) -> tuple[Program, ModelWeights]:
    graph = Graph({name: source.shape for name, source in sources.items()})
    program = graph.program(architecture.record(graph, config))
    if program.values[program.logits].shape != (config.vocab_size,):
        raise CheckpointError(
            f"the output matrix gives {program.values[program.logits].shape[0]} logits for a "
            f"vocabulary of {config.vocab_size} tokens"
        )
    used = weight_names(program)
    extra = sorted(sources.keys() - used)
    if extra:
        raise CheckpointError(
            f"{len(extra)} tensor(s) are not part of architecture {config.architecture!r}: "
            f"{', '.join(repr(name) for name in extra[:5])}{' ...' if len(extra) > 5 else ''}; "
            "is the file of another model, or of a newer version of it?"
        )
    return program, ModelWeights({name: sources[name] for name in sources if name in used})


def _check_embedding(embedding: Source, config: ModelConfig) -> None:
    if embedding.shape[1] != config.d_model:
        raise CheckpointError(
            f"the token embedding has shape {embedding.shape}, but d_model is {config.d_model}"
        )


def _tied(hyper: Hyper) -> bool:
    """Whether the embedding matrix gives the logits too."""
    if hyper.is_gguf:
        return "output.weight" not in hyper.checkpoint.tensors
    has_head = any(name.endswith("lm_head.weight") for name in hyper.checkpoint.tensors)
    return hyper.flag(None, "tie_word_embeddings", not has_head)
