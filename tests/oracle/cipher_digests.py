#!/usr/bin/env python3
"""Makes crates/cipher/tests/vectors/digests.txt: ciphertext digests by an independent implementation.

Reads lines `specification key-length unit large` (stdin) and adds the first 16 bytes of the SHA-256 of the ciphertext.
Block ciphers come from the Python packages `cryptography` and `pycryptodome`; modes and IVs are written out here.
Specifications whose block cipher neither package has are left out.
"""
import hashlib
import struct
import sys
import warnings

warnings.filterwarnings("ignore")
from Crypto.Cipher import AES, CAST, DES3, Blowfish
from cryptography.hazmat.decrepit.ciphers import algorithms as old
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

FIRST = (1 << 32) - 16
M64 = (1 << 64) - 1


def pattern(seed, length):
    out, at = b"", 0
    while len(out) < length:
        out += hashlib.sha256(struct.pack("<QQ", seed, at)).digest()
        at += 1
    return out[:length]


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b))


def ecb(name, key):
    """Returns a function that encrypts whole blocks one by one, and the block length."""
    if name == "aes":
        return AES.new(key, AES.MODE_ECB).encrypt, 16
    if name == "des3_ede":
        # Three different keys, which the packages accept unchanged.
        return Cipher(old.TripleDES(key), modes.ECB()).encryptor().update, 8
    if name == "blowfish":
        return Blowfish.new(key, Blowfish.MODE_ECB).encrypt, 8
    if name == "cast5":
        return CAST.new(key, CAST.MODE_ECB).encrypt, 8
    if name == "camellia":
        return Cipher(old.Camellia(key) if hasattr(old, "Camellia") else algorithms.Camellia(key), modes.ECB()).encryptor().update, 16
    if name == "sm4":
        return Cipher(algorithms.SM4(key), modes.ECB()).encryptor().update, 16
    raise KeyError(name)


def gf_double_le(t):
    n = int.from_bytes(t, "little") << 1
    return ((n ^ 0x87) & ((1 << 128) - 1) if n >> 128 else n).to_bytes(16, "little")


def gf_multiply(a, b):
    product = 0
    for bit in range(127, -1, -1):
        product <<= 1
        if product >> 128:
            product ^= (1 << 128) | 0x87
        if b >> bit & 1:
            product ^= a
    return product


