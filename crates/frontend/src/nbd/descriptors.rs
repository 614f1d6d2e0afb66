//! How many clients there are descriptors for, with some left for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not for clients: control connections and what they hand over, and files that are opened while
/// the server runs.
const RESERVED: u64 = 96;

/// Raises the limit of open descriptors of this process, as far as it may be, so that `clients` find one each. Other
/// limits are left alone, and a limit that is high enough is too.
pub fn raise_limit(clients: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = open_now() + RESERVED + clients as u64;
    let wanted = maximum.map_or(wanted, |most| wanted.min(most));
    if current.is_some_and(|current| current < wanted) {
        // Where this fails there are fewer clients.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// How many clients there are descriptors for beside those that the process has open now.
pub(super) fn left_for_clients() -> usize {
    let Some(most) = getrlimit(Resource::Nofile).current else { return usize::MAX };
    let left = most.saturating_sub(open_now());
    usize::try_from(left - RESERVED.min(left / 2)).unwrap_or(usize::MAX)
}

/// How many descriptors are open, or a guess where the kernel does not tell.
fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(64, |open| open.count() as u64)
}
