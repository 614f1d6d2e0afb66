#!/usr/bin/env bash
# Prints the command of the newest PROGRAM, cryptsetup or nbdkit, that of Debian sid in target/newest. Installs it there
# once, as root, which takes about a minute. Prints nothing and fails where that is not possible.
#
#   tests/newest.sh PROGRAM
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
root=$target/newest
libraries=usr/lib/$(uname -m)-linux-gnu

print_command() {
    local loader program
    loader=$(find "$root/$libraries" -maxdepth 1 -name 'ld-linux*.so.*' | head -n 1)
    program=$(find "$root/usr/sbin" "$root/usr/bin" -maxdepth 1 -name "$1" | head -n 1)
    [ -n "$loader" ] && [ -n "$program" ]
    # The loader runs it on the files of this system, without chroot.
    local words=("$loader" --library-path "$root/$libraries:$root/lib/$(uname -m)-linux-gnu" "$program")
    "${words[@]}" --version > /dev/null
    echo "${words[@]}"
}

if [ -e "$root.ready" ] && print_command "$1"; then
    exit 0
fi
[ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null
if ! command -v debootstrap > /dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap > /dev/null 2>&1
fi
rm -rf "$root" "$root.ready"
mkdir -p "$root"
mirror=${INLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}
timeout 300 debootstrap --variant=minbase --include=cryptsetup-bin,nbdkit sid "$root" "$mirror" > "$target/newest.log" 2>&1
touch "$root.ready"
print_command "$1"
