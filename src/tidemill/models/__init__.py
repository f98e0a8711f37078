"""Architectures as recorded programs: one file per family, one table that names them."""

from tidemill.models.config import ModelConfig
from tidemill.models.loading import Model, load_model, trained_context

__all__ = ["Model", "ModelConfig", "load_model", "trained_context"]
