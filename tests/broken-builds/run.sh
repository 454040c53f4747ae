#!/usr/bin/env bash
# Builds copies of the source with a fault in each, and requires that the checks of the plans
# wind-semantics, dsm-litmus and dsm-crash find it: `make test-broken-builds`. The build without a
# fault must pass them.
#
#   tests/broken-builds/run.sh [FAULT...]    default: all files *.patch beside this one
#
# A patch begins with what is broken, and with the figure that must not be 0: "Found as: FIGURE". The
# figure "no answer" stands for a run that ends because nothing arrives any more. A patch whose name
# begins with `dsm-loss-` is for the plan dsm-loss-broken, with `dsm-` for dsm-broken; others are for
# wind-broken.
set -euo pipefail
cd "$(dirname "$0")/../.."
faults=$PWD/tests/broken-builds
work=$PWD/target/broken-builds
tree=$work/tree
[ "$(id -u)" = 0 ] || { echo "needs root, for network namespaces: sudo $0" >&2; exit 2; }

mkdir -p "$work/bench/plans" "$work/tree"
rm -rf "$work/bench/topologies"
cp -r bench/topologies "$work/bench/"
cp "$faults"/*.toml "$work/bench/plans/"
# The files as they are here, so that a change is tested before its commit. One that is the same keeps
# its time, so that only what depends on a change is built.
update() {
    local file
    while IFS= read -r -d '' file; do
        [ -f "$file" ] || rm "$tree/$file"
    done < <(cd "$tree" && find . -type f -print0)
    while IFS= read -r -d '' file; do
        [ ! -f "$file" ] || cmp -s "$file" "$tree/$file" || cp --parents "$file" "$tree"
    done < <(git ls-files -z --cached --others --exclude-standard)
}

# Returns the plan for a fault.
plan_of() {
    case $1 in
        dsm-loss-*) echo dsm-loss-broken ;;
        dsm-*) echo dsm-broken ;;
        *) echo wind-broken ;;
    esac
}

# Builds the tree and runs the plan $1. Writes what the plan prints, and its rows.
check() {
    (cd "$tree" && CARGO_TARGET_DIR=$work/target cargo build --quiet --package kumi) ||
        { echo "broken-builds: the build fails" >&2; exit 1; }
    "$work/target/debug/kumi" bench --folder "$work/bench" --results "$work/results" "$1" \
        >"$work/output.txt" 2>&1
}

# Returns whether a fault was found as the figure $1 of the plan $2.
is_found() {
    case $1 in
        'no answer') grep -q 'did not run: .*no answer' "$work/output.txt" ;;
        *) grep -qE "\"$1\":[1-9]" "$work/results/$2.ndjson" ;;
    esac
}

update
for plan in wind-broken dsm-broken dsm-loss-broken; do
    check $plan ||
        { cat "$work/output.txt"; echo "broken-builds: the build without a fault fails $plan" >&2; exit 1; }
done
echo "passed      without a fault"
missed=0
[ $# -gt 0 ] || set -- $(cd "$faults" && ls | sed -n 's/\.patch$//p')
for name; do
    figure=$(sed -n 's/^Found as: //p' "$faults/$name.patch")
    patch --quiet --strip=1 --directory="$tree" <"$faults/$name.patch" ||
        { echo "broken-builds: $name.patch does not fit the source any more: renew it" >&2; exit 1; }
    plan=$(plan_of "$name")
    if check "$plan" || ! is_found "$figure" "$plan"; then
        cat "$work/output.txt"
        echo "NOT FOUND   $name, as $figure"
        missed=$((missed + 1))
    else
        echo "found       $name, as $figure"
    fi
    update
done
[ "$missed" = 0 ]
