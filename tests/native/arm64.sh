#!/usr/bin/env bash
# Cross-compiles the kernels for arm64 and runs their self-tests under qemu-user: the NEON table on an
# emulated CPU that has its extensions, and the portable table on one that does not.
# Needs: apt-get install g++-aarch64-linux-gnu qemu-user-static
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/arm64
cmake=$(command -v .venv/bin/cmake || command -v cmake)

if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user-static
  else
    echo "arm64: please install g++-aarch64-linux-gnu and qemu-user-static" >&2
    exit 1
  fi
fi

"$cmake" -S . -B "$build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
  -DCMAKE_CROSSCOMPILING_EMULATOR="$(command -v qemu-aarch64-static)" \
  -DTIDEMILL_PYTHON=OFF -DTIDEMILL_SELFTEST=ON -DTIDEMILL_WERROR=ON
"$cmake" --build "$build" -j "$(nproc)"

for test in "$build"/*_selftest; do
  echo "$(basename "$test"), all extensions:"
  timeout 600 qemu-aarch64-static -cpu max "$test"
done
echo "kernel_selftest, a CPU without dot products:"
timeout 600 qemu-aarch64-static -cpu cortex-a57 "$build/kernel_selftest"
