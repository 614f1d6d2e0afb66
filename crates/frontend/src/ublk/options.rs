//! Options of a ublk device.

/// Options of a device: change those of [`UblkOptions::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UblkOptions {
    /// Number of queues, each with a thread.
    pub queues: u16,
    /// Requests in flight in each queue.
    pub depth: u16,
    /// Maximum length of a request in bytes, a multiple of 4096. Each tag of each queue has a buffer of this length.
    pub longest: u32,
    /// Number that tells this device from others when its process has died: device numbers are reused, by other volumes
    /// too.
    pub device_cookie: u64,
}

impl Default for UblkOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { queues: cpus.min(4) as u16, depth: 64, longest: 256 << 10, device_cookie: 0 }
    }
}