class Mode:
    """One key in one chain mode."""

    def __init__(self, name, mode, key):
        self.mode = mode
        if mode == "xts":
            self.tweak, _ = ecb(name, key[len(key) // 2 :])
            key = key[: len(key) // 2]
        if mode == "lrw":
            self.k2 = int.from_bytes(key[-16:], "big")
            key = key[:-16]
        self.e, self.n = ecb(name, key)

    def encrypt(self, iv, data):
        n, out = self.n, b""
        blocks = [data[i : i + n] for i in range(0, len(data), n)]
        if self.mode == "ecb":
            return self.e(data)
        if self.mode == "cbc":
            for block in blocks:
                iv = self.e(xor(block, iv))
                out += iv
            return out
        if self.mode == "ctr":
            start = int.from_bytes(iv, "big")
            stream = self.e(b"".join(((start + i) % (1 << 8 * n)).to_bytes(n, "big") for i in range(len(blocks))))
            return xor(data, stream)
        if self.mode == "xts":
            masks, t = [], self.tweak(iv)
            for _ in blocks:
                masks.append(t)
                t = gf_double_le(t)
        else:
            index = int.from_bytes(iv, "big")
            masks = [gf_multiply(self.k2, (index + i) % (1 << 128)).to_bytes(16, "big") for i in range(len(blocks))]
        mask = b"".join(masks)
        return xor(self.e(xor(data, mask)), mask)


def crc(word):
    for _ in range(32):
        word = (word >> 1) ^ (0xEDB88320 if word & 1 else 0)
    return word


def md5_blocks(data):
    """Returns MD5's state after whole blocks, without padding (RFC 1321)."""
    import math

    state = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476]
    table = [int(abs(math.sin(i + 1)) * (1 << 32)) for i in range(64)]
    shifts = [7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4
    for at in range(0, len(data), 64):
        words = struct.unpack("<16I", data[at : at + 64])
        a, b, c, d = state
        for i in range(64):
            if i < 16:
                f, g = (b & c) | (~b & d), i
            elif i < 32:
                f, g = (d & b) | (~d & c), (5 * i + 1) % 16
            elif i < 48:
                f, g = b ^ c ^ d, (3 * i + 5) % 16
            else:
                f, g = c ^ (b | ~d), 7 * i % 16
            f = (f + a + table[i] + words[g]) & 0xFFFFFFFF
            a, d, c, b = d, c, b, (b + ((f << shifts[i] | f >> (32 - shifts[i])) & 0xFFFFFFFF)) & 0xFFFFFFFF
        state = [(x + y) & 0xFFFFFFFF for x, y in zip(state, (a, b, c, d))]
    return struct.pack("<4I", *state)


def diffuse(data):
    def rol(x, by):
        return (x << by | x >> (32 - by)) & 0xFFFFFFFF if by else x

    d = list(struct.unpack(f"<{len(data) // 4}I", data))
    n = len(d)
    for cycles, rotations, sign in ((5, (9, 0, 13, 0), -1), (3, (0, 10, 0, 25), 1)):
        for _ in range(cycles):
            for i in range(n - 1, -1, -1):
                near, far = (i + 2 * sign) % n, (i + 5 * sign) % n
                d[i] = (d[i] - (d[near] ^ rol(d[far], rotations[i % 4]))) & 0xFFFFFFFF
    return struct.pack(f"<{n}I", *d)


def digest_of(spec, key, unit, large):
    name, _, rest = spec.partition("-")
    name, _, count = name.partition(":")
    mode, _, iv = rest.partition("-")
    iv, _, option = iv.partition(":")
    count, length = int(count or 1), len(key)
    _, n = ecb(name, key_of_block_cipher(name))
    extra = 0
    if iv == "lmk" and length % count:
        extra = length // (count + 1)
    elif iv == "tcw":
        extra = n + 16
    elif iv == "elephant":
        extra = length // 2
    each = (length - extra) // count
    keys = [key[i * each : (i + 1) * each] for i in range(count)]
    tail = key[length - extra :] if extra else b""
    ciphers = [Mode(name, mode, k) for k in keys]
    out, number = b"", FIRST
    plain = pattern(1, 4 * unit)
    for i in range(4):
        data = plain[i * unit : (i + 1) * unit]
        sector = number * (unit // 512) if large else number
        which = sector % count
        le, cipher = struct.pack("<Q", number & M64), ciphers[which]
        offset = struct.pack("<Q", number * unit & M64)
        block = bytes(n)
        if iv == "plain":
            block = struct.pack("<I", number & 0xFFFFFFFF).ljust(n, b"\0")
        elif iv == "plain64":
            block = le.ljust(n, b"\0")
        elif iv == "plain64be":
            block = le[::-1].rjust(n, b"\0")
        elif iv == "essiv":
            hashed = hashlib.new({"rmd160": "ripemd160"}.get(option, option), keys[which]).digest()
            block = ecb(name, hashed)[0](le.ljust(n, b"\0"))
        elif iv == "benbi":
            counted = 1 if mode == "ctr" else n
            block = struct.pack(">Q", (number * (512 // counted) + 1) & M64).rjust(n, b"\0")
        elif iv in ("eboiv", "elephant"):
            block = ciphers[0].encrypt(offset.ljust(n, b"\0"), bytes(n))
        elif iv == "tcw":
            block = xor(tail[:n], (le + le)[:n])
        elif iv == "lmk":
            seed = tail[:16].ljust(64, b"\0") if tail else b""
            last = struct.pack("<4I", number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFF | 0x80000000, 4024, 0)
            block = md5_blocks(seed + data[16:] + last)[:n]
        if iv == "elephant":
            aes, _ = ecb("aes", tail)
            data = diffuse(xor(data, (aes(offset.ljust(16, b"\0")) + aes(offset.ljust(15, b"\0") + b"\x80")) * (unit // 32)))
        data = cipher.encrypt(block, data)
        if iv == "tcw":
            sums = [crc(w) for w in struct.unpack("<4I", xor(tail[n:], le + le))]
            data = xor(data, struct.pack("<2I", sums[0] ^ sums[3], sums[1] ^ sums[2]) * (unit // 8))
        out += data
        number += 1 if large else unit // 512
    return hashlib.sha256(out).hexdigest()[:32]


def key_of_block_cipher(name):
    return pattern(0, {"des3_ede": 24}.get(name, 16))


for line in sys.stdin:
    spec, length, unit, large = line.split()
    try:
        print(spec, length, unit, large, digest_of(spec, pattern(7, int(length)), int(unit), large == "1"))
    except KeyError:
        pass
