# Upshift's make targets, for people and for CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/upshift
# Outside the checkout, so that a second clone does not build BoringSSL again.
export CARGO_TARGET_DIR ?= $(CACHE)/cargo-target
# System interpreters only: a vantage point should measure with the Python that it has.
export UV_PYTHON_DOWNLOADS ?= never
export PATH := $(CURDIR)/.venv/bin:$(CACHE)/uv/bin:$(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

OUT ?= demo
FOR ?= 60

.PHONY: help setup debug-client demo fleet-demo check test soak studies fuzz bench clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: ## Install missing dependencies: system packages, Python, Rust programs (idempotent)
	@scripts/setup

debug-client: setup ## Build the slow client of the quirk debug-client (published code)
	@scripts/debug-client

demo: setup ## Run a whole campaign in the lab and print the speed-up table (OUT=demo)
	@scripts/demo "$(OUT)"

fleet-demo: setup ## Three cloud hosts in the lab: provision, run, collect, tear down (root, 20 minutes; OUT=demo)
	@scripts/fleet-demo "$(OUT)"

check: setup ## Quick checks: format, lint, types, imports, unit tests
	@scripts/check

test: setup ## All tests: check, Rust tests, contract tests, the lab (CI runs this)
	@scripts/browser
	@scripts/test

soak: setup ## Every cell of every sweep, many kills (2 to 3 hours; resumes; FRESH=1 starts over)
	@scripts/browser
	@scripts/test --soak

studies: setup ## Each study that is shipped, whole, against its expected values (3 hours; resumes)
	@scripts/test --studies

fuzz: setup ## Fuzz our parsers of strangers' bytes (FOR=60 seconds each; needs Rust's nightly)
	@scripts/fuzz "$(FOR)"

bench: setup ## Run the benchmarks (minutes; prints ratios against peers)
	@for run in benchmarks/*/run; do echo "== $$run"; "$$run" || echo "$$run did not finish" >&2; done

clean: ## Remove build products of this checkout (never your campaigns)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
