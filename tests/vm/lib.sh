# shellcheck shell=dash
# Reports of a guest's script; each call is one line to the host. NAME is one word, the rest is free text. `cargo xtask
# vm` reads the lines (xtask/src/vm/report.rs).

ok() { echo "ok $1" >&3; }                               # ok NAME
fail() { echo "fail $*" | tr '\n' ' ' >&3; echo >&3; }   # fail NAME WHY...
skip() { echo "skip $*" >&3; }                           # skip NAME WHY...
note() { echo "note $*" >&3; }                           # note TEXT...: shown to the reader
data() { echo "data $*" >&3; }                           # data KEY TEXT...: for the host part of the test
count() { echo "count $1 $2" >&3; }                      # count NAME NUMBER: added up for tests/floors.txt
# Powers the machine off immediately, without a sync. It starts again with the same disks, as often as `#: boots` says;
# BOOT is the number of the start.
cut_off() {
    echo cut >&3
    echo b > /proc/sysrq-trigger
}

# check NAME COMMAND...: ok if the command succeeds; otherwise fail with the end of its output. A script that checks in
# several subshells at a time gives each a STREAM of its own.
check() {
    local name=$1 status said=/tmp/check.$$${STREAM:+.$STREAM}
    shift
    echo "+ $*"
    "$@" > "$said" 2>&1
    status=$?
    cat "$said"
    if [ "$status" -eq 0 ]; then
        ok "$name"
    else
        fail "$name" "status $status of '$*': $(tail -n 3 "$said")"
    fi
    return "$status"
}

# wait_for SECONDS COMMAND...: runs the command until it succeeds, for at most SECONDS.
wait_for() {
    local left=$(($1 * 10))
    shift
    until "$@" > /dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.1
    done
}
