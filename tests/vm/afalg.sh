#: about   cipher engine of AF_ALG: data and ciphertext, sockets while suspended, a killed process, refusals, its speed
#: memory  512
#: cpus    2
#: seconds 240
#: modules ublk_drv nbd
#: tools   inlock fio
#: disk    20M
#: disk    20M
# shellcheck shell=dash
printf secret > /tmp/key
BLOCKS=4

# opened DISK VIA OPTION...: /dev/inlock/vol from a disk.
opened() {
    local disk=$1 via=$2
    shift 2
    inlock open "/dev/$disk" vol --via "$via" --threads 2 --key-file /tmp/key "$@" > /tmp/node
}
pid() { sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/vol.json; }
# shellcheck disable=SC2010  # the targets of links
sockets() { ls -l "/proc/$(pid)/fd" | grep -c socket:; }
# Both disks have the same header, key and data.
same_data() { cmp /dev/vda /dev/vdb; }
busy() { test "$(number accepted)" -gt 20; }
# number NAME: a counter of the engine, or the number of its keys.
number() { inlock status vol --json | sed -n "/engine_counters/,/}/s/^ *\"$1\": *\([0-9]*\),*/\1/p"; }
# is NAME GOT WANTED
is() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "$2, not $3"; fi; }
above() { if [ "$2" -gt "$3" ]; then ok "$1"; else fail "$1" "$2 is not above $3"; fi; }
# written NAME: the data to the volume and back.
written() {
    check "$1-write" dd if=/tmp/data of=/dev/inlock/vol bs=1M
    sync
    reads "$1-read"
}
reads() {
    echo 3 > /proc/sys/vm/drop_caches
    dd if=/dev/inlock/vol bs=1M count="$BLOCKS" iflag=direct > /tmp/got
    check "$1" cmp /tmp/got /tmp/data
}
# short NAME: the data in requests of 12 KiB, and one of 4 KiB at the end, which is not for the engine.
short() {
    dd if=/dev/inlock/vol bs=12k iflag=direct > /tmp/got
    check "$1" cmp /tmp/got /tmp/data
}

# Without the module the engine is refused before a passphrase is needed.
module=$(find /lib/modules -name algif_skcipher.ko)
mv "$module" /tmp/
check format inlock luksFormat -q --pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 1 --key-file /tmp/key /dev/vda
if opened vda ublk --engine afalg 2> /tmp/said; then fail refused "opened without algif_skcipher"; else ok refused; fi
check refused-why grep -q 'the kernel has no skcipher xts(aes)' /tmp/said
mv /tmp/algif_skcipher.ko "$module"
check luks-copy dd if=/dev/vda of=/dev/vdb bs=1M
dd if=/dev/urandom of=/tmp/data bs=1M count="$BLOCKS"

# Ciphertext of the engine, over ublk, and of the software, over NBD, is the same; each reads what the other wrote.
check open opened vda ublk --engine afalg --engine-threshold 8K --metrics tcp:127.0.0.1:9100
written engine
short engine-short
is keys "$(number keys)" 1
above accepted "$(number accepted)" 8
is failed "$(number failed)" 0
is fell-back "$(number fell_back)" 0
count afalg_requests "$(number accepted)"
check status grep -q 'engine:  afalg, for requests of at least 8192 bytes' <<- STATUS
	$(inlock status vol)
STATUS
check metrics wget -q -O /tmp/metrics http://127.0.0.1:9100/metrics
check metrics-accepted grep -q "^inlock_engine_requests_total{volume=\"vol\",outcome=\"accepted\"} $(number accepted)\$" /tmp/metrics
check metrics-keys grep -q '^inlock_engine_keys{volume="vol"} 1$' /tmp/metrics
check close inlock close vol
check open-software opened vdb nbd
written software
check close-software inlock close vol
check ciphertext same_data
check open-swapped opened vdb nbd --engine afalg --engine-threshold 8K
reads swapped

