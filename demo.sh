#!/usr/bin/env bash
# Inlock from an empty image to a verified result: a real file system in a LUKS2 volume, served to unmodified NBD
# clients, read back and compared, opened by cryptsetup, and the speed compared with other servers. Root is needed only
# to install packages.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
exec < /dev/null
export LC_ALL=C CARGO_TERM_COLOR=never
# shellcheck source=tests/packages.sh
. tests/packages.sh

checks=0
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
good() { checks=$((checks + 1)); printf '  ok  %s\n' "$*"; }
bad() { printf '  FAILED  %s\n' "$*"; exit 1; }
mib() { echo $((($1 + 1048575) / 1048576)); }

need_packages
say "1. Build (release)"
cargo build --quiet --release --package inlock-cli
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
export INLOCK_BIN=$TARGET/release/inlock
good "$("$INLOCK_BIN" --version)"

# In memory if there is space, so that the table shows the software and not a disk.
base=${TMPDIR:-/tmp}
if [ -d /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -n 1)" -gt 2500000 ]; then base=/dev/shm; fi
work=$(mktemp -d "$base/inlock-demo-XXXXXX")
server=
finish() {
    if [ -n "$server" ]; then kill "$server" 2> /dev/null || true; fi
    rm -rf "$work"
}
trap finish EXIT
printf 'correct horse battery staple' > "$work/passphrase"

say "2. A file system from real files"
mkdir "$work/tree"
tar --exclude=./target --exclude=./.git -cf - . | tar -xf - -C "$work/tree"
for more in /usr/share/doc /usr/share/perl /usr/lib/python3 /usr/share/zoneinfo /usr/include /usr/lib/git-core; do
    [ "$(du -sm "$work/tree" | cut -f 1)" -lt 64 ] || break
    if [ -d "$more" ]; then cp -r --no-preserve=ownership "$more" "$work/tree/$(basename "$more")" 2> /dev/null || true; fi
done
size=$(($(du -sm "$work/tree" | cut -f 1) * 3 / 2 + 32))
mke2fs -q -t ext4 -d "$work/tree" "$work/fs.img" "${size}M" > /dev/null
hashes() { (cd "$1" && find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0 sha256sum); }
hashes "$work/tree" > "$work/hashes"
good "mke2fs -d: $(wc -l < "$work/hashes") files, $(mib "$(stat -c %s "$work/fs.img")") MiB"

say "3. A LUKS2 volume, and the file system into it over NBD"
truncate -s "$((size + 16))M" "$work/volume.img"
began=$(date +%s%N)
"$INLOCK_BIN" luksFormat -q --type luks2 --key-file "$work/passphrase" "$work/volume.img"
kdf=$(cryptsetup luksDump --dump-json-metadata "$work/volume.img" | jq -r '.keyslots."0".kdf | "\(.type), \(.memory / 1024 | floor) MiB, \(.time) passes, \(.cpus) lanes"')
good "inlock luksFormat in $((($(date +%s%N) - began) / 1000000)) ms: aes-xts-plain64, $kdf"
"$INLOCK_BIN" serve "$work/volume.img" --key-file "$work/passphrase" --nbd "unix:$work/nbd.sock" > "$work/serve.log" 2>&1 &
server=$!
uri="nbd+unix:///?socket=$work/nbd.sock"
for _ in $(seq 600); do
    if nbdinfo --size "$uri" > /dev/null 2>&1; then break; fi
    kill -0 "$server" 2> /dev/null || { cat "$work/serve.log"; bad "inlock serve has exited"; }
    sleep 0.1
done
began=$(date +%s%N)
timeout 300 nbdcopy --flush "$work/fs.img" "$uri" || bad "nbdcopy in"
good "nbdcopy in: $((size * 1000 / (($(date +%s%N) - began) / 1000000 + 1))) MiB/s"

say "4. Back through NBD, checked"
timeout 300 nbdcopy "$uri" "$work/back.img" || bad "nbdcopy out"
if cmp -s "$work/fs.img" "$work/back.img"; then good "nbdcopy out: the same $size MiB"; else bad "nbdcopy out: other bytes"; fi
if e2fsck -fn "$work/back.img" > "$work/e2fsck.log" 2>&1; then good "e2fsck -fn: clean"; else cat "$work/e2fsck.log"; bad "e2fsck"; fi
mkdir "$work/out"
debugfs -R "rdump / $work/out" "$work/back.img" > /dev/null 2>&1
hashes "$work/out" > "$work/hashes.out"
if cmp -s "$work/hashes" "$work/hashes.out"; then
    good "SHA-256 of all $(wc -l < "$work/hashes") files: the same"
