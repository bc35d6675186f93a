#!/usr/bin/env bash
# Prepares a job of continuous integration for verbs programs, without root: installs Feroce and
# starts `feroce up` on UDP sockets. action.yml runs this script; it works on other systems, too.
#   scripts/action.sh [--prefix FOLDER] [--packages "NAME..."] [--interface IFACE]
#     --prefix FOLDER      Feroce is built and installed below FOLDER, unless it is there already
#                          (default: ~/.local/feroce)
#     --packages "NAME..." Debian packages that the tests need; missing ones are unpacked into
#                          FOLDER/packages
#     --interface IFACE    default: that of the default route, or the only one that is up
# Later steps get PATH, LD_LIBRARY_PATH and FEROCE_SHARING by $GITHUB_PATH and $GITHUB_ENV, and
# `interface`, `address` and `log` by $GITHUB_OUTPUT. Without these variables the script prints
# lines for a shell to evaluate: eval "$(scripts/action.sh)". `feroce down` ends the daemon.
# Exit code: 0 if programs can use Feroce; 1 failed; 2 wrong usage.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
here=$(realpath "$(dirname "$0")/..")

# What scripts/install.sh needs; README.md has the same list.
readonly BUILD_PACKAGES=(gcc libc6-dev binutils libelf-dev zlib1g-dev clang m4 libpcap-dev make
    pkg-config)

prefix=~/.local/feroce interface='' wanted=()
while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --packages | --interface) [ $# -gt 1 ] || { usage >&2 && exit 2; } ;;&
        --prefix) prefix=$2 && shift ;;
        --packages) read -ra wanted <<< "$(tr '\n' ' ' <<< "$2")" && shift ;;
        --interface) interface=$2 && shift ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
prefix=$(realpath -m "${prefix/#\~/$HOME}") # A ~ in a workflow is not expanded.
packages=$prefix/packages

main() {
    exec 3>&1 >&2 # Standard output is for the lines to evaluate.
    local needed=("${wanted[@]}") address log=$prefix/log
    [ -x "$prefix/bin/feroce" ] || needed+=("${BUILD_PACKAGES[@]}")
    unpack "${needed[@]}"
    [ ! -d "$packages/usr" ] || { use_here && use_later; }
    [ -n "$interface" ] || interface=$(choose_interface)
    address=$(address_of "$interface")
    [ -x "$prefix/bin/feroce" ] || build_feroce
    add_path "$prefix/bin"
    add_env FEROCE_SHARING daemon # Without the daemon, opening a device fails.
    say "feroce up $interface"
    # Without descriptor 3: $(scripts/action.sh) waits until nobody has it open.
    "$prefix/bin/feroce" up "$interface" --port-kind udp --detach --log "$log" 3>&- ||
        die "Feroce cannot use $interface"
    add_output interface "$interface"
    add_output address "$address"
    add_output log "$log"
}

# ---- the network

# choose_interface: prints the interface of the default route, or the only one that is up.
choose_interface() {
    local name up=()
    name=$(awk 'NR > 1 && $2 == "00000000" { print $1; exit }' /proc/net/route)
    if [ -z "$name" ]; then
        for name in /sys/class/net/*; do
            # ARPHRD_ETHER
            [ "$(cat "$name/type")" != 1 ] || [ "$(cat "$name/operstate")" = down ] ||
                up+=("${name##*/}")
        done
        [ ${#up[@]} = 1 ] || die "choose with --interface: ${up[*]:-no Ethernet interface is up}"
        name=${up[0]}
    fi
    echo "$name"
}

# address_of IFACE: prints its first IPv4 address.
address_of() {
    local address
    command -v ip > /dev/null || die "there is no program ip: install the package iproute2"
    address=$(ip -o -4 address show dev "$1" scope global |
        awk '{ sub("/.*", "", $4); print $4; exit }')
    echo "${address:?$1 has no IPv4 address}"
}

# ---- packages without root

# apt COMMAND...: apt-get with the lists of packages in a folder of the user.
apt() {
    local state=$packages/apt
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    apt-get -q -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" \
        -o Debug::NoLocking=1 -o APT::Sandbox::User= "$@"
}

# unpack NAME...: downloads the packages that are neither installed nor unpacked, with what they
# depend on, and unpacks them.
unpack() {
    local name missing=() needed
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ] ||
            [ -e "$packages/have/$name" ] || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "Unpacking ${missing[*]}"
    mkdir -p "$packages/have" "$packages/files"
    apt update > /dev/null || die "apt-get cannot fetch the lists of packages"
    needed=$(apt install --simulate --no-install-recommends "${missing[@]}" |
        awk '$1 == "Inst" { print $2 }') || die "apt-get does not find ${missing[*]}"
    # shellcheck disable=SC2086 # Words.
    (cd "$packages/files" && apt download ${needed:?packages} > /dev/null) ||
        die "apt-get cannot download: $needed"
    for name in "$packages"/files/*.deb; do
        dpkg-deb --extract "$name" "$packages" && rm "$name"
    done
    touch "${missing[@]/#/$packages/have/}"
    mend_links
}

# mend_links: points links of -dev packages to installed libraries (libelf.so -> libelf.so.1).
mend_links() {
    local link to
    while read -r link; do
        to=$(readlink "$link")
        for to in {/usr,}/lib/"$(triplet)/${to##*/}"; do
            [ ! -e "$to" ] || { ln -sf "$to" "$link" && break; }
        done
    done < <(find "$packages/usr/lib" -xtype l -name '*.so' 2> /dev/null)
}

triplet() { echo "$(uname -m)-linux-gnu"; }

# library_path: prints the folders with libraries of the packages, separated by colons.
library_path() { echo "$packages/usr/lib/$(triplet):$packages/lib/$(triplet)"; }

# use_here: this process and what it starts look into the packages.
use_here() {
    local libraries include
    libraries=$(library_path)
    include=$packages/usr/include
    export PATH=$packages/usr/bin:$packages/bin:$PATH
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$libraries CPATH=$include:$include/${libraries##*/}
    export PKG_CONFIG_PATH=$packages/usr/lib/${libraries##*/}/pkgconfig
}

# use_later: later steps do.
use_later() {
    add_path "$packages/bin"
    add_path "$packages/usr/bin"
    add_env LD_LIBRARY_PATH "$(library_path)${OLD_LIBRARY_PATH:+:$OLD_LIBRARY_PATH}"
}
readonly OLD_LIBRARY_PATH=${LD_LIBRARY_PATH-}

build_feroce() {
    say "Building Feroce, which takes minutes"
    "$here/scripts/install.sh" --prefix "$prefix" || die "Feroce cannot be built"
}

# ---- what later steps get

add_path() {
    if [ -n "${GITHUB_PATH-}" ]; then
        echo "$1" >> "$GITHUB_PATH"
    else
        # shellcheck disable=SC2016 # The caller's shell expands it.
        printf 'PATH=%q:"$PATH"\n' "$1" >&3
    fi
}

add_env() {
    if [ -n "${GITHUB_ENV-}" ]; then
        echo "$1=$2" >> "$GITHUB_ENV"
    else
        printf 'export %s=%q\n' "$1" "$2" >&3
    fi
}

add_output() {
    note "$1: $2"
    if [ -n "${GITHUB_OUTPUT-}" ]; then
        echo "$1=$2" >> "$GITHUB_OUTPUT"
    else
        printf 'feroce_%s=%q\n' "$1" "$2" >&3
    fi
}

main
