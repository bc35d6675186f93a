"""Two NIXL agents transfer data from host memory to host memory with the UCX backend: the client
writes into a buffer of the server, reads it back, and both compare the data.
  nixl_ucx.py [SERVER-ADDRESS]
"""
import base64
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config
from peer import LENGTHS, Peer, check_counter, checksum, data

server = sys.argv[1:]
SIZE = max(LENGTHS)
SECONDS = 30


def text(content):
    """Bytes as text for JSON."""
    return base64.b64encode(content).decode()


def run(agent, operation, local, remote, name):
    """Transfers, and waits for the end."""
    handle = agent.initialize_xfer(operation, local, remote, name, b"done " + operation.encode())
    state = agent.transfer(handle)
    end = time.monotonic() + SECONDS
    while state == "PROC" and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise SystemExit(f"{operation} ended in the state {state}")
    agent.release_xfer_handle(handle)


# The server listens first: the client begins when it can connect.
peer = Peer.connect(server[0]) if server else Peer.accept()
agent = nixl_agent("client" if server else "server", nixl_agent_config(backends=["UCX"]))
buffer = np.zeros(SIZE, dtype=np.uint8)
registered = agent.register_memory([(buffer.ctypes.data, SIZE, 0, "")], "DRAM")
peer.send({"agent": text(agent.get_agent_metadata()), "address": buffer.ctypes.data})
other = peer.receive()
name = agent.add_remote_agent(base64.b64decode(other["agent"]))

for seed, length in enumerate(LENGTHS):
    content = data(seed, length)
    if server:
        buffer[:length] = np.frombuffer(content, dtype=np.uint8)
        local = agent.get_xfer_descs([(buffer.ctypes.data, length, 0)], "DRAM")
        remote = agent.get_xfer_descs([(other["address"], length, 0)], "DRAM")
        run(agent, "WRITE", local, remote, name)
        peer.send("written")
        assert peer.receive() == checksum(content), f"the server has other data, length {length}"
        buffer[:length] = 0
        run(agent, "READ", local, remote, name)
        assert buffer[:length].tobytes() == content, f"READ returned other data, length {length}"
    else:
        peer.receive()
        peer.send(checksum(buffer[:length].tobytes()))
    print(f"{length} bytes: written, read, compared", flush=True)

# The server stays until the client has read.
if server:
    peer.send("end")
else:
    peer.receive()
    notes = agent.get_new_notifs().get("client", [])
    assert b"done READ" in notes, f"the notifications are {notes}"
agent.remove_remote_agent(name)
agent.deregister_memory(registered)
check_counter()
print("all data correct", flush=True)
