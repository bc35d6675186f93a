#!/usr/bin/env bash
# Runs every check of this repository on a fresh Debian 12 with Rust: installs missing packages,
# builds, runs, and leaves nothing behind.
#   scripts/test.sh               all steps
#   scripts/test.sh --quick       the steps that run cargo only: fmt clippy doc purity test
#   scripts/test.sh --within MIN  all steps except those that would not end within MIN minutes; the
#                                 summary names them
#   scripts/test.sh --no-skips    a test or step that is skipped is a failure
#   scripts/test.sh STEP...       the named steps: fmt clippy doc purity loom miri test rxe ports
#                                 dpdk fabric reproduction swarm frames pfc programs pyverbs
#                                 replay install demo action profiles mutants deny book
# Without root, steps that need it are skipped; so are tests that need root, or something that this
# machine lacks. The summary names each of them with its reason.
# The last line counts the steps. Exit code: 0 if none failed, 1 if one failed or something is
# missing, 2 for wrong usage, 3 if none failed and --within has left steps out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/lib.sh

ALL="fmt clippy doc purity loom miri test rxe ports dpdk fabric reproduction swarm frames pfc"
ALL+=" programs pyverbs replay install demo action profiles mutants deny book"
readonly ALL
readonly QUICK="fmt clippy doc purity test"
readonly NEED_ROOT="rxe ports dpdk fabric frames pfc programs pyverbs replay install demo action"
# Packages that build the bindings of libxdp and libdpdk, capture and decode packets, make and
# inspect namespaces, and run scapy.
readonly PACKAGES=(libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool
    bpftool tshark iputils-ping zstd valgrind python3-venv libdpdk-dev libclang-dev libibverbs-dev
    librdmacm-dev gcc ibverbs-utils ibverbs-providers perftest nftables jq)
readonly HUGEPAGES=256 # of 2 MiB: for several pairs of devices at a time
readonly SCENARIOS=100000
# Seconds that a step takes on two slow cores, with its builds. The first of install and profiles
# builds everything in the release profile. Other steps take less than $BRIEF.
declare -A TAKES=([test]=1100 [fabric]=120 [ports]=250 [dpdk]=300 [mutants]=180 [install]=400
    [demo]=240 [profiles]=400 [programs]=300 [action]=60 [rxe]=560 [deny]=150 [book]=130
    [swarm]=150 [reproduction]=600)
readonly TAKES BRIEF=120

main() {
    local steps=$ALL within=''
    while [[ "${1-}" == -* ]]; do
        case $1 in
            --quick) steps=$QUICK ;;
            --no-skips) may_skip=false ;;
            --within) within=${2-} && [[ $within =~ ^[0-9]+$ ]] && shift || wrong_usage ;;
            -h | --help) usage && exit ;;
            *) wrong_usage ;;
        esac
        shift
    done
    [ $# = 0 ] || steps=$*
    for step in $steps; do
        [[ " $ALL " == *" $step "* ]] || wrong_usage
    done
    # Without root, a step that needs a missing package fails and says so.
    [ "$(id -u)" != 0 ] || need_packages "${PACKAGES[@]}"
    need_rust
    export BUILD_PROFILE=${BUILD_PROFILE:-test} # Scripts then run what the tests have built.
    reserve_hugepages "$HUGEPAGES"
    hasten_rcu
    skips=$(mktemp) && chmod 666 "$skips" || die "cannot make a file for skipped tests"
    at_exit "rm -f '$skips'"
    export SKIPPED_TESTS=$skips
    local before after
    before=$(belongings)
    for step in $steps; do
        if [ "$(id -u)" != 0 ] && [[ " $NEED_ROOT " == *" $step "* ]]; then
            run "$step" needs_root
        elif [ -z "$within" ] ||
            [ $((SECONDS + ${TAKES[$step]:-$BRIEF})) -le $((within * 60)) ]; then
            run "$step" "step_$step"
        else
            leave_out "$step"
        fi
    done
    after=$(belongings)
    run leftovers nothing_new "$before" "$after"
    summary
}

wrong_usage() { usage >&2 && exit 2; }

# ---- steps: exit code 0 is a pass, 77 a skip
#
# All build the whole workspace: for fewer packages, dependencies would have other features and
# cargo would build every crate again.

