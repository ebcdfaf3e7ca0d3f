# `make` alone prints what there is. Everything is installed into .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WEB_STAMP := $(VENV)/.web-installed
SHIM_STAMP := $(VENV)/.shim-installed
SITE_STAMP := $(VENV)/.site-installed
SBOM_STAMP := $(VENV)/.sbom-installed
SEEDS ?= 2000
SECONDS_EACH ?= 60
SECONDS ?= 60
SEED ?= 1
REPOSITORY ?= hami

.DEFAULT_GOAL := help
.PHONY: help install demo test unit fuzz lint format bench bench-shim test-shim simulate subscribers-test images images-test compose-test cluster-test install-test upgrade-test web-test screenshots lock protos docs sbom site wheel wheel-test clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What is installed: exactly what requirements.lock names, by hash; then this checkout, editable, without a network.
$(STAMP): requirements.lock pyproject.toml
	@echo "==> Installing into $(VENV) (about half a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# CUDA's headers and a cross compiler: for the shim's release build and longest tests alone.
$(SHIM_STAMP): requirements-shim.lock $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-shim.lock
	@touch $@

# What builds the documentation as a site, and nothing else.
$(SITE_STAMP): requirements-docs.lock $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

# What writes the software bill of materials.
$(SBOM_STAMP): requirements-sbom.lock $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-sbom.lock
	@touch $@

# What drives a browser; the browser itself is the system's.
$(WEB_STAMP): requirements-web.lock $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-web.lock
	@touch $@

install: $(STAMP) ## Set up .venv with everything the project needs

