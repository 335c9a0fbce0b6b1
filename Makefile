# One environment, .venv, made by pip. On a fresh machine `make demo` or `make test` is all it takes.

PYTHON ?= python3
WORKERS ?= 2
TORCH = torch==2.13.0

# What `make bench` leaves out: parts of benchmarks, those with a target of their own.
NOT_ALONE = benchmarks/_% benchmarks/%_program.py benchmarks/gpu_proof.py benchmarks/gpu_emulated.py benchmarks/tune.py benchmarks/case_study.py \
    benchmarks/tune_memory.py benchmarks/trace.py benchmarks/loader.py benchmarks/demo.py benchmarks/crashes.py

BIN = .venv/bin
DOCS_BIN = .venv-docs/bin
# The stamp carries the content of what it was made from: after a checkout or a touch nothing is redone.
STAMP = .venv/.ready-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
DOCS_STAMP = .venv-docs/.ready-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
PIP = $(BIN)/python -m pip --disable-pip-version-check -qq

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL = help
.PHONY: help setup lint types imports tests labelled measured test demo docs tutorial pictures bench tune-benchmark gpu-proof versions \
    clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: $(STAMP) ## Make the environment in .venv; does nothing when it is up to date.
	@:

# torch goes first and alone, so that a CPU build is kept where the machine's pip is set up for one.
$(STAMP):
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	    { rm -rf .venv; echo "make: $(PYTHON) cannot make an environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into .venv (the first time takes some minutes) ..."
	@$(PIP) install $(TORCH)
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev,all]'
	@rm -f .venv/.ready-*
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy --strict src

imports: setup
	$(BIN)/lint-imports --no-logo

# A file of tests stays in one process: what its tests share is made once.
tests: setup
	$(BIN)/pytest tests --ignore=tests/labelled -n $(WORKERS) --dist loadfile --no-loadscope-reorder

labelled: setup ## Run all programs whose bottleneck is known and check the verdicts (12 minutes alone on 2 cores).
	PACELINE_LABELLED=all $(BIN)/pytest tests/labelled

measured: setup ## Compare verdicts with what 27 programs measure of themselves (4 minutes alone on 2 cores).
	$(BIN)/python tests/labelled/measured/families.py

# In this order and one after the other: the cheap checks first, then the tests side by side, then alone on
# the machine those that measure. A folder that is not there yet is no failure; an empty one is.
test: setup ## Lint, types, import rules and all tests.
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) imports
	@$(MAKE) tests
	$(BIN)/pytest tests/labelled

demo: setup ## Watch a slow program, try the fixes, run with what helps, compare; about three minutes.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/photos/demo.py

# The site needs neither torch nor the package, so it has an environment of its own. The build itself needs no network.
$(DOCS_STAMP):
	@test -x $(DOCS_BIN)/python || $(PYTHON) -m venv .venv-docs
	@echo "Installing MkDocs into .venv-docs ..."
	@$(DOCS_BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt \
	    $$($(DOCS_BIN)/python tools/docs_site.py requirements)
	@rm -f .venv-docs/.ready-*
	@touch $@

docs: $(DOCS_STAMP) ## Build the documentation site in site/, offline, with all links checked.
	NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/mkdocs build --strict
	$(DOCS_BIN)/python tools/docs_site.py check site
	@echo "Read it: python3 -m http.server --bind 127.0.0.1 --directory site"

tutorial: setup ## Run every command of the tutorial and write its output into the page; about five minutes.
	$(BIN)/python tools/run_page.py docs/tutorial.md

pictures: setup ## Record a session and draw the pictures of README; about five minutes, needs Chromium.
	$(BIN)/python tools/pictures.py

bench: setup ## Run every benchmark that needs no GPU, one after the other.
	@set -e; for file in $(filter-out $(NOT_ALONE),$(wildcard benchmarks/*.py)); do \
	    echo "== $$file"; $(BIN)/python "$$file"; done

tune-benchmark: setup ## Set `paceline tune` beside an exhaustive grid; an hour and a half, alone on the machine.
	$(BIN)/python benchmarks/tune.py; status=$$?; $(BIN)/python benchmarks/case_study.py && exit $$status

demo-benchmark: setup ## Search for the demo's win ten times alone and ten times beside a busy core; half an hour.
	$(BIN)/python benchmarks/demo.py; status=$$?; $(BIN)/python benchmarks/demo.py --busy-cores 1 && exit $$status

gpu-proof: setup ## Check on a machine with a GPU what only a GPU can show.
	$(BIN)/python benchmarks/gpu_proof.py

versions: setup ## Look for the private names of torch in torch 2.11 to 2.15; 25 GB where pip has CUDA builds.
	$(BIN)/python tools/versions.py

clean: ## Remove caches and build outputs; .venv and the records of runs stay.
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print | xargs rm -rf
