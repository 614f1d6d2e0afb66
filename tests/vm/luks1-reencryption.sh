#: about   re-encryption of LUKS1 volumes: Inlock and cryptsetup go on with what the other has begun, stopped and killed
#: only    named
#: memory  512
#: modules dm_crypt loop
#: tools   cryptsetup inlock strace
#: seconds 360
# shellcheck shell=dash disable=SC2086  # several options in one word
# Each program is stopped by a signal at a system call, so that the place is known. cryptsetup has short blocks and
# writes its log after each one; otherwise it forgets how far it was. The device is a file: cryptsetup does not find out
# that a block device is in re-encryption. The one of Debian 12 does not go on with a decryption of an attached header.

disk=/tmp/image
work=/tmp/work
len=$((14 << 20))
uuid=11111111-2222-4333-8444-555555555555
fast="--pbkdf-force-iterations 1000"
careful="--write-log --use-fsync --block-size 1"
mkdir -p "$work" && cd "$work" || exit 1
head -c "$len" /dev/urandom > /tmp/input
wanted=$(sha256sum < /tmp/input)
head -c "$len" /dev/zero > /tmp/zeroes

# words KIND: the options that begin a re-encryption of this kind.
words() {
    case $1 in
    reencrypt) echo "-c aes-cbc-essiv:sha256 -s 256" ;;
    encrypt) echo "--encrypt --type luks1 --reduce-device-size 2M" ;;
    encrypt-detached) echo "--encrypt --type luks1 --header $work/header" ;;
    decrypt) echo "--decrypt" ;;
    decrypt-detached) echo "--decrypt --header $work/header" ;;
    esac
}

# words_to_go_on KIND: those with which it goes on when a decryption has destroyed the header.
words_to_go_on() {
    words "$1"
    if [ "$1" = decrypt ] && ! head -c 4 "$disk" | grep -q LUKS; then
        echo "--uuid $uuid"
    fi
}

