#!/usr/bin/env bash
# Runs the checks that take too long for scripts/test.sh: hours on two cores. By hand, before a
# release; nothing else runs it.
#   scripts/nightly.sh            all steps
#   scripts/nightly.sh STEP...    the named steps: reproduction profiles install commands inject
#                                 rxe peers valgrind address thread dpdk pfc swarm mutants
#                                 mutation fuzz soak
# The summary names what was skipped. Exit code: 0 if no step failed, 1 if one failed, 2 for wrong
# usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/lib.sh
. scripts/steps.sh

ALL="reproduction profiles install commands inject rxe peers valgrind address thread dpdk pfc"
ALL+=" swarm mutants mutation fuzz soak"
readonly ALL
readonly SCENARIOS=1000000 CM_SCENARIOS=10000
readonly FUZZ_SECONDS=120 # for each of 28 targets

main() {
    case ${1-} in
        -h | --help) usage && exit ;;
    esac
    local step steps=${*:-$ALL}
    for step in $steps; do
        [[ " $ALL " == *" $step "* ]] || { usage >&2 && exit 2; }
    done
    need_root "$@"
    export BUILD_PROFILE=${BUILD_PROFILE:-test}
    prepare
    for step in $steps; do
        run "$step" "step_$step"
    done
    run leftovers nothing_left
    summary
}

# Runs the gates of every scenario, two cases at a time. Fails if one does not hold, or if the
# committed report is not what this commit produces.
step_reproduction() {
    cargo test --release --workspace --test fabric_reproduction -- --ignored
}

# Compares the bytes that a scenario and a seed determine, in the release profile.
step_profiles() { cargo test --release --workspace --test fabric_scenarios scenario_and_seed; }

# What users install, as they build it, and where.
step_install() {
    BUILD_PROFILE=release scripts/check-install.sh --chroot bookworm --chroot trixie
}

# Commands that pages show and no other step runs as they are.
step_commands() {
    cargo build --release --workspace --bin feroce && scripts/build-libs.sh &&
        target/release/feroce --version &&
        cargo test -p feroce-congestion &&
        cargo test --workspace --test congestion --test congestion_docs
}

# Faults that the relay injects, towards Feroce and rxe.
step_inject() { scripts/inject.sh; }

# Every case against Linux rxe, on all ports.
step_rxe() { scripts/rxe.sh --port af_xdp --port packet --port udp --port daemon --port dpdk; }

# Unmodified programs, with rxe at the other end.
step_peers() { scripts/programs.sh --peer rxe; }

# Programs on C libraries under Valgrind, and built with AddressSanitizer and ThreadSanitizer.
step_valgrind() { scripts/programs.sh --valgrind; }
step_address() { scripts/programs.sh --sanitizer address; }
step_thread() { scripts/programs.sh --sanitizer thread; }

# Every test with replaceable ports, on DPDK.
step_dpdk() {
    local tests
    mapfile -t tests < <(port_tests)
    FEROCE_RIG=dpdk FEROCE_SWARM=1000 cargo test --no-fail-fast --workspace \
        --features feroce/dpdk,feroce-tests/dpdk "${tests[@]}"
}

# How well an endpoint obeys pauses: all rates and lengths.
step_pfc() { scripts/pfc-endpoint.sh; }

step_swarm() {
    FEROCE_SWARM=$SCENARIOS cargo test --release --workspace --test swarm --test services -- \
        --nocapture &&
        FEROCE_SWARM=$CM_SCENARIOS cargo test --release --workspace --test cm_swarm -- --nocapture
}

# Breaks each rule of the engine that has a patch in tests/mutants; a test must fail.
step_mutants() { scripts/mutants.sh; }

# Changes functions one at a time with cargo-mutants; a test must fail. Renews docs/mutation.md.
step_mutation() { scripts/mutation.sh; }

step_fuzz() { scripts/fuzz.sh "$FUZZ_SECONDS"; }

# 200 QPs, every operation and fault, for half an hour.
step_soak() { scripts/soak.sh 30m; }

main "$@"
