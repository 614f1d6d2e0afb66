#!/usr/bin/python3
"""Encryption of librbd itself, to compare with: formats, reads, writes and measures encrypted images.

librbd.py format IMAGE luks1|luks2 aes-128|aes-256 PASSPHRASE
librbd.py size   IMAGE luks1|luks2 PASSPHRASE
librbd.py read   IMAGE luks1|luks2 PASSPHRASE OFFSET LENGTH     to standard output
librbd.py write  IMAGE luks1|luks2 PASSPHRASE OFFSET+LENGTH...  from standard input, one after the other
librbd.py pieces IMAGE luks1|luks2 PASSPHRASE LENGTH              all of it in reads of this length
librbd.py discard IMAGE luks1|luks2 PASSPHRASE OFFSET+LENGTH...
librbd.py lock   IMAGE                                          takes the lock, says so, keeps it until input ends

With "raw" as format an image is used without encryption. A clone with an encryption of its own has its format and
passphrase and then those of its parents, with + between them.
"""
import os
import sys

import rados
import rbd

FORMATS = {"luks1": rbd.RBD_ENCRYPTION_FORMAT_LUKS1, "luks2": rbd.RBD_ENCRYPTION_FORMAT_LUKS2}
CIPHERS = {"aes-128": rbd.RBD_ENCRYPTION_ALGORITHM_AES128, "aes-256": rbd.RBD_ENCRYPTION_ALGORITHM_AES256}


def load(image, name, passphrase):
    if name == "raw":
        return
    specs = [(FORMATS[name], passphrase) for name, passphrase in zip(name.split("+"), passphrase.split("+"))]
    if len(specs) == 1:
        image.encryption_load(*specs[0])
    else:
        # Its passphrases have to be bytes.
        image.encryption_load2([(kind, passphrase.encode()) for kind, passphrase in specs])


def main(action, name, *words):
    with rados.Rados(conffile=os.environ["CEPH_CONF"]) as cluster, cluster.open_ioctx("rbd") as pool:
        with rbd.Image(pool, name) as image:
            if action == "format":
                image.encryption_format(FORMATS[words[0]], words[2], CIPHERS[words[1]])
            elif action == "size":
                load(image, *words)
                print(image.size())
            elif action == "read":
                load(image, *words[:2])
                sys.stdout.buffer.write(image.read(int(words[2]), int(words[3])))
            elif action == "write":
                load(image, *words[:2])
                for word in words[2:]:
                    offset, length = map(int, word.split("+"))
                    assert image.write(sys.stdin.buffer.read(length), offset) == length
                image.flush()
            elif action == "pieces":
                load(image, *words[:2])
                for offset in range(0, image.size(), int(words[2])):
                    sys.stdout.buffer.write(image.read(offset, int(words[2])))
            elif action == "discard":
                load(image, *words[:2])
                for word in words[2:]:
                    image.discard(*map(int, word.split("+")))
                image.flush()
            elif action == "lock":
                image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
                print("locked", flush=True)
                sys.stdin.read()
            else:
                raise SystemExit(f"unknown action {action}")


main(*sys.argv[1:])
