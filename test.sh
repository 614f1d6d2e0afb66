#!/usr/bin/env bash
# Runs all checks, and prints a last line 'N passed, N failed, N skipped'.
#
#   ./test.sh              all stages, as on every push
#   ./test.sh quick        programs fmt tidy clippy unit: what a change breaks first
#   ./test.sh STAGE...     any of: programs build fmt tidy clippy features dependencies doc shellcheck unit models miri fuzz volumes clients hostile memory endings null disk report ceph vm soak
#
# Each stage prints its seconds, and writes its log to target/test-logs; the ten longest tests are listed. Counts that
# the suites print are compared with tests/floors.txt, so that a suite that silently does less fails. A skip that is not
# in tests/expected-skips.txt fails, too.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" || exit 1
exec < /dev/null
export CI=true LC_ALL=C CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# shellcheck source=tests/packages.sh
. tests/packages.sh

STAGES=(programs build fmt tidy clippy features dependencies doc shellcheck unit models miri fuzz volumes clients hostile memory endings null disk report ceph vm soak)
# These run nothing of a release build.
SOURCE=(programs fmt tidy clippy features dependencies doc shellcheck unit models miri fuzz)
QUICK=(programs fmt tidy clippy unit)
[ "$*" = quick ] && set -- "${QUICK[@]}"
WANTED=("${@:-all}")
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
LOGS=$TARGET/test-logs
passed=0 failed=0 skipped=0

for word in "$@"; do
    [[ " ${STAGES[*]} " == *" $word "* ]] || { echo "no stage '$word'; there are: ${STAGES[*]}" >&2; exit 1; }
    [[ " ${SOURCE[*]} " == *" $word "* ]] || WANTED+=(build)
done
wanted() { [ "${WANTED[0]}" = all ] || [[ " ${WANTED[*]} " == *" $1 "* ]]; }

# Sums a column of all 'test result:' lines of a log.
results() { awk -v word="$2" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word ";?") n += $(i - 1) } END { print n + 0 }' "$1"; }

# stage NAME COMMAND...: runs the command, counts its test results, prints one line.
stage() {
    local name=$1 log=$LOGS/$1.log begin=$SECONDS status=0 good bad left
    shift
    wanted "$name" || return 0
    "$@" > "$log" 2>&1 || status=$?
    good=$(results "$log" passed) bad=$(results "$log" failed)
    left=$(($(results "$log" ignored) + $(grep -c '^SKIPPED: ' "$log")))
    if [ "$((good + bad))" -eq 0 ]; then
        # Not a test program: its exit status is the result.
        if [ "$status" -eq 0 ]; then good=1; else bad=1; fi
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left))
    local verdict=ok
    [ "$bad" -gt 0 ] && verdict=FAILED
    printf '%-7s %-12s %5d passed %3d failed %3d skipped  %4d s\n' "$verdict" "$name" "$good" "$bad" "$left" $((SECONDS - begin))
    if [ "$bad" -gt 0 ]; then
        echo "--- the end of $log:"
        # What tests that passed print says nothing about the failure.
        awk '/^successes:$/ { other = 1 } /^failures:$/ { other = 0; within = 1 } within && !other' "$log" | cut -c 1-600 | head -n 100
        head -n -40 "$log" | grep -E '^(error|warning: unused|tidy:|test .*FAILED|Error: )' | head -40
        tail -n 40 "$log"
        echo "---"
    fi
}

# Prints the ten longest tests: seconds, program, test. What a test prints may stand in the line of its result.
longest_tests() {
    awk '/^program / { program = $2 }
        /^test .* <[0-9.]+s>$/ { time = $NF; gsub(/[<>s]/, "", time); printf "%9.1f s  %s %s\n", time, program, $2 }' \
        "$LOGS"/*.log | sort -rn | sed '11,$d; 1i the longest tests:'
}

