#!/usr/bin/env bash
# Throughput of a volume on an export of an NBD server, in turn: server -> client, server -> Inlock -> client, and
# server -> qemu-nbd with its LUKS driver -> client; and of what only passes the bytes on: server -> Inlock without
# encryption -> client, server -> nbdkit with its plugin for NBD -> client. Usage: benches/remote.sh [ROUNDS] [SECONDS]
#
# NBDKIT and QEMU_NBD are the commands of other releases, such as what `tests/newest.sh nbdkit` prints: words without
# quotes. If the first one is a loader, plugins are those of its directory.
set -euo pipefail

rounds=${1:-5}
seconds=${2:-3}
# shellcheck source=benches/rounds.sh
. "$(dirname "$0")/rounds.sh"
read -ra nbdkit <<< "${NBDKIT:-nbdkit}"
read -ra qemu_nbd <<< "${QEMU_NBD:-qemu-nbd}"
inlock=${INLOCK:-$(dirname "$0")/../target/release/inlock}
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$dir"' EXIT
head -c 20 /dev/urandom | base64 > "$dir/key"
printf %s "$(cat "$dir/key")" > "$dir/passphrase"

# Waits for a socket.
await() {
    until [ -S "$1" ]; do sleep 0.05; done
}

# Prints what names a plugin to nbdkit.
plugin() {
    local file=${nbdkit[0]%/*}/nbdkit/plugins/nbdkit-$1-plugin.so
    if [ -e "$file" ]; then echo "$file"; else echo "$1"; fi
}

for name in raw luks2 luks1; do
    "${nbdkit[@]}" -f -U "$dir/$name" "$(plugin memory)" 320M &
    await "$dir/$name"
done
uri() {
    echo "nbd+unix:///?socket=$dir/$1"
}
fast=(-q --pbkdf-force-iterations 1000 --key-file "$dir/passphrase")
"$inlock" luksFormat "${fast[@]}" --type luks2 --pbkdf pbkdf2 "$(uri luks2)"
"$inlock" luksFormat "${fast[@]}" --type luks1 "$(uri luks1)"
"$inlock" serve "$(uri luks2)" --key-file "$dir/passphrase" --nbd "unix:$dir/inlock" > /dev/null &
"$inlock" serve --type raw "$(uri raw)" --nbd "unix:$dir/hop" > /dev/null &
"${nbdkit[@]}" -f -U "$dir/nbdkit" "$(plugin nbd)" "uri=$(uri raw)" &
"${qemu_nbd[@]}" --persistent --shared=8 --cache=none --aio=threads -k "$dir/qemu" \
    --object "secret,id=key,file=$dir/passphrase" \
    --image-opts "driver=luks,key-secret=key,file.driver=nbd,file.server.type=unix,file.server.path=$dir/luks1" &
await "$dir/inlock"
await "$dir/qemu"
await "$dir/hop"
await "$dir/nbdkit"

# Prints KiB/s of a job.
measure() {
    local field=7
    [ "$2" = write ] && field=48
    fio --name=j --ioengine=nbd --uri="$(uri "$1")" --rw="$2" --bs="$3" --iodepth=8 --size=256m --time_based \
        --runtime="$seconds" --minimal | grep '^3;' | cut -d';' -f"$field"
}

print_machine
echo "# $("${nbdkit[@]}" --version | head -n 1), $("${qemu_nbd[@]}" --version | head -n 1)"
for _ in $(seq "$rounds"); do
    for rw in write read; do
        for size in 128k 1m; do
            line="$rw $size"
            for server in raw inlock qemu hop nbdkit; do line="$line $(measure "$server" "$rw" "$size")"; done
            echo "$line"
        done
    done
done > "$dir/results"
print_end
# The median of the ratios of each round.
# shellcheck disable=SC2016  # for awk
summarize "$dir/results" '
    { key = $1 " " $2; count[key]++; raw[key] = raw[key] " " $3 / 1024; ours[key] = ours[key] " " $4 / $3
      qemu[key] = qemu[key] " " $4 / $5; hop[key] = hop[key] " " $6 / $3; nbdkit[key] = nbdkit[key] " " $7 / $3 }
    END { for (key in count)
        printf "%s: server %.0f MiB/s, Inlock/server %.2f, Inlock/qemu-nbd %.1f, raw Inlock/server %.2f, nbdkit/server %.2f\n",
            key, median(raw[key], count[key]), median(ours[key], count[key]), median(qemu[key], count[key]),
            median(hop[key], count[key]), median(nbdkit[key], count[key]) }'
