//! Options of a store, and the facts of its export.

use inlock_frontend::nbd::protocol::transmission_flag;
use std::time::Duration;

/// How long to wait for a server, and what to keep for it.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Longest time for a connection with its handshake.
    pub connect_timeout: Duration,
    /// How long requests wait for a lost server before they fail. The store tries to connect again all the time.
    pub reconnect_delay: Duration,
    /// Longest time for a request in all. A server that does not answer within it is disconnected.
    pub store_timeout: Duration,
    /// Bytes of ciphertext to keep of writes since the last flush, to make them again after a lost connection. `None`:
    /// after a lost connection with such writes every flush fails.
    pub replay: Option<u64>,
    /// Connections, if the server allows several: 1 to 16.
    pub connections: usize,
    /// Is called with every event that a person should know of: a lost connection, and what follows.
    pub notify: Option<fn(uri: &str, event: &str)>,
}

impl StoreOptions {
    /// Least value of [`StoreOptions::replay`]: one request of any length fits.
    pub const MIN_REPLAY: u64 = 4 << 20;
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            reconnect_delay: Duration::from_secs(60),
            store_timeout: Duration::from_secs(120),
            replay: None,
            connections: 2,
            notify: None,
        }
    }
}

/// Facts of an export, as the server states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportFacts {
    /// Length in bytes.
    pub size: u64,
    /// [`transmission_flag`]s.
    pub flags: u16,
    /// Requests begin and end at multiples of so many bytes.
    pub min_block: u32,
    /// Longest read or write in bytes.
    pub max_payload: u32,
}

impl ExportFacts {
    /// Returns whether the server sets a flag.
    pub fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.has_flag(transmission_flag::READ_ONLY)
    }

    /// Returns what a server that was connected again changed, if a store cannot go on with it.
    pub(crate) fn difference(&self, now: &Self) -> Option<&'static str> {
        let durability = transmission_flag::SEND_FLUSH | transmission_flag::SEND_FUA;
        match () {
            () if self.size != now.size => Some("the size of the export has changed"),
            () if self.is_read_only() != now.is_read_only() => Some("the export has become read-only, or writable"),
            () if self.min_block != now.min_block || now.max_payload < self.max_payload => {
                Some("the block size of the export has changed")
            }
            () if self.flags & durability & !now.flags != 0 => Some("the export can no longer be flushed"),
            () => None,
        }
    }
}
