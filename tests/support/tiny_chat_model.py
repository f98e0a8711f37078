"""A tiny chat model in one GGUF file: random weights, a real byte-level tokenizer, a template.

Every byte is a token (so each character costs at least one), plus ChatML's control tokens. The
weights come from a seed; what it says is noise, the same noise every time.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

CONTEXT = 1024
LAYERS, D_MODEL, D_FF, HEADS, KV_HEADS = 2, 64, 96, 4, 2
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT, IM_START, IM_END = 256, 257, 258
VOCAB = 256 + len(CONTROL) + 5
"""Five tokens of plain words follow the control tokens (an even, odd-sized vocabulary)."""


def byte_characters() -> list[str]:
    """GPT-2's printable stand-ins of the bytes 0..255, in that order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins, spare = {}, 256
    for byte in range(256):
        if byte in printable:
            stand_ins[byte] = chr(byte)
        else:
            stand_ins[byte] = chr(spare)
            spare += 1
    return [stand_ins[byte] for byte in range(256)]


def write_chat_model(
    path: Path,
    *,
    seed: int = 0,
    template: str | None = TEMPLATE,
    control_prefix: str = "<|",
    marker: str | None = None,
    context: int = CONTEXT,
    pooling: gguf.PoolingType | None = None,
) -> Path:
    """Write the model to ``path``. Without a template it is a plain text model; with another
    prefix its control tokens are nobody's. ``marker`` is a text that is one token, and none of
    the control tokens: the last one, in place of a word. With ``pooling`` it is one for
    embeddings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Tiny Chat")
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(D_MODEL)
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(D_MODEL // HEADS)
    writer.add_vocab_size(VOCAB)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    _add_tokenizer(writer, template, [control_prefix + name[2:] for name in CONTROL], marker)
    _add_weights(writer, seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(
    writer: gguf.GGUFWriter, template: str | None, control: list[str], marker: str | None
) -> None:
    words = ["th", "he", "in", "er", "an"][: 5 if marker is None else 4]
    markers = [] if marker is None else [marker]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_characters() + control + words + markers)
    kinds = [gguf.TokenType.NORMAL] * VOCAB
    for token in (END_OF_TEXT, IM_START, IM_END):
        kinds[token] = gguf.TokenType.CONTROL
    if marker is not None:
        kinds[-1] = gguf.TokenType.USER_DEFINED
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(word) for word in words])
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _add_weights(writer: gguf.GGUFWriter, seed: int) -> None:
    rng = np.random.RandomState(seed)
    kv_width = D_MODEL // HEADS * KV_HEADS

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str) -> None:
        values = 1.0 + 0.1 * rng.standard_normal(D_MODEL)
        writer.add_tensor(name, values.astype(np.float32))

    matrix("token_embd.weight", VOCAB, D_MODEL, 8.0)
    for layer in range(LAYERS):
        p = f"blk.{layer}."
        norm(p + "attn_norm.weight")
        matrix(p + "attn_q.weight", D_MODEL, D_MODEL)
        matrix(p + "attn_k.weight", kv_width, D_MODEL)
        matrix(p + "attn_v.weight", kv_width, D_MODEL)
        matrix(p + "attn_output.weight", D_MODEL, D_MODEL)
        norm(p + "ffn_norm.weight")
        matrix(p + "ffn_gate.weight", D_FF, D_MODEL)
        matrix(p + "ffn_up.weight", D_FF, D_MODEL)
        matrix(p + "ffn_down.weight", D_MODEL, D_FF)
    norm("output_norm.weight")
    matrix("output.weight", VOCAB, D_MODEL, 4.0)
