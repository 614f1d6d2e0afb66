//! Limits on the number of clients: each needs a file descriptor.

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not for clients: control connections, descriptors that these send, and files that are opened
/// while the server runs.
const RESERVED: u64 = 96;

/// Raises the soft limit of open descriptors of this process, at most to the hard limit, so that each of `clients`
/// finds one. Leaves a limit that is high enough.
pub fn raise_limit(clients: usize) {
    if let Some(raised) = raised(getrlimit(Resource::Nofile), open_now(), clients as u64) {
        // If this fails the server accepts fewer clients.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Returns the limit to set for `clients` more than the `open` descriptors, unless `limit` is high enough.
fn raised(limit: Rlimit, open: u64, clients: u64) -> Option<Rlimit> {
    let Rlimit { current, maximum } = limit;
    let wanted = open + RESERVED + clients;
    let wanted = maximum.map_or(wanted, |max| wanted.min(max));
    current.is_some_and(|current| current < wanted).then_some(Rlimit { current: Some(wanted), maximum })
}

/// Limit of descriptors for clients. What is beyond it is for workers that start again, volumes that open, and control
/// connections: a client whose socket is there is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForClients(u64);

impl ForClients {
    /// The limit of this process now.
    pub(super) fn now() -> Self {
        Self(open_now().saturating_add(max_clients() as u64))
    }

    /// Whether a client may have this descriptor. The kernel gives out the lowest that is free.
    pub(super) fn include(self, socket: &impl AsRawFd) -> bool {
        u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number < self.0)
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

    #[test]
    fn limit_is_raised_to_what_clients_need_but_not_beyond_the_hard_limit() {
        let limit = |current, maximum| Rlimit { current, maximum };
        for (current, maximum, expected) in [
            (Some(100), Some(4096), Some(Some(10 + 96 + 1000))),
            (Some(100), None, Some(Some(10 + 96 + 1000))),
            (Some(100), Some(500), Some(Some(500))),
            (Some(500), Some(500), None),
            (Some(1106), None, None),
            (Some(1105), None, Some(Some(1106))),
            (None, None, None),
        ] {
            let found = raised(limit(current, maximum), 10, 1000);
            assert_eq!(found, expected.map(|current| limit(current, maximum)), "{current:?} {maximum:?}");
        }
    }

    #[test]
    fn clients_get_no_descriptor_of_the_rest() {
        for (descriptor, is_for_clients) in [(0, true), (159, true), (160, false), (161, false)] {
            assert_eq!(ForClients(160).include(&descriptor), is_for_clients, "{descriptor}");
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let ForClients(number) = ForClients::now();
        assert!(number > open_now() && number < limit.max(u64::MAX - 1), "{number} of {limit}");
    }

    #[test]
    fn open_descriptors_are_counted() {
        let _open: Vec<_> = (0..80).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_now() > 80);
    }
}
