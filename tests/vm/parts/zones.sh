# shellcheck shell=dash
# For tests of zoned storage: devices in memory, volumes on them by Inlock and by dm-crypt, comparisons, logs of the
# block layer. A DEVICE may be a zoned file, except for dm-crypt.
#
# A test sets: ZONE, sectors of a zone; FIRST, first sector of a volume on the underlying device; SECTORS, its length;
# UNIT, its data unit; KEY, 128 digits.

# nullb NAME CONVENTIONAL SEQUENTIAL ZONE CAPACITY OPEN ACTIVE BLOCK: /dev/NAME, a zoned device in memory: number of
# conventional and of sequential zones, their length and capacity in MiB, maximum numbers of open and of active zones
# (0: no limit), block size in bytes. Further attributes follow as NAME=VALUE.
nullb() {
    local to=/sys/kernel/config/nullb/$1 other
    modprobe null_blk nr_devices=0 || return
    grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config || return
    mkdir "$to" && echo $((($2 + $3) * $4)) > "$to/size" && echo 1 > "$to/memory_backed" && echo "$8" > "$to/blocksize" &&
        echo 1 > "$to/zoned" && echo "$4" > "$to/zone_size" && echo "$5" > "$to/zone_capacity" &&
        echo "$2" > "$to/zone_nr_conv" && echo "$6" > "$to/zone_max_open" && echo "$7" > "$to/zone_max_active" && shift 8 || return
    for other in "$@"; do
        echo "${other#*=}" > "$to/${other%=*}" || return
    done
    echo 1 > "$to/power" && [ -b "/dev/${to##*/}" ]
}
# nullb_gone NAME
nullb_gone() { echo 0 > "/sys/kernel/config/nullb/$1/power" && rmdir "/sys/kernel/config/nullb/$1"; }

# line DEVICE: prints the table line of the volume on it.
line() { echo "0 $SECTORS crypt aes-xts-plain64 $KEY 0 $1 $FIRST 1 sector_size:$UNIT"; }
# ours DEVICE, theirs DEVICE: opens the volume on it, by Inlock or by dm-crypt, as NODE.
ours() {
    (umask 077 && line "$1" > /tmp/table)
    inlock open --table /tmp/table vol --via ublk --threads 2 || return
    NODE=$(readlink -f /dev/inlock/vol)
}
ours_pid() { sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/vol.json; }
ours_closed() { inlock close vol; }
theirs() { dmsetup create dm --table "$(line "$1")" && NODE=/dev/mapper/dm; }
theirs_closed() { dmsetup remove dm; }

