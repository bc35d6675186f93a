#!/usr/bin/env python3
"""Recomputes the ICRC of every RoCEv2 frame of the captures given, with scapy, and compares."""
import logging
import multiprocessing
import sys

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.utils import RawPcapReader  # noqa: E402


def verdict(raw):
    """True if scapy, asked for the ICRC, builds the very same frame; None if it is not RoCE."""
    frame = Ether(raw)
    if BTH not in frame:
        return None
    frame[BTH].icrc = None
    return bytes(frame) == raw


def check(path, pool):
    """The number of frames, and the numbers of those whose ICRC is not scapy's."""
    frames = (raw for raw, _ in RawPcapReader(path))
    verdicts = [right for right in pool.imap(verdict, frames, chunksize=256) if right is not None]
    return len(verdicts), [number for number, right in enumerate(verdicts, 1) if not right]


def main():
    failed = False
    with multiprocessing.Pool() as pool:
        for path in sys.argv[1:]:
            count, wrong = check(path, pool)
            print(f"scapy: {count} frames, {len(wrong)} with another ICRC {wrong[:10] or ''}")
            failed |= bool(wrong) or count == 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
