"""Model files: GGUF and safetensors, and the quantisation formats of their tensors."""

from tidemill.weights.base import Checkpoint, CheckpointError, TensorType, WeightTensor
from tidemill.weights.checkpoint import open_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "TensorType", "WeightTensor", "open_checkpoint"]
