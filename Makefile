# Everything here works on a bare clone with Python 3.11 or newer and make.
#
#   make demo     install Limner, then draw, train, measure and write a report
#   make test     install with the development extras, then run the linters and the tests
#   make lint     formatting, lint, types, layers of the package, spelling
#   make check    the linters and the fast tests: before every commit
#   make hostile  damaged files, forged values, full disks: each is one line of error and harms nothing
#   make kill     commands killed at 50 random points, whose repetition must give the same bytes
#   make slow     the tests that take many minutes each
#   make fuzz     read mutated files for FUZZ_MINUTES (five by default); failing inputs are kept in fuzz-failures/
#   make bench    timings as JSON lines; make bench ONLY=name for one
#   make docs     the documentation, into site/
#   make pretrained DATA=folder  train the built-in captioner again (hours; pretrained/README.md)
#   make clean    remove caches and built files; environment, demo and runs stay

PYTHON ?= python3
VENV ?= .venv
OUT ?= demo
ONLY ?=
ARGS ?=
FUZZ_MINUTES ?= 5
# The tests of a file run in one process, which prepares what they share, in the order of the files.
SHARED := --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DELETE_ON_ERROR:
.PHONY: demo test chromium hostile kill slow fuzz lint check bench docs pretrained clean

demo: $(VENV)/.limner
	$(BIN)/limner demo --out $(OUT)

test: lint chromium
	$(BIN)/python -m pytest -n auto $(SHARED) $(ARGS)

# The tests of the page need Debian's chromium; without the right to install it they are skipped.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } \
	>/dev/null 2>&1; } || echo "chromium cannot be installed here: the tests of the page will be skipped"

hostile: $(VENV)/.limner-dev
	$(BIN)/python -m pytest -n auto $(SHARED) tests/hostile $(ARGS)

kill: $(VENV)/.limner-dev
	$(BIN)/python -m pytest -m kill tests/hostile $(ARGS)

slow: $(VENV)/.limner-dev
	$(BIN)/python -m pytest -m slow $(ARGS)

fuzz: $(VENV)/.limner-dev
	FUZZ_MINUTES=$(FUZZ_MINUTES) $(BIN)/python tests/fuzz/run.py $(ARGS)

lint: $(VENV)/.limner-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs recipes README.md CONTRIBUTING.md CHANGELOG.md

check: lint
	$(BIN)/python -m pytest -n auto $(SHARED) tests/unit tests/contract tests/parity $(ARGS)

bench: $(VENV)/.limner-dev
	$(BIN)/python benchmarks/run.py $(ONLY)

docs: $(VENV)/.limner-dev
	$(BIN)/mkdocs build --strict

pretrained: $(VENV)/.limner
	$(BIN)/python pretrained/make.py --data $(DATA) $(ARGS)

clean:
	rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps say that the environment holds what these two files asked for when it was last filled.
$(VENV)/.limner: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.limner-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	touch $(VENV)/.limner $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "error: $(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
