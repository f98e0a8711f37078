"""A model in the shape of Llama 3.2 1B with random weights, as GGUF in several quantisations.

    python -m models.llama_1b_random [--types Q4_0,Q4_K_M,Q8_0,BF16] [--check]     (in benchmarks/)

For speed only: it says nothing. The blocks of a type are written directly, with random
quants and scales such that weights have the spread of a trained model's. The tokenizer is a
byte-level BPE of the same size: the bytes, all pairs of bytes, and pairs of pairs. ``--check`` asks
llama.cpp and Tidemill for the likeliest next token after some prompts, which must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peers.environments import root

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN = 16, 2048, 32, 8, 64, 8192
VOCAB, SPECIAL = 128_256, 256
CONTEXT = 131_072
TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "BF16")
_FILE_TYPE = {"Q4_0": 2, "Q4_K_M": 15, "Q8_0": 7, "BF16": 32}

Rng = np.random.Generator
Blocks = npt.NDArray[np.uint8]


def path_of(type_: str) -> Path:
    return root() / "models" / f"llama-1b-random-{type_}.gguf"


# ---- blocks: ``sigma`` is the standard deviation of the weights ----


def q4_0(rng: Rng, n: int, sigma: float) -> Blocks:
    """f16 scale, 16 bytes of nibbles; weight = scale (nibble - 8)."""
    blocks = rng.integers(0, 256, (n // 32, 18), dtype=np.uint8)
    sign = rng.choice(np.array([-1.0, 1.0]), n // 32)  # nibbles are not centred on 8
    blocks[:, :2] = _halves(sign * _spread(rng, n // 32) * sigma / 4.64)
    return blocks


def q8_0(rng: Rng, n: int, sigma: float) -> Blocks:
    """f16 scale, 32 int8."""
    blocks = rng.integers(-127, 128, (n // 32, 34), dtype=np.int8).view(np.uint8)
    blocks[:, :2] = _halves(_spread(rng, n // 32) * sigma / 73.6)
    return blocks


def q4_k(rng: Rng, n: int, sigma: float) -> Blocks:
    """f16 d and dmin, eight 6-bit scales and mins, nibbles; weight = d s q - dmin m."""
    count = n // 256
    blocks = rng.integers(0, 256, (count, 144), dtype=np.uint8)
    scales = rng.integers(32, 64, (count, 8), dtype=np.uint8)  # mins are equal: centred weights
    d = (_spread(rng, count) * sigma / (4.61 * 47.5)).astype(np.float16)
    blocks[:, 0:2] = _halves(d)
    blocks[:, 2:4] = _halves(d.astype(np.float32) * 7.5)
    low, high = scales[:, :4], scales[:, 4:]
    blocks[:, 4:8] = blocks[:, 8:12] = low | ((high >> 4) << 6)
    blocks[:, 12:16] = (high & 15) | ((high & 15) << 4)
    return blocks


def q6_k(rng: Rng, n: int, sigma: float) -> Blocks:
    """128 bytes of low bits, 64 of high bits, sixteen int8 scales, f16 d; weight = d s (q - 32)."""
    count = n // 256
    blocks = rng.integers(0, 256, (count, 210), dtype=np.uint8)
    scales = rng.integers(32, 128, (count, 16), dtype=np.int8)
    scales *= rng.choice(np.array([-1, 1], np.int8), (count, 16))
    blocks[:, 192:208] = scales.view(np.uint8)
    blocks[:, 208:210] = _halves(_spread(rng, count) * sigma / (18.5 * 84))
    return blocks


def bf16(rng: Rng, n: int, sigma: float) -> Blocks:
    """Normal weights, drawn from 65536 quantiles: a table look-up is quicker than a transform."""
    quantiles = statistics.NormalDist(0, sigma)
    table = np.array([quantiles.inv_cdf((i + 0.5) / 65536) for i in range(65536)], np.float32)
    words = (table.view(np.uint32) >> 16).astype(np.uint16)
    return words[rng.integers(0, 65536, n, dtype=np.uint16)].view(np.uint8)


def _halves(values: npt.NDArray[Any]) -> Blocks:
    return values.astype(np.float16)[:, None].view(np.uint8)


def _spread(rng: Rng, n: int) -> npt.NDArray[np.float64]:
    """Scales differ from block to block as those of trained weights do."""
    return rng.uniform(0.8, 1.2, n)


_MAKERS: dict[str, Callable[[Rng, int, float], Blocks]] = {
    "Q4_0": q4_0, "Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k, "BF16": bf16,
}  # fmt: skip
_BLOCK = {"Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210),
          "BF16": (1, 2)}  # fmt: skip


# ---- tensors ----


def tensors() -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of every matrix."""
    yield "token_embd.weight", VOCAB, WIDTH
    for i in range(LAYERS):
        yield f"blk.{i}.attn_q.weight", HEADS * HEAD_DIM, WIDTH
        yield f"blk.{i}.attn_k.weight", KV_HEADS * HEAD_DIM, WIDTH
        yield f"blk.{i}.attn_v.weight", KV_HEADS * HEAD_DIM, WIDTH
        yield f"blk.{i}.attn_output.weight", WIDTH, HEADS * HEAD_DIM
        yield f"blk.{i}.ffn_gate.weight", FFN, WIDTH
        yield f"blk.{i}.ffn_up.weight", FFN, WIDTH
        yield f"blk.{i}.ffn_down.weight", WIDTH, FFN


