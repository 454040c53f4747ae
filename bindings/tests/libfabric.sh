# SPDX-License-Identifier: MIT OR Apache-2.0
# Claims of the libfabric provider, for run.sh: the conformance program, libfabric's own programs, and
# Open MPI on one host and between two network namespaces.

# Runs a command with two namespaces, $one and $other, that are connected: 10.9.0.1 and 10.9.0.2. They
# end with it, and so does each process that is left in them.
in_networks() ( # in_networks COMMAND...
    one=kumi-fi-$$-a other=kumi-fi-$$-b
    remove() {
        local name
        for name in "$one" "$other"; do
            ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL
            ip netns delete "$name"
        done
    }
    trap remove EXIT
    export one other
    ip netns add "$one" && ip netns add "$other" || exit 1
    ip link add veth0 netns "$one" type veth peer name veth0 netns "$other" || exit 1
    ip -n "$one" address add 10.9.0.1/24 dev veth0
    ip -n "$other" address add 10.9.0.2/24 dev veth0
    for name in "$one" "$other"; do
        ip -n "$name" link set lo up
        ip -n "$name" link set veth0 up
    done
    "$@"
)

# Open MPI starts the ranks of a host with this in place of ssh.
cat >"$work/enter" <<'ENTER'
#!/bin/bash
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
ENTER
chmod +x "$work/enter"

fi_mpi() { # fi_mpi RANKS PROGRAM...: on this host
    local ranks=$1
    shift
    FI_KUMI_IFACE=lo limit mpirun.openmpi --oversubscribe --allow-run-as-root --mca mpi_yield_when_idle 1 \
        --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include kumi \
        --mca osc rdma --mca btl ofi,self --mca btl_ofi_provider_include kumi -np "$ranks" "$@"
}
fi_mpi_hosts() { # fi_mpi_hosts RANKS PROGRAM...: on both namespaces
    local ranks=$1
    shift
    ip netns exec "$one" unshare --uts sh -c 'hostname "$one"; exec "$@"' sh \
        timeout --kill-after=5 60 mpirun.openmpi --oversubscribe --allow-run-as-root \
        --mca mpi_yield_when_idle 1 --mca plm_rsh_agent "$work/enter" --mca oob_tcp_if_include veth0 \
        --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include kumi \
        --mca osc rdma --mca btl ofi,self --mca btl_ofi_provider_include kumi \
        --host "$one:$ranks,$other:$ranks" --map-by node --bind-to none -x FI_PROVIDER_PATH -x FI_KUMI_KEY -np "$ranks" "$@"
}
pings() { # pings: fi_pingpong between the namespaces
    limit ip netns exec "$one" fi_pingpong -p kumi -e rdm >"$work/server" 2>&1 &
    local server=$! tries
    # The server listens for control connections on port 47592.
    for tries in $(seq 100); do
        ip netns exec "$one" ss -tln | grep -q :47592 && break
        sleep 0.05
    done
    limit ip netns exec "$other" fi_pingpong -p kumi -e rdm 10.9.0.1 >"$work/stdout" 2>&1
    local status=$?
    wait $server && [ $status = 0 ] && grep -q '^1m .*=10' "$work/stdout" && [ "$tries" != 100 ]
}

export FI_PROVIDER_PATH=$work FI_KUMI_KEY=$work/cluster.key
(umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$FI_KUMI_KEY")
"$bindings/libfabric/build.sh" "$work" || exit 1
c -o "$work/libfabric" "$here"/libfabric{,_sides,_memory}.c "$here/expect.c" "$bindings/c/kumi_phase.c" -lfabric -lpthread
claims "libfabric" limit "$work/libfabric"
claim "libfabric" "fi_info lists the provider" eval 'limit fi_info -p kumi >"$work/stdout" && grep -q "^provider: kumi$" "$work/stdout"'
claim "libfabric" "an interface is chosen by its name" eval \
    'FI_KUMI_IFACE=lo limit fi_info -p kumi >"$work/stdout" && [ "$(grep -c domain: "$work/stdout")" = 1 ] &&
        ! FI_KUMI_IFACE=absent limit fi_info -p kumi >"$work/stdout" 2>&1'
chmod 640 "$FI_KUMI_KEY"
claim "libfabric" "a key file that others may read is named" eval \
    'FI_LOG_LEVEL=warn limit fi_info -p kumi >"$work/stdout" 2>&1 &&
        grep -q "cluster.key is accessible to others (mode 640)" "$work/stdout"'
chmod 600 "$FI_KUMI_KEY"
claim "libfabric" "without the key file, its absence is said" eval \
    '! FI_KUMI_KEY=/nonexistent FI_LOG_LEVEL=warn limit fi_info -p kumi >"$work/stdout" 2>&1 &&
        grep -q "cannot read cluster key /nonexistent.*kumi link keygen" "$work/stdout"'
"mpicc.openmpi" -std=gnu11 -O2 -Wall -Wextra -Werror -I "$bindings/c" -I "$here" -o "$work/libfabric_mpi" \
    "$here/libfabric_mpi.c" "$here/expect.c" "$bindings/c/kumi_phase.c" || exit 1
claims "Open MPI over libfabric" fi_mpi 3 "$work/libfabric_mpi" messages
claims "Open MPI over libfabric" fi_mpi 3 "$work/libfabric_mpi" one-sided
if in_networks true 2>"$work/stdout"; then
    claim "libfabric" "fi_pingpong runs between two networks" in_networks pings
    claims "Open MPI over libfabric, two hosts" in_networks fi_mpi_hosts 4 "$work/libfabric_mpi" messages
    claims "Open MPI over libfabric, two hosts" in_networks fi_mpi_hosts 4 "$work/libfabric_mpi" one-sided
else
    echo "skipped libfabric between two networks: only root may create network namespaces"
fi
