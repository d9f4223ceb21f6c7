# Everything here works on a bare clone with Python 3.11 or newer and make.
#
#   make demo     install Limner, then draw, train, measure and write a report
#   make test     install with the development extras, then run the linters and the fast tests
#   make test-long   the tests of services, clusters, kills and minutes of work, each file in a process of its own
#   make test-alone  each file alone, in random order, with one and two threads; ARGS=tests/unit for a part
#   make lint     formatting, lint, types, layers of the package, spelling
#   make check    the linters and the quick tests: before every commit
#   make hostile  damaged files, forged values, full disks: each is one line of error and harms nothing
#   make kill     commands killed at 50 random points, whose repetition must give the same bytes
#   make slow     the tests that take many minutes each
#   make tools    the programs that some tests need, where they may be installed
#   make fuzz     read mutated files of every kind, FUZZ_EXAMPLES of each (200 by default)
#   make bench    timings as JSON lines; make bench ONLY=name for one
#   make hub IMAGES="a.jpg b.jpg"  captions and times of real models of the hub; downloads several gigabytes
#   make docs     the documentation, into site/
#   make pretrained DATA=folder  train the built-in captioner again (hours; pretrained/README.md)
#   make clean    remove caches and built files; environment, demo and runs stay

PYTHON ?= python3
VENV ?= .venv
OUT ?= demo
ONLY ?=
ARGS ?=
FUZZ_EXAMPLES ?= 200

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DELETE_ON_ERROR:
.PHONY: demo test test-long test-alone tools hostile kill slow fuzz lint check bench hub docs pretrained clean

demo: $(VENV)/.limner
	$(BIN)/limner demo --out $(OUT)

test: lint tools
	$(BIN)/python tests/tiers.py fast $(ARGS)

test-long: $(VENV)/.limner-dev tools
	$(BIN)/python tests/tiers.py long $(ARGS)

test-alone: $(VENV)/.limner-dev tools
	$(BIN)/python tests/tiers.py alone $(ARGS)

# Programs of Debian that some tests need.
tools:
	@command -v chromium >/dev/null && command -v exiftool >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get && \
	apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium \
	libimage-exiftool-perl; } >/dev/null 2>&1 || true
	@command -v chromium >/dev/null || echo "chromium cannot be installed here: the tests of the page will be skipped"
	@command -v exiftool >/dev/null || echo "exiftool cannot be installed here: the tests that read captions with it will be skipped"

hostile: $(VENV)/.limner-dev
	$(BIN)/python tests/tiers.py fast tests/hostile $(ARGS)
	$(BIN)/python tests/tiers.py long tests/hostile $(ARGS)

kill: $(VENV)/.limner-dev
	$(BIN)/python -m pytest -m kill tests/hostile $(ARGS)

slow: $(VENV)/.limner-dev
	$(BIN)/python tests/tiers.py slow $(ARGS)

fuzz: $(VENV)/.limner-dev
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -n auto tests/fuzz $(ARGS)

lint: $(VENV)/.limner-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests docs recipes book README.md CONTRIBUTING.md CHANGELOG.md

check: lint
	$(BIN)/python tests/tiers.py check $(ARGS)

bench: $(VENV)/.limner-dev
	$(BIN)/python benchmarks/run.py $(ONLY)

hub: $(VENV)/.limner-dev
	$(BIN)/python benchmarks/hub.py $(IMAGES)

docs: $(VENV)/.limner-dev
	$(BIN)/mkdocs build --strict

pretrained: $(VENV)/.limner
	$(BIN)/python pretrained/make.py --data $(DATA) $(ARGS)

clean:
	rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps say that the environment holds what these two files asked for when it was last filled.
$(VENV)/.limner: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[train]'
	touch $@

$(VENV)/.limner-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	touch $(VENV)/.limner $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "error: $(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
