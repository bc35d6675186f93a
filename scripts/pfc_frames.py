#!/usr/bin/env python3
"""Makes PFC and PAUSE frames, and compares how scapy, tshark and `feroce pfc decode` read them.

scripts/pfc-frames.sh runs this program. It is Python with scapy on purpose: it shares no code with
the decoder that it judges.

pfc_frames.py make FILE COUNT SEED
    writes a capture of COUNT random frames made by scapy, a third of them invalid
pfc_frames.py judge CAPTURE DECODED FIELDS COUNT
    compares the findings of decode (its JSON: DECODED) with the violations that follow from the
    fields of scapy, which reads CAPTURE, and from those of tshark (its columns: FIELDS)
"""
import json
import logging
import random
import sys

if len(sys.argv) < 2 or sys.argv[1].startswith("-"):  # Before the import of scapy, which takes 1 s.
    print(__doc__, file=sys.stderr)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.mac_control import (  # noqa: E402
    MACControl, MACControlClassBasedFlowControl, MACControlPause)
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402
from scapy.utils import RawPcapReader, wrpcap  # noqa: E402

ADDRESS, ETHERTYPE, PAUSE, PFC = "01:80:c2:00:00:01", 0x8808, 0x0001, 0x0101


def make(path, count, seed):
    draw = random.Random(seed)
    wrpcap(path, [frame(draw, n % 3 == 2) for n in range(count)], linktype=1)


def frame(draw, is_wrong):
    ether = Ether(dst=ADDRESS, src="02:" + ":".join(f"{draw.randrange(256):02x}" for _ in range(5)))
    if draw.random() < 0.25:
        control = MACControlPause(pause_time=draw.randrange(1 << 16))
    else:
        control = MACControlClassBasedFlowControl()
        for n in draw.sample(range(8), draw.randint(1, 8)):
            setattr(control, f"c{n}_enabled", 1)
            setattr(control, f"c{n}_pause_time", draw.choice([0, draw.randrange(1 << 16), 0xffff]))
    if not is_wrong:
        return bytes(ether / control)
    return spoiled(draw, ether, control)


def spoiled(draw, ether, control):
    kinds = ["destination", "source", "tagged", "ethertype", "opcode", "padding", "short", "long"]
    if isinstance(control, MACControlClassBasedFlowControl):
        kinds += ["vector", "no-priority", "unused"]
    kind = draw.choice(kinds)
    if kind == "destination":
        ether.dst = "01:80:c2:00:00:0e"
    elif kind == "source":
        ether.src = "03" + ether.src[2:]
    elif kind == "opcode":
        control._op_code = draw.randrange(0x0102, 1 << 16)
    elif kind == "vector":
        control._reserved = draw.randrange(1, 256)
    elif kind == "no-priority":
        for n in range(8):
            setattr(control, f"c{n}_enabled", 0)
    elif kind == "unused":
        n = draw.randrange(8)
        setattr(control, f"c{n}_enabled", 0)
        setattr(control, f"c{n}_pause_time", draw.randrange(1, 1 << 16))
    if kind == "tagged":
        return bytes(ether / Dot1Q(vlan=draw.randrange(4096), prio=draw.randrange(8)) / control)
    if kind == "ethertype":
        ether.type = 0x88b5
    raw = bytearray(bytes(ether / control))
    if kind == "padding":
        raw[draw.randrange(34, 60)] = draw.randrange(1, 256)
    elif kind == "short":
        del raw[draw.randrange(36, 60):]
    elif kind == "long":
        raw += bytes(draw.randrange(1, 100))
    return bytes(raw)