# begin NAME COMMAND...: starts a stage in the background that uses CPUs which later stages leave idle. `stage NAME
# awaited` waits for it. One at a time.
begin() {
    background_log=$LOGS/$1.background
    wanted "$1" || return 0
    # In a process group of its own, so that all its processes can be killed.
    set -m
    "${@:2}" > "$background_log" 2>&1 &
    background=$!
    set +m
}
awaited() {
    local status=0
    wait "$background" || status=$?
    background=
    cat "$background_log"
    return "$status"
}
background=
trap '[ -z "$background" ] || kill -- "-$background"' EXIT

# An unexpected skip is a failure. tests/expected-skips.txt lists the beginnings of expected reasons as shell patterns.
check_skips() {
    local why expected found unexpected=0
    while IFS= read -r why; do
        found=0
        while IFS= read -r expected; do
            case $expected in '' | '#'*) continue ;; esac
            # shellcheck disable=SC2053  # an entry may be a pattern
            [[ $why == $expected* ]] && found=1
        done < tests/expected-skips.txt
        [ "$found" -eq 1 ] || { echo "unexpected skip: $why"; unexpected=1; }
    done < <(grep -h '^SKIPPED: ' "$LOGS"/*.log | sed 's/^SKIPPED: //' | sort -u)
    return "$unexpected"
}

# Each count must reach its floor.
check_floors() {
    local name floor count low=0
    while read -r name floor; do
        case $name in '' | '#'*) continue ;; esac
        count=$(grep -h "^COUNT $name " "$LOGS"/*.log | awk '{ n += $3 } END { printf "%d", n }')
        [ "$name" = tests_passed ] && count=$passed
        # Where Ceph cannot be installed, nothing of it is counted.
        [[ $name != ceph_* ]] || ! grep -q '^SKIPPED: Ceph cannot be installed' "$LOGS/ceph.log" || continue
        if [ "$count" -ge "$floor" ]; then
            echo "count $name: $count, at least $floor"
        else
            echo "count $name: $count, fewer than $floor"
            low=1
        fi
    done < tests/floors.txt
    return "$low"
}

# run_tests 'PACKAGE[:TARGET]...' ARGUMENT...: runs these test programs, and fails if one of them does not exist.
run_tests() {
    local -x INLOCK_TEST_PROGRAMS=$1 INLOCK_TEST_PROGRAMS_RUN=$LOGS/programs-run
    local program status=0
    shift
    : > "$INLOCK_TEST_PROGRAMS_RUN"
    cargo test --quiet --no-fail-fast --tests --config "target.'cfg(all())'.runner = '$PWD/tests/run_program.sh'" -- --show-output "$@" || status=$?
    for program in $INLOCK_TEST_PROGRAMS; do
        grep -qxF "$program" "$INLOCK_TEST_PROGRAMS_RUN" || { echo "error: there is no test program $program"; status=1; }
    done
    return "$status"
}
suite() { run_tests "inlock-tests:$1"; }
# All tests of the crates, and the examples in their documentation, except in the models: these include files of the
# engine, whose examples name another crate.
units() {
    # glibc would return the memory of each freed buffer to the kernel, and threads' memory takes long to get back.
    local -x MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432
    local packages
    packages=$(grep -hm1 '^name = ' crates/*/Cargo.toml xtask/Cargo.toml | cut -d'"' -f2 | tr '\n' ' ') || return 1
    run_tests "$packages inlock-tests:inlock_tests" --test-threads 4 &&
        cargo test --quiet --no-fail-fast --doc --workspace --exclude inlock-benches --exclude inlock-models \
            -- --show-output
}

# A dead link in the documentation is a warning, which fails here. So does a change of the public API that is missing in
# docs/api.
documentation() {
    RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --no-deps --workspace --exclude inlock-benches && xtask public-api
}

# All test programs and xtask, with the same choice of features: `cargo xtask` has its own, and would build most of it a
# second time.
programs() { cargo build --quiet --bins --tests; }
xtask() {
    if wanted programs; then "$TARGET/debug/xtask" "$@"; else cargo xtask "$@"; fi
}
release_build() { cargo build --quiet --release --package inlock-cli && "$INLOCK_BIN" --version; }