# rustfmt does not find the algorithms, whose modules a macro declares.
step_fmt() {
    cargo fmt --all --check &&
        rustfmt --check --edition 2024 congestion/src/algorithm/*.rs
}

step_clippy() { without_libdpdk cargo clippy --workspace --all-targets -- -D warnings; }

step_doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps; }

# The crates wire and congestion need no std. clippy.toml and tests/tests/tidy.rs list what the core
# must not name.
step_purity() {
    cargo check -p feroce-wire --no-default-features && cargo check -p feroce-congestion
}

step_deny() {
    command -v cargo-deny > /dev/null || cargo install --quiet --locked --debug cargo-deny || return
    if timeout 60 cargo deny fetch db > /dev/null 2>&1; then
        cargo deny --log-level error check
    else
        echo "the advisory database cannot be fetched from here: advisories are not checked"
        cargo deny --log-level error check bans licenses sources
    fi
}

step_test() {
    without_libdpdk cargo test --workspace --no-fail-fast && knows_no_dpdk "$target/debug/feroce"
}

# Checks reports in a browser.
step_fabric() {
    need_packages chromium
    cargo test --workspace --test fabric_report --test conform_report -- --ignored
}

# Runs the gates of every scenario, two cases at a time. Fails if one does not hold, or if the
# committed report is not what this commit produces.
step_reproduction() {
    cargo test --release --workspace --test fabric_reproduction -- --ignored
}

# Compares the same bytes in the release profile.
step_profiles() { cargo test --release --workspace --test fabric_scenarios scenario_and_seed; }

# Runs the tests with replaceable ports, and a small swarm, on the kernel's ports.
step_ports() {
    test_on af_xdp && test_on packet || return
    note "on packet, in super-frames"
    FEROCE_RIG=super-frames FEROCE_SWARM=1000 cargo test --workspace --test swarm --test progress
}

# test_on KIND: runs those tests on ports of that kind.
test_on() {
    local kind=$1 test tests=()
    for test in tests/tests/rc_*.rs tests/tests/{progress,last_byte,no_alloc,swarm}.rs; do
        tests+=(--test "$(basename "$test" .rs)")
    done
    note "on $kind"
    FEROCE_RIG=$kind FEROCE_SWARM=1000 cargo test --no-fail-fast --workspace "${tests[@]}"
}

# The workspace builds without libdpdk. The feature adds a port. This step runs those tests of the
# port that need DPDK, and some of those of every port; all of them would take two minutes more.
step_dpdk() {
    local with=(--workspace --features "feroce/dpdk,feroce-tests/dpdk") crate
    for crate in conform pfc-tools; do # Not used here: compiled fast.
        with+=(--config "profile.test.package.feroce-$crate.opt-level=0")
    done
    cargo clippy "${with[@]}" --lib --bins --test dpdk --test outage -- -D warnings &&
        RUSTDOCFLAGS="-D warnings" cargo doc -p feroce-engine --features dpdk --no-deps &&
        cargo test "${with[@]}" --test dpdk &&
        cargo test "${with[@]}" --test outage on_dpdk &&
        FEROCE_RIG=dpdk FEROCE_SWARM=1000 cargo test "${with[@]}" \
            --test rc_basic --test rc_retry --test progress --test swarm
}

knows_no_dpdk() { # PROGRAM
    local libraries
    libraries=$(ldd "$1") || return
    [[ "$libraries" != *librte_* ]] || { echo "$1 needs libdpdk, without the feature"; return 1; }
}

# without_libdpdk COMMAND...: runs COMMAND with a pkg-config that does not find libdpdk.
without_libdpdk() {
    local folder status
    folder=$(mktemp -d) || return
    printf '#!/bin/sh\ncase " $* " in *libdpdk*) exit 1 ;; esac\nexec %s "$@"\n' \
        "$(command -v pkg-config)" > "$folder/pkg-config"
    chmod +x "$folder/pkg-config"
    if PATH="$folder:$PATH" pkg-config --exists libdpdk; then
        echo "libdpdk cannot be hidden"
        return 1
    fi
    PATH="$folder:$PATH" "$@"
    status=$?
    rm -r "$folder"
    return $status
}

step_swarm() {
    FEROCE_SWARM=$SCENARIOS cargo test --workspace --test swarm --test services -- --nocapture
}

# One mutant, to check that mutants are made and caught. scripts/mutants.sh without names tries all,
# which takes half a minute each.
step_mutants() { scripts/mutants.sh psn-wrap loom-cq-push-without-fence; }

# Tries all orders of the steps of the rings and wake-up protocols with at most three preemptions:
# engine/loom.
step_loom() {
    CARGO_TARGET_DIR=$target/loom cargo run --quiet --manifest-path engine/loom/Cargo.toml
}

# Runs the tests of objects that C programs hold in an interpreter that finds undefined behaviour.
# (It cannot run what the engine's tests ask of the system; packets are parsed without `unsafe`.)
# It needs `rustup component add --toolchain nightly miri rust-src`.
step_miri() {
    cargo +nightly miri --version > /dev/null 2>&1 || {
        echo "no nightly toolchain with miri"
        return 77
    }
    CARGO_TARGET_DIR=$target/miri \
        MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" \
        cargo +nightly miri test --quiet -p feroce-verbs-abi --lib -- object:: \
        --skip forked_child --skip an_object_in_use
}

step_frames() { scripts/frames.sh && scripts/pfc-frames.sh; }

# Measures how well an endpoint obeys pauses, on two ports. scripts/pfc-endpoint.sh without --short
# has more rates and pauses.
step_pfc() { scripts/pfc-endpoint.sh --short; }

# Checks what users install.
step_install() { BUILD_PROFILE=release scripts/check-install.sh; }

# What README.md shows first.
step_demo() {
    scripts/demo.sh &&
        cargo run --profile demo --bin feroce -- fabric run fig12
}

# The documentation as a book, without a broken link. mdBook is built once.
step_book() { scripts/book.sh; }

# The GitHub action and its example workflow, as an ordinary user.
step_action() { scripts/check-action.sh; }

# The distribution's programs, with Feroce at both ends; tshark and scapy judge packets of UC, UD
# and XRC. Some rows of each library as an ordinary user. Not here: scripts/programs.sh --valgrind,
# which takes minutes more.
step_programs() {
    local unprivileged='^ucx |^cm (rping|ucmatose|fio)|^rsocket .* rstream|^write RC bandwidth ib'
    scripts/programs.sh &&
        scripts/programs.sh --judge '^(uc|ud|xrc) [A-Z]+ bandwidth|^pingpong (UC|UD|XRC)' &&
        scripts/programs.sh --unprivileged "$unprivileged"
}

# rdma-core's own Python suite.
# Its tests of RDMA CM are two processes on one interface, which a daemon allows.
step_pyverbs() { scripts/pyverbs.sh && scripts/pyverbs.sh --built --daemon test_rdmacm; }

# Linux rxe, live in a guest. Not here: the same on the DPDK port, which takes three minutes more,
# and scripts/programs.sh --peer rxe, unmodified programs.
step_rxe() { scripts/rxe.sh --port af_xdp --port packet; }

# Plays the requests of captures to Feroce and to the guest: the responses must be the captured
# ones.
step_replay() { scripts/replay-live.sh; }

needs_root() { echo "needs root" && return 77; }

# ---- before and after

need_rust() {
    find_cargo
    export PATH="${cargo%/*}:$PATH" # sudo's PATH lacks it.
    if ! cargo clippy --version > /dev/null 2>&1 || ! cargo fmt --version > /dev/null 2>&1; then
        rustup component add clippy rustfmt ||
            die "clippy and rustfmt are missing, and rustup cannot add them"
    fi
}

# Prints what a test might leave behind, one per line.
belongings() {
    ip netns list 2> /dev/null | awk '/^fr-/ { print "namespace", $1 }'
    bpftool prog show 2> /dev/null |
        awk '$2 == "xdp" || $2 == "sched_cls" { print "program", $1, $4 }'
    for exe in /proc/[0-9]*/exe; do
        [[ "$(readlink "$exe" 2> /dev/null)" == "$target"/* ]] && echo "process ${exe//[^0-9]/}"
    done
    awk '/HugePages_Total/ { total = $2 }
        /HugePages_Free/ { for (n = 1; n <= total - $2; n++) print "hugepage in use, number", n }' \
        /proc/meminfo
}

nothing_new() {
    local new
    new=$(comm -13 <(sort <<< "$1") <(sort <<< "$2"))
    [ -z "$new" ] && echo "no namespace, XDP program, process or hugepage was left" && return
    echo "left behind:"
    echo "$new"
    return 1
}

# ---- running and reporting

results=()
passed=0 failed=0 skipped=0 left_out=0
may_skip=true
skips='' # The file with a line for each skipped test: its name, a tab, the reason.

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

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
main "$@"
