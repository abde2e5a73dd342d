# Millstream: the few commands that matter. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test quick check bench bench-quick soak java clean

setup: $(STAMP) java
	@echo "ready: . $(VENV)/bin/activate for the millstream command, or make demo"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Millstream needs Python 3.10 or newer; set PYTHON=python3.11 or the like"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $(STAMP)

java:
	@sh scripts/java.sh

demo: setup
	@$(BIN)/millstream demo --output demo-output

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layout.py

test: setup
	$(BIN)/pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

quick: $(STAMP)
	$(BIN)/pytest -m "not spark and not crash and not soak" -n 2

soak: setup
	$(BIN)/pytest -m soak

bench: setup
	$(BIN)/python -m benchmarks.all

bench-quick: setup
	$(BIN)/python -m benchmarks.throughput --quick

clean:
	rm -rf $(VENV) demo-output .mypy_cache .ruff_cache .pytest_cache
