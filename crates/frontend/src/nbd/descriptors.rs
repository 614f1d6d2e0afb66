//! Limits on the number of clients: each needs a file descriptor.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not for clients: control connections, descriptors that these send, and files that are opened
/// while the server runs.
const RESERVED: u64 = 96;

/// Raises the soft limit of open descriptors of this process, at most to the hard limit, so that each of `clients`
/// finds one. Leaves a limit that is high enough.
pub fn raise_limit(clients: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = open_now() + RESERVED + clients as u64;
    let wanted = maximum.map_or(wanted, |max| wanted.min(max));
    if current.is_some_and(|current| current < wanted) {
        // If this fails the server accepts fewer clients.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Returns the number of clients for which there are descriptors.
pub(super) fn max_clients() -> usize {
    let Some(max) = getrlimit(Resource::Nofile).current else { return usize::MAX };
    clients_of(max.saturating_sub(open_now()))
}

/// Returns the number of clients that `left` descriptors are enough for. At least half are for clients.
fn clients_of(left: u64) -> usize {
    usize::try_from(left - RESERVED.min(left / 2)).unwrap_or(usize::MAX)
}

/// Returns the number of open descriptors, or a guess without `/proc`.
fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(64, |open| open.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_reserved_up_to_half_of_them() {
        for (left, clients) in [(0, 0), (1, 1), (10, 5), (191, 96), (192, 96), (193, 97), (1024, 928)] {
            assert_eq!(clients_of(left), clients, "{left}");
        }
    }
}
