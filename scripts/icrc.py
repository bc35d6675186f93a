#!/usr/bin/env python3
"""Compares the ICRC of every RoCEv2 frame of the given captures with the one that scapy computes.

It is Python with scapy on purpose: it shares no code with the engine that it judges.
"""
import logging
import multiprocessing
import struct
import sys

if len(sys.argv) < 2 or sys.argv[1].startswith("-"):  # Before the import of scapy, which takes 1 s.
    print(f"usage: {sys.argv[0]} CAPTURE.pcap...", file=sys.stderr)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.utils import RawPcapReader  # noqa: E402


def verdict(raw):
    """True if scapy computes the ICRC that the frame has; None if it is not RoCE."""
    frame = Ether(raw)
    if BTH not in frame:
        return None
    bth = frame[BTH]
    # compute_icrc reads the layers of the packet, not its argument.
    return bth.compute_icrc(None) == struct.pack("!I", bth.icrc)


def check(path, pool):
    """The number of RoCEv2 frames, and the frame numbers of those whose ICRC is not scapy's."""
    frames = (raw for raw, _ in RawPcapReader(path))
    verdicts = list(enumerate(pool.imap(verdict, frames, chunksize=256), 1))
    wrong = [number for number, right in verdicts if right is False]
    return sum(right is not None for _, right in verdicts), wrong


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
