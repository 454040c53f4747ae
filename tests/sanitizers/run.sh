#!/usr/bin/env bash
# Runs tests of Wind and shared memory with ThreadSanitizer, which finds accesses of two threads that
# nothing orders: `make test-sanitizers`.
#
# Shared memory between processes is at addresses that ThreadSanitizer uses itself, so tests of whole
# programs do not run with it. Simulations have one thread, so it has nothing to find in them. Miri
# cannot run them: the unsafe code maps shared memory, which Miri does not support.
set -euo pipefail
cd "$(dirname "$0")/../.."
components=$(rustup +nightly component list --installed 2>/dev/null || true)
grep -q "^rust-src" <<<"$components" ||
    { echo "sanitizers: needs a nightly Rust: rustup toolchain install nightly --component rust-src" >&2; exit 2; }
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/sanitizers \
    TSAN_OPTIONS=halt_on_error=1 \
    cargo +nightly test --locked --no-fail-fast -Zbuild-std --target "$host" --package kumi-wind --package kumi-dsm --lib \
    -- --skip protocol:: --skip programs
