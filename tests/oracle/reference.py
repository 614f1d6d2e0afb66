#!/usr/bin/python3
"""An independent decryptor and encryptor for LUKS images, used as an oracle by the tests.

The layout and the volume key come from cryptsetup (luksDump), the cipher from the Python package `cryptography`.
Knows aes-xts-plain64, aes-xts-plain, aes-cbc-plain64, aes-cbc-plain and aes-cbc-essiv:sha256.

  reference.py decrypt IMAGE KEYFILE [--header H]     the plaintext to standard output
  reference.py encrypt IMAGE KEYFILE [--header H]     plaintext from standard input into the image, from its start
  reference.py offset  IMAGE KEYFILE [--header H]     the payload's offset in bytes

With --plain SPEC,UNIT,OFFSET,SKIP,LARGE the volume has no header: the key file is the key, OFFSET and SKIP count sectors
of 512 bytes, UNIT bytes; LARGE is 1 where IVs count data units.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def cryptsetup(*args):
    environment = dict(os.environ, LC_ALL="C")
    done = subprocess.run(["cryptsetup", *args], capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"cryptsetup {' '.join(args)}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def layout(header):
    """Returns the payload offset in bytes, cipher specification, data unit in bytes, number of the first IV."""
    text = cryptsetup("luksDump", header)
    if re.search(r"^Version:\s*1$", text, re.M):
        name = re.search(r"^Cipher name:\s*(\S+)", text, re.M).group(1)
        mode = re.search(r"^Cipher mode:\s*(\S+)", text, re.M).group(1)
        offset = int(re.search(r"^Payload offset:\s*(\d+)", text, re.M).group(1)) * 512
        return offset, f"{name}-{mode}", 512, 0
    metadata = json.loads(cryptsetup("luksDump", "--dump-json-metadata", header))
    (segment,) = metadata["segments"].values()
    return int(segment["offset"]), segment["encryption"], segment["sector_size"], int(segment["iv_tweak"])


def volume_key(header, key_file):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "key")
        cryptsetup("luksDump", "-q", "--dump-volume-key", "--volume-key-file", path, "--key-file", key_file, header)
        with open(path, "rb") as file:
            return file.read()


class Units:
    """Encrypts and decrypts data units, each by itself."""

    def __init__(self, spec, key, unit, first_iv, large_iv=False):
        self.cipher, self.mode, self.iv_mode = spec.split("-", 2)
        if self.cipher != "aes" or self.mode not in ("xts", "cbc"):
            sys.exit(f"the reference does not know {spec}")
        self.key, self.unit, self.first_iv = key, unit, first_iv
        self.large_iv = large_iv

    def iv(self, index):
        # The IV counts sectors of 512 bytes for every data unit size, unless iv_large_sectors is set.
        per_unit = self.unit // 512
        number = (self.first_iv + index * per_unit) // (per_unit if self.large_iv else 1)
        if self.iv_mode == "plain":
            return (number & 0xFFFFFFFF).to_bytes(16, "little")
        if self.iv_mode == "plain64":
            return number.to_bytes(8, "little") + bytes(8)
        if self.iv_mode == "essiv:sha256":
            salt = hashlib.sha256(self.key).digest()
            ecb = Cipher(algorithms.AES(salt), modes.ECB()).encryptor()
            return ecb.update(number.to_bytes(8, "little") + bytes(8))
        sys.exit(f"the reference does not know the IV mode {self.iv_mode}")

    def context(self, index):
        mode = modes.XTS if self.mode == "xts" else modes.CBC
        return Cipher(algorithms.AES(self.key), mode(self.iv(index)))

    def run(self, data, encrypt):
        out = bytearray()
        for index in range(len(data) // self.unit):
            context = self.context(index)
            step = context.encryptor() if encrypt else context.decryptor()
            out += step.update(data[index * self.unit:(index + 1) * self.unit]) + step.finalize()
        return bytes(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["decrypt", "encrypt", "offset"])
    parser.add_argument("image")
    parser.add_argument("key_file")
    parser.add_argument("--header")
    parser.add_argument("--plain")
    args = parser.parse_args()
    if args.plain:
        spec, unit, offset, first_iv, large = args.plain.split(",")
        unit, offset = int(unit), int(offset) * 512
        with open(args.key_file, "rb") as file:
            units = Units(spec, file.read(), unit, int(first_iv), large == "1")
    else:
        header = args.header or args.image
        offset, spec, unit, first_iv = layout(header)
        units = None
    if args.action == "offset":
        print(offset)
        return
    units = units or Units(spec, volume_key(header, args.key_file), unit, first_iv)
    with open(args.image, "rb" if args.action == "decrypt" else "r+b") as image:
        image.seek(offset)
        if args.action == "decrypt":
            data = image.read()
            sys.stdout.buffer.write(units.run(data[:len(data) // unit * unit], encrypt=False))
        else:
            data = sys.stdin.buffer.read()
            if len(data) % unit:
                sys.exit(f"the plaintext is not a whole number of data units of {unit} bytes")
            image.write(units.run(data, encrypt=True))


if __name__ == "__main__":
    main()
