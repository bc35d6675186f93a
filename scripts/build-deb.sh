#!/usr/bin/env bash
# Builds the Debian package `feroce` with dpkg-deb, from the files that scripts/install.sh installs.
#   scripts/build-deb.sh
# The last line of the output is the path of the package.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# = 0 ] || { usage >&2 && exit 2; }

readonly MAINTAINER="The Feroce maintainers <maintainers@feroce.example>"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debian
root=$out/root
rm -rf "$root"
at_exit "rm -rf '$root'"
scripts/install.sh --prefix /usr --destdir "$root"
rm "$root/usr/lib/feroce/installed" # dpkg keeps its own list.

# What Debian requires of every package.
doc=$root/usr/share/doc/feroce
gzip -9n "$root"/usr/share/man/man1/*
printf 'feroce (%s) unstable; urgency=medium\n\n  * Changes: CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$MAINTAINER" "$(git log -1 --format=%cD 2> /dev/null || date -R)" |
    gzip -9n > "$doc/changelog.gz"
cat > "$doc/copyright" << END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: feroce

Files: *
Copyright: 2026 The Feroce maintainers
License: Expat or Apache-2.0

License: Expat
$(sed 's/^$/./; s/^/ /' LICENSE-MIT)

License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0.
END
rm "$doc/LICENSE-MIT" "$doc/LICENSE-APACHE"
ln -s copyright "$doc/LICENSE-MIT"
ln -s ../../common-licenses/Apache-2.0 "$doc/LICENSE-APACHE"
mkdir -p "$root/usr/share/lintian/overrides"
cat > "$root/usr/share/lintian/overrides/feroce" << 'END'
# The names of functions are kept for back traces.
feroce: unstripped-binary-or-object *
END

# The libraries of the distribution that Feroce's link; Feroce's own are in the package. The newest
# symbol of the C library says which one is needed.
binaries=("$root/usr/bin/feroce")
while read -r file; do binaries+=("$file"); done < <(find "$root/usr/lib/feroce" -type f)
glibc=$(objdump -T "${binaries[@]}" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
mkdir "$root/DEBIAN"
cat > "$root/DEBIAN/control" << END
Package: feroce
Version: $version
Architecture: $architecture
Maintainer: $MAINTAINER
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: libc6 (>= ${glibc#GLIBC_}), libelf1, libgcc-s1, zlib1g
Recommends: iproute2
Suggests: ibverbs-utils, perftest, rdmacm-utils, ucx-utils, libfabric-bin
Section: net
Priority: optional
Description: RoCEv2 RNIC in user space, for ordinary Ethernet interfaces
 Feroce turns an ordinary Ethernet interface into a RoCEv2 RNIC, in user space.
 "feroce run PROGRAM" starts unmodified verbs applications on it. Its
 libraries lie in a folder of their own, and replace none of the distribution's.
END
(cd "$root" && find usr -type f -printf '%P\0' | sort -z |
    xargs -0 -I{} md5sum usr/{} > DEBIAN/md5sums)
package=$out/feroce_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" > /dev/null
echo "$package"
