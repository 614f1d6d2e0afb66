#!/usr/bin/env bash
# A server with many volumes: memory of idle ones, fairness among busy ones, what a hostile tenant does to others, and
# what a hostile client does to others of its volume.
#
#     benches/tenants.sh [idle] [busy] [hostile] [shares]
#
# INLOCK: the program (default: target/release/inlock); VOLUMES, BUSY: numbers of volumes (default: 2000, 200); ROUNDS,
# SECONDS_EACH: default 5 and 10 (8 with a hostile tenant); CASES: of `hostile`; LIMITS: of the limited tenant; PLACES:
# default both; PRIORITY: real-time priority of the well-behaved clients (default: none).
# Clients and server share the machine. `apart`: server on CPU 0, clients on CPU 1. `shared`: all on all CPUs.
# `separate` (of `busy` only, not a default): as `shared`, but a server for each volume.
set -euo pipefail

inlock=$(realpath "${INLOCK:-$(dirname "$0")/../target/release/inlock}")
tenants=$(realpath "$(dirname "$0")/tenants.py")
# shellcheck source=benches/rounds.sh
. "$(dirname "$0")/rounds.sh"
volumes=${VOLUMES:-2000}
busy=${BUSY:-200}
rounds=${ROUNDS:-5}
limits=${LIMITS:-max-bytes=\"100M\" max-in-flight=\"1M\"}
places=${PLACES:-shared apart}
dir=$(mktemp -d -p /dev/shm)
# Ends what this script has started.
stop() {
    local pids
    pids=$(jobs -p)
    # shellcheck disable=SC2086  # one word each
    [ -z "$pids" ] || kill $pids 2> /dev/null || true
    wait || true
}
trap 'stop; rm -rf "$dir"' EXIT
cd "$dir"
head -c 64 /dev/urandom > key

# volume NAME SIZE [KEY=VALUE...]: prints the table of a plain volume, and creates its image.
volume() {
    truncate -s "$2" "$1.img"
    printf '[volumes.%s]\n' "$1"
    printf '%s\n' "image = \"$dir/$1.img\"" "key-file = \"$dir/key\"" 'type = "plain"' 'cipher = "aes-xts-plain64"' \
        'key-size = 512' "${@:3}"
}
# start NAME CPUS: serves NAME.toml at the socket NAME; sets server.
start() {
    rm -f "$1" "$1.control"
    taskset -c "$2" "$inlock" serve --config "$1.toml" --nbd "unix:$dir/$1" --control "$dir/$1.control" > /dev/null &
    server=$!
    until [ -S "$1.control" ]; do
        kill -0 "$server"
        sleep 0.05
    done
}
# Prints the CPUs of server and clients of a place.
cpus() {
    [ "$1" = apart ] && echo 0 1 || echo "0-$(($(nproc) - 1)) 0-$(($(nproc) - 1))"
}
resident() {
    awk '/^Rss:/ { print $2 }' "/proc/$server/smaps_rollup"
}
threads() {
    awk '/^Threads:/ { print $2 }' "/proc/$server/status"
}
# Prints user and system time of a process in ticks.
ticks() {
    awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"
}
# Waits until other processes leave the CPUs 85 % idle for half a second, QUIET_TRIES times at most. Prints the
# percentage.
quiet() {
    local before after try idle
    for ((try = 0; try < ${QUIET_TRIES:-30}; try++)); do
        read -r -a before < /proc/stat
        sleep 0.5
        read -r -a after < /proc/stat
        idle=$((after[4] - before[4]))
        idle=$((idle * 200 / $(getconf CLK_TCK) / $(nproc)))
        [ "$idle" -lt 85 ] || break
    done
    echo "$idle"
}
names() {
    seq -f 'v%.0f' 0 "$(($1 - 1))"
}
per_volume() {
    awk -v "kib=$2" -v "n=$3" -v "text=$1" 'BEGIN { printf "%s: %.1f KiB a volume\n", text, kib / n }'
}

measure_idle() {
    local one all before pid name
    { echo 'idle-timeout = 2'; volume v0 1M; } > one.toml
    { echo 'idle-timeout = 2'; for name in $(names "$volumes"); do volume "$name" 1M; done; } > all.toml
    start one "$(cpus shared | cut -d' ' -f1)"
    sleep 1
    one=$(resident)
    stop
    start all "$(cpus shared | cut -d' ' -f1)"
    sleep 1
    before=$(resident)
    per_volume "$volumes volumes, never opened" $((before - one)) "$volumes"
    all=$(threads)
    mkfifo hold
    # shellcheck disable=SC2046,SC2094  # one word each; other files
    python3 "$tenants" hold "$dir/all" $(names "$volumes") < hold > held &
    pid=$!
    exec 3> hold
    until [ -s held ]; do kill -0 "$pid"; sleep 0.1; done
    echo "  clients: $(cat held), threads: $(threads)"
    until [ "$(threads)" -le $((all + 1)) ]; do sleep 0.1; done
    sleep 1
    per_volume "$volumes volumes, open, one client at rest each" $(($(resident) - before)) "$volumes"
    exec 3>&-
    wait "$pid"
    while
        "$inlock" control "$dir/all.control" list --json > states
        [ "$(jq '[.[] | select(.state != "closed")] | length' states)" != 0 ]
    do
        sleep 0.5
    done
    sleep 1
    per_volume "$volumes volumes, closed again" $(($(resident) - before)) "$volumes"
    stop
}

measure_busy() {
    local place cpu name round before seconds=${SECONDS_EACH:-10}
    for name in $(names "$busy"); do volume "$name" 4M; done > busy.toml
    printf '%s\n' '[global]' ioengine=nbd rw=randread bs=4k iodepth=4 size=4m time_based "runtime=$seconds" \
        ramp_time=2 > busy.fio
    for name in $(names "$busy"); do
        printf '[%s]\nuri=nbd+unix:///%s?socket=%s\n' "$name" "$name" "$dir/busy-$name"
    done >> busy.fio
    for ((round = 0; round < rounds; round++)); do
        for place in $places; do
            read -r -a cpu <<< "$(cpus "$place")"
            rm -f busy-*
            if [ "$place" = separate ]; then
                for name in $(names "$busy"); do
                    volume "$name" 4M > "busy-$name.toml"
                    start "busy-$name" "${cpu[0]}"
                done
            else
                start busy "${cpu[0]}"
                for name in $(names "$busy"); do ln -s busy "busy-$name"; done
            fi
            before=$(ticks "$server")
            taskset -c "${cpu[1]}" fio --output-format=json busy.fio > busy.json
            sed -n '/^{/,$p' busy.json | jq -r --arg place "$place" --arg cpu $(($(ticks "$server") - before)) '
                [.jobs[].read.iops] | (add / length) as $mean |
                "\($place) \(length) \($mean * length | round) \(min / $mean) \(max / $mean) \($cpu)"' |
                tee -a busy.lines >&2
            stop
        done
    done
    # shellcheck disable=SC2016  # for awk
    summarize busy.lines '
        { n[$1]++; jobs[$1] = $2; rate[$1] = rate[$1] " " $3; min[$1] = min[$1] " " $4; max[$1] = max[$1] " " $5
          if (!($1 in least) || $4 < least[$1]) least[$1] = $4 }
        END { for (k in n) printf "busy %s: %d volumes, %d requests/s, min/mean %.2f (least %.2f), max/mean %.2f\n",
            k, jobs[k], median(rate[k], n[k]), median(min[k], n[k]), least[k], median(max[k], n[k]) }'
}

# Cases: none: no other tenant. hostile: one without limits. limited: one with limits. elsewhere: a hostile tenant, in
# another server on the same CPUs. spin: no tenant, but a process that loops on the CPU of the server.
measure_hostile() {
    local place cpu case round other socket name ours before idle line written seconds=${SECONDS_EACH:-8}
    {
        for name in $(names 8); do volume "$name" 16M; done
        volume hostile 256M
        # shellcheck disable=SC2086  # one word each
        volume limited 256M $limits
    } > shared.toml
    volume elsewhere 256M > other.toml
    for place in $places; do
        read -r -a cpu <<< "$(cpus "$place")"
        start other "${cpu[0]}"
        start shared "${cpu[0]}"
        ours=$server
        for ((round = 0; round < rounds; round++)); do
            for case in ${CASES:-none hostile limited elsewhere}; do
                idle=$(quiet)
                other=
                socket=shared
                case $case in
                    none) ;;
                    spin) taskset -c "${cpu[0]}" python3 "$tenants" spin & other=$! ;;
                    *)
                        [ "$case" != elsewhere ] || socket=other
                        taskset -c "${cpu[1]}" python3 "$tenants" flood "$dir/$socket" "$case" 16 > written &
                        other=$!
                        sleep 1
                        ;;
                esac
                before=$(ticks "$ours")
                # shellcheck disable=SC2046  # one word each
                line=$(taskset -c "${cpu[1]}" python3 "$tenants" paced "$seconds" "${PRIORITY:-0}" \
                    "$dir/shared" $(names 8))
                before=$(($(ticks "$ours") - before))
                [ -z "$other" ] || { kill "$other"; wait "$other" || true; }
                written=0
                # shellcheck disable=SC2094  # the writer has ended
                case $case in none | spin) ;; *) read -r _ written < written ;; esac
                echo "$round $place $case $line $written $before $idle" | tee -a hostile.lines >&2
            done
        done
        stop
    done
    # The ratio of the 99th percentiles is that of each round; its median is printed.
    # shellcheck disable=SC2016  # for awk
    summarize hostile.lines '
        { k = $2 " " $3; n[k]++; place[k] = $2; half[k, $1] = $4; most[k, $1] = $5; at[k, n[k]] = $1
          halves[k] = halves[k] " " $4; p99[k] = p99[k] " " $5; rate[k] = rate[k] " " $6; wrote[k] = wrote[k] " " $7
          idle[k] = idle[k] " " $9 }
        END { for (k in n) {
            ratios = ""
            for (i = 1; i <= n[k]; i++) ratios = ratios " " most[k, at[k, i]] / most[place[k] " none", at[k, i]]
            printf "%s: p50 %d us, p99 %d us, p99/none %.2f, %d reads/s, hostile %d MiB/s, idle before %d %%\n",
                k, median(halves[k], n[k]), median(p99[k], n[k]), median(ratios, n[k]),
                median(rate[k], n[k]), median(wrote[k], n[k]),
                median(idle[k], n[k]) } }'
}