def type_of(name: str, mix: str) -> str:
    """The type that llama.cpp's quantiser gives a tensor in that mix; embeddings are tied."""
    if mix in ("Q8_0", "BF16"):
        return mix
    if name == "token_embd.weight":
        return "Q6_K"
    if mix == "Q4_K_M":
        _, layer, part, _ = name.split(".")
        return "Q6_K" if part in ("attn_v", "ffn_down") and _more_bits(int(layer)) else "Q4_K"
    return mix


def _more_bits(layer: int) -> bool:
    eighth = LAYERS // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def rope_factors() -> npt.NDArray[np.float32]:
    """Llama 3.1's scaling of long wavelengths (factor 32, low 1, high 4, trained on 8192)."""
    wave = 2 * np.pi * 500_000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip((8192 / wave - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)


# ---- tokenizer ----


def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types (1 normal, 3 control)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    single = [letter[b] for b in range(256)]
    pairs = [(a, b) for a in single for b in single]
    n_quads = VOCAB - SPECIAL - len(single) - len(pairs)
    rng = np.random.default_rng(7)
    chosen = rng.choice(len(pairs) ** 2, n_quads, replace=False)
    joined = ["".join(pair) for pair in pairs]
    quads = [(joined[c // len(pairs)], joined[c % len(pairs)]) for c in chosen.tolist()]
    tokens = [*single, *joined, *(a + b for a, b in quads)]
    special = [f"<|reserved_special_token_{i}|>" for i in range(SPECIAL)]
    special[0], special[1], special[9] = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
    merges = [f"{a} {b}" for a, b in [*pairs, *quads]]
    return tokens + special, merges, [1] * len(tokens) + [3] * SPECIAL


def write(type_: str) -> Path:
    """Write the model in one mix, unless it is there; its path."""
    path = path_of(type_)
    if path.exists():
        return path
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_name(f"Random Llama 1B {type_}")
    writer.add_file_type(_FILE_TYPE[type_])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    tokens, merges, kinds = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(VOCAB - SPECIAL)
    writer.add_eos_token_id(VOCAB - SPECIAL + 9)
    rng = np.random.default_rng(20_24)
    writer.add_tensor("rope_freqs.weight", rope_factors())
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for i in range(LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(WIDTH, np.float32))
    for name, rows, cols in tensors():
        stored = type_of(name, type_)
        weights, size = _BLOCK[stored]
        blocks = _MAKERS[stored](rng, rows * cols, cols**-0.5)
        data = blocks.reshape(rows, cols // weights * size)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[stored])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)
    return path


# ---- check ----


# Activations are rounded differently by the two engines, which decides between tokens this close.
_DECIDED = 0.2
_PROMPTS = (
    "The tide turns", "0123456789", "def mill(water): return", "Grain, stone, flour:", "ebb\nflow\n"
)  # fmt: skip


def check(path: Path) -> None:
    """Raise SystemExit unless llama.cpp and Tidemill continue prompts with the same token.

    They may differ where the likeliest token leads by less than 0.2 (log-probability).
    """
    from peers.llama_cpp import LlamaCpp
    from tidemill import LLM, SamplingParams

    peer = LlamaCpp()
    peer.install()
    agreed = 0
    with LLM(str(path), max_context=256, threads=2) as llm:
        for prompt in _PROMPTS:
            output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=2))
            answer = output[0].outputs[0]
            ours = llm.tokenizer.token_bytes(answer.token_ids[0])
            assert answer.logprobs is not None
            assert answer.logprobs[0] is not None
            best = sorted((p.logprob for p in answer.logprobs[0].values()), reverse=True)
            lead = best[0] - best[1]
            done = subprocess.run(
                [str(peer.tools / "llama-completion"), "-m", str(path), "-t", "2", "-c", "256",
                 "-n", "1", "--temp", "0", "-no-cnv", "--no-display-prompt", "-p", prompt],
                stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=300,
            )  # fmt: skip
            same = done.stdout.startswith(ours)
            agreed += same
            print(
                f"{path.name}: after {prompt!r} Tidemill says {ours!r}, {lead:.3f} ahead of the "
                f"next; llama.cpp {'too' if same else repr(done.stdout[:16])}",
                file=sys.stderr,
            )
            if not same and lead > _DECIDED:
                raise SystemExit(f"{path.name}: the engines disagree after {prompt!r}")
    if agreed < 2:
        raise SystemExit(f"{path.name}: the engines agree after {agreed} prompts only")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--check", action="store_true", help="compare with llama.cpp")
    args = parser.parse_args()
    for type_ in args.types.split(","):
        if type_ not in TYPES:
            parser.error(f"no type {type_}; there are {', '.join(TYPES)}")
        path = write(type_)
        print(path)
        if args.check:
            check(path)


if __name__ == "__main__":
    main()
