"""Shared by the programs in this folder: a TCP connection between the two ends, on which they
exchange addresses and checksums, and the data that the ends transfer.
"""
import hashlib
import json
import pathlib
import socket

PORT = 18600
# What the device has sent, in units of 4 bytes.
COUNTER = pathlib.Path("/sys/class/infiniband/feroce0/ports/1/counters/port_xmit_data")
# Lengths of the transfers in bytes: one byte, one packet at path MTU 4096, many packets and a
# remainder, many packets.
LENGTHS = (1, 4096, 1_000_003, 16 << 20)


def data(seed, length):
    """`length` bytes that depend on `seed`."""
    return hashlib.shake_256(str(seed).encode()).digest(length)


def checksum(content):
    """A checksum as text."""
    return hashlib.sha256(content).hexdigest()


def check_counter():
    """Ends the program if the device has sent less than the transfers of one direction."""
    sent = 4 * int(COUNTER.read_text())
    if sent < sum(LENGTHS):
        raise SystemExit(f"the device has sent only {sent} bytes: the data took another path")


class Peer:
    """The connection to the other end. Messages are lines of JSON."""

    def __init__(self, connection):
        self.file = connection.makefile("rw")

    @classmethod
    def accept(cls):
        """Waits for the client."""
        with socket.create_server(("0.0.0.0", PORT)) as listener:
            return cls(listener.accept()[0])

    @classmethod
    def connect(cls, server):
        """Connects to the server's IPv4 address."""
        return cls(socket.create_connection((server, PORT)))

    def send(self, message):
        """Sends a message."""
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()

    def receive(self):
        """Receives a message."""
        line = self.file.readline()
        if not line:
            raise SystemExit("the other end has ended")
        return json.loads(line)
