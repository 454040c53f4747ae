#!/usr/bin/env bash
# Prints PATH, preceded by the folder of a Rust of at least 1.85 if one is installed outside PATH.
# Ubuntu's versioned packages (rustc-1.85, cargo-1.85, …) have theirs in /usr/lib/rust-X.YY/bin.
set -u

rust_minor() { # rust_minor CARGO: prints Y of "cargo 1.Y.Z", or 0
    "$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p' | grep . || echo 0
}

path=$PATH
cargo=$(command -v cargo || true)
if [ -z "$cargo" ] || [ "$(rust_minor "$cargo")" -lt 85 ]; then
    for folder in "$HOME/.cargo/bin" $(ls -d /usr/lib/rust-1.*/bin 2>/dev/null | sort --version-sort --reverse); do
        if [ -x "$folder/cargo" ] && [ "$(rust_minor "$folder/cargo")" -ge 85 ]; then
            path="$folder:$path"
            break
        fi
    done
fi
echo "$path"
