#!/usr/bin/env bash
# Prints the command of the newest cryptsetup, that of Debian sid in target/newest-cryptsetup. Installs it there once,
# as root, which takes about a minute. Prints nothing and fails where that is not possible.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
root=$target/newest-cryptsetup
libraries=usr/lib/$(uname -m)-linux-gnu

print_command() {
    local loader
    loader=$(find "$root/$libraries" -maxdepth 1 -name 'ld-linux*.so.*' | head -n 1)
    [ -n "$loader" ]
    # The loader runs it on the files of this system, without chroot.
    local words=("$loader" --library-path "$root/$libraries:$root/lib/$(uname -m)-linux-gnu" "$root/usr/sbin/cryptsetup")
    "${words[@]}" --version > /dev/null
    echo "${words[@]}"
}

if [ -e "$root.ready" ] && print_command; then
    exit 0
fi
[ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null
if ! command -v debootstrap > /dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap > /dev/null 2>&1
fi
rm -rf "$root" "$root.ready"
mkdir -p "$root"
mirror=${INLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}
debootstrap --variant=minbase --include=cryptsetup-bin sid "$root" "$mirror" > "$target/newest-cryptsetup.log" 2>&1
touch "$root.ready"
print_command
