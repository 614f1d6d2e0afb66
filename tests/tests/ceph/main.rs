//! Volumes on images of a real Ceph cluster, with librbd's own encryption as the reference, and with everything that
//! can happen to a cluster.
//!
//! `./test.sh ceph` installs Ceph, starts a cluster (`tests/ceph/cluster.sh`) and names its directory in
//! INLOCK_CEPH_DIR. `tests/ceph/newest.sh` does so with the newest Ceph, and names itself in INLOCK_NEWEST_CEPH.

mod actions;
mod both_ways;
mod failures;
mod holes;
mod newest;
mod reencryption;
mod support;
