#: about   speed of writes to LUKS2 volumes with integrity protection and journal, Inlock over ublk and dm-crypt with dm-integrity in turns on one memory disk; on an emulated CPU only the ratios are meaningful
#: only    named
#: memory  768
#: cpus    2
#: seconds 1200
#: modules dm_crypt dm_integrity authenc gcm hmac ublk_drv brd
#: kernel  brd.rd_size=131072 brd.rd_nr=1
#: tools   inlock cryptsetup dmsetup fio
#: files   /usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so
# shellcheck shell=dash
ROUNDS=3
printf secret > /tmp/key
mkdir -p /tmp/speeds

# measure WHO NODE: appends MiB/s to /tmp/speeds/WHO.BS-JOBS. A ublk device has a queue for each CPU, so that one job
# uses one worker of Inlock; dm-crypt encrypts on all CPUs.
measure() {
    local who=$1 node=$2 bs depth rw jobs
    for bs in 4k 1m; do
        [ "$bs" = 4k ] && depth=32 rw=randwrite || depth=4 rw=write
        for jobs in 1 2; do
            fio --name=m --filename="$node" --direct=1 --ioengine=io_uring --iodepth=$((depth / jobs)) --bs="$bs" \
                --rw="$rw" --size=$((96 / jobs))m --offset_increment=48m --numjobs="$jobs" --group_reporting \
                --time_based --runtime=5 --ramp_time=1 --output-format=terse --terse-version=3 |
                awk -F';' '{ printf "%.2f\n", $48 / 1024 }' >> "/tmp/speeds/$who.$bs-$jobs"
        done
    done
}

# values WHO CASE: those of all rounds, and their median.
values() { sort -n "/tmp/speeds/$1.$2" | awk '{ all = all " " $1; v[NR] = $1 } END { print v[int((NR + 1) / 2)], "(" substr(all, 2) ")" }'; }

# contest NAME OPTION...: a volume with these options.
contest() {
    local name=$1 round what ours theirs
    shift
    rm -f /tmp/speeds/*
    check "$name-format" cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \
        --key-file /tmp/key "$@" /dev/ram0 || return
    for round in $(seq "$ROUNDS"); do
        check "$name-$round-dm" cryptsetup open --key-file /tmp/key /dev/ram0 dm && measure dm /dev/mapper/dm
        check "$name-$round-dm-close" cryptsetup close dm
        check "$name-$round-inlock" inlock open --key-file /tmp/key --via ublk --threads 2 /dev/ram0 speed &&
            measure inlock /dev/inlock/speed
        check "$name-$round-inlock-close" inlock close speed
    done
    for what in 4k-1 4k-2 1m-1 1m-2; do
        ours=$(values inlock "$what") theirs=$(values dm "$what")
        note "$name $what: MiB/s inlock $ours, dm-crypt $theirs, ratio $(echo "${ours%% *} ${theirs%% *}" | awk '{ printf "%.2f", $1 / $2 }')"
        count speeds_measured $((2 * ROUNDS))
    done
}

# Without integrity protection, as a comparison: what the path of a request costs in the emulated guest.
contest xts-4096 --cipher aes-xts-plain64 --sector-size 4096
contest gcm-4096 --cipher aes-gcm-random --integrity aead --key-size 256 --sector-size 4096
contest hmac-sha256-4096 --cipher aes-xts-random --integrity hmac-sha256 --sector-size 4096
