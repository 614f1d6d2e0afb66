#!/bin/sh
# Compares the costs of keyslots that Inlock and cryptsetup make for the same --iter-time.
#
# INLOCK: the program (default: target/release/inlock); CRYPTSETUP: programs to compare with, one per line; ROUNDS:
# number of keyslots made by each (default: 5). Prints iterations, memory in KiB and lanes of each keyslot, and the time
# in which Inlock opens it.
set -eu

inlock=${INLOCK:-target/release/inlock}
others=${CRYPTSETUP:-cryptsetup}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf secret > "$dir/key"
programs() { printf '%s\n%s\n' "$inlock" "$others"; }
for options in "--pbkdf pbkdf2 --iter-time 500" "--pbkdf pbkdf2 --iter-time 2000" \
    "--pbkdf argon2id --iter-time 500" "--pbkdf argon2id --iter-time 2000"; do
    for round in $(seq "${ROUNDS:-5}"); do
        programs | while read -r program; do
            rm -f "$dir/image"
            truncate -s 20M "$dir/image"
            # shellcheck disable=SC2086
            $program luksFormat -q $options "$dir/image" "$dir/key"
            costs=$("$inlock" luksDump --dump-json-metadata "$dir/image" |
                jq -r '.keyslots["0"].kdf | "\(.iterations // .time) \(.memory // "-") \(.cpus // "-")"')
            opened=$(/usr/bin/time -f %e "$inlock" open --test-passphrase -d "$dir/key" "$dir/image" 2>&1)
            echo "$options: $round ${program##*/}: $costs, opened by Inlock in $opened s"
        done
    done
done
