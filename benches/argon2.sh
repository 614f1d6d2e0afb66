#!/bin/sh
# Compares the time of unlocking by Inlock and cryptsetup: Argon2id with 1 GiB, 4 lanes and 4 passes, in turns.
#
# INLOCK: the program (default: target/release/inlock); CRYPTSETUP: programs to compare with, separated by spaces;
# ROUNDS: number of runs of each (default: 5). Prints the wall clock time and the CPU time of each run, in seconds.
set -eu

inlock=${INLOCK:-target/release/inlock}
others=${CRYPTSETUP:-cryptsetup}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf secret > "$dir/key"
truncate -s 20M "$dir/image"
"$inlock" luksFormat -q "$dir/image" "$dir/key" --pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-memory 1048576 \
    --pbkdf-parallel 4
# Both programs make at most as many lanes as there are CPUs. With another number the keyslot no longer opens, but its
# derivation takes the same time.
python3 - "$dir/image" <<'PATCH'
import hashlib, json, sys
with open(sys.argv[1], "r+b") as image:
    for start in (0, 16384):
        image.seek(start)
        header = bytearray(image.read(16384))
        metadata = json.loads(header[4096:].rstrip(b"\0"))
        metadata["keyslots"]["0"]["kdf"]["cpus"] = 4
        header[4096:] = json.dumps(metadata, separators=(",", ":")).encode().ljust(16384 - 4096, b"\0")
        header[448:512] = bytes(64)
        header[448:480] = hashlib.sha256(header).digest()
        image.seek(start)
        image.write(header)
PATCH
"$inlock" luksDump "$dir/image" | grep -E 'Time cost|Memory|Threads'
for round in $(seq "${ROUNDS:-5}"); do
    for program in "$inlock" $others; do
        /usr/bin/time -f "$round $program: %e s, CPU %U + %S s, %M KiB" \
            "$program" open --test-passphrase -d "$dir/key" "$dir/image" 2>&1 | grep CPU
    done
done
