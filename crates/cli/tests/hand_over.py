"""Sends a line with a descriptor to a control socket, and prints the answer: SOCKET LINE KIND.

KIND says what is handed over. A descriptor that poll(2) calls readable and that read(2) waits on all the same is what the
other end must not wait for.
"""

import os
import socket
import sys
import threading

path, line, kind = sys.argv[1:]
held = []


def socket_below_its_low_water_mark():
    # One byte makes it readable, and a read waits for the other 63.
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 64)
    ours.send(b"x")
    held.extend((ours, theirs))
    return theirs.fileno()


def pipe_that_another_reads():
    reader, writer = os.pipe()
    thief = threading.Thread(target=lambda: [os.read(reader, 1) for _ in range(1 << 30)], daemon=True)
    thief.start()

    def write():
        for _ in range(20):
            threading.Event().wait(0.02)
            os.write(writer, b"x")

    threading.Thread(target=write, daemon=True).start()
    held.append(writer)
    return reader


def silent_pipe():
    reader, writer = os.pipe()
    held.append(writer)
    return reader


def file_in_earnest():
    return os.open("/dev/zero", os.O_RDONLY)


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
