# rmqtool: `make demo` shows it, `make test` checks it. Everything is kept in .venv and build.

SHELL := /bin/sh
BIN := .venv/bin
DEMO_CASE := ok_540_clean
DEMO_STORE := build/demo/store
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# The newest Python on PATH that can make a venv. Each is tried: some are shims that only print an error.
PYTHON = $(shell IFS=:; for version in 3.14 3.13 3.12 3.11 3; do for folder in $$PATH; do \
	python="$$folder/python$$version"; test -x "$$python" && "$$python" -c 'import sys, venv, ensurepip; \
	sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && { echo "$$python"; exit; }; \
	done; done)

.PHONY: demo test lint types man man-check bench release-check clean

demo: .venv/base
	@rm -rf build/demo && mkdir -p build/demo && $(BIN)/python -m tests.stores $(DEMO_CASE) $(DEMO_STORE)
	@run() { echo; echo "$$ rmqtool $$*"; $(BIN)/rmqtool "$$@"; }; \
	run info $(DEMO_STORE) && run dump $(DEMO_STORE) --limit 5 --format table && run verify $(DEMO_STORE)

test: .venv/dev
	$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

man: .venv/base
	$(BIN)/python -m rmqtool.manpages man

man-check: .venv/base
	$(BIN)/python -m rmqtool.manpages --check man

bench: .venv/dev
	$(BIN)/python -m pytest -s -o python_files='bench_*.py' tests/benchmarks

release-check: .venv/dev
	$(BIN)/python -m tests.release_check build/release

clean:
	rm -rf .venv build rmqtool.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/base: pyproject.toml constraints.txt
	@python='$(PYTHON)'; test -n "$$python" || { echo 'rmqtool needs python3.11 to python3.14 that can make a venv:' \
		'apt-get install python3 python3-venv (or: dnf install python3.12; brew install python)' >&2; exit 1; }; \
	echo "installing rmqtool into .venv with $$python" && "$$python" -m venv .venv
	@$(PIP_INSTALL) -e . && touch $@

.venv/dev: .venv/base
	@$(PIP_INSTALL) -e '.[all]' && touch $@
