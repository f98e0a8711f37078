"""Record tiny SentencePiece models and the ids that the sentencepiece library gives with them.

    python tests/oracles/make_sentencepiece_ids.py            # write tests/fixtures/sentencepiece/
    python tests/oracles/make_sentencepiece_ids.py --check    # encode again and compare

Needs sentencepiece. The models are trained on tests/fixtures/prose.txt and the texts of
tests/support/texts.py; training is not compared, so --check takes the recorded models.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.texts import TEXTS  # noqa: E402

FOLDER = TESTS / "fixtures" / "sentencepiece"

# White space and a few compatibility characters, as real T5 models normalise many thousands.
RULES = {"\t": " ", "\n": " ", "\r": "", "ﬁ": "fi", "\u3000": " ", "\u00a0": " ", "Ａ": "A"}

COMMON = {"vocab_size": 900, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
CASES: dict[str, dict[str, Any]] = {
    # As Llama 2: BPE, space prefix, byte fallback.
    "bpe": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
    },
    # As Gemma: no space prefix, user-defined symbols for runs of white space.
    "bpe_no_prefix": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["\n", "\n\n", "▁▁", "▁▁▁", "<b>", "</b>"],
        "control_symbols": ["<start_of_turn>"],
    },
    # Without byte fallback: what no piece covers is unknown.
    "bpe_unknown": {
        "model_type": "bpe",
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    # Pieces that cross words, so that white space is nowhere a safe place to cut.
    "bpe_across_words": {
        "model_type": "bpe",
        "byte_fallback": True,
        "split_by_whitespace": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    # As T5: unigram with normalisation and collapsed white space.
    "unigram": {"model_type": "unigram", "unk_id": 2, "bos_id": -1, "eos_id": 1, "pad_id": 0},
}


def train(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The model as the arrays that a GGUF file would hold."""
    sentences = (TESTS / "fixtures" / "prose.txt").read_text().splitlines()
    sentences += [line for text in TEXTS for line in text.splitlines()] * 3
    sentences = [line.replace("\0", "") for line in sentences]
    options = COMMON | options
    if options["model_type"] == "unigram":
        rules = FOLDER / "rules.tsv"
        rules.parent.mkdir(parents=True, exist_ok=True)
        rules.write_text(
            "".join(
                f"{ord(old):X}\t{' '.join(f'{ord(c):X}' for c in new)}\n"
                for old, new in RULES.items()
            )
        )
        options["normalization_rule_tsv"] = str(rules)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, **options
    )
    if options["model_type"] == "unigram":
        rules.unlink()
    proto = protocol.ModelProto.FromString(model.getvalue())
    return {
        "model_type": options["model_type"],
        "pieces": [[p.piece, p.score, p.type] for p in proto.pieces],
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces,
        "charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(),
        "model": base64.b64encode(model.getvalue()).decode(),
    }


def encode(record: dict[str, Any]) -> list[list[int]]:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(base64.b64decode(record["model"]))
    return [processor.encode(text) for text in TEXTS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for name, options in CASES.items():
        path = FOLDER / f"{name}.json"
        if args.check:
            record = json.loads(path.read_text())
            if encode(record) != record["ids"]:
                raise SystemExit(f"{name}: sentencepiece gives other ids than recorded")
            print(f"{name}: the ids of {len(TEXTS)} texts are as recorded")
            continue
        record = train(name, options)
        record["ids"] = encode(record)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, separators=(",", ":")) + "\n")
        print(f"{name}: {len(record['pieces'])} pieces, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
