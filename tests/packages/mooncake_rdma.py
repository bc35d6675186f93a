"""Two processes transfer data with Mooncake's transfer engine, protocol rdma: the client writes
into a buffer of the server, reads it back, and both compare the data.
  mooncake_rdma.py OWN-ADDRESS [SERVER-ADDRESS]
"""
import ctypes
import sys

from mooncake.engine import TransferEngine
from peer import LENGTHS, Peer, check_counter, checksum, data

own, *server = sys.argv[1:]
SIZE = max(LENGTHS)


def need(result, what):
    """Ends the program if a call of the engine failed."""
    if result != 0:
        raise SystemExit(f"{what} returned {result}")


# The server listens first: the client begins when it can connect.
peer = Peer.connect(server[0]) if server else Peer.accept()
engine = TransferEngine()
need(engine.initialize(own, "P2PHANDSHAKE", "rdma", "feroce0"), "initialize")
buffer = ctypes.create_string_buffer(SIZE)
address = ctypes.addressof(buffer)
need(engine.register_memory(address, SIZE), "register_memory")
peer.send({"session": f"{own}:{engine.get_rpc_port()}", "address": address})
other = peer.receive()

for seed, length in enumerate(LENGTHS):
    content = data(seed, length)
    if server:
        ctypes.memmove(buffer, content, length)
        transfer = (other["session"], address, other["address"], length)
        need(engine.transfer_sync_write(*transfer), "transfer_sync_write")
        peer.send("written")
        assert peer.receive() == checksum(content), f"the server has other data, length {length}"
        ctypes.memset(buffer, 0, length)
        need(engine.transfer_sync_read(*transfer), "transfer_sync_read")
        assert buffer.raw[:length] == content, f"READ returned other data, length {length}"
    else:
        peer.receive()
        peer.send(checksum(buffer.raw[:length]))
    print(f"{length} bytes: written, read, compared", flush=True)

# The server stays until the client has read.
if server:
    peer.send("end")
else:
    peer.receive()
need(engine.unregister_memory(address), "unregister_memory")
check_counter()
print("all data correct", flush=True)
