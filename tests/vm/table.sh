#: about   table lines that dm-crypt accepts and refuses
#: memory  512
#: seconds 600
#: modules dm_crypt
#: tools   dmsetup
#: disk    16M
# shellcheck shell=dash
# A line of /vm/lines is a table, its own lines separated by a backslash and an n. Each table is loaded and activated.

# Prints the kernel's last message about the device with this minor number.
last_word() { dmesg | grep "table: [0-9]*:$1:" | tail -n 1; }

# stream MINOR: handles every second line, on a device of its own.
stream() {
    local number=0 before now
    while IFS= read -r line; do
        number=$((number + 1))
        [ $((number % 2)) -eq "$1" ] || continue
        printf '%b\n' "$line" > "/tmp/table$1"
        # The ranges of the lines are checked when they become active.
        if dmsetup load "t$1" "/tmp/table$1" 2> /dev/null && dmsetup resume "t$1" 2> /dev/null; then
            data "$number" accept
            continue
        fi
        now=$(last_word "$1")
        [ "$now" != "$before" ] || now=
        before=${now:-$before}
        data "$number" "reject ${now##*:}"
    done < /vm/lines
}

# The first device has minor number 0, the second 1.
for minor in 0 1; do
    dmsetup create "t$minor" --notable || fail create "no device without a table"
done
stream 0 &
stream 1
wait
ok lines
