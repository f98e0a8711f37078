# `make run`, `make test`, and what they need. Everything lives in .venv and build/.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROMPT ?= Why is the sky blue?
MODEL ?= smollm2

.PHONY: native
# In-place build of the native module for development: src/tidemill/_native*.so
native:
	$(VENV)/bin/cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) -DCMAKE_BUILD_TYPE=Release > build-configure.log || (cat build-configure.log; exit 1)
	@rm -f build-configure.log
	$(VENV)/bin/cmake --build build/dev
	cp build/dev/_native*.so src/tidemill/
