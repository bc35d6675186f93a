# shellcheck shell=bash
# What the scripts share: words to the reader, clean-up whatever happens, packages, hugepages, namespaces.
#   . "$(dirname "$0")/lib.sh"

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' plain=$'\e[0m'; else bold='' dim='' red='' plain=''; fi

say() { printf '%s\n' "$bold== $*$plain"; }
note() { printf '%s\n' "$dim$*$plain"; }
# progress WORDS: what is under way, for whom it may interest.
progress() { [ ! -t 2 ] || printf '\r%s\e[K' "${*:+  $*...}" >&2; }
die() {
    printf '%s\n' "$red$(basename "$0"): $*$plain" >&2
    exit 1
}

# --- Clean-up: commands run in reverse order at the end, on errors and on signals too.
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

# in_user_namespace COMMAND...: becomes COMMAND as the root of a user namespace with network namespaces of its own,
# and a /run for their names. It ends, and they with it, when COMMAND does.
in_user_namespace() {
    local new=(unshare --user --map-root-user --net --mount)
    note "not root: the rest runs in a user namespace, where AF_XDP is forbidden and hugepages cannot be reserved"
    "${new[@]}" true 2> /dev/null ||
        die "this system lets nobody but root make user namespaces (sysctl user.max_user_namespaces, AppArmor)"
    # shellcheck disable=SC2016 # For the inner shell.
    exec "${new[@]}" bash -c 'mount -t tmpfs run /run && exec "$@"' bash "$@"
}

# usage: prints the head of the script, which says how to call it.
usage() { sed -n '2,/^[^#]/ { /^# \{0,1\}/ s///p }' "$0"; }

# need_packages NAME...: installs the Debian packages that are missing.
need_packages() {
    local missing=() package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "packages are missing, which root can install: apt-get install ${missing[*]}"
    note "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null ||
        die "cannot install ${missing[*]} with apt-get"
}

# need_scapy: sets $python, a Python that has scapy with RoCE; installs it under target/ if there is none.
need_scapy() {
    python=${FEROCE_PYTHON:-target/venv/bin/python}
    ! "$python" -c 'import scapy.contrib.roce' 2> /dev/null || return 0
    python3 -m venv target/venv
    target/venv/bin/pip install --quiet --disable-pip-version-check 'scapy==2.8.0' || die "cannot install scapy"
    python=target/venv/bin/python
}

# find_cargo: sets $cargo, also under sudo, whose PATH lacks the caller's ~/.cargo/bin.
find_cargo() {
    local home
    home=$(getent passwd "${SUDO_USER:-$(id -un)}" | cut -d: -f6)
    cargo=$(command -v cargo || true)
    [ -n "$cargo" ] || cargo=$home/.cargo/bin/cargo
    [ -x "$cargo" ] || die "no cargo: install Rust from https://rustup.rs"
    # rustup finds its toolchains by these, not by root's home.
    [ -z "${SUDO_USER:-}" ] || export RUSTUP_HOME=${RUSTUP_HOME:-$home/.rustup} CARGO_HOME=${CARGO_HOME:-$home/.cargo}
}

# as_caller COMMAND...: runs it as who called sudo, so that nothing in the clone and in ~/.cargo comes to be root's.
as_caller() {
    if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
        setpriv --reuid="$(id -u "$SUDO_USER")" --regid="$(id -g "$SUDO_USER")" --init-groups --reset-env \
            env "PATH=$PATH" ${RUSTUP_HOME:+"RUSTUP_HOME=$RUSTUP_HOME"} ${CARGO_HOME:+"CARGO_HOME=$CARGO_HOME"} \
            ${CARGO_TARGET_DIR:+"CARGO_TARGET_DIR=$CARGO_TARGET_DIR"} "$@"
    else
        "$@"
    fi
}

# built: the folder with what `build` built: of the release profile, or, with BUILD_PROFILE=test, of what `cargo test` builds anyway.
built() {
    local folder=release
    [ "${BUILD_PROFILE:-release}" = release ] || folder=debug
    realpath -m "${CARGO_TARGET_DIR:-target}/$folder"
}

# build [--features LIST] WHAT...: builds WHAT, as cargo calls it (--bin NAME, --lib), of the workspace.
build() {
    local features=()
    [ "$1" != --features ] || { features=("$1" "$2") && shift 2; }
    case ${BUILD_PROFILE:-release} in
        release) as_caller "$cargo" build --quiet --release --workspace "${features[@]}" "$@" ;;
        # With tests, since they need other features of some libraries: for less, cargo would build everything again.
        test) as_caller "$cargo" build --quiet --profile test --workspace "${features[@]}" --lib --bins --tests --examples ;;
        *) die "BUILD_PROFILE is release or test" ;;
    esac
}

