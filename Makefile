# Everything starts here: `make demo`, `make serve`, `make bench` and `make test` install what they need into .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two processes that take one test file after another, each with a Ray of its own if it needs one.
TOGETHER := --numprocesses 2 --dist loadfile

.PHONY: setup demo serve bench benchmarks-page test test-all lint sbom audit

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

# Status 2 (of make; the job's own is 1) if something became worse than the record.
bench: setup
	$(BIN)/python jobs/benchmark.py --config jobs/configs/benchmark/demo.yaml compare=true skip_missing=true $(BENCH)

benchmarks-page: setup
	$(BIN)/python -m benchmarks.page

test: setup lint
	$(BIN)/python -m pytest $(TOGETHER) -m "not slow"

test-all: setup lint
	$(BIN)/python -m pytest $(TOGETHER)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The software bill of materials of requirements.lock (sbom.json), made for a release.
sbom: setup
	$(BIN)/python jobs/sbom.py

# Known vulnerabilities of requirements.lock, asked of PyPI. Status 1 if there is one, or if a package could not be asked about.
audit: setup
	test -x .venv-audit/bin/pip-audit || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet "pip-audit==2.10.1"
	.venv-audit/bin/pip-audit --requirement requirements.lock --requirement requirements-dev.lock --no-deps --disable-pip --strict
