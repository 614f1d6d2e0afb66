#: about   a volume as a disk over ublk and NBD: file systems, fio, a killed process, suspend, dm-crypt both ways, discards, growth, I/O errors
#: memory  640
#: cpus    2
#: seconds 900
#: modules dm_crypt ublk_drv nbd configfs
#: tools   inlock cryptsetup dmsetup mkfs.ext4 e2fsck resize2fs fio
#: disk    160M
# shellcheck shell=dash
printf secret > /tmp/key
mkdir -p /mnt /tmp/tree

# opened VIA: /dev/inlock/vol from /dev/vda.
opened() { inlock open /dev/vda vol --via "$1" --threads 4 --key-file /tmp/key > /tmp/node; }
# plainly VIA PASSPHRASE: like opened, for a plain volume.
plainly() { echo "$2" | inlock open --type plain /dev/vda vol --via "$1" --threads 4 > /tmp/node; }
# with_sums NAME DIR: checks that every planted file is in DIR, unchanged.
with_sums() {
    if cd "$2"; then check "$1" sha256sum -c /tmp/sums; else fail "$1" "$2 is missing"; fi
    cd /
}
# runs_on NAME: fails if fio has finished, since the following check would prove nothing.
runs_on() {
    if grep -q '^status' "/tmp/fio.$1"; then fail "$1-under-load" "fio had ended before"; else ok "$1-under-load"; fi
}
pid() { sed -n 's/^ *"pid": *\([0-9]*\),*/\1/p' /run/inlock/vol.json; }

plant() {
    local n=0
    while [ "$n" -lt 400 ]; do
        mkdir -p "/tmp/tree/d$((n % 13))"
        head -c "$((n * 97 % 9001))" /dev/urandom > "/tmp/tree/d$((n % 13))/f$n"
        n=$((n + 1))
    done
    (cd /tmp/tree && find . -type f -exec sha256sum {} + > /tmp/sums)
}

# load NAME TIMES: in the background, fio writes 96 MiB at depth 32 in four jobs and reads everything back, TIMES times;
# its status goes to /tmp/fio.NAME. Once takes far longer than what happens meanwhile.
load() {
    (
        fio --name=load --filename=/dev/inlock/vol --direct=1 --ioengine=io_uring --iodepth=32 --numjobs=4 --size=24m \
            --offset_increment=24m --rw=randwrite --bsrange=4k-64k --bs_unaligned=0 --blockalign=4k --verify=crc32c \
            --verify_backlog=128 --verify_fatal=1 --randseed="${#1}" --loops="$2" --group_reporting > "/tmp/fio.$1" 2>&1
        echo "status $?" >> "/tmp/fio.$1"
    ) &
}

# loaded NAME: checks the status of fio.
loaded() {
    if ! wait_for 300 grep -q '^status' "/tmp/fio.$1"; then
        fail "$1" "fio does not end: $(tail -n 5 "/tmp/fio.$1")"
    elif grep -q '^status 0' "/tmp/fio.$1" && ! grep -q 'verify: bad\|err=[^ ]*[1-9]' "/tmp/fio.$1"; then
        ok "$1"
    else
        fail "$1" "$(grep -v '^$' "/tmp/fio.$1" | head -n 6)"
    fi
}