else
    diff "$work/hashes" "$work/hashes.out" | head; bad "file hashes differ"
fi
memory=$(awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$server/status")
kill -TERM "$server"
if wait "$server"; then good "SIGTERM: ended with everything durable; it had $memory MiB resident"; else bad "SIGTERM: status $?"; fi
server=

say "5. The plaintext is not in the image"
/usr/bin/python3 tests/oracle/leaks.py "$work/fs.img" "$work/fs.img" > "$work/control"
# After the header, whose JSON text may occur in a file, too.
header=$(cryptsetup luksDump --dump-json-metadata "$work/volume.img" | jq -r '.segments."0".offset')
/usr/bin/python3 tests/oracle/leaks.py "$work/fs.img" "$work/volume.img" "$header" > "$work/leaks"
if [ "$(cat "$work/leaks")" -eq 0 ] && [ "$(cat "$work/control")" -gt 1000 ]; then
    good "pieces of the file system found in the volume: 0 (the same search over the file system itself: $(cat "$work/control"))"
else
    bad "$(cat "$work/leaks") pieces of plaintext are in the volume"
fi

say "6. cryptsetup agrees"
cryptsetup luksDump "$work/volume.img" | grep -E '^(Version|UUID)|cipher:|sector:|PBKDF:|Memory:' | sed 's/^[[:space:]]*/      /'
if cryptsetup open --test-passphrase --key-file "$work/passphrase" "$work/volume.img"; then
    good "cryptsetup open --test-passphrase"
else
    bad "cryptsetup does not open it"
fi
printf 'wrong' > "$work/wrong"
status=0
"$INLOCK_BIN" open --test-passphrase --key-file "$work/wrong" "$work/volume.img" 2> "$work/refusal" || status=$?
if [ "$status" -eq 2 ]; then good "a wrong passphrase: status 2, $(head -n 1 "$work/refusal")"; else bad "a wrong passphrase: status $status"; fi

say "7. Another key: added here, the first one removed by cryptsetup"
printf 'another passphrase' > "$work/another"
opens() { "$INLOCK_BIN" open --test-passphrase --key-file "$1" "$work/volume.img" 2> /dev/null; }
"$INLOCK_BIN" luksHeaderBackup "$work/volume.img" --header-backup-file "$work/header.backup"
"$INLOCK_BIN" luksAddKey -q --iter-time 500 --key-file "$work/passphrase" "$work/volume.img" "$work/another" || bad "luksAddKey"
if opens "$work/passphrase" && opens "$work/another"; then good "inlock luksAddKey: both passphrases open it"; else bad "a key is missing"; fi
cryptsetup luksRemoveKey -q "$work/volume.img" "$work/passphrase" || bad "cryptsetup luksRemoveKey"
if opens "$work/another" && ! opens "$work/passphrase"; then good "cryptsetup luksRemoveKey: only the other one does"; else bad "luksRemoveKey"; fi
if "$INLOCK_BIN" doctor "$work/volume.img" > "$work/doctor"; then good "inlock doctor: no fault found"; else cat "$work/doctor"; bad "doctor"; fi
"$INLOCK_BIN" luksHeaderRestore -q "$work/volume.img" --header-backup-file "$work/header.backup" || bad "luksHeaderRestore"
if opens "$work/passphrase" && ! opens "$work/another"; then good "inlock luksHeaderRestore: the first one again"; else bad "luksHeaderRestore"; fi

say "8. Speed compared with other servers (one short run, interleaved, fio's nbd engine, one connection over a unix socket)"
"$INLOCK_BIN" bench compare --quick --dir "$base" | sed '/^#/d; /^note: /d; s/^/  /'

say "The same with your own disk or image:"
cat << 'END'
  truncate -s 10G disk.img && inlock luksFormat disk.img
  inlock serve disk.img --nbd unix:/tmp/inlock.sock
  nbdcopy your-data.img 'nbd+unix:///?socket=/tmp/inlock.sock'
END
printf '\ndemo: %d checks passed (inlock is %s)\n' "$checks" "${INLOCK_BIN#"$PWD"/}"
