#!/usr/bin/env bash
# Builds and installs Feroce: the program `feroce`, the libraries for verbs applications, manual
# pages, shell completions, an example configuration and a systemd unit. The distribution's
# libraries stay unchanged: `feroce run` makes a single program load Feroce's libraries instead.
#   scripts/install.sh [--prefix FOLDER] [--destdir FOLDER] [--uninstall]
#     --prefix FOLDER    install to bin, lib/feroce, lib/systemd/system and share below FOLDER
#                        (default: /usr/local)
#     --destdir FOLDER   prepend FOLDER to every path, for packagers; nothing else is written
#     --uninstall        remove what was installed with the same prefix
# Exit code: 0 installed or removed; 1 failed; 2 wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

prefix=/usr/local destdir='' uninstall=''
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -gt 1 ] || { usage >&2 && exit 2; }; prefix=$2 && shift ;;
        --destdir) [ $# -gt 1 ] || { usage >&2 && exit 2; }; destdir=$2 && shift ;;
        --uninstall) uninstall=yes ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ $prefix = /* ]] || die "the prefix must be an absolute path: $prefix"

root=$destdir$prefix
list=$root/lib/feroce/installed # Installed files, one path below the prefix per line.

main() {
    if [ -n "$uninstall" ]; then
        remove
        return
    fi
    find_cargo
    say "Building"
    build --bin feroce
    libraries=$(as_caller scripts/build-libs.sh | tail -n 1)
    mkdir -p "$root" 2> /dev/null && [ -w "$root" ] ||
        die "cannot write to $root (sudo, or another --prefix)"
    [ ! -e "$list" ] || remove # An older version may have other files.
    stage
    note "installed below $root: $(wc -l < "$list") files"
    [ -n "$destdir" ] || [[ ":$PATH:" = *:"$prefix/bin":* ]] || note "$prefix/bin is not in PATH"
}

stage() {
    local feroce=${libraries%/lib}/feroce pages file
    pages=$(mktemp -d)
    at_exit "rm -rf $pages"
    put 755 "$feroce" bin/feroce
    # Keep function names for back traces, but no line numbers.
    strip --strip-debug "$root/bin/feroce"
    while read -r file; do
        if [ -L "$libraries/$file" ]; then
            mkdir -p "$(dirname "$root/lib/feroce/$file")"
            cp -P "$libraries/$file" "$root/lib/feroce/$file"
            record "lib/feroce/$file"
        else
            put 644 "$libraries/$file" "lib/feroce/$file"
            strip --strip-debug "$root/lib/feroce/$file"
        fi
    done < <(cd "$libraries" &&
        find . \( -name '*.so' -o -name '*.so.[0-9]*' \) ! -name '*.new' -printf '%P\n' | sort)
    "$feroce" man --out "$pages/man"
    for file in "$pages"/man/*; do put 644 "$file" "share/man/man1/${file##*/}"; done
    "$feroce" completions bash > "$pages/bash" &&
        put 644 "$pages/bash" share/bash-completion/completions/feroce
    "$feroce" completions zsh > "$pages/zsh" &&
        put 644 "$pages/zsh" share/zsh/site-functions/_feroce
    "$feroce" completions fish > "$pages/fish" &&
        put 644 "$pages/fish" share/fish/vendor_completions.d/feroce.fish
    "$feroce" config --example > "$pages/toml" &&
        put 644 "$pages/toml" share/doc/feroce/examples/feroce.toml
    sed "s|^ExecStart=/usr/|ExecStart=$prefix/|" scripts/feroce@.service > "$pages/service" &&
        put 644 "$pages/service" lib/systemd/system/feroce@.service
    # Links of README.md and of the pages lead to files that are installed, too.
    for file in README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE \
        $(find docs -type f ! -name '*.toml' | sort); do
        put 644 "$file" "share/doc/feroce/$file"
    done
}

# put MODE FILE PATH: installs FILE as PATH below the prefix.
put() {
    install -D -m "$1" "$2" "$root/$3"
    record "$3"
}

record() { mkdir -p "$(dirname "$list")" && echo "$1" >> "$list"; }

# Removes the files, then Feroce's folders if they are empty. Files of others stay.
remove() {
    local path folder
    [ -e "$list" ] || die "nothing was installed below $root"
    while read -r path; do
        rm -f "$root/$path"
    done < "$list"
    rm "$list"
    for folder in lib/feroce share/doc/feroce; do
        [ ! -d "$root/$folder" ] || find "$root/$folder" -depth -type d -empty -delete
    done
    note "removed from $root"
}

main
