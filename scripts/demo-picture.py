#!/usr/bin/env python3
"""Draws the picture of README.md: the output of scripts/demo.sh, line by line, as an SVG.

    scripts/demo.sh | scripts/demo-picture.py docs/pictures/demo.svg
"""
import html
import re
import sys

COLUMN, LINE, MARGIN = 7.8, 17, 14  # pixels: a character, a line, the frame
COLOURS = {"head": "#e5c07b", "own": "#98c379", "note": "#7f8694", "text": "#d7dae0"}


def kind(line):
    """Which colour a line has."""
    if line.startswith("== "):
        return "head"
    if line.startswith("  Feroce"):
        return "own"
    return "text" if line.startswith("  ") else "note"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    shown = [line.rstrip().replace("\t", "  ") for line in sys.stdin]
    shown = [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in shown]
    # What comes before the packets are steps, without a result.
    first = next((at for at, line in enumerate(shown) if line.startswith("== Packets")), None)
    if first is None:
        sys.exit("this is not the output of scripts/demo.sh")
    lines = ["$ scripts/demo.sh"] + shown[first:]
    width = max(map(len, lines)) * COLUMN + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    print_to(sys.argv[1], lines, width, height)


def print_to(path, lines, width, height):
    """Writes the picture."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
            f'width="{width:.0f}" font-family="ui-monospace, Menlo, Consolas, monospace" '
            'font-size="13">\n<rect width="100%" height="100%" rx="8" fill="#16181d"/>\n'
        )
        for number, line in enumerate(lines):
            # Each word has its own place, so that columns align in every font.
            for word in re.finditer(r"\S+(?: \S+)*", line):
                x, y = MARGIN + word.start() * COLUMN, MARGIN + (number + 0.8) * LINE
                file.write(
                    f'<text x="{x:.1f}" y="{y:.1f}" fill="{COLOURS[kind(line)]}" '
                    f'textLength="{len(word[0]) * COLUMN:.1f}" lengthAdjust="spacingAndGlyphs">'
                    f"{html.escape(word[0])}</text>\n"
                )
        file.write("</svg>\n")


main()
