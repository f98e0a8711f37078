#!/usr/bin/env bash
# The native code under AddressSanitizer and UndefinedBehaviorSanitizer: the self-tests, then the
# Python tests of the native module and of the CPU backend with a sanitized module.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
build=$root/build/sanitize
python=$root/.venv/bin/python
export PATH=$root/.venv/bin:$PATH
export UBSAN_OPTIONS=print_stacktrace=1
# Python itself, and NumPy, keep memory until the end.
export ASAN_OPTIONS=detect_leaks=0

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTIDEMILL_SANITIZE=ON -DTIDEMILL_WERROR=ON \
  -DTIDEMILL_SELFTEST=ON -DPython_EXECUTABLE="$python"
cmake --build "$build" -j "$(nproc)"

for test in "$build"/*_selftest; do
  echo "$(basename "$test"):"
  timeout 900 env ASAN_OPTIONS=detect_leaks=1 "$test"
done

# A copy of the package beside the sanitized module. It must win over an editable installation, whose
# import hook comes before the search path.
package=$build/package
rm -rf "$package"
mkdir -p "$package"
cp -r src/tidemill "$package/tidemill"
rm -f "$package"/tidemill/_native*.so
cp "$build"/_native*.so "$package/tidemill/"
cat > "$package/run_tests.py" <<'PYTHON'
import sys

sys.path.insert(0, sys.argv.pop(1))
sys.meta_path[:] = [f for f in sys.meta_path if "tidemill" not in type(f).__module__]
import pytest
import tidemill._native

print("testing", tidemill._native.__file__)
sys.exit(pytest.main(sys.argv[1:]))
PYTHON
LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so):$(gcc -print-file-name=libstdc++.so)" \
  "$python" "$package/run_tests.py" "$package" -q -p no:cacheprovider tests/native tests/backends \
  -k "not touches_its_own_blocks"  # counts resident pages, of which sanitizers have their own
