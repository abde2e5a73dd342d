# Millstream: the few commands that matter. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
DOCS_STAMP := $(VENV)/.installed-docs
ARGS ?=

# Bytecode is kept with the virtual environment, whatever the shell says about it: else each of the processes that tests start would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.PHONY: setup demo demo-views demo-service chromium test quick check bench bench-quick soak matrix kafka lock docs java clean

setup: java $(STAMP)
	@echo "ready: . $(VENV)/bin/activate for the millstream command, or make demo"

$(STAMP): pyproject.toml constraints.txt
	@sh scripts/install.sh $(PYTHON) $(VENV) dev "installing everything, also for tests and benchmarks, into $(VENV), about two minutes ..."
	@touch $(DEMO_STAMP) $(DOCS_STAMP) $(STAMP)

# What the demo needs is less than make setup installs. Where that is done, nothing is installed.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@sh scripts/install.sh $(PYTHON) $(VENV) demo "installing pyspark and the rest into $(VENV), about a minute ..."
	@touch $(DEMO_STAMP)

java:
	@PYTHON=$(PYTHON) sh scripts/java.sh

# make demo ARGS=--small is shorter
demo: java $(DEMO_STAMP)
	@PYTHONPATH=examples $(BIN)/python -m demos --output demo-output $(ARGS)

demo-views: java $(DEMO_STAMP)
	@PYTHONPATH=examples $(BIN)/python -m demos views --output demo-views-output $(ARGS)

demo-service: java $(DEMO_STAMP)
	@PYTHONPATH=examples $(BIN)/python -m demos service --output demo-service-output $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layout.py

# a browser for the tests of the page, where the system can install one; else they are skipped
chromium:
	@PYTHON=$(PYTHON) sh scripts/chromium.sh

test: setup chromium
	$(BIN)/pytest -m "not soak" -n 3 --dist loadscope --no-loadscope-reorder

# no Spark, no killed process, and a tenth of the seeds and examples: about a minute
quick: $(STAMP)
	MILLSTREAM_QUICK=1 $(BIN)/pytest -m "not spark and not crash and not soak and not slow" -n 2 --dist worksteal

# what takes long, and all seeds and examples of the rest
soak: setup
	MILLSTREAM_FULL=1 $(BIN)/pytest -m "soak or not (spark or crash)"

# the tests that a version of Spark can break, on Spark 4.0 to 4.3: make matrix ARGS="--write 4.0 4.1"
matrix: $(STAMP)
	$(BIN)/python scripts/matrix.py $(ARGS)

# the pages as a site, in site/html, with a page of the API
docs: $(DOCS_STAMP)
	$(BIN)/python scripts/docs_site.py

$(DOCS_STAMP): pyproject.toml constraints.txt
	@sh scripts/install.sh $(PYTHON) $(VENV) docs "installing what makes the site into $(VENV) ..."
	@touch $(DOCS_STAMP)

# the newest version of every package, into .venv and constraints.txt, which make setup takes them from: with Python 3.11, and make test before it is committed
lock:
	@sh scripts/install.sh $(PYTHON) $(VENV) dev "installing the newest of everything into $(VENV), about two minutes ..." --newest
	@{ sed '/^[^#]/d' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | grep -v ' @ '; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt
	@touch $(DEMO_STAMP) $(DOCS_STAMP) $(STAMP)

# the jars of a Kafka broker for tests and demos, from Maven Central, into the cache folder
kafka: java
	$(PYTHON) scripts/kafka_broker.py fetch

bench: setup
	$(BIN)/python -m benchmarks.all

bench-quick: setup
	$(BIN)/python -m benchmarks.throughput --quick

clean:
	rm -rf $(VENV) .matrix demo-output demo-views-output demo-service-output site .mypy_cache .ruff_cache .pytest_cache
