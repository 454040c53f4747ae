#!/usr/bin/env bash
# Installs the packages that Kumihimo needs on a fresh Debian 12 or Ubuntu 24.04. Prints the packages
# before it installs them. If nothing is missing, it prints nothing and uses no network.
#
#   packaging/setup.sh                 everything for `make test`, `make bench` and `make figures`
#   packaging/setup.sh --build         only the packages for `make build`
#   packaging/setup.sh --demo          only the packages for `make demo`
#   packaging/setup.sh --kernel-test   everything, and the packages for `make test-kernel`
#   packaging/setup.sh --test-torch    everything, and the packages for `make test-torch`
#   packaging/setup.sh --list          prints the missing packages, one per line, and changes nothing
set -euo pipefail
case ${1:-} in
    '' | --build | --demo | --kernel-test | --test-torch | --list) ;;
    *)
        echo "setup: unknown option \`$1\`: expected --build, --demo, --kernel-test, --test-torch or --list" >&2
        exit 2
        ;;
esac
here=$(dirname "$0")
PATH=$("$here/rust_path.sh"):/usr/sbin:/sbin

# Requirements: how to find one, its package, and the purpose. "command:NAME" is on PATH, "file:PATH"
# on disk, "python:MODULE" in the distribution's Python, with which the figures are drawn,
# "cargo:NAME" a command that cargo builds, and "pipx:NAME" a command of the Python package index.
needs() {
    local purposes='build|demo|run|tests|bench|figures|diagnosis'
    case ${1:-} in
        --build) purposes='build' ;;
        --demo) purposes='build|run|demo' ;;
    esac
    all_needs "$@" | grep -E "^[^ ]+ +[^ ]+ +($purposes)(:| |$)"
}

all_needs() {
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
command:iperf3                            iperf3          demo: a standard stream
command:mpirun                            openmpi-bin     demo: an unmodified MPI program
command:mpicc                             libopenmpi-dev  demo: an unmodified MPI program
command:ssh                               openssh-client  demo: required by mpirun; real machines (--hosts)
command:ping                              iputils-ping    tests: reachability of a device
command:mptcpize                          mptcpize        bench: MPTCP as a rival
command:mpicc.mpich                       libmpich-dev    tests: the other MPI library
command:mpirun.mpich                      mpich           tests: the other MPI library
command:gfortran                          gfortran        tests: MPI from Fortran
file:/usr/include/rdma/providers/fi_prov.h libfabric-dev  tests: the libfabric provider
command:ucx_perftest                      ucx-utils       bench: UCX as a rival
command:fi_pingpong                       libfabric-bin   tests: libfabric's own programs
command:hpcc                              hpcc            tests: an independent MPI application
python:numpy                              python3-numpy   tests: collectives on arrays
python:prometheus_client                  python3-prometheus-client  tests: metrics as Prometheus reads them
python:torch                              python3-torch   tests: the backend of PyTorch
command:setpriv                           util-linux      tests: a program without privileges
command:patch                             patch           tests: builds with a fault
command:codespell                         codespell       tests: spelling
command:mypy                              mypy            tests: types of the Python package
command:clang-format                      clang-format    tests: format of the C code
command:pipx                              pipx            tests: installs ruff
pipx:ruff                                 ruff>=0.9       tests: style of the Python code
file:/usr/sbin/sshd                       openssh-server  tests: discovery over ssh
cargo:mdbook                              mdbook@0.4      tests: the documentation as a book
cargo:cargo-deny                          cargo-deny@0.20 tests: licences and sources of the dependencies
command:bpftool                           bpftool         diagnosis of BPF programs
python:matplotlib                         python3-matplotlib  figures
LIST
    if [ "${1:-}" = --test-torch ]; then
        echo "file:/usr/share/doc/python3-venv python3-venv tests: where pip puts PyTorch"
    fi
    [ "${1:-}" = --kernel-test ] || return 0
    cat <<'LIST'
command:qemu-system-x86_64                qemu-system-x86 tests: boots a distribution's kernel
command:cpio                              cpio            tests: its first file system
command:dpkg-deb                          dpkg            tests: unpacks the kernel
command:insmod                            kmod            tests: loads modules of that kernel
command:nsenter                           util-linux      tests: enters network namespaces of that kernel
command:xz                                xz-utils        tests: unpacks modules of that kernel
LIST
}

present() { # present KIND:NAME: succeeds if the requirement is met
    case $1 in
        command:*) command -v "${1#command:}" >/dev/null ;;
        file:*) [ -e "${1#file:}" ] ;;
        cargo:*) command -v "${1#cargo:}" >/dev/null || [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/${1#cargo:}" ] ;;
        pipx:*) command -v "${1#pipx:}" >/dev/null || [ -x "$HOME/.local/bin/${1#pipx:}" ] ;;
        # Looked for on disk: importing matplotlib takes a second, and this runs on every make.
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

absent=() crates=() pipx=()
while read -r what package _; do
    if ! present "$what"; then
        case $what in
            cargo:*) crates+=("$package") ;;
            pipx:*) pipx+=("$package") ;;
            *) absent+=("$package") ;;
        esac
    fi
done < <(needs "$@")
rust_is_new_enough || absent+=(RUST)

# Tools that are not packages of Debian 12. Those of cargo are built without optimisation, which
# takes a third of the time.
install_tools() {
    local tool
    for tool in "${pipx[@]}"; do
        echo "setup: installing $tool with pipx, once"
        pipx install "$tool" >/dev/null ||
            echo "setup: $tool was not installed; its tests are skipped" >&2
    done
    for tool in "${crates[@]}"; do
        echo "setup: building $tool with cargo, once"
        cargo install --quiet --debug --locked --no-default-features \
            --version "^${tool#*@}" "${tool%@*}" ||
            echo "setup: $tool was not installed; its tests are skipped" >&2
    done
}

list() {
    [ $# -eq 0 ] || printf '%s\n' "$@"
}

if [ ${#absent[@]} -eq 0 ]; then
    if [ "${1:-}" != --list ]; then
        install_tools
    else
        list "${pipx[@]}" "${crates[@]}"
    fi
    exit 0
fi

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
    list "${packages[@]}" "${pipx[@]}" "${crates[@]}"
    exit 0
fi
echo "setup: will install these packages of the distribution: ${packages[*]}"
# Old lists contain versions that the mirror has removed, so they are updated. If that fails, for
# example with an offline mirror, the old lists are tried.
"${as_root[@]}" apt-get update -q || echo "setup: apt-get update failed; trying with the lists there are" >&2

# openssh-server would start a service that is reachable from the network. The tests start their own
# on a loopback address. A policy that is there already stays.
policy=/usr/sbin/policy-rc.d
if [[ " ${packages[*]} " == *" openssh-server "* ]] && [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod +x $policy
    trap '"${as_root[@]}" rm -f $policy' EXIT
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${packages[@]}"
if [[ " ${packages[*]} " == *" openssh-server "* ]]; then
    "${as_root[@]}" systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true
fi

PATH=$("$here/rust_path.sh"):/usr/sbin:/sbin
rust_is_new_enough || {
    echo "setup: no Rust of at least 1.85 among this distribution's packages; install it with rustup" >&2
    exit 1
}
install_tools
