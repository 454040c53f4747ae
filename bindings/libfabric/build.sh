#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds libkumi-fi.so, the libfabric provider, in the folder of libkumi.so, and loads libkumi.so from
# there. Without libfabric's headers, it builds nothing and says so.
#
#   bindings/libfabric/build.sh FOLDER [FLAG...]    flags are further ones of the compiler
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
if ! echo '#include <rdma/providers/fi_prov.h>' | cc -E -xc - >/dev/null 2>&1; then
    echo "libkumi-fi.so is not built: no libfabric headers (package libfabric-dev)"
    exit 0
fi
abi=$(sed -n 's/^#define KUMI_ABI //p' "$here/../c/kumi_version.h")
cc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden "$@" -I "$here/../c" \
    -o "$folder/libkumi-fi.so" "$here"/*.c "$folder/libkumi.so.$abi" -lfabric -lpthread \
    '-Wl,-rpath,$ORIGIN' -Wl,--no-undefined