plant
check format inlock luksFormat -q --pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 1 --key-file /tmp/key /dev/vda
for via in ublk nbd; do
    check "$via-open" opened "$via" || { cat /run/inlock/*.log; continue; }
    note "$via: $(cat /tmp/node), $(cat "/sys/block/$(basename "$(cat /tmp/node)")/queue/logical_block_size") bytes a block"
    check "$via-mkfs" mkfs.ext4 -q -F /dev/inlock/vol
    check "$via-mount" mount -t ext4 /dev/inlock/vol /mnt
    check "$via-copy" cp -r /tmp/tree /mnt/
    if inlock close vol 2> /tmp/said; then fail "$via-held" "a mounted device was closed"; else ok "$via-held"; fi
    check "$via-held-where" grep -q "mounted on /mnt" /tmp/said
    check "$via-umount" umount /mnt
    check "$via-fsck" e2fsck -fn /dev/inlock/vol
    check "$via-close" inlock close vol

    # dm-crypt reads what Inlock wrote, and the reverse.
    check "$via-dm-open" cryptsetup open --key-file /tmp/key /dev/vda dm
    check "$via-dm-fsck" e2fsck -fn /dev/mapper/dm
    check "$via-dm-mount" mount -t ext4 /dev/mapper/dm /mnt
    with_sums "$via-dm-files" /mnt/tree
    check "$via-dm-move" mv /mnt/tree /mnt/moved
    check "$via-dm-copy" cp -r /tmp/tree /mnt/tree
    check "$via-dm-umount" umount /mnt
    check "$via-dm-close" cryptsetup close dm
    check "$via-reopen" opened "$via"
    check "$via-remount" mount -t ext4 /dev/inlock/vol /mnt
    with_sums "$via-files" /mnt/tree
    with_sums "$via-files-moved" /mnt/moved
    umount /mnt

    load "$via-fio" 2
    loaded "$via-fio"

    # The process is killed under load: the device awaits recovery, and continues with the new process.
    load "$via-killed" 1
    sleep 3
    runs_on "$via-killed"
    check "$via-kill" kill -9 "$(pid)"
    sleep 1
    if inlock status vol > /dev/null 2>&1; then fail "$via-dead" "a dead process has a status"; else ok "$via-dead"; fi
    # A device with another cookie belongs to another volume, and stays.
    cp /run/inlock/vol.json /tmp/facts
    sed -i 's/"device_cookie": *[0-9]*/"device_cookie": 1/' /run/inlock/vol.json
    check "$via-other-cookie" inlock close vol
    cp /tmp/facts /run/inlock/vol.json
    check "$via-back" opened "$via"
    loaded "$via-killed"

    # Requests wait while the volume is suspended.
    load "$via-suspended" 1
    sleep 2
    check "$via-suspend" inlock suspend vol
    sleep 2
    runs_on "$via-suspended"
    check "$via-resume" inlock resume vol --key-file /tmp/key
    loaded "$via-suspended"
    check "$via-last-close" inlock close vol
    if [ -e "$(cat /tmp/node)" ] && [ "$via" = ublk ]; then fail "$via-gone" "$(cat /tmp/node) stays"; else ok "$via-gone"; fi
done

# The key of a plain volume has no digest, but a device that awaits recovery accepts no other key.
for via in ublk nbd; do
    check "$via-plain" plainly "$via" secret
    head -c 1048576 /dev/urandom > /tmp/plain
    check "$via-plain-write" dd if=/tmp/plain of=/dev/inlock/vol bs=64k oflag=direct
    kill -9 "$(pid)"
    sleep 1
    plainly "$via" other 2> /tmp/said
    said=$?
    if [ "$said" -eq 2 ]; then ok "$via-plain-other-key"; else fail "$via-plain-other-key" "status $said: $(cat /tmp/said)"; fi
    check "$via-plain-back" plainly "$via" secret
    dd if=/dev/inlock/vol of=/tmp/read bs=64k count=16 iflag=direct 2> /dev/null
    check "$via-plain-bytes" cmp /tmp/plain /tmp/read
    check "$via-plain-close" inlock close vol
done

# below DO END: maps /dev/mapper/below to the first END sectors of /dev/vda; DO is create, or reload while in use.
below() {
    dmsetup "$1" below --table "0 $2 linear /dev/vda 0" || return
    [ "$1" = create ] || dmsetup resume below
}
room() { df -k /mnt | awk 'END { print $2 }'; }
whole=$(cat /sys/block/vda/size)
for via in nbd ublk; do
    # The device under a volume cannot be used by others.
    check "$via-below" below create "$((whole / 2))"
    echo secret | inlock open --type plain /dev/mapper/below vol --via "$via" --threads 2 > /tmp/node
    if dmsetup create other --table "0 8 linear /dev/mapper/below 0" 2> /tmp/said; then
        dmsetup remove other
        fail "$via-alone" "another device was created on the underlying one"
    else
        check "$via-alone" grep -qi busy /tmp/said
    fi
    # A mounted file system grows with the underlying device; if ublk's driver cannot, the error names the missing
    # feature.
    check "$via-grow-mkfs" mkfs.ext4 -q -F /dev/inlock/vol
    check "$via-grow-mount" mount -t ext4 /dev/inlock/vol /mnt
    cp -r /tmp/tree /mnt/
    before=$(room)
    check "$via-grow-below" below reload "$whole"
    if [ "$via" = ublk ]; then
        inlock resize vol 2> /tmp/said
        check "$via-resize-why" grep -q UBLK_F_UPDATE_SIZE /tmp/said
    else
        check "$via-resize" inlock resize vol
        check "$via-resize2fs" resize2fs "$(cat /tmp/node)"
        if [ "$(room)" -gt "$((before * 3 / 2))" ]; then ok "$via-grown"; else fail "$via-grown" "$(room) KiB after $before"; fi
        head -c $((before * 1024)) /dev/zero > /mnt/large
        check "$via-grow-sync" sync
        rm /mnt/large
    fi
    with_sums "$via-grow-files" /mnt/tree
    umount /mnt
    check "$via-grow-fsck" e2fsck -fn /dev/inlock/vol

    # The underlying device fails: users of the volume see errors, and `status` reports them.
    if inlock status vol | grep -q "I/O errors"; then fail "$via-no-errors" "status reports errors without any"; else ok "$via-no-errors"; fi
    dmsetup reload below --table "0 $whole error" && dmsetup resume below
    if dd if=/dev/inlock/vol of=/dev/null bs=4k count=1 skip=100 iflag=direct 2> /dev/null; then
        fail "$via-error" "a read succeeded"
    else
        ok "$via-error"
    fi
    inlock status vol > /tmp/said
    check "$via-error-told" grep -q "I/O errors: .* read: Input/output error" /tmp/said
    inlock list
    below reload "$whole"
    check "$via-error-over" dd if=/dev/inlock/vol of=/dev/null bs=4k count=1 skip=100 iflag=direct
    check "$via-grow-close" inlock close vol
    check "$via-below-gone" dmsetup remove below
done

# A device with discards but without write zeroes: it gets discards of the volume only if they are allowed.
discarded() { awk '{ print $14 }' /sys/block/nullb0/stat; }
# gives_back NAME SECTORS: discards 4 MiB of the volume, of which the device must see SECTORS sectors.
gives_back() {
    local before
    before=$(discarded)
    blkdiscard -o 1048576 -l 4194304 /dev/inlock/vol
    if [ "$(($(discarded) - before))" -eq "$2" ]; then ok "$1"; else fail "$1" "$(($(discarded) - before)) sectors"; fi
}
modprobe null_blk nr_devices=0
mount -t configfs config /sys/kernel/config
mkdir /sys/kernel/config/nullb/nullb0
for fact in size=32 blocksize=4096 memory_backed=1 discard=1 power=1; do
    echo "${fact#*=}" > "/sys/kernel/config/nullb/nullb0/${fact%=*}" || fail null_blk "no $fact"
done
note "null_blk: discards of $(cat /sys/block/nullb0/queue/discard_max_bytes) bytes, clears $(cat /sys/block/nullb0/queue/write_zeroes_max_bytes)"
for via in ublk nbd; do
    for allow in --allow-discards ""; do
        sectors=0
        [ -z "$allow" ] || sectors=8192
        # shellcheck disable=SC2086  # an option or none
        echo secret | inlock open --type plain --sector-size 4096 $allow /dev/nullb0 vol --via "$via" --threads 2 > /tmp/node
        dd if=/dev/urandom of=/tmp/noise bs=1M count=8 2> /dev/null
        dd if=/tmp/noise of=/dev/inlock/vol bs=1M oflag=direct 2> /dev/null
        gives_back "$via-discard${allow:---no}" "$sectors"
        dd if=/dev/inlock/vol bs=1M count=1 iflag=direct 2> /dev/null | cmp -s -n 1048576 - /tmp/noise
        check "$via-discard${allow:---no}-rest" [ $? -eq 0 ]
        inlock close vol
    done
done
