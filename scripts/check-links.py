#!/usr/bin/env python3
"""Checks the links between the pages of a folder of HTML: each leads to a file of the folder, and
to an anchor that this file has. Links to the web are not followed.

    scripts/check-links.py FOLDER
"""
import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The anchors of a page, and the targets of its links and pictures."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name"):
                self.anchors.add(value)
            if (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.targets.append(value or "")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")}
    broken, count = [], 0
    for path, page in sorted(pages.items()):
        for target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            count += 1
            file = urllib.parse.unquote(url.path)
            to = (path.parent / file).resolve() if file else path
            if path.name == "404.html":  # served at any place: its links begin at the root
                to = (root / file.lstrip("/")).resolve()
            anchor = urllib.parse.unquote(url.fragment)
            if not to.exists() or (anchor and to in pages and anchor not in pages[to].anchors):
                broken.append(f"{path.relative_to(root)}: {target}")
    if count == 0:
        sys.exit("there are no links: is this the right folder?")
    for line in broken:
        print(line)
    print(f"{len(pages)} pages, {count} links, {len(broken)} broken")
    sys.exit(1 if broken else 0)


main()
