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

# The profiling interface: each function has a second name, with a `p` before it.
functions=$(cc -E -P "$here/include/shmem.h" |
    grep -oE '\<(shmem_[a-z0-9_]+|start_pes|_my_pe|_num_pes|sh(malloc|free|realloc|memalign))\(' | tr -d '(' | grep -v has_no_such_type | sort -u)
install -D -m 644 -t "$folder/include/kumi" "$here"/include/*.h
{
    cat "$here/pshmem.h.in"
    for function in $functions; do
        echo "extern __typeof__($function) p$function;"
    done
    printf '\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n'
} >"$folder/include/kumi/pshmem.h"
second_names=$folder/second_names.ld
for function in $functions; do
    echo "p$function = $function;"
done >"$second_names"

# Calls within the library do not reach a tool's functions.
cc -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -Wl,-soname,libkumishmem.so.1 "$@" \
    -I "$here/../c" -I "$here/include" -o "$folder/libkumishmem.so" "$here"/*.c "$folder/libkumi.so.$abi" -lm -lpthread -ldl \
    -Wl,-Bsymbolic-functions "$second_names" '-Wl,-rpath,$ORIGIN' -Wl,--no-undefined
ln -sf libkumishmem.so "$folder/libkumishmem.so.1"
rm "$second_names"
install -m 755 "$here/kumi-oshcc" "$folder/kumi-oshcc"
ln -sf kumi-oshcc "$folder/kumi-oshc++"
