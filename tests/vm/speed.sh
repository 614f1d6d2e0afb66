#: about   speed of Inlock over ublk and of dm-crypt on the same memory disk; on an emulated CPU only the ratios are meaningful
#: only    named
#: memory  640
#: cpus    2
#: seconds 900
#: modules dm_crypt ublk_drv brd
#: kernel  brd.rd_size=65536 brd.rd_nr=1
#: tools   inlock dmsetup fio
# shellcheck shell=dash
key=$(head -c 64 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
printf '%s' "$key" | sed 's/../\\x&/g' > /tmp/escaped
# shellcheck disable=SC2059  # the escapes are the key
printf "$(cat /tmp/escaped)" > /tmp/key
size=$(cat /sys/block/ram0/size)
mkdir -p /tmp/table

# measure NAME NODE: measures MiB/s of 4 KiB at depth 32 and of 1 MiB at depth 4, reads and writes.
measure() {
    local name=$1 node=$2 row bs depth rw speed
    row=$(printf '%-34s' "$name")
    for bs in 4k 1m; do
        [ "$bs" = 4k ] && depth=32 || depth=4
        for rw in randread randwrite; do
            speed=$(fio --name=m --filename="$node" --direct=1 --ioengine=io_uring --iodepth="$depth" --bs="$bs" --rw="$rw" \
                --size=48m --time_based --runtime=4 --ramp_time=1 --output-format=terse --terse-version=3 |
                awk -F';' -v w="$rw" '{ printf "%.1f", (w == "randread" ? $7 : $48) / 1024 }')
            row="$row$(printf '%12s' "$speed")"
        done
    done
    note "$row"
    count speeds_measured 4
}

dm() {
    local name=$1 cipher=$2 flags=$3
    dmsetup create dm --table "0 $size crypt $cipher 0 /dev/ram0 0 $flags" || { fail "$name" "no table"; return; }
    measure "$name" /dev/mapper/dm
    dmsetup remove dm
    ok "$name"
}

ours() {
    local name=$1
    shift
    if inlock open /dev/ram0 speed --via ublk "$@" > /tmp/node; then
        measure "$name" /dev/inlock/speed
        inlock close speed && ok "$name"
    else
        fail "$name" "cannot be opened"
    fi
}

note "MiB/s                              4K read    4K write     1M read    1M write"
measure "raw memory disk" /dev/ram0
dm "dm-crypt-null" "cipher_null-ecb -" 0
dm "dm-crypt-null-no-workqueue" "cipher_null-ecb -" "2 no_read_workqueue no_write_workqueue"
ours "inlock-ublk-raw-1-queue" --type raw --threads 1
ours "inlock-ublk-raw-2-queues" --type raw --threads 2
dm "dm-crypt-aes-xts" "aes-xts-plain64 $key" "1 sector_size:4096"
dm "dm-crypt-aes-xts-no-workqueue" "aes-xts-plain64 $key" "3 sector_size:4096 no_read_workqueue no_write_workqueue"
for threads in 1 2; do
    ours "inlock-ublk-aes-xts-$threads" --type plain -c aes-xts-plain64 -s 512 --sector-size 4096 --key-file /tmp/key --threads "$threads"
done
