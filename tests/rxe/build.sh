#!/usr/bin/env bash
# Builds the guest of the live tests: Debian's stock kernel with rxe, and an initramfs with the
# agent (peer.c), the programs that scripts/programs.sh runs, and an SSH server. Uses Debian
# packages only, from the apt sources of this machine. The first build takes about 20 s.
#   tests/rxe/build.sh FOLDER     creates FOLDER/vmlinux, FOLDER/initrd.cpio, and FOLDER/key for SSH
#                                 as root
# Downloads stay in FOLDER and are used again if only the agent or the init changed. Measured with
# the kernel 6.1 of Debian 12 in QEMU without KVM: the guest boots in 4 s, in 24 s on a busy
# machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)

# User space: a shell, ip, tc and rdma, libibverbs with the driver of rxe, verbs applications.
PACKAGES=busybox-static,dash,iproute2,kmod,libc-bin,libibverbs1,ibverbs-providers,ibverbs-utils
PACKAGES+=,perftest,librdmacm1,rdmacm-utils,dropbear-bin,coreutils
readonly PACKAGES
readonly KERNEL=linux-image-amd64
# Loaded in this order; modprobe adds their dependencies.
readonly AT_BOOT="virtio_mmio virtio_net crc32_pclmul ib_uverbs rdma_ucm rdma_rxe"
readonly ALSO="sch_netem veth"

main() {
    local packages sources
    packages=$(sha256sum "$here/build.sh" | cut -c1-16)
    sources=$(cat "$here"/{build.sh,init,peer.c} | sha256sum | cut -c1-16)
    [ "$(cat "$out/sources" 2> /dev/null)" != "$sources" ] || return 0
    if [ "$(cat "$out/packages" 2> /dev/null)" != "$packages" ]; then
        rm -rf "$out/root" "$out/kernel"
        unpack
        decompress_kernel
        echo "$packages" > "$out/packages"
    fi
    make_initrd
    echo "$sources" > "$out/sources"
}

# Extracts the packages without running maintainer scripts.
unpack() {
    local suite
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mmdebstrap --quiet --variant=extract --include="$PACKAGES" "$suite" "$out/root"
    mmdebstrap --quiet --variant=extract --include="$KERNEL" "$suite" "$out/kernel"
}

# Extracts the uncompressed ELF file for PVH boot, so that the emulated CPU need not decompress it.
decompress_kernel() {
    python3 - "$out"/kernel/boot/vmlinuz-* "$out/vmlinux" << 'PY'
import lzma, struct, subprocess, sys
image = open(sys.argv[1], "rb").read()
sectors = image[0x1F1] or 4
offset = struct.unpack_from("<I", image, 0x248)[0]
length = struct.unpack_from("<I", image, 0x24C)[0]
payload = image[(sectors + 1) * 512 + offset:][:length]
if payload.startswith(b"\xfd7zXZ\0"):
    elf = lzma.LZMADecompressor().decompress(payload)
elif payload.startswith(b"\x28\xb5\x2f\xfd"):
    command = ["zstd", "-dc"]
    elf = subprocess.run(command, input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
else:
    sys.exit("the kernel is compressed in a format that this script does not support")
if not elf.startswith(b"\x7fELF"):
    sys.exit("the kernel's payload is not an ELF file")
open(sys.argv[2], "wb").write(elf)
PY
}

make_initrd() {
    local initrd=$out/initrd
    rm -rf "$initrd"
    mkdir -p "$initrd"/{proc,sys,dev,run,root}
    copy_user_space "$initrd"
    copy_modules "$initrd"
    gcc -O2 -Wall -Wextra -Werror -o "$initrd/usr/bin/rxe-peer" "$here/peer.c" -libverbs
    install -m 755 "$here/init" "$initrd/init"
    configure_ssh "$initrd"
    (cd "$initrd" && find . -print0 | LC_ALL=C sort -z | cpio --quiet -o -0 -H newc -R 0:0) \
        > "$out/initrd.cpio"
    rm -rf "$initrd"
}

copy_user_space() {
    local tool
    tar -C "$out/root" -c --exclude=./usr/share --exclude='*/perl*' --exclude='*/libperl*' \
        --exclude='*/gconv' \
        --exclude='./var/*' --exclude='*/systemd' --exclude='*/udev' --exclude=./dev \
        --exclude='*/libibverbs/lib[a-qs-z]*' . | tar -C "$1" -x --keep-directory-symlink
    rm -f "$1"/etc/libibverbs.d/*
    echo "driver rxe" > "$1/etc/libibverbs.d/rxe.driver"
    for tool in $("$out/root/bin/busybox" --list); do
        [ -n "$(find "$1"/{,usr/}{bin,sbin}/"$tool" 2> /dev/null)" ] || ln -s busybox "$1/bin/$tool"
    done
    ldconfig -r "$1"
}

# Configures the SSH server: root may log in with the key of this build.
configure_ssh() {
    [ -e "$out/key" ] || ssh-keygen -q -t ed25519 -N '' -C guest -f "$out/key"
    echo 'root:x:0:0:root:/root:/bin/sh' > "$1/etc/passwd"
    echo 'root:x:0:' > "$1/etc/group"
    mkdir -p "$1"/etc/dropbear "$1"/root/.ssh "$1"/tmp
    cp "$out/key.pub" "$1/root/.ssh/authorized_keys"
    chmod -R go= "$1/root"
}

# Copies the modules named above and their dependencies, uncompressed.
copy_modules() {
    local version module file
    version=$(ls "$out/kernel/lib/modules")
    depmod -b "$out/kernel" "$version"
    for module in $AT_BOOT $ALSO; do
        modprobe -d "$out/kernel" -S "$version" --show-depends "$module"
    done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r file; do
        install -D -m 644 "$file" "$1/${file#"$out/kernel/"}"
    done
    cp "$out/kernel/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} \
        "$1/lib/modules/$version/"
    find "$1/lib/modules" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$1" "$version"
    echo "$AT_BOOT" > "$1/etc/modules-at-boot"
}

main
