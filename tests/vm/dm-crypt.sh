#: about   dm-crypt and Inlock give the same bytes, both ways, for every cipher, mode and IV
#: memory  768
#: seconds 1500
#: modules dm_crypt
#: tools   dmsetup
# shellcheck shell=dash
# /dev/vda: ciphertext of Inlock      /dev/vdb: the plaintext, from byte 0 for each group
# /dev/vdc: plaintext by dm-crypt    /dev/vdd: ciphertext of dm-crypt
# A line of /vm/groups is a group: its number, its start on the disks and its length in units of 64 KiB. The first half
# of its table, /vm/tables/NUMBER, reads /dev/vda, the second half writes /dev/vdd.

# copy FROM SKIP TO SEEK COUNT, in units of 64 KiB; in larger blocks if possible.
copy() {
    local each=64 per=1
    if [ $((($2 | $4 | $5) % 16)) -eq 0 ]; then each=1024 per=16; fi
    dd if="$1" of="$3" bs="${each}k" skip=$(($2 / per)) seek=$(($4 / per)) count=$(($5 / per)) \
        iflag=direct oflag=direct conv=notrunc 2> "/tmp/dd.$6" || { fail "copy-$6" "$(cat "/tmp/dd.$6")"; return 1; }
}

group() {
    local name="g$1" why
    if ! dmsetup create "$name" "/vm/tables/$1" 2> "/tmp/dm.$1"; then
        # The number of the error is that of this call; the kernel's last log line may be about the other stream.
        why=$(grep -o 'failed: .*' "/tmp/dm.$1" | head -n 1)
        data "$1" "${why:-$(cat "/tmp/dm.$1")}"
        return
    fi
    copy "/dev/mapper/$name" 0 /dev/vdc "$2" "$3" "$1" && copy /dev/vdb 0 "/dev/mapper/$name" "$3" "$3" "$1" &&
        data "$1" copied
    dmsetup remove "$name" || fail "remove-$1" "it is still in use"
}

stream() {
    while read -r number start len; do
        if [ $((number % 2)) -eq "$1" ]; then group "$number" "$start" "$len"; fi
    done < /vm/groups
}

stream 0 &
stream 1
wait
ok groups
