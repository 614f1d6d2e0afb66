//! Parameters of a ublk device, which the driver needs before it starts: `struct ublk_params` of
//! `include/uapi/linux/ublk_cmd.h`.

use super::command::{MEMORY, put};

/// Length of the structure up to the last parameter that is set here.
pub(super) const LEN: u16 = 112;

/// Length of a page, and so of the longest logical block.
const PAGE: u32 = 4096;

/// Maximum length of a request whose data the device's process copies.
const COPIED_BY_PROCESS_MAX: u32 = 1 << 25;

/// Parameters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub len: u64,
    /// Maximum length of a request in bytes.
    pub longest: u32,
    /// Minimum length of a request, and length of what is written as a whole; powers of two.
    pub logical_block: usize,
    pub physical_block: usize,
    pub read_only: bool,
    pub discards: bool,
    pub zones: Option<Zones>,
}

/// Parameters of the zones of a device, whose length is a multiple of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Zones {
    /// A power of two.
    pub len: u64,
    /// Maximum numbers of zones that are open, and that are open or closed; 0: no limit.
    pub max_open: u32,
    pub max_active: u32,
    /// Maximum length of a write that the store does not split; a split write would block a kernel thread.
    pub longest: u32,
}

impl Parameters {
    pub(super) fn encode(&self) -> [u8; MEMORY] {
        const READ_ONLY: u32 = 1;
        const VOLATILE_CACHE: u32 = 1 << 2;
        const FUA: u32 = 1 << 3;
        const BASIC: u32 = 1;
        const DISCARD: u32 = 1 << 1;
        const ZONED: u32 = 1 << 3;
        let mut bytes = [0; MEMORY];
        let physical = self.physical_block.trailing_zeros() as u8;
        put(&mut bytes, 0, &u32::from(LEN).to_ne_bytes());
        let attributes = VOLATILE_CACHE | FUA | if self.read_only { READ_ONLY } else { 0 };
        put(&mut bytes, 8, &attributes.to_ne_bytes());
        put(&mut bytes, 12, &[self.logical_block.trailing_zeros() as u8, physical, physical, physical]);
        put(&mut bytes, 24, &(self.len / 512).to_ne_bytes());
        let Some(zones) = self.zones else {
            put(&mut bytes, 4, &(BASIC | DISCARD).to_ne_bytes());
            put(&mut bytes, 16, &(self.longest / 512).to_ne_bytes());
            let block = self.physical_block as u32;
            let (sectors, segments) = if self.discards { (u32::MAX / 512 / block * block, 1u16) } else { (0, 0) };
            put(&mut bytes, 40, &block.to_ne_bytes());
            put(&mut bytes, 44, &block.to_ne_bytes());
            put(&mut bytes, 48, &sectors.to_ne_bytes());
            put(&mut bytes, 52, &(self.longest / 512).to_ne_bytes());
            put(&mut bytes, 56, &segments.to_ne_bytes());
            return bytes;
        };
        // Without parameters for discards, the block layer discards nothing, and writes zeroes as ordinary writes in
        // order.
        put(&mut bytes, 4, &(BASIC | ZONED).to_ne_bytes());
        let longest = u64::from(self.longest.min(zones.longest).min(COPIED_BY_PROCESS_MAX)).min(zones.len) as u32;
        // The block layer takes no limit below a page.
        let longest = (longest / PAGE * PAGE).max(PAGE);
        // The driver refuses limits beyond the number of zones, which limit nothing.
        let count = self.len / zones.len;
        let limit = |most: u32| if u64::from(most) > count { 0 } else { most };
        put(&mut bytes, 16, &(longest / 512).to_ne_bytes());
        put(&mut bytes, 20, &((zones.len / 512) as u32).to_ne_bytes());
        put(&mut bytes, 76, &limit(zones.max_open).to_ne_bytes());
        put(&mut bytes, 80, &limit(zones.max_active).to_ne_bytes());
        // Maximum length of an append.
        put(&mut bytes, 84, &(longest / 512).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Parameters = Parameters {
        len: 1 << 30,
        longest: 256 << 10,
        logical_block: 4096,
        physical_block: 4096,
        read_only: false,
        discards: true,
        zones: None,
    };

    fn word(bytes: &[u8; MEMORY], at: usize) -> u32 {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    #[test]
    fn parameters_of_zoned_device_have_zones_and_no_discards() {
        let zones = Some(Zones { len: 64 << 20, max_open: 3, max_active: 5, longest: u32::MAX });
        let bytes = Parameters { zones, ..PLAIN }.encode();
        assert_eq!([word(&bytes, 4), word(&bytes, 16), word(&bytes, 20)], [1 | 8, 512, (64 << 20) / 512]);
        assert_eq!([76, 80, 84].map(|at| word(&bytes, at)), [3, 5, 512]);
        let plain = PLAIN.encode();
        assert_eq!([word(&plain, 4), word(&plain, 16), word(&plain, 20)], [1 | 2, 512, 0]);
        assert_eq!([76, 80, 84].map(|at| word(&plain, at)), [0; 3]);
    }

    #[test]
    fn parameters_that_driver_would_refuse_are_clamped() {
        // Fewer zones than may be open, zones shorter than the longest request, a request longer than can be copied.
        let zones = Some(Zones { len: 128 << 10, max_open: 9, max_active: 8, longest: u32::MAX });
        let bytes = Parameters { zones, len: 1 << 20, ..PLAIN }.encode();
        assert_eq!([16, 76, 80, 84].map(|at| word(&bytes, at)), [256, 0, 8, 256]);
        let zones = Some(Zones { len: 1 << 30, max_open: 0, max_active: 0, longest: u32::MAX });
        let bytes = Parameters { zones, longest: 1 << 26, ..PLAIN }.encode();
        assert_eq!([16, 84].map(|at| word(&bytes, at)), [65536, 65536]);
    }

    #[test]
    fn request_is_no_longer_than_store_writes_whole() {
        for (limit, longest) in [(64 << 10, 64 << 10), ((127 << 10) + 512, 124 << 10), (512, 4096)] {
            let zones = Some(Zones { len: 64 << 20, max_open: 0, max_active: 0, longest: limit });
            let bytes = Parameters { zones, ..PLAIN }.encode();
            assert_eq!([16, 84].map(|at| word(&bytes, at)), [longest / 512; 2]);
        }
    }
}
