# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
OUT ?= runs/quickstart

.PHONY: quickstart flower flower-adapter test test-changed test-full test-deployment golden lint check count bench results docs dist test-dist clean

quickstart: $(VENV)/.train
	@rm -rf $(OUT)
	$(BIN)/fedspend plan examples/quickstart.toml
	$(BIN)/fedspend train examples/quickstart.toml --output $(OUT)
	$(BIN)/fedspend verify $(OUT)
	@echo "Open $(OUT)/report.html"

# A SuperLink and three SuperNodes on this machine train examples/flower, and are shut down.
flower: $(VENV)/.flower
	@rm -rf runs/flower
	$(BIN)/python -m fedspend.flower.loopback examples/flower --output runs/flower

# The same federation, with a Flower app of its own that only has its rounds planned and charged.
flower-adapter: $(VENV)/.flower
	@rm -rf runs/adapter
	$(BIN)/python -m fedspend.flower.loopback examples/flower --app examples/flower-adapter \
		--run-config 'server="{folder}/server"' --output runs/adapter

# One thread a process: as many processes as cores run already. Bytecode is kept apart from the
# sources, so that the second run starts at once.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/build/bytecode \
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# The quick tests, for every change: `make test ARGS="tests/ledger -x"` for some of them.
test: $(VENV)/.dev
	$(PYTEST) -m "not full" $(ARGS)

# The tests that the change at hand may break; since another revision: make test-changed BASE=REVISION
test-changed: $(VENV)/.dev
	@files=$$($(BIN)/python tools/changed_tests.py $(if $(BASE),--base $(BASE))) || exit 1; \
	if [ -n "$$files" ]; then \
		$(PYTEST) -m "not full" $(ARGS) $$files || [ $$? = 5 ]; \
	fi  # 5: none is in the quick suite

# Everything, for a pull request.
test-full: $(VENV)/.dev
	$(PYTEST) --durations 30 --durations-min 10 $(ARGS)

# The same federation, with processes killed on the way: a few minutes. Its tests wait for Flower
# and for deadlines, so they run side by side.
test-deployment: $(VENV)/.dev
	FEDSPEND_DEPLOYMENT=1 $(BIN)/python -m pytest tests/deployment --numprocesses 2 $(ARGS)

# Writes down anew what fedspend says and computes (tests/golden): then read the diff.
golden: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m golden.write
	@git diff --stat -- tests/golden

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

check: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy
	$(MAKE) test

# How large everything is, beside how large it should be; fails if a number got worse again.
count: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/count.py --run

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/speed/plan.py

# Re-renders the results pages from the results files; trains nothing (benchmarks/README.md).
results: $(VENV)/.train
	$(BIN)/python benchmarks/evidence/render.py

# The site, from docs/ and from the code; opens offline: build/site/index.html.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html; to search it: python3 -m http.server -b 127.0.0.1 -d build/site"

# Wheel and sdist, into dist/.
dist:
	PYTHON=$(PYTHON) tools/try_wheel.sh build

# The same, installed from the wheel in clean environments, one for each extra: some minutes.
test-dist:
	PYTHON=$(PYTHON) tools/try_wheel.sh

# Other run directories stay: those of real runs cannot be made again.
clean:
	rm -rf $(VENV) runs/quickstart build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.flower: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[train,flower]'
	@touch $@ $(VENV)/.train

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[docs,train]'
	@touch $@ $(VENV)/.train

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev,train]'
	@touch $@ $(VENV)/.train $(VENV)/.flower $(VENV)/.docs

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) opacus torch
	@touch $@
