"""What is measured: pieces of work, and the models that each is measured on."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from peers.protocol import Work

WORKS = {
    "prefill": Work("prefill 512", "speed", prompt=512, repeats=2, figures=("prefill",)),
    "decode": Work("decode", "speed", prompt=16, generate=128, repeats=2, figures=("decode",)),
    "decode-8": Work(
        "decode, 8 streams", "speed", prompt=64, generate=64, streams=8, figures=("decode",)
    ),
    "decode-32": Work(
        "decode, 32 streams", "speed", prompt=64, generate=64, streams=32, figures=("decode",)
    ),
    "decode-64": Work(
        "decode, 64 streams", "speed", prompt=64, generate=64, streams=64, figures=("decode",)
    ),
    # 64 tokens short of 8192, which is SmolLM2's context, and room for those decoded.
    "long": Work("8k context", "speed", prompt=8064, generate=64, figures=("prefill", "decode")),
    "start": Work("start to first token", "start", prompt=128, figures=("seconds",)),
    "memory": Work("memory at 4k", "memory", prompt=4032, generate=63, figures=("MiB",)),
}

UNITS = {"prefill": "tok/s", "decode": "tok/s", "seconds": "s", "MiB": "MiB"}
LOWER_IS_BETTER = {"seconds", "MiB"}

RANDOM_TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "BF16")
MODELS: dict[str, tuple[str, ...]] = {
    "smollm2": tuple(WORKS),
    "gemma3": ("prefill", "decode", "decode-8", "decode-32", "long", "start", "memory"),
    **{f"llama-1b-{type_}": ("prefill", "decode") for type_ in RANDOM_TYPES},
}


def select(patterns: str) -> dict[str, list[str]]:
    """Names of works by model for patterns like "smollm2/*, */prefill", in the table's order.

    Raises ValueError for a pattern that matches nothing.
    """
    wanted = [pattern for pattern in re.split(r"[,\s]+", patterns) if pattern]
    chosen: dict[str, list[str]] = {}
    unmatched = set(wanted)
    for model, works in MODELS.items():
        for work in works:
            hits = [p for p in wanted if fnmatchcase(f"{model}/{work}", p)]
            unmatched.difference_update(hits)
            if hits:
                chosen.setdefault(model, []).append(work)
    if unmatched or not wanted:
        names = ", ".join(f"{m}/{{{','.join(w)}}}" for m, w in MODELS.items())
        raise ValueError(f"no work matches {', '.join(sorted(unmatched)) or 'nothing'}: {names}")
    return chosen
