#!/usr/bin/env bash
# Throughput and CPU time of images of Ceph RBD behind the same NBD server: without encryption, with a LUKS2 volume of
# Inlock, and with librbd's own LUKS2 encryption, in turn; for writes of 512 bytes also a volume of Inlock with units of
# 512 bytes, which librbd's LUKS2 does not have. Starts a cluster. Usage: benches/rbd.sh [ROUNDS] [SECONDS]
set -euo pipefail

rounds=${1:-3}
seconds=${2:-2}
here=$(dirname "$0")
# shellcheck source=benches/rounds.sh
. "$here/rounds.sh"
inlock=${INLOCK:-$here/../target/release/inlock}
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; "$here/../tests/ceph/cluster.sh" stop "$dir/ceph"; rm -rf "$dir"' EXIT
"$here/../tests/ceph/cluster.sh" start "$dir/ceph"
export CEPH_CONF=$dir/ceph/ceph.conf LIBRBD_PASSPHRASE=secret
printf secret > "$dir/key"
head -c 16 /dev/zero > "$dir/none"

# librbd under another name, and one that loads its encryption in front of it.
mkdir "$dir/lib"
real=$(ldconfig -p | awk '$1 == "librbd.so.1" { print $NF; exit }')
sed 's/librbd\.so\.1\x00/librbd.so.9\x00/g' "$real" > "$dir/lib/librbd.so.9"
cc -shared -fPIC -O2 -o "$dir/lib/librbd.so.1" "$here/librbd_luks.c" -Wl,--no-as-needed "$dir/lib/librbd.so.9"

for name in raw ours short librbd; do
    rbd create --size 272M "rbd/$name"
done
format=(luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000)
"$inlock" "${format[@]}" rbd:rbd/ours "$dir/key"
"$inlock" "${format[@]}" --sector-size 512 rbd:rbd/short "$dir/key"
/usr/bin/python3 "$here/../tests/ceph/librbd.py" format librbd luks2 aes-256 secret

plain=(--type plain --cipher cipher_null-ecb --key-size 128 --allow-null-cipher --key-file "$dir/none")
# serve NAME OPTIONS...: serves an image, and keeps the server's process in pid_NAME.
serve() {
    local name=$1
    shift
    "$inlock" serve "rbd:rbd/$name" --connect-timeout 120 --nbd "unix:$dir/$name" "$@" > /dev/null &
    declare -g "pid_$name=$!"
    until [ -S "$dir/$name" ]; do kill -0 "$!" || exit 1; sleep 0.05; done
}
serve raw "${plain[@]}"
serve ours --key-file "$dir/key"
serve short --key-file "$dir/key"
LD_LIBRARY_PATH=$dir/lib serve librbd "${plain[@]}"
# Without librbd's header: encrypted indeed.
[ "$(nbdinfo --size "nbd+unix:///?socket=$dir/librbd")" -eq $((256 << 20)) ]

# measure NAME RW BLOCK DEPTH: prints KiB/s, and the server's ticks of CPU time for each MiB.
measure() {
    local pid=pid_$1 first=6 before
    [[ $2 != *write ]] || first=47
    before=$(awk '{ print $14 + $15 }' "/proc/${!pid}/stat")
    fio --name=j --ioengine=nbd --uri="nbd+unix:///?socket=$dir/$1" --rw="$2" --bs="$3" --iodepth="$4" --size=256m \
        --time_based --runtime="$seconds" --minimal | grep '^3;' | cut -d';' -f"$first,$((first + 1))" |
        tr ';' ' ' > "$dir/fio"
    awk -v before="$before" -v after="$(awk '{ print $14 + $15 }' "/proc/${!pid}/stat")" \
        '{ print $2, (after - before) / $1 * 1024 }' "$dir/fio"
}

print_machine
for name in raw ours short librbd; do
    # Every object exists.
    fio --name=fill --ioengine=nbd --uri="nbd+unix:///?socket=$dir/$name" --rw=write --bs=1m --size=256m > /dev/null
done
for _ in $(seq "$rounds"); do
    for job in "randwrite 4k 16" "randread 4k 16" "write 1m 8" "read 1m 8" "randwrite 512 16"; do
        read -r rw block depth <<< "$job"
        echo "$rw $block $(measure raw "$rw" "$block" "$depth") $(measure ours "$rw" "$block" "$depth")" \
            "$(measure librbd "$rw" "$block" "$depth")"
        [ "$block" != 512 ] ||
            echo "$rw 512,units-of-512 $(measure raw "$rw" 512 "$depth") $(measure short "$rw" 512 "$depth")" \
                "$(measure librbd "$rw" 512 "$depth")"
    done
done > "$dir/results"
print_end
# The median of the ratios of each round.
# shellcheck disable=SC2016  # for awk
summarize "$dir/results" '
    { key = $1 " " $2; n[key]++; raw[key] = raw[key] " " $3 / 1024; ours[key] = ours[key] " " $5 / $3
      luks[key] = luks[key] " " $5 / $7; cpu[key] = cpu[key] " " $6 / $8
      floor[key] = floor[key] " " $4 / $8 }
    END { for (key in n) printf "%s: raw %.1f MiB/s, Inlock/raw %.2f, Inlock/librbd %.2f, CPU time Inlock/librbd %.2f, raw/librbd %.2f\n",
        key, median(raw[key], n[key]), median(ours[key], n[key]), median(luks[key], n[key]), median(cpu[key], n[key]),
        median(floor[key], n[key]) }'
