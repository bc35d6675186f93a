#!/usr/bin/env bash
# Checks what users install: scripts/install.sh into a folder and back, and the Debian package in a
# separate root folder. In both, a verbs application of the distribution finds a device and
# transfers data, and systemd, if installed, finds no fault in the unit.
#   scripts/check-install.sh [--chroot SUITE]...
#     --chroot SUITE   also installs the package by apt in a chroot of a release of Debian, such as
#                      bookworm or trixie, beside the release's own RDMA packages; lintian judges
#                      it there. The chroot stays in target for the next run
# Needs root, and leaves nothing else behind. Exit code 0 if everything works.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/chroot.sh
arguments=("$@") suites=()
while [ $# -gt 0 ]; do
    case $1 in
        --chroot) suites+=("${2:?a release of Debian}") && shift 2 ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
done

need_root "${arguments[@]}"
need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 ethtool \
    binutils ibverbs-utils
work=$(mktemp -d)
at_exit "rm -rf $work"
pair=fr-install-$$
make_pair "$pair" 4500
plain_frames "$pair"
distribution=$(dpkg -L libibverbs1 | xargs -d '\n' sha256sum 2> /dev/null || true)

inside=() # Words ahead of a command: `into` a chroot.

# works FEROCE: checks that FEROCE runs ibv_devices and ibv_rc_pingpong, and shows the device in
# sysfs with and without mounts.
works() {
    local server way a=(ip netns exec "$pair-a" "${inside[@]}")
    local b=(ip netns exec "$pair-b" "${inside[@]}")
    "${a[@]}" "$1" run --interface v0 -- ibv_devices | grep -q feroce0 ||
        die "$1 run shows no device"
    for way in '' --no-mounts; do
        # shellcheck disable=SC2086 # No word, or one.
        "${a[@]}" "$1" run --quiet --interface v0 $way -- \
            cat /sys/class/infiniband/feroce0/node_type > "$work/type" ||
            die "$1 run $way shows no files of the device"
    done
    timeout 60 "${b[@]}" \
        "$1" run --interface v1 -- ibv_rc_pingpong -g 1 -c > "$work/server" 2>&1 &
    server=$!
    wait_for_port "$pair-b" 18515
    timeout 60 "${a[@]}" \
        "$1" run --interface v0 -- ibv_rc_pingpong -g 1 -c 10.77.0.2 > "$work/client" 2>&1 ||
        die "the client: $(cat "$work/client")"
    wait $server || die "the server: $(cat "$work/server")"
    note "$1 runs ibv_devices and ibv_rc_pingpong"
}

# unit_is_valid FOLDER: checks the unit that is installed below FOLDER.
unit_is_valid() {
    local unit=$1/lib/systemd/system/feroce@.service
    if [ -z "$(command -v systemd-analyze)" ]; then
        note "not checked, without systemd: $unit"
        return
    fi
    systemd-analyze verify --man=no "$unit" > "$work/verify" 2>&1 && [ ! -s "$work/verify" ] ||
        die "systemd-analyze verify: $(cat "$work/verify")"
    # The exposure times 10: 0 is best, 100 worst.
    systemd-analyze security --offline=yes --threshold=31 "$unit" > "$work/security" 2>&1 ||
        die "systemd-analyze security: $(cat "$work/security")"
    note "$(tail -n 1 "$work/security")"
}

# nothing_below FOLDER: checks that FOLDER contains no file.
nothing_below() {
    local left
    left=$([ ! -e "$1" ] || find "$1" ! -type d)
    [ -z "$left" ] || die "left behind: $left"
}

# readme_links_exist FOLDER: checks that README.md links to installed files only.
readme_links_exist() {
    local target
    for target in $(grep -oE '\]\([^)#: ]+' "$1/README.md" | sed 's/^](//'); do
        # A link may lead to a file of another package, which the separate root folder lacks.
        [ -e "$1/$target" ] || [ -L "$1/$target" ] ||
            die "README.md links to $target, which is not installed"
    done
}

say "scripts/install.sh"
scripts/install.sh --prefix "$work/prefix"
works "$work/prefix/bin/feroce"
unit_is_valid "$work/prefix"
for page in feroce-run feroce-fabric-run feroce-conform-check; do
    man --warnings -l "$work/prefix/share/man/man1/$page.1" > /dev/null 2>&1 ||
        [ -z "$(command -v man)" ] || die "man does not show $page"
done
readme_links_exist "$work/prefix/share/doc/feroce"
"$work/prefix/bin/feroce" fabric list > /dev/null
"$work/prefix/bin/feroce" conform rules > /dev/null
bash -n "$work/prefix/share/bash-completion/completions/feroce"
FEROCE_CONFIG=$work/prefix/share/doc/feroce/examples/feroce.toml \
    "$work/prefix/bin/feroce" config > /dev/null
