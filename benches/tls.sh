#!/bin/bash
# Throughput over TLS: `inlock serve --tls=require` against `nbdkit --tls=require`, and both without TLS.
#
#     benches/tls.sh [ROUNDS]
#
# Client and servers share this machine. Prints the median of the rounds in MB/s, and its ratio to nbdkit with TLS.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-5}
inlock=$(realpath "${INLOCK:-target/release/inlock}")
dir=$(mktemp -d -p /dev/shm)
server=
stop() {
    [ -z "$server" ] || { kill "$server"; wait "$server" || true; }
    server=
}
trap 'stop; rm -r "$dir"' EXIT
cd "$dir"

bytes=$((256 << 20))
head -c "$bytes" /dev/urandom > image
head -c "$bytes" /dev/urandom > data
head -c 64 /dev/urandom > key
printf '%s\n' '[req]' 'distinguished_name = n' '[n]' '[ca]' 'basicConstraints = critical,CA:TRUE' '[server]' \
    'basicConstraints = critical,CA:FALSE' 'subjectAltName = IP:127.0.0.1' > config
new=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config config -subj /CN=bench)
"${new[@]}" -extensions ca -keyout ca-key.pem -out ca-cert.pem 2> /dev/null
"${new[@]}" -extensions server -CA ca-cert.pem -CAkey ca-key.pem -keyout server-key.pem -out server-cert.pem 2> /dev/null

port=21100
serve=("$inlock" serve image --nbd "tcp:127.0.0.1:$port" --insecure)
xts=(--type plain -c aes-xts-plain64 -s 512 -d key)
tls=(--tls=require "--tls-certificates=$dir")
nbdkit=(nbdkit -f -i 127.0.0.1 -p "$port")
names=("nbdkit tls" "inlock raw tls" "inlock aes-xts tls" "nbdkit" "inlock raw")

start() {
    local command scheme=nbds query="?tls-certificates=$dir"
    case $1 in
        "nbdkit tls") command=("${nbdkit[@]}" "${tls[@]}" file image) ;;
        "inlock raw tls") command=("${serve[@]}" --type raw "${tls[@]}") ;;
        "inlock aes-xts tls") command=("${serve[@]}" "${xts[@]}" "${tls[@]}") ;;
        nbdkit) command=("${nbdkit[@]}" file image) scheme=nbd query= ;;
        *) command=("${serve[@]}" --type raw) scheme=nbd query= ;;
    esac
    "${command[@]}" > /dev/null 2>&1 &
    server=$!
    uri="$scheme://127.0.0.1:$port/$query"
    until nbdinfo --size "$uri" > /dev/null 2>&1; do
        kill -0 "$server"
        sleep 0.05
    done
}

for ((round = 0; round < rounds; round++)); do
    for name in "${names[@]}"; do
        start "$name"
        for job in read write; do
            [ "$job" = read ] && ends=("$uri" null:) || ends=(data "$uri")
            for connections in 1 4; do
                begun=$(date +%s%N)
                nbdcopy --request-size=262144 -C "$connections" "${ends[@]}"
                echo "$((bytes * 1000 / ($(date +%s%N) - begun)))" >> "times $job $connections $name"
            done
        done
        stop
    done
done
for job in read write; do
    for connections in 1 4; do
        for name in "${names[@]}"; do
            median=$(sort -n "times $job $connections $name" | sed -n "$((rounds / 2 + 1))p")
            [ "$name" != "nbdkit tls" ] || base=$median
            printf '%-5s %s connections  %-20s %5d MB/s  %d.%02d\n' "$job" "$connections" "$name" "$median" \
                $((median / base)) $((median * 100 / base % 100))
        done
    done
done
