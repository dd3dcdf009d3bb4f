# Two commands: `make boot` and `make test`. Both install what is missing.
SHELL := /bin/sh
CARGO_BIN := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin
export PATH := $(CARGO_BIN):$(PATH)
VMETER := target/release/vmeter
# A build that nobody changes and builds again.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

.PHONY: boot test test-long calibration bench build setup setup-test kernel lint fuzz clean

# More or other boots: make boot BOOT="--machine pvh --runs 5".
BOOT ?= --overhead --runs 10

boot: build kernel
	$(VMETER) boot $(BOOT)

build: setup
	cargo build --release --locked

kernel: build
	@$(VMETER) kernel list -q >/dev/null 2>&1 || $(VMETER) kernel fetch

# Tests run the debug build; no release build is needed for them. Lints are denied in CI
# only: a newer compiler than the project's has new ones, and no test fails by that. At the end
# stands what tests did not do here, and why. The tests' build has the program as well: one of the
# program alone would have other features of its crates, and everything would be compiled twice.
test: setup-test $(if $(CI),lint)
	cargo test --no-run --workspace --locked
	@target/debug/vmeter kernel list -q >/dev/null 2>&1 || target/debug/vmeter kernel fetch
	scripts/tests.sh --workspace --locked

# All tests with those that take long: some hours (see common::is_long in crates/cli/tests).
test-long: export VMETER_LONG := 1
test-long: test

# How often what vmeter concludes is wrong, by thousands of sessions of a played machine; writes the
# table of docs/results/calibration.md. About an hour.
calibration: export VMETER_LONG := 1
calibration: setup-test
	scripts/calibration.sh

lint:
	@scripts/setup.sh lint
	scripts/lint-prose.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@scripts/arm64.sh check

bench: build kernel
	cargo bench --workspace --locked

setup:
	@scripts/setup.sh boot

setup-test:
	@scripts/setup.sh test

# Each parser for FUZZ_SECONDS; needs a nightly toolchain and cargo-fuzz.
FUZZ_SECONDS ?= 60
fuzz:
	@cd fuzz && for target in $$(cargo fuzz list); do \
	    cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 || exit 1; done

clean:
	cargo clean