# xtask COMMAND [OPTION]...: builds the runner, tests/xtask, and replaces the shell by it.
xtask() {
    find_cargo
    as_caller "$cargo" build --quiet --package feroce-xtask
    CARGO=$cargo exec "$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/xtask" "$@"
}

# reserve_hugepages COUNT: at least COUNT free pages of 2 MiB until the script ends. Does without, with a word,
# where the machine has none.
reserve_hugepages() {
    local file=/proc/sys/vm/nr_hugepages before free
    [ -e $file ] || { note "no hugepages on this machine: ordinary pages will do"; return 0; }
    # Root of a user namespace is nobody to the machine.
    [ -w $file ] || { note "hugepages are root's to reserve: those that are free are used, else ordinary pages"; return 0; }
    before=$(cat $file)
    free=$(awk '/HugePages_Free/ { print $2 }' /proc/meminfo)
    [ "$free" -lt "$1" ] || return 0
    at_exit "echo $before > $file"
    echo $((before + $1 - free)) > $file
    free=$(awk '/HugePages_Free/ { print $2 }' /proc/meminfo)
    [ "$free" -ge "$1" ] || note "only $free of $1 hugepages free: the rest will be ordinary pages"
}

# kernel_is_at_least VERSION: compares major.minor.
kernel_is_at_least() { printf '%s\n' "$1" "$(uname -r)" | sort --check=quiet --version-sort; }

# make_pair NAME MTU: namespaces NAME-a and NAME-b, joined by v0 (10.77.0.1) and v1 (10.77.0.2).
make_pair() {
    local a=$1-a b=$1-b
    at_exit "ip netns delete $a 2> /dev/null"
    ip netns add "$a"
    at_exit "ip netns delete $b 2> /dev/null"
    ip netns add "$b"
    ip link add v0 netns "$a" mtu "$2" type veth peer name v1 netns "$b" mtu "$2"
    ip -n "$a" address add 10.77.0.1/24 dev v0
    ip -n "$b" address add 10.77.0.2/24 dev v1
    ip -n "$a" link set v0 up
    ip -n "$b" link set v1 up
}

# plain_frames NAME: every frame on NAME's pair crosses it as it would cross a cable.
plain_frames() {
    local end
    for end in "a v0" "b v1"; do
        # shellcheck disable=SC2086 # Two words.
        set -- "$1" $end
        ip netns exec "$1-$2" ethtool -K "$3" tx off gso off gro off tso off rxvlan off txvlan off > /dev/null 2>&1 ||
            note "ethtool cannot set all features of $3"
    done
}

# in_background COMMAND...: runs it until the script ends; its process id is in $!.
in_background() {
    "$@" &
    at_exit "kill $! 2> /dev/null; wait $! 2> /dev/null"
}

# wait_for_port NAMESPACE PORT: until somebody listens there.
wait_for_port() {
    local _
    for _ in $(seq 100); do
        [ -z "$(ip netns exec "$1" ss -ltnH "sport = :$2")" ] || return 0
        sleep 0.05
    done
    die "nobody listens on port $2 in $1"
}

# judge_frames CAPTURE [COUNT]: whether tshark finds no frame malformed, and scapy ($python: need_scapy) computes the same ICRC for
# every one; at least COUNT are wanted.
# tshark guesses that payloads are RPC over RDMA and calls short SENDs malformed for it, those of rxe too
# (tests/captures/rxe/ops_zero_len.pcap.zst). It also reads on in datagrams of UD that carry nothing: those of up to 36
# bytes of UDP are left to scapy. A UDP checksum of 0 over IPv6 is what RoCEv2 demands.
judge_frames() {
    local total roce bad
    decode() { tshark --disable-protocol rpcordma -r "$@" 2> /dev/null | wc -l; }
    total=$(decode "$1")
    roce=$(decode "$1" -Y infiniband.bth)
    bad=$(decode "$1" -Y '(_ws.malformed || (_ws.expert.severity == error && !udp.checksum.zero)) && !(infiniband.deth && udp.length <= 36)')
    echo "tshark: $total frames, $roce RoCE, $bad malformed or in error"
    [ "$total" -ge "${2:-1}" ] || { echo "${2:-1} frames were asked for, $total came" && return 1; }
    [ "$roce" = "$total" ] || { echo "$((total - roce)) frames are not RoCE to tshark" && return 1; }
    [ "$bad" = 0 ] || { echo "tshark finds $bad frames malformed or in error" && return 1; }
    "$python" scripts/icrc.py "$1"
}