# prepare KIND: makes the device.
prepare() {
    rm -f "$work"/*
    dd if=/dev/zero of="$disk" bs=1M count=16 2> /dev/null
    case $1 in
    reencrypt | decrypt)
        inlock luksFormat -q --type luks1 $fast --uuid $uuid --offset 4096 --key-file /tmp/key "$disk" &&
            inlock import -q --key-file /tmp/key /tmp/input "$disk"
        ;;
    decrypt-detached)
        inlock luksFormat -q --type luks1 $fast --uuid $uuid --header header --key-file /tmp/key "$disk" &&
            cryptsetup open --header header --key-file /tmp/key "$disk" volume &&
            dd if=/tmp/input of=/dev/mapper/volume bs=1M conv=fsync 2> /dev/null && cryptsetup close volume
        ;;
    *) dd if=/tmp/input of="$disk" bs=1M conv=notrunc 2> /dev/null ;;
    esac
}

# found KIND: the digest of the data, and whether files are left.
found() {
    case $1 in
    decrypt*) head -c "$len" "$disk" | sha256sum ;;
    *-detached) inlock export -q --key-file /tmp/key --header header "$disk" - | head -c "$len" | sha256sum ;;
    *) inlock export -q --key-file /tmp/key "$disk" - | head -c "$len" | sha256sum ;;
    esac
}

is_whole() {
    if [ "$(found "$1")" != "$wanted" ]; then
        echo "the data differ"
        return 1
    fi
    if ls LUKS-* > /dev/null 2>&1; then
        echo "left: $(ls LUKS-*)"
        return 1
    fi
}

# stopped SIGNAL CALL NUMBER COMMAND...: runs the command, and sends the signal at this system call.
stopped() {
    local signal=$1 call=$2 number=$3
    shift 3
    strace -f -qq -o /dev/null -e trace="$call" -e inject="$call:signal=$signal:when=$number" "$@" < /tmp/key
    status=$?
    cat LUKS-*.log || return 1
    # It has begun.
    grep -q '^offset = [1-9]' LUKS-*.log && ! grep -q '^offset = 18446744073709551615' LUKS-*.log && [ "$status" -ne 0 ]
}

by_inlock() { inlock reencrypt -q $fast --hotzone-size 1M --key-file /tmp/key "$@" "$disk"; }
by_cryptsetup() { cryptsetup reencrypt -q --pbkdf pbkdf2 $fast --key-file /tmp/key "$@" "$disk"; }

printf secret > /tmp/key
cryptsetup --version
# shellcheck disable=SC2046  # several options in one word
for kind in reencrypt encrypt encrypt-detached decrypt decrypt-detached; do
    # A signal after which no zone is in flight.
    check "prepare:$kind" prepare "$kind" || continue
    [ "$kind" != decrypt ] && check "inlock-stopped:$kind" stopped INT fdatasync 7 \
        inlock reencrypt -q $fast --hotzone-size 1M --key-file /tmp/key $(words "$kind") "$disk" &&
        check "cryptsetup-goes-on:$kind" by_cryptsetup $(words_to_go_on "$kind") &&
        check "whole-after-cryptsetup:$kind" is_whole "$kind"

    check "prepare-again:$kind" prepare "$kind" || continue
    # Headers are flushed before, two of them new for an encryption. One that goes forward cannot go on: when it is
    # stopped, cryptsetup removes its files.
    case $kind in encrypt) flush=27 ;; *) flush=18 ;; esac
    [ "$kind" != encrypt-detached ] && check "cryptsetup-stopped:$kind" stopped INT fsync $flush \
        cryptsetup reencrypt -q --pbkdf pbkdf2 $fast $careful --key-file /tmp/key $(words "$kind") "$disk" &&
        check "inlock-goes-on:$kind" by_inlock $(words_to_go_on "$kind") &&
        check "whole-after-inlock:$kind" is_whole "$kind"

    # Killed: where data move, or between two blocks.
    check "prepare-to-kill:$kind" prepare "$kind" || continue
    if check "inlock-killed:$kind" stopped KILL pwrite64 60 \
        inlock reencrypt -q $fast --hotzone-size 256K --key-file /tmp/key $(words "$kind") "$disk"; then
        case $kind in
        encrypt) check "cryptsetup-goes-on-after-kill:$kind" by_cryptsetup $(words_to_go_on "$kind") ;;
        decrypt) check "inlock-goes-on-after-kill:$kind" by_inlock $(words_to_go_on "$kind") ;;
        *)
            if by_cryptsetup $(words_to_go_on "$kind") > /tmp/said 2>&1 || ! grep -q 'Wrong log format' /tmp/said; then
                fail "cryptsetup-refuses:$kind" "$(cat /tmp/said)"
            else
                ok "cryptsetup-refuses:$kind"
            fi
            check "inlock-goes-on-after-kill:$kind" by_inlock $(words_to_go_on "$kind")
            ;;
        esac
        check "whole-after-kill:$kind" is_whole "$kind"
    fi
done

# By turns to the end.
# shellcheck disable=SC2046
for kind in reencrypt encrypt decrypt-detached; do
    check "prepare-turns:$kind" prepare "$kind" || continue
    check "turn-1:$kind" stopped INT fdatasync 5 \
        inlock reencrypt -q $fast --hotzone-size 1M --key-file /tmp/key $(words "$kind") "$disk"
    check "turn-2:$kind" stopped INT fsync 3 \
        cryptsetup reencrypt -q --pbkdf pbkdf2 $fast $careful --key-file /tmp/key $(words_to_go_on "$kind") "$disk"
    check "turn-3:$kind" stopped INT fdatasync 5 \
        inlock reencrypt -q $fast --hotzone-size 1M --key-file /tmp/key $(words_to_go_on "$kind") "$disk"
    check "turn-4:$kind" by_cryptsetup $(words_to_go_on "$kind")
    check "whole-after-turns:$kind" is_whole "$kind"
done
