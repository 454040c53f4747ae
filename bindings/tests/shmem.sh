# SPDX-License-Identifier: MIT OR Apache-2.0
# Claims of the OpenSHMEM library, for run.sh: the conformance program under each launcher, mistakes of
# programs, and the example.

"$bindings/shmem/build.sh" "$work" || exit 1
osh() { # osh ARGUMENT...: compiles and links
    "$work/kumi-oshcc" "$@" || exit 1
}
for part in "$here"/shmem*.c; do
    osh -std=gnu11 -O1 -Wall -Wextra -Werror -c -o "$work/$(basename "$part" .c).o" "$part" &
done
wait
osh -o "$work/shmem_errors" "$work/shmem_errors.o"
called=$(nm -u "$work"/shmem*.o | awk '{print $2}' | grep -E '^(shmem_|_my_pe|_num_pes|start_pes|sh)' | sort -u)
declared=$(echo '#include <shmem.h>' | cc -std=gnu99 -E -xc -I "$bindings/shmem/include" - |
    grep -oE '\b(shmem_[a-z0-9_]+|_my_pe|_num_pes|start_pes|shmalloc|shfree|shrealloc|shmemalign) *\(' | tr -d ' (' | sort -u)
claim "OpenSHMEM" "the test calls each of $(wc -l <<<"$declared") functions" diff <(echo "$declared") <(echo "$called")
exported=$(nm -D --defined-only "$work/libkumishmem.so" | awk '{print $3}')
claim "OpenSHMEM" "each function has a name for tools" \
    diff <(sed 's/^/p/' <<<"$declared") <(grep -E '^p(shmem_|_my_pe|_num_pes|start_pes|sh)' <<<"$exported" | sort -u)
rm "$work/shmem_errors.o"
osh -o "$work/shmem" "$work"/shmem*.o -lpthread

shmem_job() { # shmem_job PES COMMAND...
    KUMI_SHMEM_INTERFACE=lo job "$@"
}
# With 7 PEs the tree of a synchronisation has a third level.
for pes in 1 2 5 7; do
    claims "OpenSHMEM, $pes PEs" shmem_job $pes "$work/shmem"
done
claims "OpenSHMEM, 3 PEs, trusted" env KUMI_SHMEM_TRUSTED=1 bash -c "$(declare -f limit job shmem_job); shmem_job 3 '$work/shmem'"
claims "OpenSHMEM, mpirun of Open MPI" env KUMI_SHMEM_INTERFACE=lo \
    timeout 60 mpirun.openmpi --oversubscribe --allow-run-as-root -np 3 "$work/shmem"
claims "OpenSHMEM, mpirun of MPICH" env KUMI_SHMEM_INTERFACE=lo timeout 60 mpirun.mpich -np 3 "$work/shmem"

# A program with a mistake ends on all PEs, and one of them says why.
mistake() { # mistake PATTERN ARGUMENT
    ! shmem_job 3 "$work/shmem_errors" "$2" >"$work/stdout" 2>&1 && grep -qE -- "$1" "$work/stdout"
}
claim "OpenSHMEM" "a call before shmem_init is named" mistake 'shmem_my_pe: the library is not initialised' not-started
claim "OpenSHMEM" "a second shmem_init is named" mistake 'PE [012]: shmem_init_thread: .*already initialised' started-twice
claim "OpenSHMEM" "memory that is not symmetric is named" \
    mistake 'PE [012]: shmem_int_p: 4 bytes at 0x[0-9a-f]+ are not symmetric: expected memory of shmem_malloc' stack
claim "OpenSHMEM" "an access beyond the end is named" mistake 'shmem_putmem: 1073741824 bytes at .* are not symmetric' end
claim "OpenSHMEM" "a PE that does not exist is named" mistake 'shmem_long_p: PE 3: expected 0 to 2' pe
claim "OpenSHMEM" "an atomic operation on an odd address is named" mistake 'atomic_inc: .* not aligned to its 4 bytes' unaligned
claim "OpenSHMEM" "sizes that differ between PEs are named" \
    mistake 'shmem_malloc: PE [012] has the argument 10[012] and this one 10[012]: expected the same' sizes
