#!/usr/bin/env bash
# Build llama.cpp's own benchmark tools for this machine from the source that llama-cpp-python
# carries on PyPI (about ten minutes on two cores, once). They stay outside the project:
# $TIDEMILL_PEERS, by default ~/.cache/tidemill-peers. Prints the folder of the tools.
set -euo pipefail
version=0.3.36
root=${TIDEMILL_PEERS:-$HOME/.cache/tidemill-peers}/llama.cpp-$version
bin=$root/build/bin
if [ ! -x "$bin/llama-bench" ] || [ ! -x "$bin/llama-batched-bench" ]; then
  mkdir -p "$root"
  cd "$root"
  ${PYTHON:-python3} -m venv env
  env/bin/pip -q install cmake ninja
  env/bin/pip -q download --no-deps --no-binary :all: -d . "llama-cpp-python==$version"
  tar xf llama_cpp_python-"$version".tar.gz
  env/bin/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$root/env/bin/ninja" \
    -S llama_cpp_python-"$version"/vendor/llama.cpp -B build \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF >&2
  env/bin/cmake --build build --target llama-bench llama-batched-bench llama-perplexity >&2
fi
echo "$bin"
