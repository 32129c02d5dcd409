# `make` alone lists what there is. `make run` and `make test` work on a fresh checkout.

TARGET := $(or $(CARGO_TARGET_DIR),target)
CARGO ?= cargo

# For tests only: flaws put back, the memory broker, the conformance suite. Never in a build for users.
TEST_FEATURES := keylane-core/flaws,keylane-broker/testing,keylane-broker/flaws,keylane/flaws

ALL_TESTS := --workspace --features $(TEST_FEATURES)

# All checks and tests build in one profile, so that dependencies are built once.
PROFILE := checked

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Builds the binary for users: target/release/keylane
	@perl -MFindBin -MFile::Compare -MIPC::Cmd -e 1 2>/dev/null || \
		{ echo "perl, or one of its modules, is missing: OpenSSL is built with it. Install it, on Debian with: sudo apt-get install perl" >&2; exit 1; }
	$(CARGO) build --locked --release --package keylane-cli

.PHONY: run
run: build ## Builds and starts a live demonstration; Ctrl-C drains and ends it
	@exec $(TARGET)/release/keylane demo

.PHONY: test
test: tools format lint tidy ## Formatting, lints, house rules and all tests
	$(CARGO) xtask test $(ALL_TESTS)

.PHONY: tools
tools: # What the tests need, installed where that can be done
	@dev/tools $(TARGET)
	$(CARGO) fetch --locked --target $$(rustc -vV | sed -n 's/^host: //p')

.PHONY: format
format: # Formatting is checked, not changed
	$(CARGO) fmt --all --check

.PHONY: lint
lint: # Users' code with the calls that have one place; then everything, with what tests need
	$(CARGO) clippy --locked --profile $(PROFILE) --workspace --lib --bins -- \
		-D warnings -D clippy::disallowed_methods -D clippy::disallowed_types
	$(CARGO) clippy --locked --profile $(PROFILE) --all-targets $(ALL_TESTS) -- -D warnings

.PHONY: tidy
tidy: # The house rules
	$(CARGO) xtask tidy

.PHONY: explore
explore: tools ## All interleavings of larger cases of the partition protocol (long)
	$(CARGO) xtask test $(ALL_TESTS) -- --ignored explore

.PHONY: chaos
chaos: tools ## Faults and crashes, longer and harder than in make test
	$(CARGO) xtask test $(ALL_TESTS) -- --ignored chaos

.PHONY: bench
bench: build ## Benchmarks beside their raw limits
	$(TARGET)/release/keylane bench

.PHONY: clean
clean: ## Removes what was built
	$(CARGO) clean