# 4 GiB of zeroes must pass unchanged through a target that encrypts nothing.
null_target() {
    local image=$LOGS/null.img raw through
    truncate -s 4G "$image" &&
        raw=$(sha256sum < "$image") &&
        through=$("$INLOCK_BIN" export - --allow-null-cipher --table "0 8388608 crypt cipher_null-ecb - 0 $image 0" | sha256sum)
    rm -f "$image"
    echo "raw $raw, through the target $through"
    [ "$through" = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca  -" ] && [ "$raw" = "$through" ]
}

# Tests with a Ceph cluster of their own.
ceph_cluster() {
    local dir status=0
    want_ceph || { echo "SKIPPED: Ceph cannot be installed here"; return 0; }
    dir=$(mktemp -d) || return 1
    # Not the ports of another run on this machine.
    local -x CEPH_PORT=$((20000 + RANDOM % 100 * 100))
    tests/ceph/cluster.sh start "$dir" && INLOCK_CEPH_DIR=$dir suite ceph --test-threads 6 || status=$?
    tests/ceph/cluster.sh stop "$dir"
    [ "$status" -eq 0 ] || tail -n 20 "$dir"/log/*.log
    rm -rf "$dir"
    return "$status"
}

begun=$SECONDS
need_packages || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
want_browser
rm -rf "$LOGS" && mkdir -p "$LOGS" || exit 1
INLOCK_NIST_XTS=$(/usr/bin/python3 -c 'import cryptography_vectors as v; print(v.__path__[0])')/ciphers/AES/XTS
export INLOCK_NIST_XTS

stage programs programs
# The tests of the crates are content with `inlock` of the debug build.
export INLOCK_BIN=$TARGET/debug/inlock
if wanted build; then
    INLOCK_BIN=$TARGET/release/inlock
    stage build release_build
fi
[ "$failed" -eq 0 ] || { echo "$passed passed, $failed failed, 0 skipped"; exit 1; }
begin vm xtask vm
stage fmt cargo fmt --all --check
stage tidy xtask tidy
stage clippy cargo clippy --quiet --all-targets -- -D warnings
stage features xtask features
stage dependencies xtask dependencies
stage doc documentation
stage shellcheck shellcheck -x test.sh demo.sh tests/packages.sh tests/run_program.sh tests/newest.sh tests/rustdoc_json.sh tests/ceph/*.sh tests/cryptsetup/*.sh tests/cryptsetup/crypto-check tests/cryptsetup/bin/* tests/vm/*.sh tests/vm/parts/*.sh .ci/run
if wanted unit; then
    # Without them, the tests skip what they are needed for.
    INLOCK_NEW_CRYPTSETUP=$(tests/newest.sh cryptsetup 2> "$LOGS/newest-cryptsetup.log") || INLOCK_NEW_CRYPTSETUP=
    [ -n "$INLOCK_NEW_CRYPTSETUP" ] && INLOCK_NEW_NBDKIT=$(tests/newest.sh nbdkit 2> "$LOGS/newest-nbdkit.log") || INLOCK_NEW_NBDKIT=
    export INLOCK_NEW_CRYPTSETUP INLOCK_NEW_NBDKIT
fi
stage unit units
stage models run_tests inlock-models
stage miri xtask miri
stage fuzz run_tests inlock-fuzz
stage volumes suite other_volumes
stage clients suite real_clients
stage hostile suite hostile
stage memory suite memory
stage endings suite endings
stage null null_target
stage disk suite disk
stage report suite report
stage ceph ceph_cluster
stage vm awaited
stage soak xtask soak --seconds 10 --stall-seconds 10
if [ "${WANTED[0]}" = all ]; then
    WANTED=(all)
    stage skips check_skips
    stage floors check_floors
fi

longest_tests
echo "all of this took $((SECONDS - begun)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
