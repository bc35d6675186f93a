#!/usr/bin/env bash
# Builds Feroce and puts it in place: the program, the libraries for programs written for verbs, man pages, completions, an
# example of the configuration. The distribution's own libraries stay as they are: `feroce run` puts Feroce's ahead
# of them for one program.
#   scripts/install.sh [--prefix FOLDER] [--destdir FOLDER] [--uninstall]
#     --prefix FOLDER    below it: bin, lib/feroce, share (default: /usr/local)
#     --destdir FOLDER   put in front of every path, for packagers: nothing outside of it is written
#     --uninstall        removes what was installed with the same prefix
# Exit code 0 if all is in place; 1 if something is missing, 2 for wrong usage.
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
[[ $prefix = /* ]] || die "the prefix is a path from the root: $prefix"

root=$destdir$prefix
list=$root/lib/feroce/installed # What is to be removed, a path below the prefix each.

main() {
    if [ -n "$uninstall" ]; then
        remove
        return
    fi
    find_cargo
    say "Building"
    as_caller "$cargo" build --quiet --release --workspace --bin feroce --bin feroce-fabric --bin feroce-pfc --bin feroce-conform
    libraries=$(as_caller scripts/build-libs.sh | tail -n 1)
    mkdir -p "$root" 2> /dev/null && [ -w "$root" ] || die "cannot write to $root (sudo, or another --prefix)"
    [ ! -e "$list" ] || remove # An older version may have had other files.
    stage
    note "installed below $root: $(wc -l < "$list") files"
    [ -n "$destdir" ] || [[ ":$PATH:" = *:"$prefix/bin":* ]] || note "$prefix/bin is not in PATH"
}

stage() {
    local feroce=${libraries%/lib}/feroce pages file
    pages=$(mktemp -d)
    at_exit "rm -rf $pages"
    put 755 "$feroce" bin/feroce
    # With names of functions for back traces, without lines.
    strip --strip-debug "$root/bin/feroce"
    for file in fabric pfc conform; do
        put 755 "$feroce-$file" "bin/feroce-$file"
        strip --strip-debug "$root/bin/feroce-$file"
    done
    while read -r file; do
        if [ -L "$libraries/$file" ]; then
            mkdir -p "$(dirname "$root/lib/feroce/$file")"
            cp -P "$libraries/$file" "$root/lib/feroce/$file"
            record "lib/feroce/$file"
        else
            put 644 "$libraries/$file" "lib/feroce/$file"
            strip --strip-debug "$root/lib/feroce/$file"
        fi
    done < <(cd "$libraries" && find . \( -name '*.so' -o -name '*.so.[0-9]*' \) ! -name '*.new' -printf '%P\n' | sort)
    "$feroce" man "$pages/man"
    for file in "$pages"/man/*; do put 644 "$file" "share/man/man1/${file##*/}"; done
    "$feroce" completions bash > "$pages/bash" && put 644 "$pages/bash" share/bash-completion/completions/feroce
    "$feroce" completions zsh > "$pages/zsh" && put 644 "$pages/zsh" share/zsh/site-functions/_feroce
    "$feroce" completions fish > "$pages/fish" && put 644 "$pages/fish" share/fish/vendor_completions.d/feroce.fish
    "$feroce" config --example > "$pages/toml" && put 644 "$pages/toml" share/doc/feroce/examples/feroce.toml
    for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs/*.md; do
        put 644 "$file" "share/doc/feroce/$file"
    done
}

# put MODE FILE PLACE: installs FILE as PLACE below the prefix.
put() {
    install -D -m "$1" "$2" "$root/$3"
    record "$3"
}

record() { mkdir -p "$(dirname "$list")" && echo "$1" >> "$list"; }

# Files first, then folders of ours that are empty; what others put there stays.
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