claim "OpenSHMEM" "a lock that another PE would release is named" mistake 'shmem_clear_lock: this PE does not have' stranger
claim "OpenSHMEM" "an invalid team is named" mistake 'shmem_long_sum_reduce: the team is SHMEM_TEAM_INVALID' team
claim "OpenSHMEM" "an unknown comparison is named" mistake 'shmem_long_wait_until: unknown comparison 9' comparison
claim "OpenSHMEM" "a launcher without a way to meet is named" eval \
    '! PMI_RANK=0 PMI_SIZE=4 limit "$work/shmem_errors" 2>"$work/stderr" &&
        grep -q "PMI_SIZE is 4, and the launcher gives the processes no way to meet: use .kumi oshrun." "$work/stderr"'
killed() { # killed CALL ARGUMENT: all others end within 4 s with a message
    local began=$SECONDS
    mistake "PE [12]: $1: PE 0: " "$2" && [ $((SECONDS - began)) -le 4 ]
}
claim "OpenSHMEM" "a PE that is killed ends the others" killed shmem_barrier_all kill
claim "OpenSHMEM" "a PE that is killed while others may be in shmem_init ends them" \
    killed 'shmem_(init|barrier_all)' kill-at-start
exits() {
    local pid pids=() pe
    for pe in 0 1 2; do
        RANK=$pe WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=24995 KUMI_SHMEM_INTERFACE=lo \
            limit "$work/shmem_errors" exit &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        [ $? = 7 ] || return 1
    done
}
claim "OpenSHMEM" "shmem_global_exit ends PEs that call nothing, with its status" exits
claim "OpenSHMEM" "a program that does not call shmem_finalize ends in good order" eval \
    'shmem_job 3 "$work/shmem_errors" implicit >"$work/stdout" && [ "$(wc -l <"$work/stdout")" = 3 ]'
differs() { # differs PATTERN COMMAND0 COMMAND1
    local status=0
    for pe in 0 1; do
        RANK=$pe WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=24994 KUMI_SHMEM_INTERFACE=lo \
            limit bash -c "$([ $pe = 0 ] && echo "$2" || echo "$3")" >"$work/stdout.$pe" 2>&1 &
    done
    wait
    grep -qE -- "$1" "$work/stdout.0" "$work/stdout.1"
}
claim "OpenSHMEM" "heaps of different sizes are named" \
    differs 'PE [01] has a heap of [0-9]+ bytes and this one of [0-9]+: .*SHMEM_SYMMETRIC_SIZE' \
    "SHMEM_SYMMETRIC_SIZE=4m $work/shmem_errors" "SHMEM_SYMMETRIC_SIZE=5.5m $work/shmem_errors"
claim "OpenSHMEM" "different programs are named" differs 'PE [01] runs another program' \
    "$work/shmem_errors" "$work/shmem"
claim "OpenSHMEM" "an invalid heap size is named" eval \
    '! SHMEM_SYMMETRIC_SIZE=much limit "$work/shmem_errors" 2>"$work/stderr" &&
        grep -q "invalid SHMEM_SYMMETRIC_SIZE .much.: expected a number with" "$work/stderr"'
printf '#include <shmem.h>\nint main() { shmem_init(); shmem_double_sum_reduce(SHMEM_TEAM_WORLD, 0, 0, 0); shmem_finalize(); }\n' \
    >"$work/osh.cc"
claim "OpenSHMEM" "a program in C++ compiles and runs" eval \
    '"$work/kumi-oshc++" -Wall -Wextra -Werror -o "$work/osh_cc" "$work/osh.cc" && shmem_job 2 "$work/osh_cc"'
osh -std=gnu11 -O2 -Wall -Wextra -Werror -o "$work/heat" "$bindings/../examples/shmem/heat.c" -lm
claim "OpenSHMEM" "the example has its result" eval \
    'shmem_job 3 "$work/heat" >"$work/stdout" && grep -q "the sequential result" "$work/stdout"'
osh -fPIC -shared -Wall -Wextra -Werror -o "$work/libtool.so" "$here/profiler_of_shmem.c"
osh -o "$work/heat_with_tool" "$bindings/../examples/shmem/heat.c" "$work/libtool.so" -lm "-Wl,-rpath,$work"
has_counts() {
    shmem_job 3 "$work/heat_with_tool" >"$work/stdout" 2>&1 && grep -q "the sequential result" "$work/stdout" &&
        [ "$(grep -c '^tool: 1 calls of shmem_barrier_all$' "$work/stdout")" = 3 ] && return
    cat "$work/stdout"
    return 1
}
claim "OpenSHMEM" "a tool counts the calls of a program, and not those within the library" has_counts
