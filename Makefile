# Every target sets up what it needs: a virtual environment in $(VENV), then the Cython extensions in place.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell echo $$(($$(nproc) * 3 / 2)))
# What is compiled: Cython, and the Python modules that have a .pxd beside them.
FAST := $(shell find narwhal -name '*.pyx' -o -name '*.pxd')
FAST += $(wildcard $(FAST:.pxd=.py))

.PHONY: help build demo test test-real test-real-long chaos fuzz lint format bench bench-guard bench-compare clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       a simulated fleet, the router, one streamed answer, a short load"
	@echo "make test       unit, property and socket tests"
	@echo "make test-real  the same through real vLLM engines on this CPU"
	@echo "make test-real-long  what takes minutes on them: engines killed under answers that go on elsewhere"
	@echo "make chaos      a minute of killed, stopped and misbehaving engines under load"
	@echo "make fuzz       random inputs for the parsers, a minute of it, against their oracles"
	@echo "make lint       ruff, mypy --strict, cython-lint"
	@echo "make format     let ruff format the code"
	@echo "make bench      what it costs: benchmarks with tables"
	@echo "make bench-guard    instructions for an event and a request, against those kept (needs valgrind)"
	@echo "make bench-compare  CPU and delay beside HAProxy, nginx, vllm-router and narwhal-inference, as far as they are installed"
	@echo "make clean      remove the environment and everything built"

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Requirements that pyproject.toml names, one a line.
REQUIRED = $(BIN)/python -c "import tomllib; file = tomllib.load(open('pyproject.toml', 'rb')); print(*$(1), sep='\n')"
EXTRAS := file['project']['optional-dependencies']

# What it is built with comes first and stays, since with a Cython of pip's own all would be compiled twice.
$(VENV)/.tools: pyproject.toml setup.py
	@echo "Installing into $(VENV) and compiling, two minutes the first time..."
	$(PYTHON) -m venv $(VENV)
	$(call REQUIRED,file['build-system']['requires']) | xargs -d '\n' $(PIP)
	@touch $@

$(VENV)/.needed: $(VENV)/.tools
	$(call REQUIRED,file['project']['dependencies'] + $(EXTRAS)['dev']) | xargs -d '\n' $(PIP)
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(FAST)
	@echo "Compiling what has changed..."
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# After .built, for pip would compile too, but not because of it: what is installed leads to the files here.
$(VENV)/.ready: $(VENV)/.needed | $(VENV)/.built
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# Two at a time: to install keeps one core busy, and that not wholly.
build:
	@$(MAKE) --silent --jobs=2 $(VENV)/.ready $(VENV)/.built

demo: build
	$(BIN)/narwhal demo

# Tests wait about as long as they compute, so more of them than there are cores run at a time.
test: build
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

test-real: build
	$(BIN)/python -m pytest tests/real --timeout 420 -m "not long"

test-real-long: build
	$(BIN)/python -m pytest tests/real --timeout 420 -m long

chaos: build
	NARWHAL_CHAOS_S=60 $(BIN)/python -m pytest tests/http/test_chaos.py -s

# The extra alone: pip would build the extensions again to install it with its project.
$(VENV)/.fuzz: $(VENV)/.ready
	$(call REQUIRED,$(EXTRAS)['fuzz']) | xargs -d '\n' $(PIP)
	@touch $@

fuzz: build $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz.run

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint narwhal

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: build
	$(BIN)/python -m pytest bench --benchmark-only

bench-guard: build
	$(BIN)/python bench/guard.py

bench-compare: build
	$(BIN)/python -m bench.compare

clean:
	rm -rf $(VENV) build dist *.egg-info
	find narwhal -name '*.c' -o -name '*.so' | xargs rm -f
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
