#!/usr/bin/env bash
# A Ceph cluster of one monitor, one manager and one storage daemon on the loopback address, below one directory: for
# tests, and to try things. No systemd, no containers, nothing outside of the directory.
#
#   tests/ceph/cluster.sh start DIR        waits until the cluster works; nothing happens if it runs already
#   tests/ceph/cluster.sh kill-osd DIR     kills the storage daemon, as a power cut does
#   tests/ceph/cluster.sh start-osd DIR    starts it again
#   tests/ceph/cluster.sh stop DIR         ends all daemons; the directory stays
#
# Clients find it with CEPH_CONF=DIR/ceph.conf. CEPH_PORT is the first of 100 ports (40700). With
# CEPH_OBJECTSTORE=memstore the storage daemon keeps all in memory, and loses it when it ends: for measurements of
# clients, which a slower daemon would hide.
set -euo pipefail

verb=${1-} dir=$(realpath -m "${2:?usage: cluster.sh start|kill-osd|start-osd|stop DIR}") port=${CEPH_PORT:-40700}
export CEPH_CONF=$dir/ceph.conf
# The path of a storage daemon's classes may be relative.
cd /

# Whether a daemon of this name runs.
is_running() { kill -0 "$(cat "$dir/run/$1.pid" 2> /dev/null)" 2> /dev/null; }

write_configuration() {
    cat > "$CEPH_CONF" << EOF
[global]
fsid = $1
mon_host = [v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_port_min = $((port + 10))
ms_bind_port_max = $((port + 99))
auth_allow_insecure_global_id_reclaim = false
run_dir = $dir/run
pid_file = $dir/run/\$name.pid
admin_socket = $dir/run/\$name.\$pid.asok
log_file = $dir/log/\$name.log
setuser =
setgroup =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 2
mon_data_avail_crit = 1
# A full pool is noticed soon.
mgr_stats_period = 1
mon_tick_interval = 1
paxos_propose_interval = 0.1
[mon.a]
mon_data = $dir/mon
[mgr.x]
mgr_data = $dir/mgr
mgr_initial_modules =
[osd.0]
osd_data = $dir/osd
osd_objectstore = ${CEPH_OBJECTSTORE:-bluestore}
memstore_device_bytes = 8589934592
bluestore_block_size = 8589934592
osd_memory_target = 939524096
# The monitor's view of a killed daemon is not waited for.
osd_fast_shutdown = true
# The watch of a dead client ends so soon.
osd_client_watch_timeout = 15
[client]
keyring = $dir/\$name.keyring
EOF
}

# Whether keys have a cipher by default that older clients do not know (Ceph 20.2.4 and newer).
has_newer_keys() { monmaptool --help 2>&1 | grep -q auth-preferred-cipher; }

# Makes the keys of the administrator and of the monitor, and starts the monitor.
start_monitor() {
    local fsid addresses="[v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]"
    fsid=$(cat /proc/sys/kernel/random/uuid)
    write_configuration "$fsid"
    ceph-authtool --create-keyring "$dir/mon.keyring" --gen-key -n mon. --cap mon 'allow *' > /dev/null
    local key_type=() ciphers=()
    # Older clients are tested, too.
    if has_newer_keys; then
        key_type=(--key-type aes)
        ciphers=(--auth-service-cipher aes --auth-allowed-ciphers "aes,aes256k" --auth-preferred-cipher aes)
    fi
    ceph-authtool --create-keyring "$dir/client.admin.keyring" --gen-key "${key_type[@]}" -n client.admin \
        --cap mon 'allow *' --cap mgr 'allow *' --cap osd 'allow *' > /dev/null
    ceph-authtool "$dir/mon.keyring" --import-keyring "$dir/client.admin.keyring" > /dev/null
    monmaptool --create --clobber --fsid "$fsid" "${ciphers[@]}" --addv a "$addresses" "$dir/monmap" > /dev/null
    ceph-mon -i a --mkfs --monmap "$dir/monmap" --keyring "$dir/mon.keyring"
    ceph-mon -i a
}

make_osd() {
    local uuid secret
    uuid=$(cat /proc/sys/kernel/random/uuid)
    secret=$(ceph-authtool --gen-print-key)
    ceph osd new "$uuid" 0 -i - <<< "{\"cephx_secret\": \"$secret\"}" > /dev/null
    ceph-authtool --create-keyring "$dir/osd/keyring" --name osd.0 --add-key "$secret" > /dev/null
    ceph-osd -i 0 --mkfs --osd-uuid "$uuid" --no-mon-config > "$dir/log/mkfs.log" 2>&1
}

start_osd() { ceph-osd -i 0 2> "$dir/log/osd-start.log"; }

start() {
    if is_running mon.a && is_running osd.0; then
        return 0
    fi
    [ ! -e "$CEPH_CONF" ] || { echo "there is a cluster in $dir that has ended: remove it" >&2; return 1; }
    mkdir -p "$dir"/{mon,mgr,osd,run,log}
    start_monitor
    ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' > "$dir/mgr/keyring"
    ceph-mgr -i x
    make_osd
    start_osd
    ceph osd pool create rbd 8 8 > "$dir/log/pool.log" 2>&1
    # Its writes wait until the pool works.
    timeout 300 rbd pool init rbd || { echo "the cluster does not work: $(ceph -s 2>&1)" >&2; return 1; }
}

kill_osd() {
    local pid
    pid=$(cat "$dir/run/osd.0.pid")
    kill -9 "$pid"
    while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
}

stop() {
    local daemon pid
    for daemon in osd.0 mgr.x mon.a; do
        pid=$(cat "$dir/run/$daemon.pid" 2> /dev/null) || continue
        # Nothing is kept, so nothing is saved.
        kill -9 "$pid" 2> /dev/null || true
        while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
    done
}

case $verb in
    start) start ;;
    kill-osd) kill_osd ;;
    start-osd) start_osd ;;
    stop) stop ;;
    *) echo "unknown action '$verb'" >&2; exit 1 ;;
esac
