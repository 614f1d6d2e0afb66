//! The store over libraries that do what a test asks for (`fake_ceph.c`), so that failures are seen that a cluster does
//! not give.

mod fake;
mod opening;
mod operations;
