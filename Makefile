# `make up` and `make test` need Python 3.11 or later with venv, and nothing else.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
PYTEST_ARGS ?=
# A worker a core, and not so many that their memory counts. One test file by hand needs none: pytest tests/ops.
WORKERS ?= logical --maxprocesses 8
# Of tests against real peers, which mostly wait for processes of their own.
REAL_WORKERS ?= 3

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
PAGE := src/rondo/gateway/static/index.html
export PATH := $(abspath $(BIN)):$(PATH)

# Compiled files make the second start quick, whatever the caller's shell prefers.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help up page check test test-long coverage test-levels sanitize test-real lint docs settings terminal format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make up         install, make the demo model if there is none, and serve on port $(PORT)"
	@echo "make page       build the web page with npm"
	@echo "make check      lint and the tests of pure logic, in about a minute"
	@echo "make test       lint, types, import contracts and every test that needs no real peer and no sanitizer"
	@echo "make coverage   run the fast tests and print the covered share of lines; files in build/coverage/html"
	@echo "make test-levels test the compiled kernels again, for fewer of the CPU's instructions and without a compiler"
	@echo "make test-long  test every RL algorithm on several ranks against one process, in a quarter of an hour"
	@echo "make sanitize   test the compiled kernels under the address and undefined-behaviour sanitizers"
	@echo "make test-real  install the real peers and servers, and test against them"
	@echo "make lint       ruff, mypy, import contracts, structure and writing rules alone"
	@echo "make docs       build the manual into build/docs, with every link checked"
	@echo "make settings   write docs/settings.md, the reference of all settings"
	@echo "make terminal   write docs/terminal.md, captures of each verb, in some minutes"
	@echo "make format     let ruff rewrite the files"
	@echo "make bench      run every benchmark quickly"
	@echo "make clean      remove the virtual environment and the caches"

up: $(CORE) $(PAGE)
	@$(BIN)/rondo up --port $(PORT)

page: $(PAGE)

# Without npm the API works, and the page says how to build it.
$(PAGE): $(shell find page/src page/*.json page/*.ts page/index.html 2>/dev/null)
	@command -v npm >/dev/null && $(PYTHON) tools/build_page.py || echo "npm is not installed: no web page is built"

# Programs in C of their own, compiled with sanitizers for each level in minutes: `make sanitize` runs them, once.
PRODUCTS := tests/ops/native/test_products.py

# Pure logic: milliseconds a test, no servers, no ranks.
LOGIC_TESTS := tests/plan tests/text tests/engine/schedule tests/data/test_packing.py tests/data/test_sampler.py \
  tests/rl/update/test_advantages.py tests/control/test_router.py tests/base/test_writing.py tests/base/test_links.py

check: lint
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(LOGIC_TESTS)

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not real and not gpu and not long" --ignore=$(PRODUCTS) $(PYTEST_ARGS)

coverage: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not real and not gpu and not slow" --ignore=$(PRODUCTS) \
	  --cov --cov-report=html $(PYTEST_ARGS)
	@echo "coverage: $$($(BIN)/python -m coverage report --format=total)% of the lines of src/rondo"

# What the compiled kernels have tests in: see RONDO_CPU in docs/serving.md.
KERNEL_TESTS := tests/ops tests/engine/runner/test_compiled.py tests/engine/runner/test_compiled_quantized.py \
  tests/engine/runner/test_attend.py tests/engine/runner/test_rounding.py tests/engine/runner/test_deterministic.py

test-levels: $(DEV)
	@for level in $$($(BIN)/python -c 'from rondo.ops.native.build.level import available; print(*available()[1:])'); do \
	  echo "== RONDO_CPU=$$level"; \
	  RONDO_CPU=$$level $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore=$(PRODUCTS) $(KERNEL_TESTS) || exit 1; \
	done
	@echo "== RONDO_NATIVE=0"; RONDO_NATIVE=0 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore=$(PRODUCTS) $(KERNEL_TESTS)

# Where the kernels' memory is at stake; not what measures how much of it a process has, since a sanitizer keeps what is freed.
SANITIZED_TESTS := $(addprefix tests/ops/,attention/test_attention.py attention/test_paged_decode.py gemm/test_low_rank.py \
  pointwise/test_pointwise.py vocabulary/test_draw.py vocabulary/test_logprobs.py native/test_quantized_native.py \
  native/test_native_linear.py test_random_shapes.py) \
  tests/engine/runner/test_attend.py tests/engine/runner/test_compiled.py -k "not second_copy"

# Every algorithm of RL on two ranks, and every layout of four ranks in RL and in training: twenty minutes.
test-long: $(DEV)
	$(BIN)/python -m pytest -m long tests/rl/ranks tests/train/learner tests/engine/ranks tests/engine/runner tests/server/process \
	  tests/graders/sandbox $(PYTEST_ARGS)

sanitize: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PRODUCTS)
	CC="$(abspath tests/support/sanitizing-cc)" ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest $(SANITIZED_TESTS)

test-real: $(DEV)
	bash tests/real/setup.sh "$(abspath $(BIN))/python"
	$(BIN)/python -m pytest -n $(REAL_WORKERS) --dist loadfile -m real $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/structure.py
	$(BIN)/python tools/writing.py

docs: $(DOCS)
	$(BIN)/mkdocs build --strict --quiet

settings: $(DEV)
	$(BIN)/python tools/settings_page.py

terminal: $(DEV)
	PYTHONPATH=tests $(BIN)/python tests/docs/terminal_page.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	@for script in bench/*.py; do \
	  case "$$script" in bench/_*) continue;; esac; \
	  echo "== $$script"; $(BIN)/python "$$script" --quick || exit 1; \
	done

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "error: Rondo needs Python 3.11 to 3.13; say which with: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "error: no virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e .
	@$(BIN)/python -m rondo.ops.native
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m rondo.ops.native
	@touch $(CORE) $@

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@