class Seen:
    """What a decoder sees in a frame."""

    def __init__(self, dst, src, ethertype, tag, opcode, vector, times, length):
        self.dst, self.src, self.ethertype, self.tag = dst, src, ethertype, tag
        self.opcode, self.vector, self.times, self.length = opcode, vector, times, length

    def control(self):
        """Kind, enabled priorities and quanta of the frame, as in decode's JSON."""
        if self.ethertype != ETHERTYPE or self.opcode not in (PAUSE, PFC):
            return ("other", None, None)
        if self.opcode == PAUSE:
            return ("pause", None, self.times)
        return ("pfc", self.vector & 0xff, self.times)

    def wrong(self, padding):
        """Names of the violations, as decode prints them, in alphabetical order."""
        is_control = self.ethertype == ETHERTYPE
        to_one = self.opcode == PAUSE and int(self.dst[:2], 16) & 1 == 0
        rules = {
            "destination": self.dst != ADDRESS and not to_one,
            "source": int(self.src[:2], 16) & 1 == 1,
            "tagged": self.tag,
            "ethertype": not is_control,
            "opcode": is_control and self.opcode not in (PAUSE, PFC),
            "short": is_control and self.length < 60,
            "long": is_control and self.length > (64 if self.tag else 60),
        }
        if is_control and self.opcode == PFC:
            unused = [t for n, t in enumerate(self.times) if t and not self.vector >> n & 1]
            rules["vector"] = self.vector > 0xff
            rules["no-priority"] = self.vector & 0xff == 0
            rules["unused-quanta"] = bool(unused)
        if is_control and self.opcode in (PAUSE, PFC):
            rules["padding"] = any(padding)
        return sorted(name for name, holds in rules.items() if holds)


def by_scapy(raw):
    packet = Ether(raw)
    tag = Dot1Q in packet
    ethertype = packet[Dot1Q].type if tag else packet.type
    opcode = vector = None
    times, padding = [], b""
    control = packet.getlayer(MACControlClassBasedFlowControl) or packet.getlayer(MACControlPause)
    if control is not None:
        opcode = control._op_code
        # The padding follows the layer, up to byte 60; later bytes do not count.
        head = len(raw) - len(control.payload.original if control.payload else b"")
        padding = raw[head:60]
    elif MACControl in packet:
        opcode = int.from_bytes(bytes(packet[MACControl].payload)[:2], "big")
    if opcode == PFC:
        enabled = sum(getattr(control, f"c{n}_enabled") << n for n in range(8))
        vector = control._reserved << 8 | enabled
        times = [getattr(control, f"c{n}_pause_time") for n in range(8)]
    elif opcode == PAUSE:
        times = [control.pause_time]
    return Seen(packet.dst, packet.src, ethertype, tag, opcode, vector, times, len(raw)), padding


def by_tshark(line):
    columns = line.rstrip("\n").split("\t")
    number = [int(text, 0) if text and ":" not in text else None for text in columns]
    length, ethertype, behind_tag, tag = number[0], number[3], number[4], number[5]
    opcode, pause, vector, times = number[7], number[8], number[9], number[10:18]
    if opcode == PAUSE:
        times = [pause]
    if tag is not None:
        ethertype = behind_tag
    dst, src = columns[1:3]
    return Seen(dst, src, ethertype, tag is not None, opcode, vector, times, length)


def judge(capture, decoded, fields, count):
    frames = [raw for raw, _ in RawPcapReader(capture)]
    ours = [line for line in map(json.loads, open(decoded)) if "summary" not in line]
    theirs = open(fields).readlines()
    if not len(frames) == len(ours) == len(theirs) == count:
        sys.exit(f"{count} frames were made; the capture has {len(frames)}, decode {len(ours)}, "
                 f"tshark {len(theirs)}")
    differ, wrong = [], 0
    for n, (raw, line, columns) in enumerate(zip(frames, ours, theirs), 1):
        scapy, padding = by_scapy(raw)
        own = (line["kind"], line["enabled"], line["quanta"])
        found = sorted(finding["kind"] for finding in line["findings"])
        wrong += bool(found)
        for name, seen in (("scapy", scapy), ("tshark", by_tshark(columns))):
            if seen.control() != own or seen.src != line["src"] or seen.wrong(padding) != found:
                differ.append(f"frame {n}: {name} {seen.control()} {seen.wrong(padding)}, "
                              f"decode {own} {found}: {raw.hex()}")
    print(f"{capture.rpartition('/')[2]}: {count} frames, {wrong} of them invalid; "
          f"scapy and tshark differ from decode in {len(differ)} cases")
    print("\n".join(differ[:10]), end="\n" if differ else "")
    sys.exit(bool(differ) or wrong < count // 4)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "judge":
        judge(*sys.argv[2:5], int(sys.argv[5]))
    else:
        sys.exit(__doc__)
