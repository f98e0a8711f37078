# `make run`, `make test`, and what they need. Everything is kept in .venv, build/ and the model
# store (~/.cache/tidemill unless TIDEMILL_HOME says otherwise).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
MODEL  ?= smollm2
PROMPT ?= Why is the sky blue?
NATIVE := CMakeLists.txt pyproject.toml $(wildcard csrc/*)

.DEFAULT_GOAL := help
.PHONY: help setup run models dev test lint types unit native oracles slow sanitize arm64 soak \
        bench bench-peers bench-ablations clean

help:
	@echo "make run [PROMPT=...] [MODEL=...]  set everything up and answer a prompt"
	@echo "make test                          lint, types, import contracts and all tests"
	@echo "make slow                          sanitizers and emulated arm64 (needs apt packages)"
	@echo "make soak [REQUESTS=20000] [MINUTES=...]"
	@echo "                                   the server under mixed requests, and fuzzed"
	@echo "make bench                         speed against llama.cpp in the same run"
	@echo "make bench-peers [PEERS=... WORK=... ROUNDS=5 MINUTES=...]"
	@echo "                                   speed against every peer (hours; large downloads)"
	@echo "make bench-ablations [ONLY=... ROUNDS=5]"
	@echo "                                   what each technique buys (a quarter of an hour)"
	@echo "make oracles                       recompute the recorded expectations (large downloads)"

# ---- the package ------------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U 'pip>=25.1'

# Editable: Python sources are used in place, only a change below csrc/ builds anew.
$(VENV)/.installed: $(BIN)/python $(NATIVE)
	@echo "Building tidemill and its kernels ..."
	$(PIP) install -e .
	@touch $@

setup: $(VENV)/.installed

run: setup
	@$(BIN)/tidemill run $(MODEL) "$(PROMPT)"

# ---- development ------------------------------------------------------------------------------

$(VENV)/.dev: $(BIN)/python $(NATIVE)
	@echo "Building tidemill (warnings are errors) and installing what the tests need ..."
	$(PIP) install -e '.[dev]' -C cmake.define.TIDEMILL_WERROR=ON
	@touch $@ $(VENV)/.installed

dev: $(VENV)/.dev

# The two real models that tests run on; a no-op once they are there.
models: $(VENV)/.installed
	@$(BIN)/tidemill pull smollm2
	@$(BIN)/tidemill pull gemma3

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: dev
	$(BIN)/mypy

unit: dev models
	$(BIN)/pytest

test: lint types unit

oracles: dev models
	bash tests/oracles/run.sh

slow: sanitize arm64

sanitize: dev
	bash tests/native/sanitize.sh

arm64:
	bash tests/native/arm64.sh

REQUESTS ?= 20000
soak: dev
	TIDEMILL_SOAK_REQUESTS=$(REQUESTS) $(if $(MINUTES),TIDEMILL_SOAK_MINUTES=$(MINUTES)) \
	  TIDEMILL_TEST_EXAMPLES=40 $(BIN)/pytest -s tests/server/test_soak.py \
	  tests/server/test_fuzzed_api.py

# Peers are built and installed on first use, outside the tree ($TIDEMILL_PEERS).
ROUNDS ?= 5
BENCH  := $(BIN)/python benchmarks/against_peers.py
bench: dev models
	$(BENCH) --peers "llama.cpp llama.cpp-server" --rounds 3 --work "[sg]*/prefill, [sg]*/decode*"

bench-peers: dev models
	$(BENCH) --peers "$(PEERS)" --rounds $(ROUNDS) $(if $(WORK),--work "$(WORK)") \
	  $(if $(MINUTES),--minutes $(MINUTES))

bench-ablations: dev models
	$(BIN)/python benchmarks/ablations.py --rounds $(ROUNDS) $(if $(ONLY),--only "$(ONLY)")

clean:
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# For working on the kernels: an incremental build, put beside the Python sources.
native: $(VENV)/.dev
	$(BIN)/cmake -S . -B build/dev -G Ninja -DTIDEMILL_WERROR=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) >/dev/null
	$(BIN)/cmake --build build/dev
	for so in build/dev/_native*.so; do cp $$so src/tidemill/.new.so && mv src/tidemill/.new.so src/tidemill/$$(basename $$so); done
