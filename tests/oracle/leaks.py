#!/usr/bin/python3
"""Searches another file for pieces of a plain image.

  leaks.py PLAIN OTHER [FROM]

prints the number of 16-byte blocks of PLAIN, one in each 512 bytes, that OTHER has at a multiple of 16 after its first FROM
bytes. Blocks of few different bytes, which may occur in noise, are left out.
"""
import sys


def blocks(path, step, start=0, size=16):
    with open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(1 << 20):
            for at in range(0, len(piece) - size + 1, step):
                yield piece[at:at + size]


def main():
    known = {block for block in blocks(sys.argv[1], 512) if len(set(block)) >= 8}
    start = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    print(sum(block in known for block in blocks(sys.argv[2], 16, start)))


if __name__ == "__main__":
    main()
