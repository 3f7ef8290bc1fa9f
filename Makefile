# Everything a newcomer needs: `make demo` and `make test` set up what they use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What is never imported need not be compiled to bytecode: that would take a third of the time.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# What the demo needs is installed first; what tests, documentation and the rest need comes on top of it.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
# One more than the two cores that most machines have at least: tests also wait for processes that they start.
WORKERS ?= 3
# Tests start many processes. Where this is set, as in many containers, each would compile anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo report test coverage test-slow test-default test-flower fuzz soak examples notebooks docs lint types format dist release-check clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(DEMO): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedrzo needs Python 3.11 or newer; found $$($(PYTHON) -V). Set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[data,plots]'
	@touch $@

$(READY): $(DEMO)
	$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(DEMO) ## FedRZO_nn against its H = 1 version on handwritten digits (two minutes the first time, most of it installing)
	rm -rf demo
	$(BIN)/fedrzo run demo --out demo

report: $(READY) ## the paper's figures and tables, quick version, in one page: runs/report.html (a quarter of an hour of processor time)
	$(BIN)/fedrzo reproduce all --quick --out runs
	$(BIN)/fedrzo report runs

# Most of a test's time is compilation: LLVM need not try hard. `test-default` runs what it makes for users.
QUICK := $(VENV)/.quick
FLAGS = XLA_FLAGS="$${XLA_FLAGS-$$(cat $(QUICK))}"
$(QUICK): $(READY) tests/quick.py
	@$(BIN)/python tests/quick.py > $@.new && mv $@.new $@

test: $(QUICK) ## all tests but the slow ones
	$(FLAGS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not flower and not soak"

coverage: $(QUICK) ## the lines of src that `make test` runs, other processes included; at least 90 % (takes twice as long)
	rm -f .coverage .coverage.*
	$(FLAGS) $(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not flower and not soak"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under 90

test-slow: $(QUICK) ## the tests that say they are slow, and one real Flower federation with a node killed
	$(FLAGS) $(BIN)/python -m pytest -n 3 --dist worksteal -m slow --ignore tests/deploy/test_real.py --ignore tests/deploy/test_network.py --ignore tests/engines/test_ray_nodes.py --ignore tests/certificates/test_coverage.py
	$(FLAGS) $(BIN)/python -m pytest tests/deploy/test_real.py tests/deploy/test_network.py tests/engines/test_ray_nodes.py -m slow # alone: where others are at work, Flower and Ray give up waiting for their own processes

test-default: $(READY) ## the three algorithms, the README's example and what computes for long, as XLA compiles them for users
	$(BIN)/python -m pytest -n 2 tests/methods/test_fedrzo_nn.py tests/methods/test_fedrzo_bl.py tests/methods/test_fedrzo_2s.py \
	  tests/docs/test_readme.py -m "not slow"
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/certificates/test_coverage.py

test-flower: $(READY) ## Flower federations with nodes that die, lie and come back (about fifteen minutes)
	$(BIN)/python -m pytest tests/deploy -m flower

SEED ?= 1
COUNT ?= 50
fuzz: $(QUICK) ## random valid problems against plain NumPy, such as `make fuzz SEED=3 COUNT=200 WORKERS=8`; failures end in runs/fuzz.json
	mkdir -p runs
	$(FLAGS) $(BIN)/python -m tests.generated.fuzz --seed $(SEED) --count $(COUNT) --processes $(WORKERS) --out runs/fuzz.json

soak: $(READY) ## long runs while processes are killed and networks fail: what was done, and that nothing was lost (under twenty minutes)
	$(BIN)/python benchmarks/soak_ray.py
	$(BIN)/python -m pytest tests/deploy -m soak

examples: $(READY) ## run all examples anew; the figures of the documentation, in docs/figures/ (needs PyTorch)
	$(BIN)/python examples/build.py figures docs/figures

notebooks: $(READY) ## the examples as executed notebooks, in build/notebooks/ (needs PyTorch)
	$(BIN)/python examples/build.py notebooks build/notebooks

lint: $(READY) ## linter, formatter and the layers of the house, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

docs: $(READY) ## the documentation, with warnings as errors, as a site that can be read offline: site/index.html
	$(BIN)/properdocs build --strict -f mkdocs.yml

types: $(READY) ## type checker
	$(BIN)/mypy

format: $(READY) ## format in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(READY) ## wheel and sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build

release-check: dist ## wheel and sdist: what they hold, and a solve in a clean environment of every Python that is there (ten minutes)
	$(BIN)/python benchmarks/release.py dist

clean: ## remove what the targets made
	rm -rf $(VENV) demo runs dist build site
