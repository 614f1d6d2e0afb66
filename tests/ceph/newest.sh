#!/usr/bin/env bash
# The tests with a Ceph cluster (tests/tests/ceph) with the newest Ceph, that of Debian sid: with the librbd of this
# system in Inlock, and then with the newest. What Inlock is compared with is the newest librbd in both. Needs root, and
# takes a quarter of an hour.
#
#   tests/ceph/newest.sh                          runs the tests
#   tests/ceph/newest.sh run PROGRAM [ARGUMENT]   runs a program with the newest Ceph instead of that of this system
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
top=${self%/tests/ceph/*}
target=${CARGO_TARGET_DIR:-$top/target}
root=$target/newest-ceph

# Unpacks the packages into a directory, once. They are not configured: nothing is run as a service.
install() {
    [ ! -e "$root.ready" ] || return 0
    local packages=ceph-mon,ceph-osd,ceph-mgr,ceph-common,librbd1,python3-rbd,cryptsetup-bin,libnbd-bin,procps package
    if ! command -v debootstrap > /dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap > /dev/null
    fi
    rm -rf "$root"
    mkdir -p "$root"
    timeout 600 debootstrap --download-only --variant=minbase --include="$packages" sid "$root" \
        "${INLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}" > "$root.log" 2>&1
    for package in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$root"
        rm "$package"
    done
    touch "$root.ready"
}

# Runs a program where /usr is that of the directory. Mounts and what is started end with it.
# shellcheck disable=SC2016  # for the other shell
run() { exec unshare --mount bash -c 'mount --bind "$0/usr" /usr && exec "$@"' "$root" "$@"; }

# Runs the tests, with Cargo's options.
tests() {
    INLOCK_NEWEST_CEPH=$self INLOCK_CEPH_DIR=$dir timeout 1800 \
        cargo test --quiet --manifest-path "$top/Cargo.toml" --package inlock-tests --test ceph "$@" \
        -- --test-threads 4 --show-output
}

if [ "${1-}" = run ]; then
    shift
    run "$@"
fi
install
if [ -z "${INLOCK_BIN-}" ]; then
    cargo build --quiet --manifest-path "$top/Cargo.toml" --release --package inlock-cli
    export INLOCK_BIN=$target/release/inlock
fi
dir=$(mktemp -d)
trap '"$top/tests/ceph/cluster.sh" stop "$dir"; rm -rf "$dir"' EXIT
# Not the ports of another run on this machine.
export CEPH_PORT=$((20000 + RANDOM % 100 * 100))
"$self" run "$top/tests/ceph/cluster.sh" start "$dir"
"$self" run ceph --version
echo "with $(rbd --version) in Inlock:"
tests
echo "with the newest librbd in Inlock:"
tests --config "target.'cfg(all())'.runner = ['$self', 'run']"