# namespace NAME DEVICE WAY: SPACE becomes an NVMe namespace over the device: an NVMe append becomes one of the block
# layer, and its position is returned. All zones of the device are sequential. With WAY `loop` commands may overtake
# each other. With `tcp` they rarely do: there is one queue, which does not fill, and the data of a write arrive with
# its command.
namespace() {
    local to=/sys/kernel/config/nvmet said
    grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config || return
    modprobe nvmet && "port_$3" "$to/ports" && mkdir "$to/subsystems/$1" &&
        echo 1 > "$to/subsystems/$1/attr_allow_any_host" && mkdir "$to/subsystems/$1/namespaces/1" &&
        printf '%s' "$2" > "$to/subsystems/$1/namespaces/1/device_path" &&
        echo 1 > "$to/subsystems/$1/namespaces/1/enable" &&
        ln -s "$to/subsystems/$1" "$to/ports/$PORT/subsystems/$1" || return
    exec 4<> /dev/nvme-fabrics || return
    echo "nqn=$1,$REACHED" >&4
    read -r said <&4
    exec 4>&-
    said=${said#instance=}
    SPACE=/dev/nvme${said%%,*}n1
    wait_for 10 [ -b "$SPACE" ]
}
# port_loop DIRECTORY, port_tcp DIRECTORY: creates PORT, with the options REACHED to connect to it.
port_loop() {
    PORT=1 REACHED=transport=loop
    [ -d "$1/1" ] || { modprobe nvme-loop && mkdir "$1/1" && echo loop > "$1/1/addr_trtype"; }
}
port_tcp() {
    local option
    PORT=2 REACHED=transport=tcp,traddr=127.0.0.1,trsvcid=4420,nr_io_queues=1,queue_size=512
    [ ! -d "$1/2" ] || return 0
    modprobe nvme-tcp && modprobe nvmet-tcp && mkdir "$1/2" || return
    for option in trtype=tcp adrfam=ipv4 traddr=127.0.0.1 trsvcid=4420; do
        echo "${option#*=}" > "$1/2/addr_${option%=*}" || return
    done
    echo 1048576 > "$1/2/param_inline_data_size"
}
# namespace_gone NAME: removes the namespace; the device stays.
namespace_gone() {
    local to=/sys/kernel/config/nvmet controller
    controller=$(grep -lx "$1" /sys/class/nvme/nvme*/subsysnqn) &&
        echo 1 > "${controller%/*}/delete_controller" && rm "$to"/ports/*/subsystems/"$1" &&
        echo 0 > "$to/subsystems/$1/namespaces/1/enable" && rmdir "$to/subsystems/$1/namespaces/1" "$to/subsystems/$1"
}

# reported OFFSET COUNT DEVICE: prints COUNT of its zones, without the write pointers of read-only and offline ones.
reported() {
    if [ -b "$3" ]; then
        blkzone report -o "$1" -c "$2" "$3"
    else
        inlock zoned report "$3" | tail -n "+$(($1 / ZONE + 1))" | head -n "$2"
    fi | sed '/zcond:1[35]/s/wptr 0x[0-9a-f]*/wptr none/'
}
# shifted DEVICE: checks that NODE's report is that of the device, from the start of the volume.
shifted() {
    reported "$FIRST" $((SECTORS / ZONE)) "$1" | xtask zones shifted "$FIRST" > /tmp/expected &&
        [ -s /tmp/expected ] && reported 0 $((SECTORS / ZONE)) "$NODE" > /tmp/report && diff /tmp/expected /tmp/report
}
# Except for the write pointers of full zones, which dm-crypt reports differently.
shifted_but_full() {
    rm -f /tmp/expected /tmp/report
    shifted "$1" > /dev/null
    for file in expected report; do
        sed '/zcond:14/s/wptr 0x[0-9a-f]*/wptr none/' "/tmp/$file" > "/tmp/$file.full"
    done
    [ -s /tmp/expected.full ] && diff /tmp/expected.full /tmp/report.full
}

# own_report DEVICE: checks that Inlock and blkzone report the same zones; some zones have no write pointer.
own_report() {
    blkzone report "$1" | sed '/zcond:1[35]/s/wptr 0x[0-9a-f]*/wptr 0x000000/' > /tmp/blkzone
    inlock zoned report "$1" > /tmp/own && [ -s /tmp/own ] && diff /tmp/blkzone /tmp/own
}

# short_requests KIB: limits the requests of NODE to this length, also merged ones.
short_requests() { echo "$1" > "/sys/class/block/$(basename "$NODE")/queue/max_sectors_kb"; }
# traced DEVICE KIB [EVENT...]: starts to log events of /dev/DEVICE's block layer, in order, in KIB of memory per CPU;
# by default those that show the order.
traced() {
    local tracing=/sys/kernel/tracing numbers event kib=$2
    [ -e "$tracing/trace" ] || mount -t tracefs tracefs "$tracing" || return
    numbers=$(cat "/sys/class/block/$1/dev") || return
    # Task names would need tracing of the scheduler, which changes code at run time, and the emulated CPU sometimes
    # fails at that. The events of the block layer include the names.
    echo 0 > "$tracing/options/record-cmd" || return
    echo 0 > "$tracing/tracing_on" && echo "$kib" > "$tracing/buffer_size_kb" && echo counter > "$tracing/trace_clock" &&
        echo > "$tracing/trace" || return
    shift 2
    [ $# -gt 0 ] || set -- block_bio_queue block_rq_issue
    for event in "$@"; do
        echo "dev == $((${numbers%:*} << 20 | ${numbers#*:}))" > "$tracing/events/block/$event/filter" &&
            echo 1 > "$tracing/events/block/$event/enable" || return
    done
    echo 1 > "$tracing/tracing_on"
}
# traced_to FILE: stops the log, and writes it to FILE.
traced_to() {
    echo 0 > /sys/kernel/tracing/tracing_on
    echo 0 > /sys/kernel/tracing/events/enable
    cat /sys/kernel/tracing/trace > "$1"
    echo > /sys/kernel/tracing/trace
}
# ordered NAME FILE AT_LEAST: checks that the writes in the log FILE reached the device's queue, and were issued, in
# order within each zone, and that there are at least AT_LEAST of them.
ordered() {
    local event writes
    for event in block_bio_queue block_rq_issue; do
        check "$1-$event" xtask zones order "$2" "$event" "$ZONE" 0 || return
        writes=$(cut -d ' ' -f 1 "/tmp/check.$$")
        note "$1: $event: $(cat "/tmp/check.$$")"
        if [ "$event" = block_bio_queue ] && [ "$writes" -lt "$3" ]; then fail "$1-enough" "$writes writes, not $3"; fi
    done
}
# must_fail NAME WORDS COMMAND...: ok if the command fails and prints WORDS.
must_fail() {
    local name=$1 words=$2
    shift 2
    if "$@" > /tmp/said 2>&1; then
        fail "$name" "it succeeds: $(tail -n 3 /tmp/said)"
    elif grep -q "$words" /tmp/said; then
        ok "$name"
    else
        fail "$name" "not '$words': $(tail -n 3 /tmp/said)"
    fi
}
# same_words FILE FILE: checks that both have the same words, and that there are some.
same_words() { [ -s "$1" ] && cmp "$1" "$2"; }
# has_grown FILE LINES: checks that the file has at least LINES lines.
has_grown() { [ "$(wc -l < "$1")" -ge "$2" ]; }
