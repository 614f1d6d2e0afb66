#: about   volumes of Inlock in the kernel with cryptsetup, volumes of cryptsetup and the kernel in Inlock
#: memory  768
#: modules dm_crypt dm_integrity authenc gcm chacha20poly1305 chacha_generic poly1305_generic hmac sha512_generic
#: tools   cryptsetup e2fsck
#: files   /usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so
# shellcheck shell=dash
# A line of /vm/rows: NAME OURS THEIRS TYPE FORMAT|OPEN. OURS is a disk with a volume of Inlock that has an ext4, THEIRS
# an empty disk, TYPE plain or luks; then cryptsetup's options for creating and for opening a volume, separated by a
# bar. /dev/vda has the data to write to THEIRS.

# opened TYPE DISK NAME OPTION...: opens the volume on the disk as /dev/mapper/NAME.
opened() {
    local type=$1 disk=$2 name=$3
    shift 3
    if [ "$type" = plain ]; then
        # A passphrase on standard input is hashed, a key file would be the key itself.
        cryptsetup open --type plain "$@" "/dev/$disk" "$name" < /vm/key
    else
        cryptsetup open "$@" --key-file /vm/key "/dev/$disk" "$name"
    fi
}

row() {
    local name=$1 ours=$2 theirs=$3 type=$4 format=${5%%|*} open=${5#*|}
    # shellcheck disable=SC2086  # several options in one word
    check "open-ours:$name" opened "$type" "$ours" ours $open || return
    check "fsck:$name" e2fsck -fn /dev/mapper/ours
    if check "mount:$name" mount -t ext4 /dev/mapper/ours /mnt; then
        (cd /mnt && check "files:$name" sha256sum -c sums)
        cp /vm/new /mnt/new
        check "umount:$name" umount /mnt
        check "fsck-after:$name" e2fsck -fn /dev/mapper/ours
    fi
    check "close-ours:$name" cryptsetup close ours
    if [ "$type" = luks ]; then
        # shellcheck disable=SC2086
        check "format:$name" cryptsetup luksFormat -q $format --key-file /vm/key "/dev/$theirs" || return
    fi
    # shellcheck disable=SC2086
    check "open-theirs:$name" opened "$type" "$theirs" theirs $open || return
    check "write:$name" dd if=/dev/vda of=/dev/mapper/theirs bs=64k conv=fsync
    check "close-theirs:$name" cryptsetup close theirs
}

cryptsetup --version
while read -r name ours theirs type options; do
    row "$name" "$ours" "$theirs" "$type" "$options"
done < /vm/rows
