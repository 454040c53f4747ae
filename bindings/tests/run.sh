#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds libkumi_preload.so and the test programs in a temporary folder and checks their claims, one
# line each. The phase page is a file, so the test needs neither the kernel programs nor privilege.
# Exits with 1 if a claim failed. A part without its compiler is skipped by name. Collectives are
# skipped unless KUMI_TEST_LIBRARY is the path of libkumi.so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bindings=$(dirname "$here")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KUMI_TEST_PAGES=$work/pages KUMI_TEST_PRELOAD=$work/libkumi_preload.so
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$bindings/python
mkdir "$KUMI_TEST_PAGES"
# Cargo's library path has libraries of other builds.
unset KUMI_PHASE_FD KUMI_SOCKET_OPTIONS KUMI_VERBOSE LD_LIBRARY_PATH
failed=0

# The limit is far above the time of any run, so it ends only hangs.
limit() { timeout --kill-after=5 60 "$@"; }

claim() { # claim LABEL TEXT COMMAND...: the claim holds if the command succeeds
    local label=$1 text=$2
    shift 2
    if "$@"; then
        echo "ok     $label: $text"
    else
        echo "FAILED $label: $text"
        failed=1
    fi
}

# Runs a program that prints its own claims.
claims() { # claims LABEL COMMAND...
    export KUMI_TEST_LABEL=$1
    shift
    "$@" >"$work/claims" 2>"$work/stderr"
    local status=$?
    grep -E '^(ok|FAILED)' "$work/claims"
    if [ $status -ne 0 ] || ! grep -q '^ok' "$work/claims" || [ -s "$work/stderr" ]; then
        echo "FAILED $KUMI_TEST_LABEL: exit status $status, of $*"
        sed 's/^/       /' "$work/stderr"
        failed=1
    fi
}

# Gives a process its own page and the preload library, as `kumi run` does. mpirun starts it in
# front of each rank. PAGE_ABI and PAGE_BYTES make invalid pages. PAGE_ZERO makes a page that is
# zero except for the abi.
cat >"$work/with_page" <<'PAGE'
#!/bin/bash
page=$(mktemp "$KUMI_TEST_PAGES/XXXXXX")
printf "\\${PAGE_ABI:-1}\0\0\0" >"$page"
if [ -z "${PAGE_ZERO:-}" ]; then
    printf '\0\0\0\0\1\0\0\0' >>"$page"
    truncate -s 64 "$page"
    printf 'point-to-point' >>"$page"
fi
truncate -s "${PAGE_BYTES:-4096}" "$page"
cp "$page" "$page.before"
# Bash selects a free descriptor: MPICH's launcher or the caller may have left others open.
exec {fd}<>"$page"
export KUMI_PHASE_FD=$fd LD_PRELOAD=$KUMI_TEST_PRELOAD${KUMI_TEST_PROFILER:+:$KUMI_TEST_PROFILER}
exec "$@"
PAGE
chmod +x "$work/with_page"
with_page() { limit "$work/with_page" "$@"; }
pages_are_untouched() {
    local page
    for page in "$KUMI_TEST_PAGES"/??????; do
        cmp -s "$page" "$page.before" || return 1
    done
}

