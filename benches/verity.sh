#!/bin/sh
# Compares `inlock verity verify` with `veritysetup verify`, and verified reads over NBD with those of a raw image.
#
# INLOCK: the program (default: target/release/inlock); ROUNDS: rounds in turns (default: 5); DIR: a directory in memory
# (default: /dev/shm); SIZE: of the data (default: 1G); LOOPS: passes of the reads (default: 1). Needs veritysetup, fio
# with nbd, jq and GNU time.
set -eu

inlock=${INLOCK:-target/release/inlock}
dir=$(mktemp -d "${DIR:-/dev/shm}/verity.XXXXXX")
trap 'rm -rf "$dir"' EXIT
head -c "${SIZE:-1G}" /dev/urandom > "$dir/data"
"$inlock" verity format "$dir/data" "$dir/hash" --root-hash-file "$dir/root" > "$dir/described"
seconds() { /usr/bin/time -f '%e %U %S' -o "$dir/time" "$@" > "$dir/output" && cat "$dir/time"; }
# Bandwidth in KiB/s: sequential reads of 128 KiB, four in flight.
read_rate() {
    "$inlock" "$@" --run "fio --name=r --ioengine=nbd --uri=\"\$uri\" --rw=read --bs=128k --iodepth=4 --size=100% --loops=${LOOPS:-1} \
        --output-format=json" | sed -n '/^{/,$p' | jq '.jobs[0].read.bw'
}
root=$(cat "$dir/root")
for round in $(seq "${ROUNDS:-5}"); do
    echo "round $round: elapsed, user, system seconds; load $(cut -d' ' -f1 /proc/loadavg)"
    echo "  veritysetup verify:         $(seconds veritysetup verify "$dir/data" "$dir/hash" "$root")"
    echo "  inlock verify, one thread:  $(seconds "$inlock" verity verify "$dir/data" "$dir/hash" "$root" --threads 1)"
    echo "  inlock verify, all CPUs:    $(seconds "$inlock" verity verify "$dir/data" "$dir/hash" "$root")"
    echo "  reads of a raw image, KiB/s:  $(read_rate serve --type raw --read-only "$dir/data")"
    echo "  verified reads, KiB/s:        $(read_rate verity serve "$dir/data" "$dir/hash" "$root")"
done