# Suspended, the kernel has no key: the sockets are closed. Reads wait meanwhile.
used=$(sockets)
(dd if=/dev/inlock/vol bs=1M count="$BLOCKS" iflag=direct > /tmp/waits; echo "$?" > /tmp/waited) 2> /dev/null &
check suspend inlock suspend vol
is suspended-keys "$(number keys)" 0
above suspended-sockets "$((used - $(sockets)))" 30
check resume inlock resume vol --key-file /tmp/key
check waited wait_for 60 test -s /tmp/waited
check waited-read cmp /tmp/waits /tmp/data
is resumed-keys "$(number keys)" 1
reads resumed

# A kernel that has lost the cipher meanwhile: resumed, software does the work. With the next key the engine is back.
check suspend-again inlock suspend vol
check unload rmmod algif_skcipher
mv "$module" /tmp/
check resume-software inlock resume vol --key-file /tmp/key
is software-keys "$(number keys)" 0
check software-warns grep -q 'warning: vol: the cipher engine refuses the key' /run/inlock/vol.log
reads software-resumed
mv /tmp/algif_skcipher.ko "$module"
check suspend-last inlock suspend vol
check resume-engine inlock resume vol --key-file /tmp/key
is engine-keys "$(number keys)" 1
check close-swapped inlock close vol

# A killed process under load: the next one continues.
check open-killed opened vda ublk --engine afalg --engine-threshold 8K
(
    fio --name=load --filename=/dev/inlock/vol --direct=1 --ioengine=io_uring --iodepth=8 --size=3m --rw=randwrite \
        --bsrange=4k-64k --verify=crc32c --verify_fatal=1 --randseed=7 --loops=4 > /tmp/fio 2>&1
    echo "status $?" >> /tmp/fio
) &
check busy wait_for 60 busy
if grep -q '^status' /tmp/fio; then fail under-load "fio had ended before"; else ok under-load; fi
check kill kill -9 "$(pid)"
check back wait_for 5 opened vda ublk --engine afalg --engine-threshold 8K
check load-ends wait_for 120 grep -q '^status' /tmp/fio
check load grep -q '^status 0' /tmp/fio
check close-killed inlock close vol

# An asynchronous driver of the kernel; and without io_uring, system calls.
check open-async env INLOCK_AFALG_DRIVER='cryptd(xts(ecb(aes-generic)))' inlock open /dev/vda vol --via ublk --key-file /tmp/key --engine afalg --engine-threshold 8K
written async
above accepted-async "$(number accepted)" 8
check close-async inlock close vol
check ciphertext-async same_data
echo 2 > /proc/sys/kernel/io_uring_disabled
check open-calls opened vda nbd --engine afalg --engine-threshold 8K
written calls
above accepted-calls "$(number accepted)" 8
above sockets-calls 30 "$(sockets)"
check close-calls inlock close vol
check ciphertext-calls same_data
echo 0 > /proc/sys/kernel/io_uring_disabled

# Other ciphers and keys of the engine, and one that it lacks.
other() {
    printf '%064d' 7 | inlock open --type plain /dev/vdb vol --via ublk -c "$1" -s "$2" --key-file - --engine afalg --engine-threshold 4K > /tmp/node
}
for row in "aes-cbc-essiv:sha256 256" "aes-xts-plain64 256"; do
    # shellcheck disable=SC2086
    check "open:${row% *}" other $row
    written "${row% *}"
    above "accepted:${row% *}" "$(number accepted)" 8
    check "close:${row% *}" inlock close vol
done
if other serpent-xts-plain64 512 2> /tmp/said; then fail serpent "opened"; else ok serpent; fi
check serpent-why grep -q 'the engine has no cipher serpent-xts-plain64' /tmp/said

check bench inlock bench engine --quick --rounds 1 --slice-ms 1
grep MiB /tmp/check.$$ | while read -r line; do note "$line"; done
