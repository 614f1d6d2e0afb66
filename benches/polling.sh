#!/bin/sh
# Compares latency and rate of 4 KiB reads over NBD with and without polling, and of nbdkit and qemu-nbd with the plain
# data, in turns. Server and client run on one CPU, and on two.
#
# INLOCK: the program (default: target/release/inlock); ROUNDS: number of runs of each (default: 5); DIR: directory of
# the images (default: /dev/shm). Prints for each run the CPUs of server and client, the depth, the server, the median
# of the completion latency in microseconds and the number of requests a second.
set -eu

inlock=$(realpath "${INLOCK:-target/release/inlock}")
dir=$(mktemp -d -p "${DIR:-/dev/shm}")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
printf secret > key
truncate -s 80M image
dd if=/dev/urandom of=raw bs=1M count=64 status=none
"$inlock" luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 image key
"$inlock" import -q raw image --key-file key

serve() {
    case $1 in
        nbdkit) exec nbdkit -f -U "$dir/socket" file "$dir/raw" ;;
        qemu-nbd) exec qemu-nbd -f raw -t -k "$dir/socket" --cache=writeback "$dir/raw" ;;
        *) exec "$inlock" serve image --key-file key --nbd "unix:$dir/socket" --threads 1 --busy-poll "$1" ;;
    esac
}
# measure SERVER CPU_OF_SERVER CPU_OF_CLIENT DEPTH
measure() {
    rm -f socket
    (
        taskset -p -c "$2" "$(sh -c 'echo $PPID')" > /dev/null
        serve "$1" > /dev/null
    ) &
    until [ -S socket ]; do sleep 0.05; done
    sleep 0.2
    taskset -c "$3" fio --name=x --ioengine=nbd --uri="nbd+unix:///?socket=$dir/socket" --rw=randread --bs=4k \
        --iodepth="$4" --runtime=1 --time_based --size=32M --output-format=json | sed -n '/^{/,$p' |
        jq -r --arg of "$2/$3 depth $4 $1" \
            '.jobs[0].read | "\($of): \(.clat_ns.percentile["50.000000"] / 1000) us, \(.iops | round) a second"'
    kill $!
    wait || true
}
for round in $(seq "${ROUNDS:-5}"); do
    for client in 0 1; do
        for depth in 1 16; do
            for server in 0 auto nbdkit qemu-nbd; do
                echo "$round $(measure "$server" 0 "$client" "$depth")"
            done
        done
    done
done
