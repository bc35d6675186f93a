# shellcheck shell=bash
# Functions that make and use a chroot of a release of Debian. Sourced after lib.sh.

# mirror: prints the address of the Debian archive that apt uses here.
mirror() {
    # shellcheck disable=SC2016 # apt expands it.
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2> /dev/null |
        grep -m 1 '/debian/$' || die "apt of this machine has no archive of Debian"
}

# into FOLDER: makes "${inside[@]}" the words ahead of a command that run it in the chroot FOLDER,
# with mounts that end with the command.
into() {
    folder=$1
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    # shellcheck disable=SC2016 # The inner shell expands it.
    inside=(unshare --mount bash -ec '
        mount --bind "$0" "$0" # "ip netns exec" needs a mount point as the root.
        cd "$0"
        for place in proc sys dev; do mount --rbind "/$place" "$0/$place"; done
        exec chroot "$0" "$@"' "$folder")
}

# make_chroot SUITE FOLDER PACKAGE...: makes a chroot of the release SUITE in FOLDER, installs
# PACKAGEs in it, and calls `into`. The file `made` says that they are installed: a run before may
# have been ended early.
make_chroot() {
    local suite=$1 archive
    into "$2"
    shift 2
    [ "$(cat "$folder/made" 2> /dev/null)" != "$*" ] || return 0
    need_packages debootstrap
    if [ ! -x "$folder/usr/bin/apt-get" ]; then
        archive=$(mirror)
        say "Debian $suite from $archive into $folder"
        debootstrap --variant=minbase "$suite" "$folder" "$archive" > "$folder.log" ||
            die "debootstrap failed: see $folder.log and $folder/debootstrap"
    fi
    say "Packages in $folder"
    cp --dereference /etc/resolv.conf "$folder/etc/resolv.conf"
    "${inside[@]}" sh -ec '
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "$@" > /dev/null' sh "$@"
    echo "$*" > "$folder/made"
}
