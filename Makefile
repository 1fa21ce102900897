# Everything starts here: `make demo`, `make serve`, `make bench` and `make test` install what they need into .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two processes that take one test file after another, each with a Ray of its own if it needs one.
TOGETHER := --numprocesses 2 --dist loadfile
RUFF := $(BIN)/ruff check . && $(BIN)/ruff format --check .

.PHONY: setup demo serve bench benchmarks-page test test-all lint sbom audit certificates

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

AUDIT := .venv-audit/bin

$(AUDIT)/python:
	$(PYTHON) -m venv .venv-audit

# The software bill of materials of what is installed, with licences (sbom.json, CycloneDX), made for a release.
sbom: setup $(AUDIT)/python
	$(AUDIT)/python -m pip install --quiet "cyclonedx-bom==7.5.0"
	$(AUDIT)/cyclonedx-py environment --output-reproducible --output-file sbom.json $(BIN)/python

# Known vulnerabilities of requirements.lock, asked of PyPI. Status 1 if there is one, or if a package could not be asked about.
audit: setup $(AUDIT)/python
	$(AUDIT)/python -m pip install --quiet "pip-audit==2.10.1"
	$(AUDIT)/pip-audit --requirement requirements.lock --requirement requirements-dev.lock --no-deps --disable-pip --strict

# Certificates of a Ray cluster with TLS between its nodes: make certificates HOSTS="10.0.0.10 node-2.example.org".
# An authority (ca.crt, ca.key) and a folder for each host with tls.crt, tls.key and ca.crt; a second call adds hosts.
# Every node is a server and a client of all others, and connects to itself by loopback. ca.key stays here: with it
# anybody can join the cluster.
CERTIFICATES := certificates
DAYS := 365
certificates: $(CERTIFICATES)/ca.key $(foreach host,$(HOSTS),$(CERTIFICATES)/$(host)/tls.crt)

$(CERTIFICATES)/ca.key:
	mkdir -p $(@D)
	umask 077 && openssl ecparam -name prime256v1 -genkey -noout -out $@
	openssl req -x509 -new -key $@ -out $(@D)/ca.crt -days $$((10 * $(DAYS))) -subj "/CN=idc Ray cluster" \
		-addext "keyUsage=critical,keyCertSign" -addext "basicConstraints=critical,CA:TRUE,pathlen:0"

$(CERTIFICATES)/%/tls.crt: $(CERTIFICATES)/ca.key
	mkdir -p $(@D)
	umask 077 && openssl ecparam -name prime256v1 -genkey -noout -out $(@D)/tls.key
	openssl req -new -key $(@D)/tls.key -subj "/CN=$*" -out $(@D)/tls.csr
	printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
		"extendedKeyUsage=serverAuth,clientAuth" "authorityKeyIdentifier=keyid" \
		"subjectAltName=DNS:localhost,IP:127.0.0.1,$(if $(shell echo $* | grep -E '^[0-9.]+$$|:'),IP,DNS):$*" > $(@D)/extensions
	openssl x509 -req -in $(@D)/tls.csr -CA $(CERTIFICATES)/ca.crt -CAkey $< -CAcreateserial -days $(DAYS) \
		-extfile $(@D)/extensions -out $@
	cp $(CERTIFICATES)/ca.crt $(@D)/
	rm $(@D)/tls.csr $(@D)/extensions
