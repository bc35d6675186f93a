#!/usr/bin/env bash
# Runs the checks of this repository on a fresh Debian 12 with Rust: installs missing packages,
# builds, runs, and leaves nothing behind. What takes hours is in scripts/nightly.sh.
#   scripts/test.sh               all steps
#   scripts/test.sh --quick       the steps that run cargo only: fmt clippy doc purity test
#   scripts/test.sh --within MIN  all steps except those that would not end within MIN minutes; the
#                                 summary names them
#   scripts/test.sh --no-skips    a test or step that is skipped is a failure
#   scripts/test.sh STEP...       the named steps: fmt clippy doc purity loom miri test rxe ports
#                                 programs pyverbs replay frames pfc action fabric swarm install
#                                 demo deny book mutants reproduction dpdk instructions
# Without root, steps that need it are skipped; so are tests that need root, or something that this
# machine lacks. The summary names each of them with its reason.
# The last line counts the steps. Exit code: 0 if none failed, 1 if one failed or something is
# missing, 2 for wrong usage, 3 if none failed and --within has left steps out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/lib.sh
. scripts/steps.sh

# Those that wait most come after test: builds of the later ones use the time (`build_ahead`). The
# last two build `feroce` with another feature, and in the profile release.
ALL="fmt clippy doc purity loom miri test rxe ports programs pyverbs replay frames pfc action"
ALL+=" fabric swarm install demo deny book mutants reproduction dpdk instructions"
readonly ALL
readonly QUICK="fmt clippy doc purity test"
readonly NEED_ROOT="rxe ports dpdk fabric frames pfc programs pyverbs replay install demo action"
# Packages that build the bindings of libxdp and libdpdk, capture and decode packets, make and
# inspect namespaces, and run scapy.
readonly PACKAGES=(libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool
    bpftool tshark iputils-ping zstd valgrind python3-venv libdpdk-dev libclang-dev libibverbs-dev
    librdmacm-dev gcc ibverbs-utils ibverbs-providers perftest nftables jq)
readonly SCENARIOS=100000
# Two, to check that mutants are made and caught.
readonly MUTANTS=(psn-wrap loom-cq-push-without-fence)
# Seconds that a step takes on two slow cores, with its builds. Other steps take less than $BRIEF.
declare -A TAKES=([clippy]=240 [test]=1200 [rxe]=400 [ports]=150 [programs]=300 [dpdk]=230
    [miri]=200 [mutants]=150 [reproduction]=300 [instructions]=400 [demo]=90 [deny]=60 [book]=60)
readonly TAKES BRIEF=120
# The toolchain with which the step miri was tried. It is installed where there is no other nightly.
readonly MIRI_TOOLCHAIN=nightly-2026-05-20

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
    export BUILD_PROFILE=${BUILD_PROFILE:-test} # Scripts then run what the tests have built.
    prepare
    limit_programs
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
    run leftovers nothing_left
    summary
}

wrong_usage() { usage >&2 && exit 2; }

runner='' # The name of the variable that tells cargo how to start programs; see limit_programs.

# Ends what `cargo test` or `cargo run` starts after 10 minutes; the longest program takes two on a
# slow machine. A test that hangs has been named by then.
limit_programs() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<< "$host")_RUNNER
    export PATH=$PWD/scripts:$PATH # cargo splits a runner at spaces, also those of a path.
    export "$runner=limited.sh 600"
}

# ---- builds ahead: tests wait for timers and peers, and leave one of two processors idle

# Steps that build outside of target/debug, which is in use.
readonly BUILDERS="demo mutants deny book"
build_demo() {
    cargo build --quiet --profile demo --package feroce --no-default-features &&
        cargo build --quiet --profile demo --bin feroce
}
build_deny() {
    command -v cargo-deny > /dev/null || cargo install --quiet --locked --debug cargo-deny
}
build_mutants() { scripts/mutants.sh --build "${MUTANTS[@]}"; }
build_book() { scripts/book.sh --build; }

# Starts the builds of the chosen steps in the background, where no test wants a processor.
finished='' ahead='' # The file that names the finished builds; the background process.
build_ahead() {
    local step
    finished=$(mktemp)
    set -m # A process group of its own.
    {
        chrt --idle --pid 0 $BASHPID
        for step in $BUILDERS; do
            [[ " $steps " != *" $step "* ]] || "build_$step"
            echo "$step" >> "$finished"
        done
    } > /dev/null 2>&1 &
    ahead=$!
    set +m
    at_exit "kill -- -$ahead 2> /dev/null; rm -f '$finished'"
}

# built_ahead STEP: waits until the background has built it, or has tried.
built_ahead() {
    while [ -n "$ahead" ] && kill -0 "$ahead" 2> /dev/null && ! grep -qx "$1" "$finished"; do
        sleep 1
    done
}

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
    built_ahead deny
    build_deny || return
    if timeout 60 cargo deny fetch db > /dev/null 2>&1; then
        cargo deny --log-level error check
    else
        echo "the advisory database cannot be fetched from here: advisories are not checked"
        cargo deny --log-level error check bans licenses sources
    fi
}

