# Every target sets up what it needs in .venv; a fresh clone, Python 3.11 or newer, pip and make are enough.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.NOTPARALLEL:
.PHONY: help api browser clients clients-sample conformance conformance-emulated conformance-machines conformance-opinfo conformance-versions newest test bench bench-all lint format tables docs dist release-check clean

help:
	@echo "make conformance   hold every framework that has an adapter against the policy; writes conformance-report/"
	@echo "make conformance-machines   the same under settings that make this processor behave as another one, and samples on emulated ones (two hours)"
	@echo "make conformance-emulated   the smallest sample that has every check, network, level and way, on an emulated processor: PyTorch and TensorFlow on one with AVX2, or ONLY=\"arm jax\""
	@echo "make conformance-opinfo   the preset torch-cpu against torch.autocast, bit for bit, on all of PyTorch's own example calls (minutes)"
	@echo "make conformance-versions   the same for older and newer frameworks, an environment for each (hours, and many GB to load)"
	@echo "make clients       packages of others under unamp, each in an environment of its own; writes docs/clients.md (half an hour)"
	@echo "make clients-sample   two of them for each framework, which must run (minutes)"
	@echo "make newest        the newest release of every framework, as pip brings it today: first example, doctor, conformance"
	@echo "make test          lint, then every test; continuous integration runs this"
	@echo "make bench         unamp side by side with what you would write instead, for a look (under ten minutes); keeps benchmark-results/"
	@echo "make bench-all     the same with all rounds, and peak memory, for quoting (an hour and more)"
	@echo "make lint          ruff and mypy"
	@echo "make format        let ruff rewrite what it can"
	@echo "make tables        write docs/tables from the data and the adapters"
	@echo "make api           write docs/api/names.txt, the public names of a release, anew"
	@echo "make docs          the guides and the API reference as a site, in site/"
	@echo "make dist          sdist, pure wheel and wheel with PyTorch's kernels, in dist/; PYTHONS=\"PATH PATH\" names more environments with a torch"
	@echo "make release-check   what a release must pass, from a fresh clone and in empty environments; uploads nothing (an hour)"
	@echo "make clean         remove .venv and everything built"

conformance: $(VENV)/.conformance
	@$(RUN) conformance/wheels.py
	$(VENV)/bin/unamp conformance --output conformance-report

conformance-machines: $(VENV)/.conformance
	@$(RUN) conformance/wheels.py
	$(RUN) conformance/machines.py $(ONLY)

conformance-emulated: $(VENV)/.conformance
	$(RUN) conformance/machines.py --short $(if $(WHERE_POSSIBLE),--where-possible) $(or $(ONLY),amd-avx2 torch tensorflow)

conformance-opinfo: $(VENV)/.opinfo
	$(RUN) tests/torch/opinfo.py $(ONLY)

conformance-versions: $(VENV)/bin/python
	$(RUN) conformance/versions.py $(ONLY)

clients: $(VENV)/.conformance
	$(RUN) conformance/clients.py $(ONLY)

clients-sample: $(VENV)/.conformance
	$(RUN) conformance/clients.py --sample

newest: $(VENV)/bin/python
	$(RUN) conformance/newest.py $(ONLY)

test: lint $(VENV)/.dev $(VENV)/.compiled browser
	$(RUN) tests/run.py

bench: $(VENV)/.bench $(VENV)/.compiled
	@mkdir -p benchmark-results
	$(RUN) -m benchmarks --quick --json benchmark-results/$$(date +%Y-%m-%d-%H%M).json

bench-all: $(VENV)/.bench $(VENV)/.compiled
	@mkdir -p benchmark-results
	$(RUN) -m benchmarks --json benchmark-results/$$(date +%Y-%m-%d-%H%M).json

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

tables: $(VENV)/.dev
	$(RUN) docs/tables.py

# For a release: the names that the next one is compared with. Changes that CHANGELOG.md does not name are refused.
api: $(VENV)/.dev
	$(RUN) docs/public_api.py

# A warning is an error: a link that leads nowhere, a page that no menu names, an argument that a docstring gets wrong.
docs: $(VENV)/.docs
	$(RUN) docs/build_site.py

# The tests look at pages in Chromium or Chrome. Where there is none, Debian's is installed by whoever may.
browser: $(VENV)/.dev
	@$(RUN) tests/browser.py

dist: $(VENV)/.dev
	$(RUN) release/dist.py $(foreach python,$(PYTHONS),--python $(python))

release-check: $(VENV)/.dev
	$(RUN) release/check.py $(foreach python,$(PYTHONS),--python $(python)) $(ONLY)

clean:
	rm -rf $(VENV) .venv-emulated .venv-versions .venv-clients dist site conformance-report .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unamp needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# For PyTorch there are kernels in C++ as well, which are optional.
$(VENV)/.compiled: $(wildcard adapters/unamp_torch/compiled/*) constraints.txt
	@if command -v c++ > /dev/null; then $(RUN) -m unamp_torch; else echo "no C++ compiler: PyTorch's kernels stay in Python"; fi
	@touch $@

# One environment grows with what is asked of it: the frameworks are large.
# tensorflow-probability needs tf_keras, which alone would bring the larger build of TensorFlow.
$(VENV)/.conformance: EXTRAS = frameworks,jax-libraries,conformance
$(VENV)/.opinfo: EXTRAS = opinfo
$(VENV)/.lint: EXTRAS = lint
$(VENV)/.bench: EXTRAS = bench
$(VENV)/.docs: EXTRAS = docs
$(VENV)/.dev: EXTRAS = dev
$(VENV)/.conformance $(VENV)/.opinfo $(VENV)/.lint $(VENV)/.bench $(VENV)/.docs $(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing unamp[$(EXTRAS)] into $(VENV)"
	@$(INSTALL) --editable '.[$(EXTRAS)]'
	@$(if $(filter dev,$(EXTRAS)),$(INSTALL) --no-deps tf_keras)
	@touch $@
