# shellcheck shell=bash
# Functions that the scripts share: messages, clean-up, packages, builds, hugepages, namespaces.
# cargo xtask (tests/xtask/src/setup.rs) calls need_packages, need_scapy and build as well.
#   . "$(dirname "$0")/lib.sh"

bold='' dim='' red='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' plain=$'\e[0m'; fi

# cargo shows its progress on a terminal.
quiet=()
[ -t 2 ] || quiet=(--quiet)

say() { printf '%s\n' "$bold== $*$plain"; }
note() { printf '%s\n' "$dim$*$plain"; }
# progress WORDS: shows on a terminal what runs now.
progress() { [ ! -t 2 ] || printf '\r%s\e[K' "${*:+  $*...}" >&2; }
die() {
    printf '%s\n' "$red$(basename "$0"): $*$plain" >&2
    exit 1
}

# --- Clean-up: commands that run in reverse order at the end, even after errors and signals.
cleanups=()
at_exit() { cleanups+=("$*"); }
clean_up() {
    local status=$? i
    trap '' INT TERM HUP
    for ((i = ${#cleanups[@]} - 1; i >= 0; i--)); do eval "${cleanups[i]}" || true; done
    cleanups=()
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

need_root() { [ "$(id -u)" = 0 ] || die "network namespaces and AF_XDP need root: sudo $0 $*"; }

# in_user_namespace COMMAND...: replaces the shell by COMMAND, as root of a user namespace with its
# own network namespaces and its own /run for their names. All of them end when COMMAND ends.
in_user_namespace() {
    local new=(unshare --user --map-root-user --net --mount)
    note "not root: running in a user namespace, without AF_XDP and reserved hugepages"
    "${new[@]}" true 2> /dev/null ||
        die "this host lets only root make user namespaces: run the script as root, or allow them" \
            "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in" \
            "a container its seccomp profile; in a chroot nobody but root can)"
    # shellcheck disable=SC2016 # The inner shell expands it.
    exec "${new[@]}" bash -c 'mount -t tmpfs run /run && exec "$@"' bash "$@"
}

# usage: prints the comment at the head of the script.
usage() { sed -n '2,/^[^#]/ { /^# \{0,1\}/ s///p }' "$0"; }

# need_packages [--for PURPOSE] NAME...: installs the Debian packages that are missing, and says
# which, and what for. --for may be repeated: it holds for the names after it.
need_packages() {
    local missing=() why='' purpose='' size
    while [ $# -gt 0 ]; do
        if [ "$1" = --for ]; then
            purpose=" for $2:" && shift
        elif ! is_installed "$1"; then
            why+="${why:+${purpose:+;}}$purpose $1"
            purpose='' # Once per group.
            missing+=("$1")
        fi
        shift
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] ||
        die "packages are missing$why." \
            "As root: apt-get install --no-install-recommends ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt_get update
    size=$(LC_ALL=C apt-get install --assume-no --no-install-recommends "${missing[@]}" 2>&1 |
        sed -n 's/^After this operation, \(.*\) of additional disk space.*/ (\1)/p') || true
    note "installing packages$size:$why"
    apt_get install -y --no-install-recommends "${missing[@]}"
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

# apt_get ARGUMENT...: runs apt-get. Shows its last line on a terminal. Waits up to 5 minutes for
# another program that installs packages. Names the cause of a failure.
apt_get() {
    local log status cause until=$((SECONDS + 300)) has_waited=''
    log=$(mktemp)
    while true; do
        status=0
        LC_ALL=C apt-get -q -o DPkg::Lock::Timeout=300 "$@" 2>&1 < /dev/null |
            while IFS= read -r line; do
                printf '%s\n' "$line" >> "$log"
                progress "apt-get: ${line:0:60}"
            done || status=$?
        progress
        # The lock of the lists of packages has no timeout of its own.
        if grep -qE 'Could not get lock|Unable to lock' "$log" && [ $status != 0 ] &&
            [ $SECONDS -lt $until ]; then
            [ -n "$has_waited" ] || note "waiting: $(grep -m 1 'lock' "$log" | sed 's/^[EW]: //')"
            has_waited=yes
            : > "$log"
            sleep 2
            continue
        fi
        break
    done
    if [ $status != 0 ]; then
        grep -E '^[EW]: ' "$log" | head -n 5 >&2 || true
        cause=$(apt_cause "$log")
        rm -f "$log"
        die "apt-get $1 failed$cause"
    fi
    rm -f "$log"
}

apt_cause() { # LOG
    if grep -qE 'Temporary failure resolving|Could not resolve' "$1"; then
        echo ": DNS does not answer; see /etc/resolv.conf"
    elif grep -qE 'Network is unreachable|No route to host' "$1"; then
        echo ": there is no route to the packages; see 'ip route' and /etc/apt/sources.list*"
    elif grep -qE 'Could not connect|Connection refused|Connection timed out' "$1"; then
        echo ": the server in /etc/apt/sources.list* does not answer (behind a proxy: http_proxy)"
    elif grep -qE 'Could not get lock|Unable to lock' "$1"; then
        echo ": another program still installs packages after 5 minutes"
    elif grep -q 'Unable to locate package' "$1"; then
        echo ": this distribution has no such package; the scripts know Debian 12 and 13"
    fi
}

# need_scapy: sets $python to a Python with scapy and its RoCE layers; installs scapy below target/
# if there is none.
need_scapy() {
    python=${FEROCE_PYTHON:-target/venv/bin/python}
    ! "$python" -c 'import scapy.contrib.roce' 2> /dev/null || return 0
    python3 -m venv target/venv
    target/venv/bin/pip install --quiet --disable-pip-version-check 'scapy==2.8.0' ||
        die "cannot install scapy"
    python=target/venv/bin/python
}

# find_cargo: sets $cargo, also under sudo, whose PATH lacks the caller's ~/.cargo/bin. Ends the
# script if Rust is missing or too old.
find_cargo() {
    local home wanted candidate version old=''
    home=$(getent passwd "${SUDO_USER:-$(id -u)}" | cut -d: -f6) || home=$HOME
    # rustup finds its toolchains by these variables.
    [ -z "${SUDO_USER:-}" ] ||
        export RUSTUP_HOME=${RUSTUP_HOME:-$home/.rustup} CARGO_HOME=${CARGO_HOME:-$home/.cargo}
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    for candidate in "$(command -v cargo || true)" "${CARGO_HOME:-$home/.cargo}/bin/cargo"; do
        [ -n "$candidate" ] && [ -x "$candidate" ] || continue
        version=$(rust_version "$candidate")
        if printf '%s\n' "$wanted" "$version" | sort --check=quiet --version-sort; then
            cargo=$candidate
            return
        fi
        old="${old:-$candidate is of Rust ${version:-(its rustc does not run)}}"
    done
    die "Feroce needs Rust $wanted or newer: ${old:-no cargo was found}." \
        "Debian's own is 1.63 (Debian 12) or 1.85 (Debian 13): install rustup, from" \
        "https://rustup.rs, then 'rustup default stable'"
}

# rust_version CARGO: prints the version of CARGO's compiler; nothing if it does not run.
rust_version() {
    local rustc=${1%/*}/rustc
    [ -x "$rustc" ] || rustc=$(command -v rustc) || return 0
    as_caller "$rustc" --version 2> /dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p' || true
}

# as_caller COMMAND...: runs COMMAND as the user who called sudo, so that no file in the clone and
# in ~/.cargo belongs to root.
as_caller() {
    if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
        local name kept=()
        for name in RUSTUP_HOME CARGO_HOME CARGO_TARGET_DIR CARGO_BUILD_TARGET RUSTFLAGS \
            RUSTC_BOOTSTRAP CARGO_UNSTABLE_BUILD_STD; do
            [ -z "${!name-}" ] || kept+=("$name=${!name}")
        done
        setpriv --reuid="$(id -u "$SUDO_USER")" --regid="$(id -g "$SUDO_USER")" \
            --init-groups --reset-env env "PATH=$PATH" "${kept[@]}" "$@"
    else
        "$@"
    fi
}

# built: prints the folder with what `build` built: the release profile's or, with
# BUILD_PROFILE=test, that of `cargo test`.
built() {
    local folder=release
    [ "${BUILD_PROFILE:-release}" = release ] || folder=debug
    realpath -m "${CARGO_TARGET_DIR:-target}${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/$folder"
}

# build [--features LIST] WHAT...: builds WHAT of the workspace, given as arguments of cargo (--bin
# NAME, --lib).
build() {
    local features=() command=(as_caller "$cargo" build "${quiet[@]}" --workspace)
    [ "$1" != --features ] || { features=("$1" "$2") && shift 2; }
    case ${BUILD_PROFILE:-release} in
        release) "${command[@]}" --release "${features[@]}" "$@" ;;
        # With tests: they need other features of some libraries. For fewer targets, cargo would
        # build everything again.
        test) "${command[@]}" --profile test "${features[@]}" --lib --bins --tests --examples ;;
        *) die "BUILD_PROFILE is release or test" ;;
    esac
}

# xtask COMMAND [OPTION]...: builds the runner, tests/xtask, and replaces the shell by it.
xtask() {
    find_cargo
    # A package alone has other dependencies than the workspace, which the tests have built.
    case ${BUILD_PROFILE:-release} in
        test) build --bin xtask ;;
        *) as_caller "$cargo" build "${quiet[@]}" --package feroce-xtask ;;
    esac
    CARGO=$cargo exec "$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/xtask" "$@"
}

# reserve_hugepages COUNT: reserves hugepages of 2 MiB until the script ends, so that at least COUNT
# are free. Prints a note and continues where that is not possible.
reserve_hugepages() {
    local file=/proc/sys/vm/nr_hugepages before free
    [ -e $file ] || { note "no hugepages on this machine: ordinary pages are used"; return 0; }
    # Root of a user namespace may not write it.
    if [ ! -w $file ]; then
        note "only root can reserve hugepages: free ones and ordinary pages are used"
        return 0
    fi
    before=$(cat $file)
    free=$(awk '/HugePages_Free/ { print $2 }' /proc/meminfo)
    [ "$free" -lt "$1" ] || return 0
    at_exit "echo $before > $file"
    echo $((before + $1 - free)) > $file
    free=$(awk '/HugePages_Free/ { print $2 }' /proc/meminfo)
    [ "$free" -ge "$1" ] || note "only $free of $1 hugepages free: the rest will be ordinary pages"
}

# hasten_rcu: has the kernel end RCU grace periods at once until the script ends, where that is
# possible. The kernel waits for one at each packet socket (some 15 ms) and BPF link that is closed;
# tests close thousands.
hasten_rcu() {
    local file=/sys/kernel/rcu_expedited before
    [ -w $file ] && before=$(cat $file) && [ "$before" = 0 ] || return 0
    at_exit "echo $before > $file"
    { echo 1 > $file; } 2> /dev/null ||
        note "RCU grace periods cannot be expedited here: tests with ports take longer"
}

# kernel_is_at_least VERSION: succeeds if the kernel is VERSION (major.minor) or later.
kernel_is_at_least() { printf '%s\n' "$1" "$(uname -r)" | sort --check=quiet --version-sort; }

# make_pair NAME MTU: makes the namespaces NAME-a and NAME-b, joined by v0 (10.77.0.1) and v1
# (10.77.0.2).
make_pair() {
    local a=$1-a b=$1-b
    unshare --net true 2> /dev/null ||
        die "this container may not make network namespaces: start it with --privileged, or with" \
            "--cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add NET_RAW and without its seccomp" \
            "and AppArmor profiles"
    ip netns add "$a" # Fails if another run has it, which then keeps it.
    at_exit "ip netns delete $a 2> /dev/null"
    ip netns exec "$a" true 2> /dev/null ||
        die "'ip netns exec' cannot mount here. In a chroot, its root must be a mount point:" \
            "mount --bind FOLDER FOLDER, before chroot FOLDER"
    ip netns add "$b"
    at_exit "ip netns delete $b 2> /dev/null"
    ip link add v0 netns "$a" mtu "$2" type veth peer name v1 netns "$b" mtu "$2"
    ip -n "$a" address add 10.77.0.1/24 dev v0
    ip -n "$b" address add 10.77.0.2/24 dev v1
    ip -n "$a" link set v0 up
    ip -n "$b" link set v1 up
}

# plain_frames NAME: turns off the offloads of NAME's pair: frames cross it as on a cable.
plain_frames() {
    local end off=(tx off gso off gro off tso off rxvlan off txvlan off)
    for end in "a v0" "b v1"; do
        # shellcheck disable=SC2086 # Two words.
        set -- "$1" $end
        ip netns exec "$1-$2" ethtool -K "$3" "${off[@]}" > /dev/null 2>&1 ||
            note "ethtool cannot set all features of $3"
    done
}

# in_background COMMAND...: runs COMMAND until the script ends; the process id is in $!.
in_background() {
    "$@" &
    at_exit "kill $! 2> /dev/null; wait $! 2> /dev/null"
}

# wait_for_port NAMESPACE PORT: waits until a TCP socket listens; up to 30 s, on a loaded machine.
wait_for_port() {
    local _
    for _ in $(seq 600); do
        [ -z "$(ip netns exec "$1" ss -ltnH "sport = :$2")" ] || return 0
        sleep 0.05
    done
    die "no process listens on port $2 in $1 after 30 s"
}
