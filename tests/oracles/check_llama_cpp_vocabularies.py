"""Compare token ids on the real vocabularies that llama.cpp's source carries for its own tests.

    .venv/bin/python tests/oracles/check_llama_cpp_vocabularies.py LLAMA_CPP/models

Each ``ggml-vocab-NAME.gguf`` there has texts beside it (``.inp``) and the ids that the model
family's Hugging Face tokenizer gives them (``.out``). The vocabularies are not ours to ship, so
nothing is recorded: run.sh fetches llama.cpp's source and runs this. Vocabularies of kinds that
Tidemill does not support are listed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.text import TokenizerError, load_tokenizer
from tidemill.weights import CheckpointError, open_checkpoint

SEPARATOR = "\n__ggml_vocab_test__\n"
# At least these must be checked; a newer llama.cpp may have more.
EXPECTED = {
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
}  # fmt: skip


def mismatches(path: Path) -> tuple[int, list[str]]:
    """The number of texts beside a vocabulary and those with other ids than recorded."""
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint.format, checkpoint.metadata, checkpoint.folder)
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().splitlines()
    expected = [[int(token) for token in line.split()] for line in lines]
    pairs = list(zip(texts, expected, strict=False))  # the texts end with a separator
    wrong = [text for text, ids in pairs if tokenizer.encode(text, add_special=False) != ids]
    return len(pairs), wrong


def main() -> None:
    folder = Path(sys.argv[1])
    checked: set[str] = set()
    failed = False
    for path in sorted(folder.glob("ggml-vocab-*.gguf")):
        name = path.stem.removeprefix("ggml-vocab-")
        if not Path(f"{path}.inp").is_file():
            continue
        try:
            count, wrong = mismatches(path)
        except (TokenizerError, CheckpointError) as error:
            print(f"{name}: not supported ({error})")
            continue
        checked.add(name)
        failed |= bool(wrong)
        print(f"{name}: {count - len(wrong)} of {count} texts equal")
        for text in wrong:
            print(f"    {text!r}")
    if failed or not checked >= EXPECTED:
        raise SystemExit(f"wrong ids, or not found: {sorted(EXPECTED - checked)}")


if __name__ == "__main__":
    main()
