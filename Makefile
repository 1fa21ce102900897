# Everything starts here: `make demo`, `make serve` and `make test` install what they need into .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two processes that take one test file after another, each with a Ray of its own if it needs one.
TOGETHER := --numprocesses 2 --dist loadfile
RUFF := $(BIN)/ruff check . && $(BIN)/ruff format --check .

.PHONY: setup demo serve test test-all lint

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23.2" "setuptools>=77" wheel
	# The build of torch, with CUDA or without, is that of the index that pip is set up with; --require-hashes would take
	# that of PyPI wherever it is. All other files are checked.
	$(BIN)/python -m pip install --progress-bar off "$$(grep -o '^torch==[^ ]*' requirements.lock)"
	$(BIN)/python -m pip install --progress-bar off --require-hashes --no-deps -r requirements.lock -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/python jobs/demo.py $(DEMO)

serve: setup
	$(BIN)/python -m serve.app $(SERVE)

# The tests leave the cores idle here and there: mypy, a minute without its cache, runs beside them and reports behind them.
define tests
$(RUFF)
$(BIN)/mypy > $(VENV)/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest $(TOGETHER) $(1); failed=$$?; \
	wait $$types; mistyped=$$?; cat $(VENV)/mypy.log; exit $$((failed | mistyped))
endef

test: setup
	$(call tests,-m "not slow")

test-all: setup
	$(call tests,)

lint: setup
	$(RUFF)
	$(BIN)/mypy
