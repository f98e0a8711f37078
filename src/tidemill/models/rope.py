"""Rotary position embeddings: from a checkpoint's scaling parameters to inverse frequencies.

Everything about scaling ends here; a program sees only ``RopeSpec``. Sources: RoFormer (Su et al.
2021) for the frequencies, YaRN (Peng et al. 2023), LongRoPE (Ding et al. 2024), and the
published ``rope_parameters`` of Llama 3.1, with the defaults that Hugging Face configs imply.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tidemill.models.hyper import MAX_CONTEXT, Hyper
from tidemill.program.ops import RopeSpec

Frequencies = npt.NDArray[np.float64]
Style = Literal["half", "interleaved"]

# Turns over the original context, between which YaRN ramps; beyond these its logarithms overflow.
_BETA_LOW, _BETA_HIGH = 1e-6, 1e6


def frequencies(dim: int, theta: float) -> Frequencies:
    """theta ** (-2i / dim) for the dim/2 pairs."""
    return theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


def llama3(
    freqs: Frequencies, *, factor: float, low: float, high: float, original: int
) -> Frequencies:
    """Llama 3.1: long wavelengths are stretched by ``factor``, short ones kept, and those
    between original/high and original/low blended."""
    turns = original * freqs / (2 * math.pi)  # over the original context
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return freqs * (keep + (1 - keep) / factor)


def yarn(
    freqs: Frequencies,
    *,
    theta: float,
    factor: float,
    original: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool = True,
) -> Frequencies:
    """YaRN: pairs that turn more than ``beta_fast`` times over the original context are kept,
    those that turn less than ``beta_slow`` times are stretched, with a linear ramp between."""
    dim = 2 * len(freqs)

    def pair_that_turns(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = np.clip((np.arange(len(freqs)) - first) / max(last - first, 0.001), 0.0, 1.0)
    return np.asarray(freqs * (ramp / factor + (1 - ramp)))


def read_rope(
    h: Hyper,
    head_dim: int,
    *,
    style: Style,
    max_context: int,
    default_theta: float = 10000.0,
    layer_type: str | None = None,
) -> RopeSpec:
    """The rotation that a checkpoint describes (its global one, or Hugging Face's ``layer_type``).

    ``max_context`` decides between the short and the long factors of LongRoPE: the long ones
    apply where more than the original context is to be served.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # refused at the end
        if h.is_gguf:
            return _read_gguf(h, head_dim, style, max_context, default_theta)
        return _read_hf(h, head_dim, style, max_context, default_theta, layer_type)


def _read_gguf(
    h: Hyper, head_dim: int, style: Style, max_context: int, default_theta: float
) -> RopeSpec:
    dim = h.integer("rope.dimension_count", None, head_dim, low=2, high=head_dim)
    theta = h.number("rope.freq_base", None, default_theta, low=1.0)
    freqs = frequencies(dim - dim % 2, theta)
    kind = h.text("rope.scaling.type", None, "linear")
    factor = h.optional_number("rope.scaling.factor", None) or h.number(
        "rope.scale_linear", None, 1.0
    )
    attention_factor = h.number("rope.scaling.attn_factor", None, 1.0)
    trained = h.integer("context_length", None, high=MAX_CONTEXT)
    original = h.integer("rope.scaling.original_context_length", None, trained, high=MAX_CONTEXT)
    magnitude = 1.0

    # Llama 3.1 factors, or LongRoPE's pair of tables, come as tensors that divide the frequencies.
    table = "rope_freqs.weight"
    if table not in h.checkpoint.tensors:
        table = f"rope_factors_{'long' if max_context > original else 'short'}.weight"
    if table in h.checkpoint.tensors:
        divisors = h.checkpoint.tensors[table].dequantize().reshape(-1).astype(np.float64)
        freqs = _divide(h, freqs, divisors, repr(table))
        magnitude = attention_factor
    elif kind == "longrope":
        raise h.fail("rope.scaling.type", None, f"is longrope, but tensor {table!r} is missing")

    if kind == "yarn":
        freqs = yarn(
            freqs,
            theta=theta,
            factor=factor,
            original=original,
            beta_fast=h.number(
                "rope.scaling.yarn_beta_fast", None, 32.0, low=_BETA_LOW, high=_BETA_HIGH
            ),
            beta_slow=h.number(
                "rope.scaling.yarn_beta_slow", None, 1.0, low=_BETA_LOW, high=_BETA_HIGH
            ),
        )
        magnitude = attention_factor * _yarn_magnitude(factor)
    elif kind == "linear":
        freqs = freqs / factor
    elif kind not in ("none", "longrope"):
        raise h.fail("rope.scaling.type", None, f"is {reprlib.repr(kind)}, which is not supported")
    return _spec(h, freqs, style, magnitude)


def _read_hf(
    h: Hyper,
    head_dim: int,
    style: Style,
    max_context: int,
    default_theta: float,
    layer_type: str | None,
) -> RopeSpec:
    parameters = hf_rope_parameters(h, layer_type)

    def number(
        key: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf
    ) -> float:
        value = parameters.get(key)
        if value is None:
            if default is None:
                raise h.fail(None, f"rope_parameters.{key}", "is missing")
            return default
        return h.check_number(value, None, f"rope_parameters.{key}", low=low, high=high)

    theta = number("rope_theta", h.number(None, "rope_theta", default_theta))
    if theta <= 1.0:
        raise h.fail(None, "rope_theta", f"is {theta}; it must be above 1")
    partial = number("partial_rotary_factor", h.number(None, "partial_rotary_factor", 1.0))
    if partial > 1.0 or int(head_dim * partial) < 2:
        raise h.fail(None, "partial_rotary_factor", f"is {partial}")
    dim = int(head_dim * partial)
    freqs = frequencies(dim - dim % 2, theta)
    trained = h.integer(None, "max_position_embeddings", high=MAX_CONTEXT)
    original = h.integer(None, "original_max_position_embeddings", trained, high=MAX_CONTEXT)
    original = int(number("original_max_position_embeddings", original))
    if not 2 <= original <= MAX_CONTEXT:
        raise h.fail(None, "rope_parameters.original_max_position_embeddings", f"is {original}")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    magnitude = 1.0

    if kind == "linear":
        freqs = freqs / number("factor")
    elif kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise h.fail(None, "rope_parameters.low_freq_factor", "must be below high_freq_factor")
        freqs = llama3(freqs, factor=number("factor"), low=low, high=high, original=original)
    elif kind == "yarn":
        factor = number("factor", trained / original)
        freqs = yarn(
            freqs,
            theta=theta,
            factor=factor,
            original=original,
            beta_fast=number("beta_fast", 32.0, low=_BETA_LOW, high=_BETA_HIGH),
            beta_slow=number("beta_slow", 1.0, low=_BETA_LOW, high=_BETA_HIGH),
            truncate=parameters.get("truncate", True) is not False,
        )
        inferred = _yarn_magnitude(factor)
        if parameters.get("mscale") and parameters.get("mscale_all_dim"):
            inferred = _yarn_magnitude(factor, number("mscale")) / _yarn_magnitude(
                factor, number("mscale_all_dim")
            )
        magnitude = number("attention_factor", inferred)
    elif kind in ("longrope", "su"):
        name = "long_factor" if max_context > original else "short_factor"
        where = f"rope_parameters.{name}"
        values = parameters.get(name)
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise h.fail(None, where, "must be a list of numbers")
        divisors = np.array([h.check_number(value, None, where) for value in values])
        freqs = _divide(h, freqs, divisors, where)
        factor = number("factor", trained / original)
        inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        magnitude = number("attention_factor", inferred)
    # Dynamic NTK changes nothing up to the trained context, which is all that is served.
    elif kind not in ("default", "dynamic"):
        raise h.fail(
            None, "rope_parameters.rope_type", f"is {reprlib.repr(kind)}, which is not supported"
        )
    return _spec(h, freqs, style, magnitude)


def hf_rope_parameters(h: Hyper, layer_type: str | None = None) -> Mapping[str, Any]:
    """``rope_parameters`` (written since Transformers 5) or ``rope_scaling`` (before)."""
    parameters = h.raw(None, "rope_parameters")
    if parameters is None:
        parameters = h.raw(None, "rope_scaling")
    if parameters is None:
        return {}
    if isinstance(parameters, Mapping) and layer_type is not None:
        parameters = parameters.get(layer_type, parameters)
    if not isinstance(parameters, Mapping):
        raise h.fail(None, "rope_parameters", f"must be an object, not {reprlib.repr(parameters)}")
    return parameters


def _divide(h: Hyper, freqs: Frequencies, divisors: Frequencies, where: str) -> Frequencies:
    if divisors.shape != freqs.shape or not np.all(np.isfinite(divisors) & (divisors > 0)):
        raise h.fail(
            None, where, f"must hold {len(freqs)} positive rope factors, found {divisors.shape}"
        )
    return freqs / divisors


def _spec(h: Hyper, freqs: Frequencies, style: Style, magnitude: float) -> RopeSpec:
    if not (np.isfinite(freqs).all() and math.isfinite(magnitude)):
        raise h.fail("rope.scaling", "rope_parameters", "gives rotations that are not finite")
    return RopeSpec(tuple(freqs.tolist()), style, magnitude)


def _yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0
