"""Record the token ids that llama.cpp gives the texts of ``tests/support/texts.py``.

Run in an environment that has ``llama-cpp-python`` (see run.sh):

    python make_llama_cpp_token_ids.py MODEL.gguf NAME [--check]

writes tests/fixtures/token_ids/NAME.json: for each text its plain ids (no special tokens added or
recognised) and its full ids (both).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import llama_cpp

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.texts import TEXTS  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("name")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    llama = llama_cpp.Llama(str(args.model), vocab_only=True, verbose=False)
    records = []
    for text in TEXTS:
        data = text.encode()
        records.append(
            {
                "text": text,
                "plain": list(llama.tokenize(data, add_bos=False, special=False)),
                "full": list(llama.tokenize(data, add_bos=True, special=True)),
            }
        )
    target = TESTS / "fixtures" / "token_ids" / f"{args.name}.json"
    lines = ",\n".join(
        json.dumps(record, ensure_ascii=True, separators=(",", ":")) for record in records
    )
    content = f"[\n{lines}\n]\n"
    if args.check:
        if target.read_text() != content:
            raise SystemExit(f"{args.name}: llama.cpp gives other token ids than recorded")
        print(f"{args.name}: the ids of {len(records)} texts are as recorded")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
    print(f"{args.name}: recorded the ids of {len(records)} texts")


if __name__ == "__main__":
    main()
