#!/usr/bin/env bash
# Boots a distribution's kernel in QEMU (without KVM), loads the TCP programs and runs a connection
# under them, and loads the Wind program and lets it execute operations: `make test-kernel`. The
# kernel comes from the package manager and stays in target/kernel-test. Nothing is installed.
#
#   tests/kernel/run.sh [PACKAGE]    default: the package on which linux-image-amd64 depends
set -euo pipefail
cd "$(dirname "$0")/../.."
work=target/kernel-test
kumi=$PWD/target/release/kumi
[ -x "$kumi" ] || { echo "no $kumi: make build" >&2; exit 2; }
for tool in qemu-system-x86_64 cpio apt-get dpkg-deb insmod nsenter; do
    command -v $tool >/dev/null || { echo "needs $tool: packaging/setup.sh --kernel-test" >&2; exit 2; }
done
mkdir -p "$work"

package=${1:-$(apt-cache depends linux-image-amd64 2>/dev/null |
    sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)}
[ -n "$package" ] || { echo "apt knows no linux-image-amd64: name a package" >&2; exit 2; }
if ! ls "$work/$package"/boot/vmlinuz-* >/dev/null 2>&1; then
    (cd "$work" && rm -f "$package"_*.deb && apt-get download -q "$package" && dpkg-deb -x "$package"_*.deb "$package" &&
        rm -f "$package"_*.deb)
fi
image=$(ls "$work/$package"/boot/vmlinuz-*)

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{proc,sys,dev,run,tmp,etc}
put() { # put PROGRAM: copies it and its shared libraries, which keep their paths
    local program library
    program=$(readlink -f "$(command -v "$1")")
    install -D "$program" "$root/bin/$(basename "$1")"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        [ -e "$root$library" ] || install -D "$(readlink -f "$library")" "$root$library"
    done
}
for program in bash mount ip sleep cat grep uname insmod nsenter "$kumi"; do put "$program"; done
# What `kumi wind up` needs and a distribution has as modules.
for module in veth sch_ingress cls_bpf; do
    found=$(find "$work/$package/lib/modules" -name "$module.ko*" | head -1)
    case $found in
        *.ko) install -D "$found" "$root/modules/$module.ko" ;;
        *.ko.xz) mkdir -p "$root/modules" && xz -dc "$found" >"$root/modules/$module.ko" ;;
    esac
done
install tests/kernel/init "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs.gz"

log=$work/console.txt
timeout 300 qemu-system-x86_64 -M pc -cpu max -m 1024 -smp 2 -nographic -no-reboot -net none \
    -kernel "$image" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1" </dev/null >"$log" 2>&1 || true
grep -a '^kernel-test:' "$log" || true
if grep -aq '^kernel-test: passed' "$log"; then
    exit 0
fi
echo "did not pass; the console is in $log" >&2
tail -20 "$log" >&2
exit 1
