#!/usr/bin/env bash
# Runs a test program if INLOCK_TEST_PROGRAMS names it, as PACKAGE or PACKAGE:TARGET. Cargo's runner in test.sh: Cargo
# builds all test programs once, where another selection of packages would have other features, and build them again.
# Appends the name to the file INLOCK_TEST_PROGRAMS_RUN.
#
# A program that hangs is killed, and what its threads and its processes wait for is printed. The time of each
# test is printed after its name, if the test program can do that; `./test.sh` lists the longest.
set -euo pipefail
target=$(basename "$1")
# Cargo appends a hash.
target=${target%-*}
# Far more than the longest program takes.
limit=${INLOCK_TEST_PROGRAM_SECONDS:-600}

# Waits until process PID ends, and kills it after the limit.
watch() {
    local pid=$1 name=$2 second task process
    for ((second = 0; second < limit; second++)); do
        kill -0 "$pid" 2> /dev/null || return 0
        sleep 1
    done
    echo "error: $name has not ended after $limit s; its threads, each with the beginning of its test's name:"
    for task in "/proc/$pid/task"/*; do
        echo "  $(cat "$task/comm") in $(cat "$task/wchan")"
    done
    for process in $(pgrep --parent "$pid"); do
        echo "  its process $process in $(cat "/proc/$process/wchan"): $(tr '\0' ' ' < "/proc/$process/cmdline")"
    done
    pkill -KILL --parent "$pid" || true
    kill -KILL "$pid"
}

for program in "$CARGO_PKG_NAME" "$CARGO_PKG_NAME:$target"; do
    if [[ " $INLOCK_TEST_PROGRAMS " == *" $program "* ]]; then
        echo "$program" >> "$INLOCK_TEST_PROGRAMS_RUN"
        # Not a child of the program, which may wait for all of its children.
        (watch "$$" "$program" < /dev/null &)
        echo "program $CARGO_PKG_NAME:$target"
        # The option is unstable; a test program of a stable compiler accepts it with this variable. Programs with a
        # `main` of their own would run for --list, too.
        timed=(-Z unstable-options --report-time --format pretty)
        if grep -qaF report-time "$1" && RUSTC_BOOTSTRAP=1 "$1" "${timed[@]}" --list > /dev/null 2>&1; then
            RUSTC_BOOTSTRAP=1 exec "$@" "${timed[@]}"
        fi
        exec "$@"
    fi
done
