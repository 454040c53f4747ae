#!/usr/bin/env bash
# Installs the packages that Kumihimo needs on a fresh Debian 12 or Ubuntu 24.04, from the
# distribution. Prints their names before it installs them. If no package is missing, it prints
# nothing and does not use the network.
#
#   packaging/setup.sh                 install missing packages
#   packaging/setup.sh --kernel-test   also those for `make test-kernel`
#   packaging/setup.sh --test-torch    also those for `make test-torch`
#   packaging/setup.sh --list          print missing packages, one per line, and change nothing
set -euo pipefail
here=$(dirname "$0")
PATH=$("$here/rust_path.sh"):/usr/sbin:/sbin

# Prints the requirements, each with its package and its purpose. "command:NAME" must be on PATH,
# "file:PATH" on disk, and "python:MODULE" in the distribution's Python. Another Python on PATH may
# lack the module, so the figures are drawn with /usr/bin/python3.
needs() {
    cat <<'LIST'
command:gcc                               gcc             build: C parts of the AEAD library
command:make                              make            build
file:/usr/include/stdio.h                 libc6-dev       build
file:/usr/include/linux/bpf.h             linux-libc-dev  build: BPF programs
command:clang                             clang           build: BPF programs
file:/usr/include/bpf/bpf_helpers.h       libbpf-dev      build: BPF programs
file:/usr/include/libelf.h                libelf-dev      build: loading BPF programs
file:/usr/include/zlib.h                  zlib1g-dev      build: loading BPF programs
command:pkg-config                        pkg-config      build
command:git                               git             build: the commit in every result
command:ip                                iproute2        run: devices, namespaces, queues
command:ethtool                           ethtool         run: offloads
command:sysctl                            procps          run: congestion control per namespace
command:nsenter                           util-linux      run: entering a host of the lab
command:ping                              iputils-ping    tests: whether a device is reached
command:iperf3                            iperf3          bench: the stream everybody knows
command:mptcpize                          mptcpize        bench: MPTCP as a rival
command:mpirun                            openmpi-bin     bench: an unmodified MPI program
command:mpicc                             libopenmpi-dev  bench: an unmodified MPI program
command:mpicc.mpich                       libmpich-dev    tests: the other MPI library
command:mpirun.mpich                      mpich           tests: the other MPI library
command:gfortran                          gfortran        tests: MPI from Fortran
command:hpcc                              hpcc            tests: an MPI application nobody made for this
python:numpy                              python3-numpy   tests: collectives on arrays
python:prometheus_client                  python3-prometheus-client  tests: metrics as Prometheus reads them
python:torch                              python3-torch   tests: the backend of PyTorch
command:setpriv                           util-linux      tests: a program without privileges
command:ssh                               openssh-client  bench: real machines (--hosts), mpirun
command:bpftool                           bpftool         diagnosis of BPF programs
python:matplotlib                         python3-matplotlib  figures
LIST
    [ "${1:-}" != --test-torch ] || echo "file:/usr/share/doc/python3-venv python3-venv test-torch: where pip puts PyTorch"
    [ "${1:-}" = --kernel-test ] || return 0
    cat <<'LIST'
command:qemu-system-x86_64                qemu-system-x86 test-kernel: boots a distribution's kernel
command:cpio                              cpio            test-kernel: its first file system
command:dpkg-deb                          dpkg            test-kernel: unpacks the kernel
LIST
}

present() { # present KIND:NAME: succeeds if the requirement is met
    case $1 in
        command:*) command -v "${1#command:}" >/dev/null ;;
        file:*) [ -e "${1#file:}" ] ;;
        # Checks the disk: an import of matplotlib takes a second, and this runs on every make.
        python:*) compgen -G "/usr/lib/python3/dist-packages/${1#python:}" >/dev/null ;;
    esac
}

# apt cannot install a purely virtual name. `grep -q` would end apt-cache by SIGPIPE, which pipefail
# takes for a failure.
has_candidate() { # has_candidate PACKAGE: succeeds if apt can install it
    apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [^(]' >/dev/null
}

rust_is_new_enough() {
    local minor
    minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge 85 ]
}

# Prints the distribution's packages of a Rust of at least 1.85 (edition 2024), with formatter and
# linter. Debian 12 has a current one for its browsers under -web names, which install plain
# /usr/bin/cargo. Ubuntu 24.04 has versioned packages. Debian 13 and later use the plain names.
rust_packages() {
    local minor
    if has_candidate cargo-web; then
        echo rustc-web cargo-web rustfmt-web rust-web-clippy
        return
    fi
    for minor in 93 91 89 88 85; do
        if has_candidate "cargo-1.$minor"; then
            echo "rustc-1.$minor" "cargo-1.$minor"
            for tool in "rustfmt-1.$minor" "rust-1.$minor-clippy"; do
                if has_candidate "$tool"; then echo "$tool"; fi
            done
            return
        fi
    done
    echo rustc cargo rustfmt rust-clippy
}

# Ubuntu has bpftool in the packages of the kernel's tools.
package_here() { # package_here PACKAGE: prints its name in this distribution
    if [ "$1" = bpftool ] && ! has_candidate bpftool; then
        echo linux-tools-common linux-tools-generic
    else
        echo "$1"
    fi
}

absent=()
while read -r what package _; do
    present "$what" || absent+=("$package")
done < <(needs "$@")
rust_is_new_enough || absent+=(RUST)
[ ${#absent[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || {
    echo "setup: missing: ${absent[*]}; this script knows apt only (Debian 12, Ubuntu 24.04)" >&2
    exit 1
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup: missing: ${absent[*]}; run packaging/setup.sh as root" >&2
        exit 1
    }
    as_root=(sudo)
fi

# Package names differ between distributions, so apt needs its lists before names are chosen.
[ "${1:-}" = --list ] || has_candidate libc6-dev || "${as_root[@]}" apt-get update -q

packages=()
for package in "${absent[@]}"; do
    if [ "$package" = RUST ]; then
        mapfile -t -O ${#packages[@]} packages < <(rust_packages | tr ' ' '\n')
    else
        mapfile -t -O ${#packages[@]} packages < <(package_here "$package" | tr ' ' '\n')
    fi
done

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${packages[@]}"
    exit 0
fi
echo "setup: will install these packages of the distribution: ${packages[*]}"
# Old lists contain versions that the mirror has removed, so they are updated. If that fails, for
# example with an offline mirror, the old lists are tried.
"${as_root[@]}" apt-get update -q || echo "setup: apt-get update failed; trying with the lists there are" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${packages[@]}"

PATH=$("$here/rust_path.sh"):/usr/sbin:/sbin
rust_is_new_enough || {
    echo "setup: no Rust of at least 1.85 among this distribution's packages; install it with rustup" >&2
    exit 1
}
