# The steps of scripts/test.sh and scripts/nightly.sh: runs each, sums them up, and looks for what
# they left behind. Sourced by both, after lib.sh.
# shellcheck shell=bash

readonly HUGEPAGES=256 # of 2 MiB: for several pairs of devices at a time
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

before='' # What was there before the first step: see `belongings`.
results=()
passed=0 failed=0 skipped=0 left_out=0
may_skip=true
skips='' # The file with a line for each skipped test: its name, a tab, the reason.

# prepare: what every step relies on; undone when the script ends.
prepare() {
    need_rust
    reserve_hugepages "$HUGEPAGES"
    hasten_rcu
    skips=$(mktemp) && chmod 666 "$skips" || die "cannot make a file for skipped tests"
    at_exit "rm -f '$skips'"
    export SKIPPED_TESTS=$skips
    before=$(belongings)
}

need_rust() {
    find_cargo
    export PATH="${cargo%/*}:$PATH" # sudo's PATH lacks it.
    if ! cargo clippy --version > /dev/null 2>&1 || ! cargo fmt --version > /dev/null 2>&1; then
        rustup component add clippy rustfmt ||
            die "clippy and rustfmt are missing, and rustup cannot add them"
    fi
}

run() { # NAME COMMAND...
    local name=$1 start=$SECONDS status verdict tests
    shift
    tests=$(wc -l < "$skips")
    echo && say "$name"
    "$@" < /dev/null
    status=$?
    case $status in
        0) verdict=passed passed=$((passed + 1)) ;;
        77) verdict=skipped skipped=$((skipped + 1)) ;;
        *) verdict="FAILED ($status)" failed=$((failed + 1)) ;;
    esac
    tests=$(($(wc -l < "$skips") - tests))
    [ "$tests" = 0 ] || verdict+=", $tests tests skipped"
    results+=("$(printf '%-10s %5d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

leave_out() { # NAME
    skipped=$((skipped + 1)) left_out=$((left_out + 1))
    results+=("$(printf '%-10s          not run: %d minutes are over in %d s' \
        "$1" "$within" $((within * 60 - SECONDS)))")
}

summary() {
    echo && say "summary"
    printf '%s\n' "${results[@]}"
    skipped_tests
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] || return 1
    if ! $may_skip && { [ "$skipped" != 0 ] || [ -s "$skips" ]; }; then
        echo "failed: nothing may be skipped with --no-skips"
        return 1
    fi
    [ "$left_out" = 0 ] || return 3
}

# Prints each reason for which tests were skipped, and under it the tests.
skipped_tests() {
    sort -u "$skips" | awk -F '\t' '
        { tests[$2] = tests[$2] "\n    " $1; count[$2]++ }
        END { for (why in tests) printf "skipped tests, %d: %s%s\n", count[why], why, tests[why] }'
}

# Prints the tests with replaceable ports, as options of cargo, one word in a line.
port_tests() {
    local test
    for test in tests/tests/rc_*.rs tests/tests/{progress,last_byte,no_alloc,swarm}.rs; do
        printf '%s\n' --test "$(basename "$test" .rs)"
    done
}

# is_ours PID: succeeds if the process runs a program that was built here, or was started by one of
# the steps: it then has inherited the variable.
is_ours() {
    [[ "$(readlink "/proc/$1/exe" 2> /dev/null)" == "$target"/* ]] ||
        grep -zqxF "SKIPPED_TESTS=$skips" "/proc/$1/environ" 2> /dev/null
}

# Prints what a test might leave behind, one per line, without the hugepages and the XDP programs of
# other programs on this machine. Only root has namespaces with names.
belongings() {
    local id name exe pid foreign=0 pages
    [ "$(id -u)" != 0 ] || ip netns list 2> /dev/null | awk '/^fr-/ { print "namespace", $1 }'
    while read -r id name; do
        pid=${name#feroce_}
        [ -e "/proc/$pid" ] && ! is_ours "$pid" || echo "program $id $name"
    done < <(bpftool prog show 2> /dev/null |
        awk '$2 == "xdp" || $2 == "sched_cls" { print $1, $4 }')
    for exe in /proc/[0-9]*/exe; do
        pid=${exe//[^0-9]/}
        [[ "$(readlink "$exe" 2> /dev/null)" != "$target"/* ]] || echo "process $pid"
        pages=$(awk '/^HugetlbPages/ { print int($2 / 2048) }' "/proc/$pid/status" 2> /dev/null)
        [ "${pages:-0}" = 0 ] || is_ours "$pid" || foreign=$((foreign + pages))
    done
    awk -v foreign="$foreign" '/HugePages_Total/ { total = $2 }
        /HugePages_Free/ {
            for (n = 1; n <= total - $2 - foreign; n++) print "hugepage in use, number", n
        }' /proc/meminfo
}

# Lists up to four times: what one of the lists lacks comes and goes, and was not left behind.
nothing_left() {
    local new _
    new=$(comm -13 <(sort <<< "$before") <(belongings | sort))
    for _ in 1 2 3; do
        [ -n "$new" ] || break
        sleep 1
        new=$(comm -12 <(echo "$new") <(belongings | sort))
    done
    [ -z "$new" ] && echo "no namespace, XDP program, process or hugepage was left" && return
    echo "left behind:"
    echo "$new"
    return 1
}
