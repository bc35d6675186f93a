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
. scripts/chroot.sh

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

# The suite of pyverbs is documentation, which a dpkg of containers leaves out.
make_chroot trixie "$folder" "${packages[@]}"
[ -z "$make_only" ] || exit 0
xtask programs --root "$folder" "$@"