c() { cc -std=gnu11 -O2 -Wall -Wextra -Werror -I "$bindings/c" -I "$here" "$@" || exit 1; }
c -fPIC -shared -I "$bindings/c" -o "$KUMI_TEST_PRELOAD" "$bindings"/c/kumi_phase.c "$bindings"/mpi/*.c "$bindings"/socket/*.c
phase_sources=("$here/expect.c" "$bindings/c/kumi_phase.c")

# --- programs without MPI ---------------------------------------------------------------------
label="without MPI"
same_output() { [ "$("$@" 2>&1)" = "$(with_page "$@" 2>&1)" ]; }
claim "$label" "sh, ls and python3 print the same with the library" eval \
    'same_output sh -c "echo a; echo b >&2; exit 0" && same_output ls -l /etc &&
     same_output python3 -c "import socket, json; print(json.dumps(socket.socket().family))"'
claim "$label" "and write nothing to the page" pages_are_untouched
exit_status_kept() { with_page sh -c 'exit 7'; [ $? = 7 ]; }
claim "$label" "the exit status is kept" exit_status_kept

# --- scopes -----------------------------------------------------------------------------------
c -o "$work/scopes" "$here/scopes.c" "${phase_sources[@]}" -lpthread
claims "scopes" with_page "$work/scopes" claims
one_line() { # one_line PATTERN COMMAND...: success, and one line on stderr, which matches
    local pattern=$1
    shift
    "$@" 2>"$work/stderr" >"$work/stdout" && [ "$(wc -l <"$work/stderr")" = 1 ] &&
        grep -q -- "$pattern" "$work/stderr"
}
silent() { "$@" >"$work/stdout" 2>&1 && [ ! -s "$work/stdout" ]; }
export KUMI_TEST_LABEL=scopes
claim "scopes" "a 31st phase is said once" one_line '30 phases.*"phase 30".*"other"' \
    with_page "$work/scopes" names 40
claim "scopes" "it is \"other\"" grep -q '^ok' "$work/stdout"
claim "scopes" "a page that is zero but for its abi is completed" eval \
    'PAGE_ZERO=1 with_page "$work/scopes" names 40 2>/dev/null >"$work/stdout" && grep -q ^ok "$work/stdout"'
claim "scopes" "without kumi run nothing happens" silent limit "$work/scopes" quiet

# --- ranks that wait --------------------------------------------------------------------------
c -I "$bindings/mpi" -o "$work/past" "$here/past.c" "$bindings"/mpi/{past,stall}.c "${phase_sources[@]}" -lpthread
claims "ranks that wait" limit "$work/past"
c -I "$bindings/mpi" -o "$work/at_once" "$here/at_once.c" "$bindings/mpi/at_once.c" "${phase_sources[@]}" -lpthread
claims "all blocks at once" limit "$work/at_once"

# --- bad input --------------------------------------------------------------------------------
label="bad input"
rm -f "$KUMI_TEST_PAGES"/*
claim "$label" "KUMI_PHASE_FD=abc is named once" one_line 'KUMI_PHASE_FD="abc"' \
    env KUMI_PHASE_FD=abc "$work/scopes" quiet
claim "$label" "Python names it too" one_line 'KUMI_PHASE_FD="abc"' \
    env KUMI_PHASE_FD=abc python3 -c 'import kumi'
claim "$label" "a descriptor that is closed is silent" silent env KUMI_PHASE_FD=77 "$work/scopes" quiet
claim "$label" "another abi is silent" silent env PAGE_ABI=2 "$work/with_page" "$work/scopes" quiet
claim "$label" "a file that is too short is silent" silent \
    env PAGE_BYTES=100 "$work/with_page" "$work/scopes" quiet
claim "$label" "in Python as well" eval 'silent env PAGE_ABI=2 "$work/with_page" python3 -c "import kumi" &&
    silent env PAGE_BYTES=100 "$work/with_page" python3 -c "import kumi" &&
    silent env KUMI_PHASE_FD=77 python3 -c "import kumi"'
claim "$label" "and none of them is written to" pages_are_untouched
printf '\1\0\0\0' >"$work/data"
head -c 8000 /dev/zero | tr '\0' x >>"$work/data"
cp "$work/data" "$work/data.before"
data_is_kept() { silent env KUMI_PHASE_FD=9 "$work/scopes" quiet 9<>"$work/data" &&
    cmp -s "$work/data" "$work/data.before"; }
claim "$label" "a descriptor used again for a file of data is not written to" data_is_kept

# --- Python -----------------------------------------------------------------------------------
claims "Python" with_page python3 "$here/scopes.py"
claims "Python without the library" env KUMI_TEST_PRELOAD= "$work/with_page" python3 "$here/scopes.py"
claim "Python" "without kumi run nothing happens" silent python3 -c '
import kumi
with kumi.phase("x"): pass'

# --- socket options ---------------------------------------------------------------------------
c -o "$work/sockets" "$here/sockets.c" "$here/expect.c"
with_options() { limit env LD_PRELOAD="$KUMI_TEST_PRELOAD" KUMI_SOCKET_OPTIONS="$1" "${@:2}"; }
all_options=rto_min_us=8000,delack_max_us=8000,notsent_lowat=262144,max_pacing_rate=62500000
claims "socket options" with_options $all_options "$work/sockets" 8000 8000 262144 62500000
new_socket=(python3 -c 'import socket; socket.socket(); socket.socket()')
label="bad input"
claim "$label" "an unknown socket option is named once, with the known ones" one_line \
    '"rto_min_ms=8".*KUMI_SOCKET_OPTIONS.*rto_min_us, delack_max_us, notsent_lowat, max_pacing_rate' \
    with_options rto_min_ms=8 "${new_socket[@]}"
claim "$label" "so is a bad number" eval 'for bad in -1 8ms "" 99999999999; do
    one_line "\"rto_min_us=$bad\"" with_options "rto_min_us=$bad" "${new_socket[@]}" || exit 1; done'
claims "socket options, beside a bad one" with_options "x=1,$all_options" \
    bash -c '"$@" 2>/dev/null' - "$work/sockets" 8000 8000 262144 62500000
claim "socket options" "what the kernel refuses is silent" silent with_options rto_min_us=0 "${new_socket[@]}"
claim "socket options" "and with KUMI_VERBOSE said once" one_line 'rto_min_us=0' \
    env KUMI_VERBOSE=1 LD_PRELOAD="$KUMI_TEST_PRELOAD" KUMI_SOCKET_OPTIONS=rto_min_us=0 "${new_socket[@]}"

# --- an unknown MPI library -------------------------------------------------------------------
c -fPIC -shared -DLIBRARY -o "$work/libmpi.so" "$here/unknown_mpi.c"
c -o "$work/unknown_mpi" "$here/unknown_mpi.c" "$here/expect.c" -L "$work" -lmpi -Wl,-rpath,"$work"
export KUMI_TEST_LABEL="unknown MPI"
claim "unknown MPI" "it is said once, with its first line" one_line \
    'kumi: "Phantom MPI 0.1" is an unknown MPI library.*phases are not marked' \
    with_page "$work/unknown_mpi"
grep -E '^(ok|FAILED)' "$work/stdout"
claim "unknown MPI" "both claims of the program hold" eval '[ "$(grep -c ^ok "$work/stdout")" = 2 ]'

# A linked program finds libkumi.so by its soname.
abi=$(sed -n 's/^#define KUMI_ABI //p' "$bindings/c/kumi_version.h")

# --- the MPI libraries ------------------------------------------------------------------------
mpi() { # mpi NAME SUFFIX: tests the MPI library of mpicc.SUFFIX, mpirun.SUFFIX and mpifort.SUFFIX
    local name=$1 suffix=$2 module language defines
    if ! command -v "mpicc.$suffix" "mpirun.$suffix" >"$work/stdout" ||
        [ "$(wc -l <"$work/stdout")" != 2 ]; then
        echo "skipped $name: no mpicc.$suffix and mpirun.$suffix"
        return
    fi
    echo '#include <mpi.h>' >"$work/mpi.c"
    "mpicc.$suffix" -E -P "$work/mpi.c" >"$work/mpi.i"
    claim "$name" "the argument counts are those of its mpi.h" \
        silent_python "$here/argument_counts.py" "$bindings/mpi/calls.h" "$work/mpi.i"

    local flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -I "$bindings/c" -I "$here")
    "mpicc.$suffix" "${flags[@]}" -o "$work/$suffix-c" "$here/mpi_phases.c" "${phase_sources[@]}" || exit 1
    claims "$name C" run_ranks "$suffix" "$work/$suffix-c"

    "mpicc.$suffix" "${flags[@]}" -DMODULE -rdynamic -fPIC -shared -o "$work/$suffix-module.so" \
        "$here/mpi_local.c" || exit 1
    cc "${flags[@]}" -rdynamic -o "$work/local" "$here/mpi_local.c" "$here/expect.c" -ldl || exit 1
    claims "$name C" run_ranks "$suffix" "$work/local" "$work/$suffix-module.so"

    if [ -n "${KUMI_TEST_LIBRARY:-}" ]; then
        "mpicc.$suffix" "${flags[@]}" -o "$work/$suffix-collectives" "$here/mpi_collectives.c" \
            "${phase_sources[@]}" || exit 1
        claims "$name collectives" run_planned "$suffix" "$work/$suffix-collectives"
        mpi_edges "$name" "$suffix" "${flags[@]}"
        mpi_mismatch "$name" "$suffix" "${flags[@]}"
        if unshare --uts true 2>"$work/stdout"; then
            mpi_hosts "$name" "$suffix"
            claims "$name collectives between sites" run_between_sites "$suffix" "$work/$suffix-collectives"
            claim "$name collectives between sites" "those of some ranks have their share" eval \
                'KUMI_VERBOSE=1 run_between_sites "$suffix" "$work/$suffix-collectives" 2>&1 |
                    grep -q "with a share of the common links"'
        else
            echo "skipped $name collectives between sites: only root may give each rank a host name of its own"
        fi
    else
        echo "skipped $name collectives: KUMI_TEST_LIBRARY does not name libkumi.so"
    fi

    if ! command -v "mpifort.$suffix" >/dev/null; then
        echo "skipped $name Fortran: no mpifort.$suffix"
        return
    fi
    for object in expect kumi_phase; do
        c -c -o "$work/$object.o" "$(ls "$here/$object.c" "$bindings/c/$object.c" 2>/dev/null)"
    done
    for module in mpi mpi_f08; do
        defines=()
        [ $module = mpi_f08 ] && defines=(-DUSE_F08)
        (cd "$work" && "mpifort.$suffix" -O2 -Wall "${defines[@]}" -o "$suffix-$module" \
            "$bindings/fortran/kumi.f90" "$here/mpi_phases.F90" expect.o kumi_phase.o) \
            >"$work/stdout" 2>&1 || { cat "$work/stdout"; exit 1; }
        claims "$name Fortran use $module" run_ranks "$suffix" "$work/$suffix-$module"
        [ -n "${KUMI_TEST_LIBRARY:-}" ] || continue
        (cd "$work" && "mpifort.$suffix" -O2 -Wall "${defines[@]}" -o "$suffix-$module-collectives" \
            "$here/mpi_collectives.F90") >"$work/stdout" 2>&1 || { cat "$work/stdout"; exit 1; }
        claims "$name Fortran use $module" run_planned "$suffix" "$work/$suffix-$module-collectives"
        claim "$name Fortran use $module" "all six were planned" eval \
            'KUMI_VERBOSE=1 run_planned "$suffix" "$work/$suffix-$module-collectives" 2>&1 |
                grep -q "6 collectives were planned, 7 were left"'
    done
}
mpi_edges() { # mpi_edges NAME SUFFIX FLAG...: unusual and incorrect uses of collectives
    local name=$1 suffix=$2 part
    shift 2
    "mpicc.$suffix" "$@" -o "$work/$suffix-edges" "$here/mpi_edges.c" "${phase_sources[@]}" -lpthread || exit 1
    for part in bottom communicators uneven threads; do
        KUMI_TEST_RANKS=2 claims "$name edges" run_planned "$suffix" "$work/$suffix-edges" $part
    done
    # The MPI library reports the provoked errors on stderr.
    claims "$name edges" run_planned "$suffix" sh -c '"$@" 2>/dev/null' sh "$work/$suffix-edges" errors
    claim "$name edges" "a failed plan ends a job under MPI_ERRORS_ARE_FATAL" eval \
        'ends run_planned "$suffix" "$work/$suffix-edges" fatal && ! grep -q FAILED "$work/stdout" &&
            grep -q "MPI_Bcast: rank 0 sent .* the ranks have different counts" "$work/stdout"'
    claim "$name edges" "a rank that aborts in a planned collective ends the job" eval \
        'ends run_planned "$suffix" "$work/$suffix-edges" abort &&
            ! grep -q FAILED "$work/stdout"'
    # Without a name server for hydra, MPICH's spawn fails even without kumi.
    [ "$suffix" = mpich ] || claims "$name edges" run_planned "$suffix" "$work/$suffix-edges" spawn
    claim "$name edges" "--reproducible leaves sums to the library" eval \
        '! KUMI_REPRODUCIBLE=1 KUMI_VERBOSE=1 run_planned "$suffix" "$work/$suffix-edges" sum 2>&1 |
            grep -v "^ok"'
    c -fPIC -shared -o "$work/profiler.so" "$here/profiler.c"
    for list in all off; do
        claim "$name edges" "a profiler behind kumi sees calls, with KUMI_COLL=$list" eval \
            'KUMI_TEST_LIST=$list KUMI_TEST_PROFILER=$work/profiler.so run_planned "$suffix" "$work/$suffix-edges" \
                profiled >"$work/stdout" 2>&1; grep -q "profiler: 1 short broadcast" "$work/stdout"'
        [ $list = off ] || claim "$name edges" "which calls it does not see is said once" eval \
            '[ "$(grep -c "profiler.so does not see planned collectives" "$work/stdout")" = 1 ]'
    done
}
mpi_mismatch() { # mpi_mismatch NAME SUFFIX FLAG...: lengths that differ between ranks
    local name=$1 suffix=$2 case
    shift 2
    "mpicc.$suffix" "$@" -o "$work/$suffix-mismatch" "$here/mpi_mismatch.c" || exit 1
    local -x KUMI_TEST_RANKS=3
    # Either one rank plans and another does not, or both plan. The call is the first one on
    # MPI_COMM_WORLD or on a duplicate of it (dup). In gatherv-none-leaf it is the fourth one. In
    # bcast-far-ahead the odd rank makes 100 more calls before the others ask whether it is past the first.
    for case in "bcast-short-root" "bcast-long-root dup" "bcast-half-root" "gather-short-leaf dup" "gather-long-leaf" \
        "gather-half-leaf" "scatter-short-root" "allgather-short dup" "allgather-half" "allreduce-short" \
        "gatherv-none-leaf" "bcast-far-ahead"; do
        # MPICH itself raises errors of MPI_Testsome, with a code that refers to the statuses.
        claim "$name counts that differ" "$case ends the job" eval \
            'ends run_planned "$suffix" "$work/$suffix-mismatch" $case &&
                grep -qiE "^kumi: .*different counts|truncated|MPI_ERROR field in MPI_Status" "$work/stdout"'
    done
    claim "$name counts that differ" "the program's handler is given the error" eval \
        'ends run_planned "$suffix" "$work/$suffix-mismatch" bcast-short-root return &&
            grep -q "an error of the count" "$work/stdout"'
    for case in equal-types slow; do
        claim "$name counts that differ" "$case is no error" eval \
            'run_planned "$suffix" "$work/$suffix-mismatch" $case >"$work/stdout" 2>&1'
    done
}
ends() { # ends COMMAND...: succeeds if the command fails within 10 s; its output is in $work/stdout
    SECONDS=0
    "$@" >"$work/stdout" 2>&1
    local status=$?
    [ $status != 0 ] && [ $status != 124 ] && [ $status != 137 ] && [ $SECONDS -lt 10 ]
}
mpi_hosts() { # mpi_hosts NAME SUFFIX: ranks on different hosts, one of which has other settings
    local name=$1 suffix=$2 other
    printf 'name = "one"\nswitch = [{ name = "s" }]\n' >"$work/one.toml"
    for rank in 0 1 2 3 4; do
        printf '[[host]]\nname = "r%d"\n[[link]]\nbetween = ["r%d", "s"]\nrate = "1Gbit"\nlatency = "10us"\n' \
            $rank $rank >>"$work/one.toml"
    done
    sed 's/"1Gbit"/"100Mbit"/' "$work/one.toml" >"$work/slow.toml"
    sed 's/^name = "one"/# The same network.\nname =   "one"/' "$work/one.toml" >"$work/same.toml"
    # The version is a release and a digest. Replaces the digest by another one of the same length.
    sed 's/\([0-9]\.[0-9]*\.[0-9]*+\)[0-9a-f]\{8\}\x00/\100000000\x00/' "$KUMI_TEST_LIBRARY" >"$work/libother.so"
    differs() { # differs MESSAGE ASSIGNMENT...: sets the variables on the second host only
        local message=$1
        shift
        on_hosts "$suffix" "$@" >"$work/stdout" 2>&1 && grep -q "^ok.*a broadcast is right" "$work/stdout" &&
            grep -q "left to the MPI library: $message.*; 1 of . ranks" "$work/stdout"
    }
    claim "$name hosts" "of one network plan" eval \
        'on_hosts "$suffix" KUMI_TOPOLOGY="$work/same.toml" 2>&1 | grep -q "kumi: 1 collectives were planned"'
    # 1 Gb/s, divided by the connections of a link: 4 of 5 ranks, 2 of 3. 1448 of 1538 bytes are
    # payload, and an acknowledgement of 90 bytes goes with 3076.
    shares() { # shares: fair share and peers in the pages of a job
        rm -f "$KUMI_TEST_PAGES"/*
        on_hosts "$suffix" "$@" >"$work/stdout" 2>&1
        for page in "$KUMI_TEST_PAGES"/??????; do od -An -t u8 -j 2120 -N 8 "$page"; od -An -t u4 -j 2116 -N 4 "$page"; done |
            tr -s ' \n' ' '
    }
    share_of() { # share_of PEERS: what each page then has
        awk -v peers="$1" 'BEGIN { for (i = 0; i <= peers; i++)
            printf " %d %d", 125e6 / peers * 1448 / 1538 * 3076 / 3166, peers }'
    }
    claim "$name hosts" "of one network know their fair share in an all-to-all" eval \
        '[ "$(shares)" = "$(share_of $(($(ls "$KUMI_TEST_PAGES"/??????.before | wc -l) - 1))) " ]'
    claim "$name hosts" "one that plans nothing, with the network file, leaves the others their share" eval \
        '[ "$(shares KUMI_COLL=off)" = "$(share_of $(($(ls "$KUMI_TEST_PAGES"/??????.before | wc -l) - 1))) " ]'
    claim "$name hosts" "one with another network file: no share, and said" eval \
        'shares KUMI_TOPOLOGY="$work/slow.toml" | grep -qE "^( 0 0)+ $" && grep -q "no fair share: ranks have different" "$work/stdout"'
    claim "$name hosts" "one without the network file: no share" eval \
        'shares KUMI_TOPOLOGY= KUMI_COLL=off | grep -qE "^( 0 0)+ $"'
    claim "$name hosts" "one without the network file, as kumi run has it: the library's, and said" \
        differs "rank 1 on host r1 does not plan (no such file), but rank 0 on host r0 does" KUMI_COLL=off \
        KUMI_COLL_WHY="no such file"
    claim "$name hosts" "one with another network file: the library's, and said" \
        differs "rank 0 on host r0 and rank 1 on host r1 have different network files" KUMI_TOPOLOGY="$work/slow.toml"
    claim "$name hosts" "one with another libkumi: the library's, and said" \
        differs "rank 0 on host r0 and rank 1 on host r1 have different versions of libkumi.so" KUMI_COLL_LIBRARY="$work/libother.so"
    claim "$name hosts" "one with another list: the library's, and said" \
        differs "rank 0 on host r0 and rank 1 on host r1 have different --coll or --reproducible" KUMI_COLL=gather
    echo 0 >"$work/short"
    echo 9 >"$work/long"
    uneven_tally() { # uneven_tally BURSTS: of an alltoallv whose blocks differ; bursts of the second host
        KUMI_TEST_PART=uneven KUMI_TEST_BURSTS=$1 on_hosts "$suffix" 2>&1 >"$work/stdout" |
            grep "collectives were planned" && ! grep -q FAILED "$work/stdout"
    }
    at_once() { # at_once PROGRAM PART: ranks whose hosts all send short bursts
        KUMI_TEST_BURSTS=short KUMI_TEST_PROGRAM=$work/$suffix-$1 KUMI_TEST_PART=$2 on_hosts "$suffix"
    }
    # The other way is tried for four calls of a length, and too few follow for a comparison.
    claim "$name hosts" "with short bursts all: alltoallv is at first all at once under auto" eval \
        'at_once edges uneven 2>&1 | grep -qE "kumi: ([89]|1[0-9]) all-to-alls sent all blocks at once"'
    KUMI_TEST_VERBOSE=0 claims "$name hosts, all blocks at once" at_once collectives ""
    local case
    for case in alltoallv-short alltoallv-none; do
        # MPICH's launcher drops some messages of ranks that its own error handler ends.
        claim "$name hosts, all blocks at once" "$case ends the job" eval \
            'KUMI_TEST_HOW=return ends at_once mismatch $case &&
                grep -qiE "^kumi: .*different counts|truncated|MPI_ERROR field in MPI_Status" "$work/stdout"'
    done
    claim "$name hosts" "one with long bursts: alltoallv is at first planned under auto" eval \
        'uneven_tally long | grep -qE "kumi: ([89]|1[0-9]) collectives were planned"'
    c -fPIC -shared -o "$work/slow_library.so" "$here/slow_library.c"
    ln -sf "$KUMI_TEST_LIBRARY" "$work/libkumi.so.$abi"
    c -fPIC -shared -o "$work/slow_plan.so" "$here/slow_plan.c" -Wl,--no-as-needed \
        "$work/libkumi.so.$abi" -Wl,-rpath,"$work"
    tried() { # tried CALL CHOICE ASSIGNMENT: all comparisons of CALL end with CHOICE
        local comparison="^kumi: $1 from .* ms \(by plan\|all at once\), .* ms by the MPI library:"
        env "$3" KUMI_TEST_PART=repeated bash -c "$(declare -f on_hosts run_planned limit)
            work=$work; on_hosts $suffix" >"$work/stdout" 2>&1 && ! grep -q FAILED "$work/stdout" &&
            grep -q "$comparison" "$work/stdout" && ! grep "$comparison" "$work/stdout" | grep -qv ": $2\$"
    }
    claim "$name hosts" "under auto, a plan replaces a library that is measured to be slower" \
        tried MPI_Alltoall planned KUMI_TEST_PROFILER="$work/slow_library.so"
    claim "$name hosts" "under auto, all blocks at once stay, against a library that is measured to be slower" \
        eval 'KUMI_TEST_BURSTS=short tried MPI_Alltoall "all at once" KUMI_TEST_PROFILER="$work/slow_library.so"'
    claim "$name hosts" "under auto, the library replaces a plan that is measured to be slower" \
        tried MPI_Bcast "left to the MPI library" KUMI_TEST_LIBRARY="$work/slow_plan.so"
    claim "$name hosts" "one host under auto plans nothing" eval \
        '! KUMI_TEST_LIST=auto KUMI_VERBOSE=1 run_planned "$suffix" "$work/$suffix-edges" broadcast 2>&1 | grep "collectives were planned"'
}
on_hosts() { # on_hosts SUFFIX ASSIGNMENT...: a host name per rank; assignments for the second
    local suffix=$1
    shift
    KUMI_VERBOSE=${KUMI_TEST_VERBOSE:-1} KUMI_TEST_LIST=auto KUMI_TOPOLOGY=$work/one.toml KUMI_TEST_WORK=$work run_planned "$suffix" \
        unshare --uts --mount sh -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; hostname "r$rank"; program=$1; shift
            bursts=short
            [ $rank = 1 ] && bursts=$KUMI_TEST_BURSTS || set --
            [ -z "$KUMI_TEST_BURSTS" ] ||
                mount --bind "$KUMI_TEST_WORK/$bursts" /proc/sys/net/ipv4/tcp_tso_rtt_log
            exec env "$@" "$program" "${KUMI_TEST_PART-broadcast}" $KUMI_TEST_HOW' sh "${KUMI_TEST_PROGRAM:-$work/$suffix-edges}" "$@"
}
silent_python() { python3 "$@" >"$work/stdout" || { cat "$work/stdout"; return 1; }; }
run_ranks() { # run_ranks SUFFIX PROGRAM...
    local suffix=$1
    shift
    local options=()
    [ "$suffix" = openmpi ] && options=(--oversubscribe --allow-run-as-root --mca btl self,vader,tcp)
    limit "mpirun.$suffix" "${options[@]}" -np 2 "$work/with_page" "$@"
}
run_planned() { # run_planned SUFFIX PROGRAM...: few MPICH ranks, because they busy-wait
    local suffix=$1 ranks=5
    shift
    local options=(--oversubscribe --allow-run-as-root --mca mpi_yield_when_idle 1)
    [ "$suffix" = mpich ] && options=() ranks=${KUMI_TEST_RANKS:-3}
    KUMI_COLL=${KUMI_TEST_LIST:-all} KUMI_COLL_LIBRARY=$KUMI_TEST_LIBRARY limit \
        "mpirun.$suffix" "${options[@]}" -np $ranks "$work/with_page" "$@"
}
run_between_sites() { # run_between_sites SUFFIX PROGRAM...: a host per rank, two sites 10 ms apart
    local suffix=$1
    shift
    printf 'name = "far"\nswitch = [{ name = "s" }, { name = "t" }]\n' >"$work/far.toml"
    for rank in 0 1 2 3 4; do
        printf '[[host]]\nname = "r%d"\n[[link]]\nbetween = ["r%d", "%s"]\nrate = "1Gbit"\nlatency = "10us"\n' \
            $rank $rank "$([ $((rank % 2)) = 0 ] && echo s || echo t)"
    done >>"$work/far.toml"
    printf '[[link]]\nbetween = ["s", "t"]\nrate = "200Mbit"\nlatency = "10ms"\n' >>"$work/far.toml"
    KUMI_TOPOLOGY=$work/far.toml run_planned "$suffix" unshare --uts \
        sh -c 'hostname "r${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" && exec "$@"' sh "$@"
}
mpi "Open MPI" openmpi
mpi "MPICH" mpich

# --- Groups -----------------------------------------------------------------------------------
if [ -n "${KUMI_TEST_LIBRARY:-}" ]; then
    # Uses the distribution's Python, because another one on PATH may lack NumPy and PyTorch.
    groups_python=/usr/bin/python3
    [ -x $groups_python ] || groups_python=python3
    claims "Groups from Python" env KUMI_COLL_LIBRARY="$KUMI_TEST_LIBRARY" \
        timeout --kill-after=5 300 $groups_python "$here/groups.py"
    ln -sf "$KUMI_TEST_LIBRARY" "$work/libkumi.so.$abi"
    mpicc.openmpi -std=gnu11 -O2 -Wall -Wextra -Werror -I "$bindings/c" -I "$here" -o "$work/groups" \
        "$here/groups.c" "$here/expect.c" "$bindings/c/kumi_phase.c" "$work/libkumi.so.$abi" \
        -Wl,-rpath,"$work" || exit 1
    c -c -o "$work/version.o" -xc - <<<'const char *kumi_version(void) { return "9"; }'
    cc -shared -o "$work/another.so" "$work/version.o" || exit 1
    claim "Groups from Python" "a library with another interface is refused by its path" eval \
        '! KUMI_COLL_LIBRARY=$work/another.so python3 -c "import kumi._library as one; one.library()" 2>"$work/stderr" &&
            grep -q "another.so has interface 0: expected $abi" "$work/stderr"'
    c -I "$here" -o "$work/wind" "$here/wind.c" "$here/expect.c" "$bindings/c/kumi_phase.c" "$work/libkumi.so.$abi" \
        -Wl,-rpath,"$work" -lpthread
    claims "Wind from C" limit "$work/wind"
    claims "Wind from Python" limit env KUMI_COLL_LIBRARY="$KUMI_TEST_LIBRARY" $groups_python "$here/wind.py"
    c -o "$work/wind_counter" "$bindings/../examples/wind_counter.c" "$work/libkumi.so.$abi" -Wl,-rpath,"$work"
    counts() { # counts COMMAND...: the example counts in the memory of its server
        local serve=$bindings/../examples/wind_counter.py
        KUMI_COLL_LIBRARY=$KUMI_TEST_LIBRARY limit $groups_python "$serve" serve 127.0.0.1:24997 >"$work/stdout" &
        KUMI_COLL_LIBRARY=$KUMI_TEST_LIBRARY limit "$@" 127.0.0.1:24997
        local status=$?
        wait $! && [ $status = 0 ] && grep -qx "counted to 1000" "$work/stdout"
    }
    claim "Wind from Python" "the example counts" counts $groups_python "$bindings/../examples/wind_counter.py" count
    claim "Wind from C" "the example counts" counts "$work/wind_counter"
    job() { # job NODES COMMAND...: starts a process for each node
        local nodes=$1 node pid pids=() status=0
        shift
        for ((node = 0; node < nodes; node++)); do
            RANK=$node WORLD_SIZE=$nodes MASTER_ADDR=127.0.0.1 MASTER_PORT=24996 \
                KUMI_COLL_LIBRARY=$KUMI_TEST_LIBRARY limit "$@" &
            pids+=($!)
        done
        for pid in "${pids[@]}"; do wait "$pid" || status=1; done
        return $status
    }
    is_sequential() { job "$@" >"$work/stdout" && grep -qx ".*: the sequential result" "$work/stdout"; }
    claims "Shared memory from Python" job 2 $groups_python "$here/dsm.py"
    for example in himeno lu sor tsp; do
        c -o "$work/$example" "$bindings/../examples/dsm/$example.c" "$work/libkumi.so.$abi" \
            -Wl,-rpath,"$work" -lm
        claim "Shared memory from C" "$example has its result" is_sequential 3 "$work/$example"
    done
    for example in histogram matmul; do
        claim "Shared memory from Python" "$example has its result" \
            is_sequential 3 $groups_python "$bindings/../examples/dsm/$example.py"
    done
    survives() { # survives VICTIM: the example ends with its result though a node is killed
        local node pids=() status=0
        for node in 0 1 2 3; do
            RANK=$node WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=24996 KUMI_COLL_LIBRARY=$KUMI_TEST_LIBRARY \
                timeout --foreground 120 $groups_python "$bindings/../examples/dsm/survive.py" 3000 \
                >>"$work/stdout" 2>>"$work/stderr" &
            pids+=($!)
        done
        sleep 2
        pkill -9 -P "${pids[$1]}"
        for node in 0 1 2 3; do
            wait "${pids[$node]}" 2>/dev/null || [ "$node" = "$1" ] || status=1
        done
        [ $status = 0 ] && grep -qx "heat: the sequential result, with 3 nodes left" "$work/stdout" &&
            [ "$(grep -o "node $1 is lost: " "$work/stderr" | wc -l)" = 3 ]
    }
    for victim in 0 2; do
        : >"$work/stdout" >"$work/stderr"
        claim "Shared memory from Python" "the others go on when node $victim is killed" survives $victim
    done
    sed -n '/^import kumi.dsm/,/^```/{/^```/!p}' "$bindings/../README.md" >"$work/readme.py"
    claim "Shared memory from Python" "the README's example holds" eval \
        '[ -s "$work/readme.py" ] && job 3 $groups_python "$work/readme.py"'
    c -o "$work/dsm" "$here/dsm.c" "$here/expect.c" "$bindings/c/kumi_phase.c" "$work/libkumi.so.$abi" \
        -Wl,-rpath,"$work"
    claims "Shared memory from C" job 2 "$work/dsm"
    # shellcheck source=bindings/tests/shmem.sh
    . "$here/shmem.sh"
    printf '#include <kumi_dsm.h>\n#include <kumi_ranks.h>\n#include <kumi_wind.h>\nint main() { return kumi_abi() != KUMI_ABI; }\n' >"$work/in.cc"
    claim "Groups from C++" "the header compiles, and links" eval \
        'c++ -Wall -Wextra -Werror -I "$bindings/c" -o "$work/in_cc" "$work/in.cc" "$work/libkumi.so.$abi" \
            -Wl,-rpath,"$work" && "$work/in_cc"'
    claims "Groups from C" limit mpirun.openmpi --oversubscribe --allow-run-as-root -np 3 "$work/groups"
    for transport in wind wind-puts; do
        claims "Groups from C over $transport" limit mpirun.openmpi --oversubscribe --allow-run-as-root -np 3 \
            env KUMI_TRANSPORT=$transport "$work/groups"
    done
    if command -v fi_pingpong >/dev/null && [ -e /usr/include/rdma/providers/fi_prov.h ]; then
        # shellcheck source=bindings/tests/libfabric.sh
        . "$here/libfabric.sh"
    else
        echo "skipped libfabric: no fi_pingpong, or no headers of libfabric"
    fi
fi

exit $failed
