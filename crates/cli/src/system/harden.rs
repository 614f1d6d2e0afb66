//! Protection of the memory of this process.

use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// Keeps keys out of core dumps and away from debuggers of the same user.
pub(crate) fn harden() {
    // If the system refuses, the program continues without.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
