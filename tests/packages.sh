# shellcheck shell=bash
# Debian packages that tests and demo need, and the check that they are installed. Sourced by test.sh and demo.sh.

PACKAGES=(
    gcc libc6-dev fio nbdkit libnbd-bin python3-libnbd cryptsetup-bin fsverity qemu-utils jq shellcheck e2fsprogs
    python3-cryptography python3-cryptography-vectors valgrind
    clevis clevis-luks jose tang socat
    curl openssl strace qemu-system-x86 busybox-static kmod dmsetup fuse3 xfsprogs btrfs-progs f2fs-tools
)

# Prints missing packages, one a line: each is detected by one of its programs or Python modules.
missing_packages() {
    local package
    for package in "${PACKAGES[@]}"; do
        case $package in
            gcc) command -v cc ;;
            clevis-luks) command -v clevis-luks-bind ;;
            tang) test -e /usr/libexec/tangd ;;
            libc6-dev) test -e /usr/include/stdio.h ;;
            qemu-system-x86) command -v qemu-system-x86_64 ;;
            busybox-static) command -v busybox && ! ldd "$(command -v busybox)" ;;
            kmod) command -v depmod ;;
            libnbd-bin) command -v nbdcopy && command -v nbdinfo ;;
            fuse3) command -v fusermount3 ;;
            xfsprogs) command -v mkfs.xfs && command -v xfs_repair ;;
            f2fs-tools) command -v mkfs.f2fs ;;
            btrfs-progs) command -v mkfs.btrfs ;;
            cryptsetup-bin) command -v cryptsetup ;;
            qemu-utils) command -v qemu-img && command -v qemu-nbd ;;
            e2fsprogs) command -v mke2fs && command -v debugfs ;;
            python3-libnbd) /usr/bin/python3 -c 'import nbd' ;;
            python3-cryptography-vectors) /usr/bin/python3 -c 'import cryptography_vectors' ;;
            python3-cryptography) /usr/bin/python3 -c 'import cryptography' ;;
            *) command -v "$package" ;;
        esac > /dev/null 2>&1 || echo "$package"
    done
}

# Installs missing packages as root on Debian; otherwise prints what to install and fails.
need_packages() {
    export PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! command -v cargo > /dev/null; then
        echo "cargo is missing: install Rust 1.89 or newer, for example from https://rustup.rs" >&2
        return 1
    fi
    local missing
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -eq 0 ] && return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
        echo "installing ${missing[*]}"
        apt-get update -qq > /dev/null && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null || return 1
        mapfile -t missing < <(missing_packages)
        [ "${#missing[@]}" -eq 0 ] && return 0
    fi
    echo "these programs are missing: apt-get install ${missing[*]}" >&2
    return 1
}

# Installs a browser for the page of the benchmarks, if one is available. Without one, the test is skipped.
want_browser() {
    command -v chromium > /dev/null || [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null || {
        echo "installing chromium"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1 ||
            echo "chromium cannot be installed"
    }
    return 0
}

# Installs Ceph, if it is available. Fails without it; the tests with a cluster are skipped then.
want_ceph() {
    has_ceph || [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null || {
        echo "installing Ceph"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
            ceph-mon ceph-osd ceph-mgr ceph-common librbd1 python3-rbd > /dev/null 2>&1
    }
    has_ceph
}
has_ceph() {
    command -v ceph-mon && command -v ceph-osd && command -v ceph-mgr && command -v rbd &&
        /usr/bin/python3 -c 'import rados, rbd'
} > /dev/null 2>&1