step_test() {
    without_libdpdk cargo test --workspace --no-run || return
    build_ahead
    without_libdpdk cargo test --workspace --no-fail-fast && knows_no_dpdk "$target/debug/feroce"
}

# Checks reports in a browser.
step_fabric() {
    need_packages chromium
    cargo test --workspace --test browser -- --ignored
}

# Runs every scenario and compares the results with the committed report.
step_reproduction() {
    cargo test --workspace --test fabric_reproduction -- --ignored the_committed_report
}

# Runs the tests with replaceable ports, and a small swarm, on the kernel's ports.
step_ports() {
    test_on af_xdp && test_on packet || return
    note "on packet, in super-frames"
    FEROCE_RIG=super-frames FEROCE_SWARM=1000 cargo test --workspace --test swarm --test progress
}

# test_on KIND: runs those tests on ports of that kind.
test_on() {
    local tests
    mapfile -t tests < <(port_tests)
    note "on $1"
    FEROCE_RIG=$1 FEROCE_SWARM=1000 cargo test --no-fail-fast --workspace "${tests[@]}"
}

# The workspace builds without libdpdk. The feature adds a port. This step runs those tests of the
# port that need DPDK, and some of those of every port.
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

step_mutants() {
    built_ahead mutants
    scripts/mutants.sh "${MUTANTS[@]}"
}

# Tries all orders of the steps of the rings and wake-up protocols with at most three preemptions:
# engine/loom.
step_loom() {
    CARGO_TARGET_DIR=$target/loom cargo run --quiet --manifest-path engine/loom/Cargo.toml
}

# Runs tests of code with `unsafe` in an interpreter that finds undefined behaviour: the objects
# that C programs hold, the requests that they pass, copies of shared memory, the table of regions,
# and queues. (It knows few system calls: rings need a memfd. Packets are parsed without `unsafe`.)
step_miri() {
    local toolchain
    toolchain=$(with_miri) || { add_miri && toolchain=$(with_miri); } || {
        echo "no Miri: rustup component add --toolchain nightly miri rust-src"
        return 77
    }
    # In one command: three would build the dependencies with three sets of features. Without the
    # runner: it would start, without Miri, what was built for Miri.
    CARGO_TARGET_DIR=$target/miri \
        MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" \
        env -u "$runner" limited.sh 1200 cargo "+$toolchain" miri test --quiet --lib \
        -p feroce-verbs-abi -p feroce-libibverbs -p feroce-engine -- \
        object:: post:: memory::copy memory::region memory::queue
}

# Compares the instructions per message with the last entry of tests/figures.csv.
step_instructions() { scripts/bench.sh --compare "icount: 64 B"; }

# with_miri: prints the name of a toolchain with Miri.
with_miri() {
    local name
    for name in nightly "$MIRI_TOOLCHAIN"; do
        cargo "+$name" miri --version > /dev/null 2>&1 && echo "$name" && return
    done
    return 1
}

# Continuous integration installs Miri; nobody else's toolchains are changed.
add_miri() {
    [ -n "${CI-}" ] || return
    timeout 300 rustup component add --toolchain nightly miri rust-src ||
        timeout 300 rustup toolchain install "$MIRI_TOOLCHAIN" --profile minimal \
            --component miri --component rust-src
}

step_frames() { scripts/frames.sh && scripts/pfc-frames.sh; }

# Measures how well an endpoint obeys pauses, on two ports.
step_pfc() { scripts/pfc-endpoint.sh --short; }

# Checks what users install; here with the programs that the tests have built.
step_install() { scripts/check-install.sh; }

# What README.md shows first.
step_demo() {
    built_ahead demo
    scripts/demo.sh &&
        cargo run --profile demo --bin feroce -- fabric run fig12
}

# The documentation as a book, without a broken link. mdBook is built once.
step_book() {
    built_ahead book
    scripts/book.sh
}

# The GitHub action and its example workflow, as an ordinary user.
step_action() { scripts/check-action.sh; }

# The distribution's programs, with Feroce at both ends; tshark and scapy judge packets of UC, UD
# and XRC. Some rows of each library as an ordinary user.
step_programs() {
    local unprivileged='^ucx |^cm (rping|ucmatose|fio)|^rsocket .* rstream|^write RC bandwidth ib'
    scripts/programs.sh &&
        scripts/programs.sh --judge '^(uc|ud|xrc) [A-Z]+ bandwidth|^pingpong (UC|UD|XRC)' &&
        scripts/programs.sh --unprivileged "$unprivileged"
}

# rdma-core's own Python suite.
# Its tests of RDMA CM are two processes on one interface, which a daemon allows.
step_pyverbs() { scripts/pyverbs.sh && scripts/pyverbs.sh --built --daemon test_rdmacm; }

# Linux rxe, live in a guest: all cases on AF_XDP; on packet sockets, which send super-frames, those
# of the largest MTU. scapy takes 1.7 ms for an ICRC, and judges a sample.
step_rxe() { scripts/rxe.sh --icrcs 32 --port af_xdp --port packet:/4096/; }

# Plays the requests of captures to Feroce and to the guest: the responses must be the captured
# ones.
step_replay() { scripts/replay-live.sh; }

needs_root() { echo "needs root" && return 77; }

main "$@"
