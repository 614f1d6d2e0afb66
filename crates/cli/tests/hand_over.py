"""Sends a line with a descriptor to a control socket, and prints the reply: SOCKET LINE KIND.

KIND is a function of this file or a path, and selects the descriptor. The server must not block on a descriptor that
poll(2) reports as readable although read(2) blocks.
"""

import os
import socket
import subprocess
import sys
import threading
import time

path, line, kind = sys.argv[1:]
held = []


def socket_below_its_low_water_mark():
    # One byte makes it readable, but a read blocks until the other 63 arrive.
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 64)
    ours.send(b"x")
    held.extend((ours, theirs))
    return theirs.fileno()


def pipe_that_others_read():
    # The more readers there are, the longer another one blocks without a byte.
    reader, writer = os.pipe()
    for _ in range(16):
        subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)

    def write():
        for _ in range(100):
            time.sleep(0.01)
            os.write(writer, b"x")

    threading.Thread(target=write, daemon=True).start()
    held.append(writer)
    return reader


def silent_pipe():
    reader, writer = os.pipe()
    held.append(writer)
    return reader


if kind.startswith("/"):
    descriptor = os.open(kind, os.O_RDONLY)
else:
    descriptor = globals()[kind]()
client = socket.socket(socket.AF_UNIX)
client.settimeout(60)
client.connect(path)
socket.send_fds(client, [line.encode() + b"\n"], [descriptor])
answer = b""
while not answer.endswith(b"\n"):
    more = client.recv(4096)
    if not more:
        break
    answer += more
print(answer.decode(), end="")
