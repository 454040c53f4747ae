#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds libkumishmem.so, OpenSHMEM over Wind, and its compiler wrappers in the folder of libkumi.so, and
# loads libkumi.so from there.
#
#   bindings/shmem/build.sh FOLDER [FLAG...]    flags are further ones of the compiler
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
abi=$(sed -n 's/^#define KUMI_ABI //p' "$here/../c/kumi_version.h")
cc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -Wl,-soname,libkumishmem.so.1 "$@" \
    -I "$here/../c" -I "$here/include" -o "$folder/libkumishmem.so" "$here"/*.c "$folder/libkumi.so.$abi" -lm -lpthread -ldl \
    '-Wl,-rpath,$ORIGIN' -Wl,--no-undefined
ln -sf libkumishmem.so "$folder/libkumishmem.so.1"
install -D -m 644 -t "$folder/include/kumi" "$here"/include/*.h
install -m 755 "$here/kumi-oshcc" "$folder/kumi-oshcc"
ln -sf kumi-oshcc "$folder/kumi-oshc++"
