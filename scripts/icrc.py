#!/usr/bin/env python3
"""Recomputes the ICRC of every RoCEv2 frame of the captures given, with scapy, and compares."""
import logging
import sys

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.utils import RawPcapReader  # noqa: E402


def check(path):
    """The number of frames, and the numbers of those whose ICRC is not scapy's."""
    count, wrong = 0, []
    for raw, _ in RawPcapReader(path):
        frame = Ether(raw)
        if BTH not in frame:
            continue
        count += 1
        found = frame[BTH].icrc
        frame[BTH].icrc = None
        if Ether(bytes(frame))[BTH].icrc != found:
            wrong.append(count)
    return count, wrong


def main():
    failed = False
    for path in sys.argv[1:]:
        count, wrong = check(path)
        print(f"scapy: {count} frames, {len(wrong)} with another ICRC {wrong[:10] or ''}")
        failed |= bool(wrong) or count == 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
