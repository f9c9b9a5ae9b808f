# Two commands: `make quickstart` and `make test`. Both set up `.venv` first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart

# A thread a worker: two cores are busiest with two tests of one thread each.
WORKERS ?= 2
PYTEST = $(BIN)/pytest -n $(WORKERS)

.PHONY: help setup oldest quickstart bench test test-oldest test-portable trust test-gpu lint format types unit docs \
  package licences audit clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

# The stamp is newer than pyproject.toml once everything in it is installed, so a second run installs nothing.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ERPCNet needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed ## create .venv and install the package

oldest: setup ## put the oldest supported versions of torch and the rest into .venv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --upgrade --resolution lowest-direct -e '.[all]'

quickstart: setup ## draw the embedded dataset, train ERPCNet on it and evaluate it
	$(BIN)/erpcnet data make creatures data/creatures
	@if [ -f $(RUN)/model.safetensors ]; then \
	  echo "$(RUN) is trained already: evaluating it. Remove it, or give RUN=FOLDER, to train anew."; \
	  $(BIN)/erpcnet evaluate $(RUN); \
	else \
	  $(BIN)/erpcnet train --config creatures --dataset data/creatures --out $(RUN); \
	fi

bench: setup ## time it, as ratios
	$(BIN)/erpcnet bench

test: lint types unit ## lint, format check, types, tests with their coverage

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	OMP_NUM_THREADS=1 $(PYTEST) --cov --cov-report=term --durations=10

# As other CPUs would round: what torch's own kernels, and oneDNN's, may use, and by how many threads they share sums.
test-portable: setup ## the tests with the kernels of other CPUs, seven times: some forty minutes on two cores
	@set -e; for kernels in default avx2 best; do for threads in 1 2; do \
	  echo "ATEN_CPU_CAPABILITY=$$kernels OMP_NUM_THREADS=$$threads"; \
	  env $$([ $$kernels = best ] || echo ATEN_CPU_CAPABILITY=$$kernels) OMP_NUM_THREADS=$$threads \
	    $(BIN)/pytest -n $$((2 / threads)); \
	done; done; \
	echo "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1"; \
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 $(PYTEST)

trust: setup ## try to break it: kills, bad inputs, several processes, lost workers, long trainings, bad clients; writes docs/reliability.md's table
	PYTHONPATH=tests $(BIN)/python -m trust --out benchmarks/results/trust.csv --page docs/reliability.md

# Each package of `all` is its oldest, whatever tools of the tests would rather have; what those bring is the newest.
OLD := .venv-oldest
$(OLD)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ERPCNet needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	test -x $(OLD)/bin/python || $(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(OLD)/bin/uv pip compile --quiet --upgrade --python $(OLD)/bin/python --no-deps --no-strip-extras \
	  --resolution lowest-direct --extra all pyproject.toml --output-file $(OLD)/oldest.txt >/dev/null
	$(OLD)/bin/uv pip install --quiet --python $(OLD)/bin/python --override $(OLD)/oldest.txt -e '.[dev]'
	@touch $@

test-oldest: $(OLD)/.installed ## the tests with the oldest supported versions, in an environment of their own
	OMP_NUM_THREADS=1 $(OLD)/bin/pytest -n $(WORKERS)

test-gpu: setup ## the tests of what only a GPU does
	ERPCNET_TEST_GPU=1 $(BIN)/pytest -m gpu

docs: setup ## build the documentation's site into site/; warnings and broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# In a clean environment: first what everyone gets, then what `erpcnet[train]` adds.
CLEAN := dist/clean
package: setup ## build wheel and sdist, install the wheel in a clean environment and use it
	rm -rf dist
	$(BIN)/python -m build --outdir dist >/dev/null
	$(PYTHON) -m venv $(CLEAN)
	$(BIN)/uv pip install --quiet --python $(CLEAN)/bin/python dist/*.whl
	$(CLEAN)/bin/erpcnet --version
	$(CLEAN)/bin/python -c 'import erpcnet; erpcnet.load; print("erpcnet.load needs no extra")'
	! $(CLEAN)/bin/erpcnet evaluate nowhere
	$(CLEAN)/bin/erpcnet data make creatures dist/creatures --seed 5
	! $(CLEAN)/bin/erpcnet train --config creatures --dataset dist/creatures --out dist/run
	$(BIN)/uv pip install --quiet --python $(CLEAN)/bin/python "$$(ls dist/*.whl)[train]"
	$(CLEAN)/bin/erpcnet train --config creatures --dataset dist/creatures --out dist/run --stage1.epochs 1 \
	  --stage2.epochs 1 --model.sigma 1 --model.delta 0.5
	$(CLEAN)/bin/erpcnet predict dist/run $$(find dist/creatures/images -name 000.png | sort | head -3)
	@tar tf dist/*.tar.gz | grep -q tests/conftest.py && echo "the sdist has the tests"

format: setup ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

licences: setup ## write the table of docs/dependencies.md
	$(BIN)/uv pip install --quiet --python $(BIN)/python hatchling
	$(BIN)/python -m erpcnet.experiments.dependencies

# pip-audit calls clean what the service does not know or did not answer for; --strict makes that an error.
audit: setup ## ask PyPI's service for known weaknesses of what is installed; it needs a network
	$(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable > $(VENV)/installed.txt
	$(BIN)/uvx --quiet pip-audit --strict --disable-pip --no-deps --progress-spinner off --timeout 15 \
	  --requirement $(VENV)/installed.txt \
	  || { echo "Something was found, or not everything could be looked up: see above."; exit 1; }

clean: ## remove the virtual environments and caches, not data or runs
	rm -rf $(VENV) $(OLD) .pytest_cache .mypy_cache .ruff_cache dist site
