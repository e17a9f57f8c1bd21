# Thin entry points; every recipe is one command that can also be typed by hand.

PYTHON  ?= python3
PRESET  ?= smollm2-135m
SIZE    ?= quick
WORKERS ?= 2
MINUTES ?= 10
SEED    ?= 0

BIN   := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup test test-all lint types bench lossless soak tables clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z%0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## create .venv with the pinned dependencies; the other targets do it when needed

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

# A file's tests share models that are built once, so a file stays with one worker.
test: $(READY)  ## run the tests, the files shared by WORKERS processes of one thread each
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not repeats'

test-all: $(READY)  ## run every test, those too that show again, in more cases, what others show
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy on all packages
	$(BIN)/mypy

bench: $(READY)  ## time AR against model.generate and against the memory floor
	$(BIN)/python -m harness.bench

lossless: $(READY)  ## run the 35 checks of losslessness on the built-in methods
	$(BIN)/python -m harness.check

soak: $(READY)  ## decode random prompts with random options against plain decoding (MINUTES, SEED)
	$(BIN)/python -m harness.soak --minutes $(MINUTES) --seed $(SEED)

table%: $(READY)  ## run what Table N still lacks and print it, e.g. make table1 (PRESET, SIZE)
	$(BIN)/python -m paper_tables $* --preset $(PRESET) --size $(SIZE)

tables: table1 table2 table3 table4 table5  ## run what the five tables still lack and print them

clean:  ## remove .venv and caches; records under results/ stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
