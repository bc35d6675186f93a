#!/usr/bin/env bash
# Do the tests notice when the engine is wrong? Each patch in tests/mutants breaks one rule on purpose; the
# test that it names must fail.
#   scripts/mutants.sh             all of them
#   scripts/mutants.sh NAME...     the named ones (file names without .patch)
# Exit code 0 if all are caught, 1 if one survives, does not apply, or does not build, 2 for wrong usage.
# FEROCE_MUTANT_SCENARIOS sets how many scenarios the swarm may need.
set -euo pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/lib.sh

readonly PATCHES=tests/mutants
readonly SCENARIOS=${FEROCE_MUTANT_SCENARIOS:-20000}
readonly LIMIT=300 # seconds that a test may take

# Both are kept between runs, so that only what a patch touches is built again.
base=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/mutants
readonly base tree=$base/tree

main() {
    local names=("$@") patch
    if [ $# = 0 ]; then
        for patch in "$PATCHES"/*.patch; do names+=("$(basename "$patch" .patch)"); done
    fi
    for name in "${names[@]}"; do
        [ -f "$PATCHES/$name.patch" ] || die "no mutant is called $name"
    done
    # A smaller optimisation builds faster; the swarm is quick enough.
    export CARGO_TARGET_DIR=$base/build CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=0 \
        CARGO_INCREMENTAL=1 FEROCE_SWARM=$SCENARIOS
    unset FEROCE_SEED FEROCE_SWARM_FROM
    copy_tree
    local survivors=0
    check_unharmed "${names[@]}"
    printf '%-28s %-10s %-28s %s\n' mutant test 'caught by' seconds
    for name in "${names[@]}"; do
        check_mutant "$name" || survivors=$((survivors + 1))
    done
    [ "$survivors" = 0 ] || die "$survivors of ${#names[@]} mutants were not caught"
    say "all ${#names[@]} mutants were caught"
}

# The files of the working tree, without what git ignores. Files that are the same already stay untouched, so that
# cargo sees what has changed, also after a run that was interrupted.
copy_tree() {
    local list=$base/files file
    mkdir -p "$tree"
    git ls-files --cached --others --exclude-standard | while IFS= read -r file; do
        [ ! -e "$file" ] || printf '%s\n' "$file"
    done | sort > "$list"
    (cd "$tree" && find . -type f -printf '%P\n') | sort | comm -23 - "$list" | while IFS= read -r file; do
        rm -f "$tree/$file"
    done
    while IFS= read -r file; do
        cmp --silent "$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")" && cp "$file" "$tree/$file"; }
    done < "$list"
}

test_of() { sed -n 's/^Caught by: //p' "$PATCHES/$1.patch"; }

# build TEST: builds it in the copy; its path is in $binary.
build() {
    local log=$base/build.log
    (cd "$tree" && cargo test --quiet -p feroce-tests --test "$1" --no-run --message-format=json) > "$log" 2> "$log.err" ||
        { cat "$log.err" >&2; return 1; }
    binary=$(sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p' "$log" | tail -1)
    [ -x "$binary" ]
}

# Before anything is broken, the tests pass.
check_unharmed() {
    local test
    for test in $(for name in "$@"; do test_of "$name"; done | sort -u); do
        progress "building $test"
        build "$test" || die "$test does not build"
        progress "running $test on the unharmed engine"
        (cd "$tree/tests" && timeout "$LIMIT" "$binary") > "$base/run.log" 2>&1 ||
            { tail -40 "$base/run.log" >&2; die "$test fails on the unharmed engine"; }
    done
    progress
}

# check_mutant NAME: patches the copy, runs the test, takes the patch back; fails unless the test does.
check_mutant() {
    local name=$1 test result status=0 start=$SECONDS
    test=$(test_of "$name")
    progress "$name"
    result=$(try "$name" "$test") || status=1
    progress
    printf '%-28s %-10s %-28s %s\n' "$name" "$test" "$result" $((SECONDS - start))
    return "$status"
}

# try NAME TEST: prints what caught the mutant, or why nothing did.
try() {
    local patch=$PWD/$PATCHES/$1.patch code=0
    (cd "$tree" && patch --strip 1 --quiet --forward --dry-run < "$patch" > "$base/patch.log" 2>&1) ||
        { echo 'DOES NOT APPLY'; return 1; }
    (cd "$tree" && patch --strip 1 --quiet --no-backup-if-mismatch < "$patch")
    build "$2" || code=250
    if [ $code = 0 ]; then
        (cd "$tree/tests" && timeout "$LIMIT" "$binary") > "$base/run.log" 2>&1 || code=$?
    fi
    (cd "$tree" && patch --strip 1 --quiet --reverse --no-backup-if-mismatch < "$patch")
    case $code in
        101) caught_by ;; # A test failed.
        0) echo 'NOTHING' && return 1 ;;
        250) echo 'DOES NOT BUILD' && return 1 ;;
        124) echo 'HANGS' && return 1 ;;
        *) echo "CRASH ($code)" && return 1 ;;
    esac
}

# The first seed that failed, or the test.
caught_by() {
    local seed
    seed=$(sed -n 's/^seed \([0-9]*\): .*/\1/p' "$base/run.log" | sort -n | head -1)
    if [ -n "$seed" ]; then
        echo "seed $seed"
    else
        sed -n 's/^test \([a-z_:]*\) .*FAILED$/\1/p' "$base/run.log" | head -1
    fi
}

case "${1-}" in
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    -*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
esac
main "$@"