build/cshim/libvgpu.so: $(wildcard cshim/include/*.h cshim/src/*.[ch] cshim/src/*.def cshim/tests/fake/*.[ch] cshim/programs/*.[ch])
	@$(MAKE) --no-print-directory -C cshim all

demo: $(STAMP) build/cshim/libvgpu.so ## Start a cluster of fakes on this machine and follow pods through it, step by step
	@$(BIN)/hami rig demo

test: $(STAMP) build/cshim/libvgpu.so ## Run all tests that need no cluster and no GPU
	@$(MAKE) --no-print-directory -C cshim test
	@$(BIN)/python -m pytest -q tests

unit: $(STAMP) ## Run the decisions' tests alone, in seconds
	@$(BIN)/python -m pytest -q tests/unit

test-shim: $(SHIM_STAMP) build/cshim/libvgpu.so ## Run the shim's long tests: sanitizers, kills, races, fuzzing, release build
	@$(MAKE) --no-print-directory -C cshim test-long

simulate: $(STAMP) ## Run whole clusters under SEEDS=n seeded faults
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

fuzz: $(STAMP) ## Give every decoder damaged inputs for SECONDS=n of the processor, from SEED=n
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

lint: $(STAMP) ## Check style, types, layering and C format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint deploy/docker/Dockerfile
	@$(MAKE) --no-print-directory -C cshim lint

format: $(STAMP) ## Format Python and C
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .
	@$(MAKE) --no-print-directory -C cshim format

web-test: $(WEB_STAMP) build/cshim/libvgpu.so ## Drive the web page in a headless Chromium (pictures in build/web), and test its JavaScript; says why where it cannot
	@$(BIN)/python -m tests.web

screenshots: $(WEB_STAMP) ## Take the pictures of the documentation anew, into docs/images
	@$(BIN)/python -m tests.web.screenshots docs/images

bench: $(STAMP) ## Measure what the budgets name, into build/bench/*.json
	@$(BIN)/python -m benchmarks

bench-shim: $(STAMP) build/cshim/libvgpu.so ## Measure the shim's own cost
	@$(MAKE) --no-print-directory -C cshim bench

subscribers-test: $(STAMP) ## Run the Go and JavaScript subscribers and NATS' own command line, where Go and Node.js are
	@$(BIN)/python -m tests.contract.subscribers.building; status=$$?; if [ $$status -eq 3 ]; then exit 0; fi; \
		test $$status -eq 0 && $(BIN)/python -m pytest -q -m subscribers tests/contract/subscribers

cluster-test: $(STAMP) build/cshim/libvgpu.so ## Run what needs a real Kubernetes (built once, by HAMI_TEST_KUBE_VERSION=1.34|1.36|1.37); says why where it cannot
	@$(BIN)/python -m tests.cluster

install-test: $(STAMP) build/cshim/libvgpu.so ## Install HAMi on a one-node Kubernetes from its images, as the install page says; says why where it cannot
	@$(BIN)/python -m tests.install

upgrade-test: $(STAMP) build/cshim/libvgpu.so ## Run services of an older version beside this one's on one rig: OLD=<revision>
	@test -n "$(OLD)" || { echo "OLD: not set; accepted: a git revision, as make upgrade-test OLD=HEAD~50"; exit 2; }
	@rm -rf build/old && mkdir -p build/old
	@git archive "$(OLD)" libs services | tar -x -C build/old
	@HAMI_TEST_OLD=$(CURDIR)/build/old $(BIN)/python -m pytest -q -m upgrade tests/upgrade

images: ## Build the images with docker, podman or buildah, whichever works here; ENGINE=, REPOSITORY=, TARGETS= choose
	@$(PYTHON) -m tools.images --engine "$(ENGINE)" --repository "$(REPOSITORY)" $(TARGETS)

images-test: $(STAMP) ## Build the images with buildah and start each one, where root and apt-get are; says why where it cannot
	@$(BIN)/python -m tests.images

compose-test: $(STAMP) ## Type the commands of docker-compose.yml's comment, with podman-compose; as make images-test
	@$(BIN)/python -m tests.images -q tests/images/test_compose.py

sbom: $(SBOM_STAMP) ## Write the software bill of materials (CycloneDX) of what requirements.lock names, checked, into build/sbom
	@$(BIN)/python -m tools.sbom build/sbom/hami.cdx.json

lock: ## Pin the requirements anew, by hash, naming no index
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --extra dev pyproject.toml \
		--custom-compile-command "make lock" --upgrade --output-file requirements.lock
	@printf 'mkdocs-material>=9.6\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--constraint requirements.lock --custom-compile-command "make lock" --upgrade --output-file requirements-docs.lock -
	@printf 'cyclonedx-bom>=7\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--constraint requirements.lock --custom-compile-command "make lock" --upgrade --output-file requirements-sbom.lock -
	@printf 'playwright>=1.48\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--constraint requirements.lock --custom-compile-command "make lock" --upgrade --output-file requirements-web.lock -
	@printf 'nvidia-cuda-runtime>=13\nnvidia-nvml-dev>=13\nziglang>=0.14\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --custom-compile-command "make lock" --upgrade --output-file requirements-shim.lock -

protos: $(STAMP) ## Generate the gRPC stubs from our proto files
	@$(BIN)/python services/node-agent/generate_stubs.py

docs: $(STAMP) ## Generate what is generated in docs/: JSON Schemas, the AsyncAPI document, the pages of departures and vendors, pictures; and manifests
	@$(BIN)/python -m hami_protocol.schemas docs/protocol
	@$(BIN)/python tools/departures.py > docs/departures.md
	@$(BIN)/python tools/vendor_pages.py > docs/vendors.md
	@$(BIN)/python -m tools.metrics_page > docs/metrics.md
	@$(BIN)/python -m tools.protocol_page > docs/protocol/README.md
	@$(BIN)/python tools/decisions_page.py > docs/decisions/README.md
	@$(BIN)/python -m tools.manifests
	@$(BIN)/python -m tools.chart
	@$(BIN)/python -m tools.policy_pictures

site: $(SITE_STAMP) ## Build docs/ as a site into build/site: no warning, no broken link, no request to another host
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@$(BIN)/python tools/site_check.py build/site

wheel: $(STAMP) ## Build the wheel and the sdist into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist

wheel-test: wheel ## Install the wheel alone into a fresh environment and run the examples with it, away from this checkout
	@rm -rf build/wheel-env && $(PYTHON) -m venv build/wheel-env
	@build/wheel-env/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@build/wheel-env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/hami-*.whl
	@rm -rf build/wheel-examples && mkdir -p build/wheel-examples && cp examples/*.yaml build/wheel-examples/
	@rm build/wheel-examples/enforced.yaml # its container runs under the shim, which is built beside the wheel, not in it
	@cd / && $(CURDIR)/build/wheel-env/bin/hami install --dry-run --kube-scheduler v1.34.2 >/dev/null
	@cd / && $(CURDIR)/build/wheel-env/bin/hami rig run $(CURDIR)/build/wheel-examples

clean: ## Remove what was built; .venv stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
