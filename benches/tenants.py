#!/usr/bin/python3
"""NBD clients of a server with many volumes, for tenants.sh.

  tenants.py hold SOCKET NAME...              reads 4 KiB of each volume, prints a line, stays connected until standard
                                              input ends
  tenants.py paced SECONDS PRIORITY SOCKET NAME...
                                              a process for each volume: 4 KiB reads at depth 1, a pause of 2 to 4 ms
                                              after each. Prints the median and the 99th percentile of the latencies of
                                              all, in microseconds, and the requests a second. With a PRIORITY above 0
                                              the clients have this real-time priority.
  tenants.py flood SOCKET NAME CONNECTIONS    writes of 1 MiB, as many in flight as server and sockets take, until
                                              SIGTERM. Then prints the connections and MiB/s.
  tenants.py keep SOCKET NAME WHAT CONNECTIONS
                                              clients of one volume, until they are killed: `unread`, two reads of
                                              32 MiB whose replies are not taken; `slow`, such reads, of which
                                              400 KiB/s are taken; `stalled`, such a write, of which 400 KiB/s are sent;
                                              `greedy`, reads of 1 MiB, 16 in flight
  tenants.py steady SECONDS SOCKET NAME       4 KiB reads at depth 1 without pauses. Prints their number, and the median
                                              and the maximum of the latencies, in milliseconds
  tenants.py spin                             uses one CPU until it is killed
"""
import array
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

BLOCK = 4096
LONG = 1 << 20
READ, WRITE = 0, 1
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")


def receive(sock, length):
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionError("the server has disconnected")
        view = view[got:]
    return data


def connect(path, name):
    """Returns a socket after the handshake, and the size of the export."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    magic, version, flags = struct.unpack(">QQH", receive(sock, 18))
    assert (magic, version) == (0x4E42444D41474943, 0x49484156454F5054) and flags & 3 == 3
    name = name.encode()
    option = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    sock.sendall(struct.pack(">I", 3) + struct.pack(">QII", 0x49484156454F5054, 7, len(option)) + option)
    size = None
    while True:
        _, _, kind, length = struct.unpack(">QIII", receive(sock, 20))
        data = receive(sock, length)
        if kind == 1:
            return sock, size
        if kind != 3:
            raise ConnectionError(f"{name}: option refused: {kind:#x} {bytes(data)}")
        if data[:2] == b"\0\0":
            size = struct.unpack(">Q", data[2:10])[0]


def read(sock, offset):
    sock.sendall(REQUEST.pack(0x25609513, 0, READ, 1, offset, BLOCK))
    magic, error, _ = REPLY.unpack(receive(sock, REPLY.size))
    assert magic == 0x67446698 and error == 0, error
    receive(sock, BLOCK)


def hold(path, *names):
    clients = []
    for name in names:
        clients.append(connect(path, name)[0])
        read(clients[-1], 0)
    print(len(clients), flush=True)
    sys.stdin.read()


def paced_client(path, name, seconds, priority, output):
    sock, size = connect(path, name)
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    latencies = array.array("d")
    begin = time.perf_counter() + 0.5
    while True:
        start = time.perf_counter()
        read(sock, random.randrange(size // BLOCK) * BLOCK)
        end = time.perf_counter()
        if start >= begin:
            latencies.append(end - start)
        if end >= begin + seconds:
            break
        time.sleep(random.uniform(0.002, 0.004))
    with os.fdopen(output, "wb") as file:
        latencies.tofile(file)


def paced(seconds, priority, path, *names):
    outputs = []
    for name in names:
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            paced_client(path, name, float(seconds), int(priority), theirs)
            os._exit(0)
        os.close(theirs)
        outputs.append(ours)
    latencies = array.array("d")
    for output in outputs:
        with os.fdopen(output, "rb") as file:
            latencies.frombytes(file.read())
    for _ in names:
        assert os.wait()[1] == 0
    latencies = sorted(latencies)
    half, most = (latencies[int(len(latencies) * part)] * 1e6 for part in (0.5, 0.99))
    print(f"{half:.0f} {most:.0f} {len(latencies) / float(seconds):.0f}")


def flood(path, name, connections):
    done = [0] * int(connections)
    data = bytes(range(256)) * (LONG // 256)

    def send(sock, size):
        offset = 0
        while True:
            sock.sendall(REQUEST.pack(0x25609513, 0, WRITE, 1, offset, LONG))
            sock.sendall(data)
            offset = (offset + LONG) % size

    def take(sock, number):
        while True:
            _, error, _ = REPLY.unpack(receive(sock, REPLY.size))
            assert error == 0, error
            done[number] += 1

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    begin = time.perf_counter()
    for number in range(len(done)):
        sock, size = connect(path, name)
        threading.Thread(target=send, args=(sock, size), daemon=True).start()
        threading.Thread(target=take, args=(sock, number), daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    print(len(done), f"{sum(done) / (time.perf_counter() - begin):.0f}", flush=True)
    os._exit(0)


def kept_client(path, name, what):
    sock, _ = connect(path, name)

    def ask(kind, length):
        sock.sendall(REQUEST.pack(0x25609513, 0, kind, 1, 0, length))

    if what == "greedy":
        for _ in range(16):
            ask(READ, LONG)
        while True:
            receive(sock, REPLY.size + LONG)
            ask(READ, LONG)
    if what == "stalled":
        ask(WRITE, 32 * LONG)
    else:
        for _ in range(2):
            ask(READ, 32 * LONG)
    print(what, flush=True)
    while what != "unread":
        time.sleep(0.01)
        if what == "slow":
            receive(sock, BLOCK)
        else:
            sock.sendall(bytes(BLOCK))
    signal.pause()


def keep(path, name, what, connections):
    for _ in range(int(connections) - 1):
        threading.Thread(target=kept_client, args=(path, name, what), daemon=True).start()
    kept_client(path, name, what)


def steady(seconds, path, name):
    sock, size = connect(path, name)
    latencies = []
    begin = time.perf_counter()
    while not latencies or time.perf_counter() < begin + float(seconds):
        start = time.perf_counter()
        read(sock, random.randrange(size // BLOCK) * BLOCK)
        latencies.append((time.perf_counter() - start) * 1e3)
    latencies.sort()
    print(f"{len(latencies)} {latencies[len(latencies) // 2]:.2f} {latencies[-1]:.0f}")


def spin():
    while True:
        pass


if __name__ == "__main__":
    {"hold": hold, "paced": paced, "flood": flood, "keep": keep, "steady": steady, "spin": spin}[sys.argv[1]](*sys.argv[2:])
