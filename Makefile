# make demo   install into .venv; a host, a process and the broker die under 200 real calls, and every one is accounted for
# make test   install, and run every check and test, on servers that it starts itself
# make coverage  which lines the quick tests ran
# make check  lint, format, types, import contracts, dependencies
# make bench  ours beside raw Celery, in one run; AGAINST=<commit> compares with that instead; QUICK=1 tries it
# make bench-growth  ours beside raw Celery, as work, history and workers grow
# make bench-peers  ours beside other task queues, each in a venv of its own; writes benchmarks/RESULTS.md and its charts
# make bench-tools  the built-in tools beside ripgrep, plain Python, asyncio, ctags, jedi, markdownify and reference MCP servers
# make house  how large the code is and how far one call walks in it; writes benchmarks/HOUSE.md
# make soak   file tools on paths that are swapped meanwhile, and 10,000 calls of each in one process; MINUTES=30 at most
# make mutants  change lines of PACKAGE=forge_tools/storage one at a time and report changes that no quick test notices; MUTANTS=100, SEED=..., RECORD=1
# make release-wheel  build the wheel of this version into tests/releases, where the tests of later versions find it
# make chaos  inject faults for MINUTES=30 on a schedule made from SEED; RECORD=1 keeps the figures in docs/

# Every process of a test or of the demo imports the same files, so they are compiled once.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
OLD_LANGCHAIN := $(VENV)/langchain-0.3

# The first of these that is 3.11 or later and has a working venv (Debian ships python3 without it): those that the tests run on go first.
PYTHONS := python3.13 python3.12 python3.11 python3.14 python3
PYTHON ?= $(shell for p in $(PYTHONS); do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# Five test processes per core: they spend more than half of their time waiting for workers, leases and heartbeats.
PROCESSES := $(shell cores=$$(nproc); echo $$((cores > 2 ? 12 : cores * 5)))
PARALLEL := --processes $(PROCESSES)
MEASURED := tests/unit tests/spec tests/contract tests/architecture

# A traced interpreter may hang when an exception is raised into one of its threads, which these tests do.
UNTRACED := $(addprefix tests/unit/workers/test_,watch.py loop_holds.py loop_lane.py loop_processes.py task_closer.py tool_loop.py engine.py)

# uv takes a third of pip's time. Where it cannot be installed, or cannot reach an index that only pip was told of, pip does it.
QUIET := --quiet --disable-pip-version-check --no-compile
INSTALL = $(BIN)/uv pip install --quiet --system-certs --no-cache --python $(1) $(2) || $(BIN)/python -m pip --python $(1) install $(QUIET) $(2)

.PHONY: demo test suite test-langchain-0.3 coverage check bench bench-growth bench-peers bench-tools house soak chaos mutants release-wheel install clean

demo: $(STAMP)
	$(BIN)/python -m examples.demo

# In parallel, since each leaves a core idle for a while; if one fails, all fail.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=3 check suite test-langchain-0.3

suite: $(STAMP)
	$(BIN)/python -m tests $(PARALLEL) $(PYTEST_ARGS)

# The LangChain adapters again, on the oldest supported release line and with only what they need.
test-langchain-0.3: $(OLD_LANGCHAIN)/.installed
	$(OLD_LANGCHAIN)/bin/python -m pytest --noconftest -p tests.unit.conftest -o addopts=--import-mode=importlib -W ignore::DeprecationWarning -q \
		tests/unit/test_langchain.py tests/unit/adapters/test_langchain_tools.py

coverage: $(STAMP)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) $(MEASURED) $(addprefix --ignore=,$(UNTRACED))
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

bench: $(BENCH_STAMP)
	$(BIN)/python -m $(if $(AGAINST),benchmarks.against $(AGAINST),benchmarks) $(if $(QUICK),--quick)

bench-growth: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks growth

bench-peers: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.charts

bench-tools: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks tools

house: $(STAMP)
	$(BIN)/python -m benchmarks.house

MINUTES ?= 30

soak: $(STAMP)
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(RECORD),--record)

MUTANTS ?= 100

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(PACKAGE) --mutants $(MUTANTS) $(if $(SEED),--seed $(SEED)) $(if $(RECORD),--record) --untraced "$(UNTRACED)"

# The same bytes for the same files: all of them are dated 1980, the first year that a zip archive knows.
release-wheel: $(STAMP)
	SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m hatchling build --target wheel --directory tests/releases

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
ifeq ($(PYTHON),)
	@echo "No Python 3.11 or later with venv was found. On Debian or Ubuntu:  apt-get install python3-venv"
	@echo "Elsewhere install Python 3.11+, or name one:  make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"
	@exit 1
endif
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install $(QUIET) --only-binary :all: uv==0.13.9 || true
	$(call INSTALL,$(BIN)/python,-c constraints.txt -e '.[dev]')
	@$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; some packages have files that are no Python
	@touch $(STAMP)

$(OLD_LANGCHAIN)/.installed: constraints-langchain-0.3.txt $(STAMP)
	$(PYTHON) -m venv --clear --without-pip $(OLD_LANGCHAIN)
	$(BIN)/python -m tests.linked $(OLD_LANGCHAIN) constraints-langchain-0.3.txt
	$(call INSTALL,$(OLD_LANGCHAIN)/bin/python,--no-deps -r constraints-langchain-0.3.txt)
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(call INSTALL,$(BIN)/python,-c constraints.txt -e '.[bench]')
	@touch $(BENCH_STAMP)

clean:
	rm -rf $(VENV) .bench .mutants build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache
