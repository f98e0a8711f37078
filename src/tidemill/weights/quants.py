"""Block-quantised storage types: their exact layouts, and dequantisation to float32.

A tensor of a quantised type is a row-major sequence of blocks along its last axis; a block holds
``block_weights`` consecutive weights of one row in ``block_bytes`` bytes. The structured dtypes
below *are* the layouts: packed, little-endian, fields in file order. They follow the block
structures of the GGUF format (ggml's ``ggml-common.h``).

Dequantisation is bit-equal to the ``gguf`` package: the float32 products and sums below are taken
in the same order, one rounding each (no fused multiply-add), which is also what a C++ kernel has
to do to reproduce the values. Notation: ``f(x)`` is x widened to float32; ``lo``/``hi`` are the low
and high four bits of a byte; weights of a block are numbered from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.weights.base import TensorType

# A float32 chunk of this many weights, and the temporaries made with it, stay in the L2 cache.
_CHUNK_WEIGHTS = 1 << 16

_Blocks = npt.NDArray[Any]  # a structured array of n blocks
_Floats = npt.NDArray[np.float32]
_Bytes = npt.NDArray[np.uint8]

LAYOUTS: dict[TensorType, np.dtype[Any]] = {
    TensorType.Q4_0: np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    TensorType.Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]),
    TensorType.Q5_0: np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    TensorType.Q5_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    TensorType.Q8_0: np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    TensorType.Q2_K: np.dtype(
        [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]
    ),
    TensorType.Q3_K: np.dtype(
        [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]
    ),
    TensorType.Q4_K: np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]
    ),
    TensorType.Q5_K: np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
    ),
    TensorType.Q6_K: np.dtype(
        [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]
    ),
    TensorType.IQ4_NL: np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    TensorType.IQ4_XS: np.dtype(
        [("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]
    ),
    TensorType.MXFP4: np.dtype([("e", "u1"), ("qs", "u1", 16)]),
}
"""The block of each quantised type, byte for byte (see the ``_dequantize_*`` of the type)."""

IQ4_VALUES: npt.NDArray[np.int8] = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8
)
"""What the 4-bit codes of IQ4_NL and IQ4_XS stand for."""

MXFP4_VALUES: npt.NDArray[np.int8] = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8
)
"""Twice the FP4 (E2M1) values of the OCP Microscaling Formats specification, by 4-bit code."""


def dequantize(data: _Bytes, type: TensorType, shape: tuple[int, ...]) -> _Floats:
    """All weights of a tensor as a new float32 array of ``shape``.

    ``data`` is the tensor's storage: one-dimensional, uint8, any alignment. ValueError if its
    size is not what ``type`` and ``shape`` ask for. Beyond the result, memory is bounded by a
    chunk of 65,536 weights.
    """
    if min(shape, default=1) < 0 or (shape[-1] if shape else 1) % type.block_weights:
        raise ValueError(
            f"shape {shape} does not fit {type.name}: the last axis must be a multiple of "
            f"{type.block_weights}"
        )
    expected = type.nbytes(shape)
    if data.dtype != np.uint8 or data.ndim != 1 or data.size != expected:
        raise ValueError(
            f"{type.name} of shape {shape} needs {expected} bytes as a one-dimensional uint8 "
            f"array, got {data.dtype} of shape {data.shape}"
        )
    out = np.empty(math.prod(shape), dtype=np.float32)
    data = np.ascontiguousarray(data)
    if type is TensorType.F32:
        out.view(np.uint8)[:] = data
    elif type is TensorType.F16:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out[:] = data.view("<f2")
    elif type is TensorType.BF16:
        bits = out.view(np.uint32)
        bits[:] = data.view("<u2")
        bits <<= 16
    else:
        _dequantize_blocks(data.view(LAYOUTS[type]), type, out)
    return out.reshape(shape)


def _dequantize_blocks(blocks: _Blocks, type: TensorType, out: _Floats) -> None:
    dequantize_chunk = _DEQUANTIZE[type]
    out = out.reshape(-1, type.block_weights)
    step = _CHUNK_WEIGHTS // type.block_weights
    # Scales may be infinite or NaN in a damaged file; that is the reader's to see, not ours.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            out[start : start + step] = dequantize_chunk(chunk).reshape(len(chunk), -1)


# --- unpacking -------------------------------------------------------------------------------


def _f32(x: npt.NDArray[Any]) -> _Floats:
    return x.astype(np.float32)


def _fields(packed: _Bytes, bits: int) -> _Bytes:
    """(..., w) bytes to (..., 8 // bits, w): the bit fields of each byte, lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields: _Bytes = (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return fields


def _nibbles(packed: _Bytes) -> _Bytes:
    """(n, w) bytes to (n, 2 w): all the low nibbles, then all the high ones."""
    return _fields(packed, 4).reshape(len(packed), -1)


def _bits(packed: _Bytes) -> _Bytes:
    """(n, w) bytes to (n, 8 w): bits in order, lowest of byte 0 first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _six_bit_scales_and_mins(scales: _Bytes) -> tuple[_Floats, _Floats]:
    """The eight 6-bit (scale, min) pairs of Q4_K and Q5_K from their 12 bytes s[0..11].

    j in 0..3: scale[j] = s[j] & 63
               min[j] = s[j + 4] & 63
    j in 4..7: scale[j] = lo(s[j + 4]) | (s[j - 4] >> 6) << 4
               min[j] = hi(s[j + 4]) | (s[j] >> 6) << 4
    """
    a, b, c = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    low, top = np.uint8(63), np.uint8(0x30)
    scale = np.concatenate([a & low, (c & np.uint8(15)) | ((a >> 2) & top)], axis=-1)
    minimum = np.concatenate([b & low, (c >> 4) | ((b >> 2) & top)], axis=-1)
    return _f32(scale), _f32(minimum)


# --- blocks of 32 weights --------------------------------------------------------------------
# Weight i < 16 is lo(qs[i]), weight i >= 16 is hi(qs[i - 16]).


def _dequantize_q4_0(b: _Blocks) -> _Floats:
    """18 bytes: d f16, qs u8[16]. w = f(d) * (q - 8)"""
    return _f32(b["d"])[:, None] * (_f32(_nibbles(b["qs"])) - np.float32(8))


def _dequantize_q4_1(b: _Blocks) -> _Floats:
    """20 bytes: d f16, m f16, qs u8[16]. w = f(d) * q + f(m)"""
    return _f32(b["d"])[:, None] * _f32(_nibbles(b["qs"])) + _f32(b["m"])[:, None]


def _five_bit(b: _Blocks) -> _Floats:
    """q = 4-bit code of qs | bit i of the 32-bit little-endian qh << 4"""
    return _f32(_nibbles(b["qs"]) | (_bits(b["qh"]) << 4))


def _dequantize_q5_0(b: _Blocks) -> _Floats:
    """22 bytes: d f16, qh u8[4], qs u8[16]. w = f(d) * (q - 16), q of five bits"""
    return _f32(b["d"])[:, None] * (_five_bit(b) - np.float32(16))


def _dequantize_q5_1(b: _Blocks) -> _Floats:
    """24 bytes: d f16, m f16, qh u8[4], qs u8[16]. w = f(d) * q + f(m), q of five bits"""
    return _f32(b["d"])[:, None] * _five_bit(b) + _f32(b["m"])[:, None]


def _dequantize_q8_0(b: _Blocks) -> _Floats:
    """34 bytes: d f16, qs i8[32]. w = f(d) * qs[i]"""
    return _f32(b["d"])[:, None] * _f32(b["qs"])


def _dequantize_iq4_nl(b: _Blocks) -> _Floats:
    """18 bytes: d f16, qs u8[16]. w = f(d) * IQ4_VALUES[q]"""
    return _f32(b["d"])[:, None] * _f32(IQ4_VALUES[_nibbles(b["qs"])])


def _dequantize_mxfp4(b: _Blocks) -> _Floats:
    """17 bytes: e u8, qs u8[16]. w = 2^(e - 128) * MXFP4_VALUES[q]

    e is an E8M0 exponent (scale 2^(e - 127)); the table holds doubled values, hence the half.
    e = 0 and e = 1 give the float32 subnormals 2^-128 and 2^-127; 255 is not treated as NaN.
    """
    half_scale: _Floats = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)
    return half_scale[:, None] * _f32(MXFP4_VALUES[_nibbles(b["qs"])])


# --- super-blocks of 256 weights -------------------------------------------------------------


def _dequantize_q2_k(b: _Blocks) -> _Floats:
    """84 bytes: scales u8[16], qs u8[64], d f16, dmin f16.

    Group g = i // 16 has scale lo(scales[g]) and min hi(scales[g]). In half h = i // 128, weight
    128 h + 32 s + l (s in 0..3, l in 0..31) is bits 2s, 2s+1 of qs[32 h + l].
    w = (f(d) * scale) * q - f(dmin) * min
    """
    n = len(b)
    scale = _f32(b["d"])[:, None] * _f32(b["scales"] & np.uint8(15))
    minimum = _f32(b["dmin"])[:, None] * _f32(b["scales"] >> 4)
    q = _f32(_fields(b["qs"].reshape(n, 2, 32), 2)).reshape(n, 16, 16)
    return scale[..., None] * q - minimum[..., None]


def _dequantize_q3_k(b: _Blocks) -> _Floats:
    """110 bytes: hmask u8[32], qs u8[64], scales u8[12], d f16.

    Group g = i // 16 has a 6-bit scale: its low four bits are lo(scales[g]) for g < 8 and
    hi(scales[g - 8]) else; its high two are bits 2 (g // 4), +1 of scales[8 + g % 4].
    The two low bits of q lie as in Q2_K; for weight i, bit i // 32 of hmask[i % 32] is the third:
    4 is subtracted where it is *clear*. w = (f(d) * (scale - 32)) * (q - 4 * !high)
    """
    n = len(b)
    low = _nibbles(b["scales"][:, :8])
    high = _fields(b["scales"][:, 8:], 2).reshape(n, 16)
    scale = _f32(b["d"])[:, None] * (_f32(low | (high << 4)) - np.float32(32))
    q = _fields(b["qs"].reshape(n, 2, 32), 2).reshape(n, 16, 16)
    third = _fields(b["hmask"], 1).reshape(n, 16, 16)
    weights: _Floats = scale[..., None] * (_f32(q | (third << 2)) - np.float32(4))
    return weights


def _dequantize_q4_k(b: _Blocks) -> _Floats:
    """144 bytes: d f16, dmin f16, scales u8[12], qs u8[128].

    Group g = i // 32 has the 6-bit scale and min of ``_six_bit_scales_and_mins``. Weight
    64 p + l (p in 0..3, l in 0..31) is lo(qs[32 p + l]), weight 64 p + 32 + l is hi of that byte.
    w = (f(d) * scale) * q - f(dmin) * min
    """
    n = len(b)
    return _scale_and_shift(b, _f32(_fields(b["qs"].reshape(n, 4, 32), 4)).reshape(n, 8, 32))


def _dequantize_q5_k(b: _Blocks) -> _Floats:
    """176 bytes: d f16, dmin f16, scales u8[12], qh u8[32], qs u8[128].

    As Q4_K, with a fifth bit: for weight i, bit i // 32 of qh[i % 32].
    w = (f(d) * scale) * q - f(dmin) * min
    """
    n = len(b)
    low = _fields(b["qs"].reshape(n, 4, 32), 4).reshape(n, 8, 32)
    return _scale_and_shift(b, _f32(low | (_fields(b["qh"], 1) << 4)))


def _scale_and_shift(b: _Blocks, q: _Floats) -> _Floats:
    scale, minimum = _six_bit_scales_and_mins(b["scales"])
    scale *= _f32(b["d"])[:, None]
    minimum *= _f32(b["dmin"])[:, None]
    return scale[..., None] * q - minimum[..., None]


def _dequantize_q6_k(b: _Blocks) -> _Floats:
    """210 bytes: ql u8[128], qh u8[64], scales i8[16], d f16.

    Group g = i // 16 has scale scales[g]. In half h = i // 128, with j = i % 128: the low four
    bits are lo(ql[64 h + j]) for j < 64 and hi(ql[64 h + j - 64]) else; the high two are bits
    2 (j // 32), +1 of qh[32 h + j % 32]. w = (f(d) * scale) * (q - 32)
    """
    n = len(b)
    low = _fields(b["ql"].reshape(n, 2, 64), 4).reshape(n, 16, 16)
    high = _fields(b["qh"].reshape(n, 2, 32), 2).reshape(n, 16, 16)
    scale = _f32(b["d"])[:, None] * _f32(b["scales"])
    return scale[..., None] * (_f32(low | (high << 4)) - np.float32(32))


def _dequantize_iq4_xs(b: _Blocks) -> _Floats:
    """136 bytes: d f16, scales_h u16, scales_l u8[4], qs u8[128].

    Group g = i // 32 has a 6-bit scale: low four bits lo(scales_l[g // 2]) for even g and hi for
    odd, high two bits 2 g, 2 g + 1 of scales_h. Weight 32 g + l is lo(qs[16 g + l]) for l < 16
    and hi(qs[16 g + l - 16]) else. w = (f(d) * (scale - 32)) * IQ4_VALUES[q]
    """
    n = len(b)
    low = _fields(b["scales_l"].reshape(n, 4, 1), 4).reshape(n, 8)
    high = (b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scale = _f32(b["d"])[:, None] * (_f32(low | (high << 4)) - np.float32(32))
    q = _fields(b["qs"].reshape(n, 8, 16), 4).reshape(n, 8, 32)
    return scale[..., None] * _f32(IQ4_VALUES[q])


_DEQUANTIZE: dict[TensorType, Callable[[_Blocks], _Floats]] = {
    TensorType.Q4_0: _dequantize_q4_0,
    TensorType.Q4_1: _dequantize_q4_1,
    TensorType.Q5_0: _dequantize_q5_0,
    TensorType.Q5_1: _dequantize_q5_1,
    TensorType.Q8_0: _dequantize_q8_0,
    TensorType.Q2_K: _dequantize_q2_k,
    TensorType.Q3_K: _dequantize_q3_k,
    TensorType.Q4_K: _dequantize_q4_k,
    TensorType.Q5_K: _dequantize_q5_k,
    TensorType.Q6_K: _dequantize_q6_k,
    TensorType.IQ4_NL: _dequantize_iq4_nl,
    TensorType.IQ4_XS: _dequantize_iq4_xs,
    TensorType.MXFP4: _dequantize_mxfp4,
}