scripts/install.sh --prefix "$work/prefix" > /dev/null # Over the existing installation.
scripts/install.sh --prefix "$work/prefix" --uninstall
nothing_below "$work/prefix"

say "scripts/build-deb.sh"
package=$(scripts/build-deb.sh | tail -n 1)
dpkg-deb --info "$package" | grep -E '^ (Package|Version|Depends|Suggests):'
share='man/man1/feroce|doc/feroce/|bash-completion/|zsh/|fish/|lintian/overrides/feroce$'
misplaced=$(dpkg-deb --contents "$package" | awk '$1 !~ /^d/ { print $6 }' |
    grep -vE "^\\./usr/(bin/feroce\$|lib/(feroce/|systemd/system/feroce@)|share/($share))" || true)
[ -z "$misplaced" ] || die "the package has files in other places: $misplaced"
mkdir -p "$work/root/var/lib/dpkg"/{info,updates}
touch "$work/root/var/lib/dpkg"/{status,available}
depends=$(dpkg-deb --field "$package" Depends)
[[ "$depends" != *libibverbs* && "$depends" != *librdmacm* ]] ||
    die "the package depends on the distribution's RDMA libraries: $depends"
links=$(dpkg-deb --contents "$package" | grep -c '^l.*\.so -> ') || true
[ "$links" = 4 ] || die "the package has $links links lib*.so, not 4"
dpkg --root="$work/root" --force-depends --install "$package" > "$work/dpkg" 2>&1 ||
    die "dpkg: $(cat "$work/dpkg")"
works "$work/root/usr/bin/feroce"
readme_links_exist "$work/root/usr/share/doc/feroce"
changed=$(dpkg --root="$work/root" --verify feroce) && [ -z "$changed" ] ||
    die "dpkg -V: $changed"
dpkg --root="$work/root" --purge feroce > "$work/dpkg" 2>&1 || die "dpkg: $(cat "$work/dpkg")"
nothing_below "$work/root/usr"

[ "$distribution" = "$(dpkg -L libibverbs1 | xargs -d '\n' sha256sum 2> /dev/null || true)" ] ||
    die "files of the distribution's libibverbs1 have changed"

# files: prints the chroot's files, except those that every use of apt changes.
files() {
    local changing='var/lib/dpkg|var/lib/apt|var/cache|var/log|run|tmp|root'
    (cd "$folder" && find . -xdev ! -type d | grep -vE "^\./($changing)/" | sort)
}

# in_release SUITE: installs the package in a chroot, as a user would, and removes it.
in_release() {
    local distribution before left
    distribution=(ibverbs-utils ibverbs-providers libibverbs1 librdmacm1 rdma-core perftest)
    make_chroot "$1" "$(realpath -m "${CARGO_TARGET_DIR:-target}")/deb-$1" \
        "${distribution[@]}" iproute2 man-db lintian
    say "apt install on Debian $1"
    # A run before may have been ended early.
    "${inside[@]}" apt-get purge -y -qq feroce > "$work/apt" 2>&1 || true
    before=$(files)
    rm -rf "$folder/root/target"
    mkdir -p "$folder/root/target/debian"
    cp "$package" "$folder/root/target/debian"
    "${inside[@]}" sh -ec 'cd /root && yes | apt install ./target/debian/feroce_*.deb' \
        > "$work/apt" 2>&1 || die "apt: $(cat "$work/apt")"
    works feroce
    "${inside[@]}" man --warnings feroce-conform-check > /dev/null 2>&1 || die "man shows no page"
    "${inside[@]}" lintian --allow-root --fail-on error "/root/target/debian/${package##*/}" \
        > "$work/lintian" 2>&1 || die "lintian: $(cat "$work/lintian")"
    note "lintian: no error, $(grep -c '^W:' "$work/lintian" || true) warnings"
    # Debian 13 calls one of them librdmacm1t64.
    # shellcheck disable=SC2016 # dpkg-query expands it.
    mapfile -t distribution < <("${inside[@]}" dpkg-query -W \
        -f '${db:Status-Status} ${Package}\n' 'ib*' libibverbs1 'librdmacm1*' rdma-core perftest |
        awk '$1 == "installed" { print $2 }')
    left=$("${inside[@]}" dpkg -V feroce "${distribution[@]}" 2>&1) && [ -z "$left" ] ||
        die "dpkg -V: $left"
    "${inside[@]}" apt-get purge -y -qq feroce > "$work/apt" 2>&1 || die "$(cat "$work/apt")"
    left=$(diff <(echo "$before") <(files)) || die "left behind, or gone: $left"
    note "installed by apt, run and removed on Debian $1"
}

for suite in "${suites[@]}"; do
    in_release "$suite"
done
echo "installed, run and removed twice: by install.sh, and by the Debian package"
