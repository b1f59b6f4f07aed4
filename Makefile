# Everything that people do with this project, from a fresh clone. `make` alone lists the targets.
#
# Python packages go into .venv, everything else that is fetched or made while running goes below .data;
# nothing is written to the home directory.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
DATA := $(CURDIR)/.data

export MUSECODE_HOME := $(DATA)
export JUPYTER_DATA_DIR := $(DATA)/jupyter/data
export JUPYTER_CONFIG_DIR := $(DATA)/jupyter/config
export JUPYTER_RUNTIME_DIR := $(DATA)/jupyter/runtime
export IPYTHONDIR := $(DATA)/ipython
export XDG_CACHE_HOME := $(DATA)/cache
export PIP_CACHE_DIR := $(DATA)/cache/pip
export npm_config_cache := $(DATA)/npm
export npm_config_update_notifier := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of interpreters: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

FRONTEND_SOURCES := scripts/frontend.py $(shell find labextension -type f \
	-not -path '*/node_modules/*' -not -path '*/build/*' 2>/dev/null)
MADE := $(VENV)/.made
INSTALLED := $(VENV)/.installed
FRONTEND := $(VENV)/.frontend

# A virtual environment holds absolute paths: one that was copied or moved with its project is made again.
ifneq ($(shell cat $(MADE) 2>/dev/null),$(CURDIR))
.PHONY: $(MADE)
endif
ifeq ($(wildcard musecode_jupyter/static/*.js),)
.PHONY: $(FRONTEND)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo lab test lint notebooks crash kernels bench frontend lock clean model

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) $(FRONTEND) ## create .venv with everything for development and build the front end

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make install PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "This Python cannot create virtual environments: install python3-venv"; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@printf '%s\n' "$(CURDIR)" > $@

$(INSTALLED): $(MADE) pyproject.toml constraints.txt
	@echo "Installing packages into $(VENV): about 900 MB, one to a few minutes"
	$(PY) -m pip install --quiet --constraint constraints.txt hatchling editables
	$(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,local]'
	@touch $@

$(FRONTEND): $(INSTALLED) $(FRONTEND_SOURCES)
	$(PY) scripts/frontend.py
	@touch $@

frontend: $(INSTALLED) ## build the widgets' views into musecode_jupyter/static
	$(PY) scripts/frontend.py
	@touch $(FRONTEND)

model: install
	$(PY) -m musecode_jupyter.models.model_file --home "$(MUSECODE_HOME)"

demo: model ## repair a small repository with the local model (SEED=, REPO= choose); fails (make: 2) if not met
	$(PY) scripts/demo.py $(if $(SEED),--seed $(SEED)) $(if $(REPO),--repo $(REPO))

lab: model ## open the demo's notebook in JupyterLab (SEED=, REPO= choose)
	$(PY) scripts/demo.py --lab $(if $(SEED),--seed $(SEED)) $(if $(REPO),--repo $(REPO))

# Half of the time passes waiting for processes: two at a time on two cores. In the order of the folders, so that the
# browser's tests, few and long, come early.
test: install ## run the tests (no local model needed); PYTEST_ARGS= is handed on
	@sh scripts/browser.sh
	$(PY) scripts/frontend.py test
	$(PY) -m pytest --numprocesses auto --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

lint: install ## lint and type-check strictly
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict
	$(PY) scripts/frontend.py lint

notebooks: model ## run the notebooks with the real local model: each fixture repository, three workers on one, the crew on this package, a plan
	@failed=; for repo in tests/fixtures/repos/*/; do \
		$(PY) scripts/demo.py --repo "$$(basename "$$repo")" || failed="$$failed $$(basename "$$repo")"; \
	done; \
	$(PY) scripts/demo.py --fan-out || failed="$$failed fan-out"; \
	$(PY) scripts/demo.py --crew || failed="$$failed crew"; \
	$(PY) scripts/demo.py --plans || failed="$$failed plans"; \
	if [ -n "$$failed" ]; then echo "not met:$$failed"; exit 1; fi

crash: export MUSECODE_CRASH_POINTS ?= 40
crash: export MUSECODE_FAULT_RUNS ?= 100
crash: install ## cut and kill sessions at thousands of points and resume them (MUSECODE_CUT_MOST=0: at all there are)
	$(PY) -m pytest -m crash --timeout 7200 --numprocesses auto --dist loadscope --no-loadscope-reorder -rP $(PYTEST_ARGS)

kernels: install ## run the notebook's tests on ipykernel 6.31, 7.1, 7.3 and 7.4 (KERNELS= chooses)
	$(PY) scripts/kernels.py $(KERNELS)

bench: install ## run the benchmarks
	@for program in tests/bench/*.py; do echo "== $$program"; $(PY) "$$program" || exit 1; done

lock: ## write constraints.txt again from the newest versions that fit pyproject.toml
	rm -rf $(DATA)/lock
	$(PYTHON) -m venv $(DATA)/lock
	$(DATA)/lock/bin/python -m pip install --quiet hatchling editables
	$(DATA)/lock/bin/python -m pip install --quiet --no-build-isolation --editable '.[dev,local]'
	$(DATA)/lock/bin/python scripts/lock.py
	rm -rf $(DATA)/lock

clean: ## remove .venv, caches and what was built (.data, with the model and the session logs, stays)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf labextension/node_modules labextension/build musecode_jupyter/static/*
	find . -name __pycache__ -type d -not -path './.data/*' -prune -exec rm -rf {} +
