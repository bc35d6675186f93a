#!/usr/bin/env bash
# Builds the documentation as a book, target/book/html/index.html, and checks every link and anchor
# of its pages. docs/SUMMARY.md is the table of contents. Builds mdBook below target/mdbook, once,
# if there is none of the pinned release.
#   scripts/book.sh             # --build: mdBook only
# Exit code 0 if the book is built and no link is broken.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# = 0 ] || [ "$*" = --build ] || { usage >&2 && exit 2; }

readonly VERSION=0.5.4 # of mdBook; needs Rust 1.88
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mdbook=$target/mdbook/bin/mdbook

if [ "$("$mdbook" --version 2> /dev/null)" != "mdbook v$VERSION" ]; then
    find_cargo
    note "building mdBook $VERSION into $target/mdbook"
    # From another folder, so that no setting of this workspace applies. Without optimisation: a
    # book of this size takes a second.
    (cd / && as_caller "$cargo" install mdbook --version "=$VERSION" --locked --debug \
        "${quiet[@]}" --no-default-features --root "$target/mdbook" \
        --target-dir "$target/mdbook/build")
    rm -rf "$target/mdbook/build"
fi
[ $# = 0 ] || exit 0

# The pages as they are in the repository, with their folders, so that links between them hold. The
# table of contents lies above docs, as the book's source requires.
book=$target/book
rm -rf "$book"
mkdir -p "$book/src"
cp docs/book.toml "$book/book.toml"
cp -r docs "$book/src/docs"
rm "$book/src/docs/book.toml" "$book/src/docs/SUMMARY.md"
cp README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE-* "$book/src"
sed -e 's#](\([^.]\)#](docs/\1#' -e 's#](\.\./#](#' docs/SUMMARY.md > "$book/src/SUMMARY.md"
# mdBook makes an index.html of each README.md, and toc.html of the table of contents.
find "$book/src" -name '*.md' ! -name SUMMARY.md -exec sed -E -i \
    -e 's#(\]\([^)]*)README\.md#\1index.md#g' -e 's#\]\(docs/SUMMARY\.md#](toc.html#g' {} +
# Other files that pages link to.
for file in $(grep -ohE '\]\(\.\./[a-z][^)#]*' docs/*.md | sed 's#](\.\./##' | sort -u); do
    case $file in *.md) continue ;; esac
    mkdir -p "$book/src/$(dirname "$file")"
    cp "$file" "$book/src/$file"
done
"$mdbook" build "$book" --dest-dir "$book/html" > "$book/log" 2>&1 || {
    cat "$book/log" >&2
    die "mdbook failed"
}
! grep -E 'ERROR|WARN' "$book/log" >&2 || die "mdbook has complained"
python3 scripts/check-links.py "$book/html"
note "$book/html/index.html"
