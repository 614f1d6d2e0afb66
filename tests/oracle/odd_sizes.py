#!/usr/bin/python3
"""Partial, odd-sized, overlapping and concurrent requests through libnbd, checked against a bytearray.

  odd_sizes.py URI      prints 'operations N' and exits with 0 if every byte is right
"""
import random
import sys

import nbd

AREA = 1 << 20


def check(handle, model, offset, length, what):
    if handle.pread(length, offset) != model[offset:offset + length]:
        sys.exit(f"{what}: {length} bytes at {offset} are wrong")


def sequential(handle, model, rng):
    done = 0
    for size in [1, 2, 3, 15, 16, 17, 255, 511, 512, 513, 4095, 4096, 4097, 8191, 8193, 65537]:
        for offset in [0, 1, 511, 512, 513, 4095, 4096, 4097, 12345, AREA - size - 1, AREA - size]:
            data = rng.randbytes(size)
            handle.pwrite(data, offset, nbd.CMD_FLAG_FUA if rng.random() < 0.1 else 0)
            model[offset:offset + size] = data
            low = max(0, offset - 700)
            check(handle, model, low, min(AREA, offset + size + 700) - low, "after a write")
            done += 2
    for _ in range(100):
        size, offset = rng.randrange(1, 20000), rng.randrange(AREA - 20000)
        handle.zero(size, offset, nbd.CMD_FLAG_NO_HOLE if rng.random() < 0.5 else 0)
        model[offset:offset + size] = bytes(size)
        low = max(0, offset - 700)
        check(handle, model, low, min(AREA, offset + size + 700) - low, "after write-zeroes")
        done += 2
    return done


def concurrent(handles, model, rng):
    """Writes adjacent pieces of the same data units concurrently over several connections."""
    done = 0
    for _ in range(40):
        base, waiting = rng.randrange(AREA - 40000), []
        at = base
        while at < base + 20000:
            size = rng.randrange(1, 900)
            data = rng.randbytes(size)
            handle = rng.choice(handles)
            waiting.append((handle, handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at)))
            model[at:at + size] = data
            at += size
            done += 1
        for handle, cookie in waiting:
            while not handle.aio_command_completed(cookie):
                handle.poll(-1)
        check(handles[0], model, base, at - base, "after concurrent writes")
    return done


def main():
    rng = random.Random(5)
    handles = [nbd.NBD() for _ in range(4)]
    for handle in handles:
        handle.connect_uri(sys.argv[1])
    model = bytearray(rng.randbytes(AREA))
    handles[0].pwrite(bytes(model), 0)
    done = sequential(handles[0], model, rng) + concurrent(handles, model, rng)
    for handle in handles:
        check(handle, model, 0, AREA, "at the end")
        handle.flush()
    size = handles[0].get_size()
    for offset, length in [(size, 1), (size - 1, 2), (size - 512, 513)]:
        handles[0].set_strict_mode(0)
        try:
            handles[0].pread(length, offset)
        except nbd.Error:
            continue
        sys.exit(f"a read of {length} bytes at {offset} of {size} is not refused")
    handles[0].pwrite(b"end", size - 3)
    if handles[1].pread(3, size - 3) != b"end":
        sys.exit("the last bytes are wrong")
    print("operations", done)


if __name__ == "__main__":
    main()
