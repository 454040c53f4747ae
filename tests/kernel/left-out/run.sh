#!/usr/bin/env bash
# Shows that a kernel uses an undefined value as the result of a struct_ops program
# (docs/kernel-report.md). Run as root:
#
#   tests/kernel/left-out/run.sh [SECONDS]
#
# Two namespaces are joined by 300 Mb/s with a queue of 64 KiB, at which twelve connections lose
# packets. Exits with 1 if a threshold appeared that no program returned.
set -euo pipefail
seconds=${1:-30}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
a=left-out-a-$$ b=left-out-b-$$
sink=
registered=
end() {
    [ -z "$sink" ] || kill "$sink" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    [ -z "$registered" ] || bpftool struct_ops unregister name seven >"$work/out" || true
    rm -rf "$work"
}
trap end EXIT

bpftool btf dump file /sys/kernel/btf/vmlinux format c >"$work/vmlinux.h"
clang -g -O2 -target bpf -D__TARGET_ARCH_x86 -I "$work" -c "$here/seven.bpf.c" -o "$work/seven.o"
bpftool struct_ops register "$work/seven.o" >"$work/out" || { cat "$work/out"; exit 2; }
registered=yes

ip netns add "$a"
ip netns add "$b"
ip link add eth0 netns "$a" type veth peer name eth0 netns "$b"
ip -n "$a" address add 10.0.0.1/24 dev eth0
ip -n "$b" address add 10.0.0.2/24 dev eth0
ip -n "$a" link set eth0 up
ip -n "$b" link set eth0 up
tc -n "$a" qdisc add dev eth0 root tbf rate 300mbit burst 16k limit 64k
ip netns exec "$b" python3 "$here/streams.py" sink &
sink=$!
sleep 1
ip netns exec "$a" python3 "$here/streams.py" 10.0.0.2 "$seconds"
