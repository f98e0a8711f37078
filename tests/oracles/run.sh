#!/usr/bin/env bash
# Make the recorded expectations again, in environments of their own, and compare with what is
# committed (`--write` to replace it). Downloads torch and builds llama.cpp: about half an hour.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:---check}
flag=--check
[ "$mode" = --write ] && flag=

python=${PYTHON:-python3}
torch=.venv-oracles
llama=.venv-llama
model_path() {
  .venv/bin/python -c "import sys; from tidemill import store; print(store.resolve(sys.argv[1]))" "$1"
}

if [ ! -x $torch/bin/python ]; then
  $python -m venv $torch
  $torch/bin/pip install -q torch==2.13.0 'transformers>=5.0' gguf safetensors sentencepiece jinja2
fi
for script in tests/oracles/make_*.py; do
  case $script in *make_llama_cpp*) continue ;; esac
  echo "$script"
  $torch/bin/python "$script" $flag
done

if [ ! -x $llama/bin/python ]; then
  $python -m venv $llama
  $llama/bin/pip install -q --no-binary llama-cpp-python llama-cpp-python gguf
fi
for name in smollm2 gemma3; do
  $llama/bin/python tests/oracles/make_llama_cpp.py "$(model_path $name)" $name $flag
  $llama/bin/python tests/oracles/make_llama_cpp_token_ids.py "$(model_path $name)" $name $flag
done

source=build/llama-cpp-source
if [ ! -d $source ]; then
  mkdir -p $source
  $llama/bin/pip download -q --no-deps --no-binary :all: -d $source llama-cpp-python
  tar xf $source/*.tar.gz -C $source --strip-components=1
fi
.venv/bin/python tests/oracles/check_llama_cpp_vocabularies.py $source/vendor/llama.cpp/models
PYTHONPATH=src $torch/bin/python tests/oracles/check_chat_templates.py $source/vendor/llama.cpp/models/templates
