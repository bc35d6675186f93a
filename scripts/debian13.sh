#!/usr/bin/env bash
# Runs unmodified programs of Debian 13 on Feroce, at both ends of a veth pair: makes a chroot of
# Debian 13 (900 MB, from the mirror of this machine's apt) and runs the rows of
# tests/programs/table.txt in it, as `cargo xtask programs --root FOLDER` does. Feroce is built
# outside the chroot. The chroot stays for the next run. Takes three minutes to make.
#   scripts/debian13.sh [--folder FOLDER] [--make-only] [OPTION OF programs.sh]... [FILTER]
# FOLDER is target/debian13 by default.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The programs that the rows run, and the libraries that Feroce's libraries need.
packages=(perftest ibverbs-utils rdmacm-utils ibverbs-providers ucx-utils libfabric-bin
    python3-pyverbs rdma-core iproute2 fio qperf iperf libelf1t64 zlib1g libgcc-s1)

folder=target/debian13 make_only=
while :; do
    case ${1-} in
        -h | --help) usage && exit ;;
        --folder) folder=${2:?a folder} && shift 2 ;;
        --make-only) make_only=1 && shift ;;
        *) break ;;
    esac
done
folder=$(realpath -m "$folder")
need_root "$@"

# mirror: prints the address of the Debian archive that apt uses here.
mirror() {
    # shellcheck disable=SC2016 # apt expands it.
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2> /dev/null |
        grep -m 1 '/debian/$' || echo http://deb.debian.org/debian/
}

# in_chroot COMMAND...: runs COMMAND in the chroot, with mounts that end with the command.
in_chroot() {
    # shellcheck disable=SC2016 # The inner shell expands it.
    unshare --mount bash -ec '
        for place in proc sys dev; do mount --rbind "/$place" "$0/$place"; done
        exec chroot "$0" "$@"' "$folder" "$@"
}

# The file `made` says that everything is installed: this script may have been ended early.
if [ "$(cat "$folder/made" 2> /dev/null)" != "${packages[*]}" ]; then
    need_packages debootstrap
    if [ ! -x "$folder/usr/bin/apt-get" ]; then
        say "Debian 13 from $(mirror) into $folder"
        debootstrap --variant=minbase trixie "$folder" "$(mirror)" > "$folder.log" ||
            die "debootstrap failed: see $folder.log and $folder/debootstrap"
    fi
    # The suite of pyverbs is documentation, which a dpkg of containers leaves out.
    say "Packages in $folder"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    cp --dereference /etc/resolv.conf "$folder/etc/resolv.conf"
    in_chroot sh -ec '
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "$@" > /dev/null' sh "${packages[@]}"
    echo "${packages[*]}" > "$folder/made"
fi
[ -z "$make_only" ] || exit 0
xtask programs --root "$folder" "$@"