# Clients of one volume at its limits: what one that reads 4 KiB at a time gets while others use it.
measure_shares() {
    local row what connections limit line other seconds=${SECONDS_EACH:-10}
    start_limited() { volume v 256M "$@" > shares.toml; start shares "$(cpus shared | cut -d' ' -f1)"; }
    while read -r what connections limit; do
        for ((row = 0; row < rounds; row++)); do
            start_limited "$limit"
            other=
            if [ "$what" != none ]; then
                python3 "$tenants" keep "$dir/shares" v "$what" "$connections" > kept &
                other=$!
                sleep 1
            fi
            line=$(python3 "$tenants" steady "$seconds" "$dir/shares" v)
            [ -z "$other" ] || kill "$other"
            stop
            echo "$what $connections $limit $line" | tee -a shares.lines >&2
        done
    done <<< 'none 0 max-in-flight="64M"
unread 1 max-in-flight="64M"
slow 1 max-in-flight="64M"
stalled 1 max-in-flight="64M"
none 0 max-bytes="20M"
greedy 1 max-bytes="20M"
greedy 8 max-bytes="20M"'
    # shellcheck disable=SC2016  # for awk
    summarize shares.lines '
        { k = $1 " " $2 " " $3; n[k]++; reads[k] = reads[k] " " $4; half[k] = half[k] " " $5; most[k] = most[k] " " $6 }
        END { for (k in n) printf "%s: %d reads, median %.2f ms, longest %d ms\n",
            k, median(reads[k], n[k]), median(half[k], n[k]), median(most[k], n[k]) }'
}

print_machine
[ $# -gt 0 ] || set -- idle busy hostile shares
for what; do
    "measure_$what"
done
print_end
