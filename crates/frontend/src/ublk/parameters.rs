//! What ublk's driver is told of a device before it starts: `struct ublk_params` of `include/uapi/linux/ublk_cmd.h`.

use super::command::{MEMORY, put};

/// How long the structure is, with everything that is told here.
pub(super) const LEN: u16 = 112;

/// The longest logical block is as long as well.
const PAGE: u32 = 4096;

/// The driver's limit for the bytes of one request, where the device's process copies them.
const COPIED_BY_PROCESS_MAX: u32 = 1 << 25;

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub len: u64,
    /// The longest request in bytes.
    pub longest: u32,
    /// Powers of two: the smallest request, and what is written as a whole.
    pub logical_block: usize,
    pub physical_block: usize,
    pub read_only: bool,
    pub discards: bool,
    pub zones: Option<Zones>,
}

/// What its zones are like. The length of the device is a multiple of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Zones {
    /// A power of two.
    pub len: u64,
    /// How many may be open, and open or closed, at a time; 0: all.
    pub max_open: u32,
    pub max_active: u32,
    /// What the store would cut, which costs a thread of the kernel's each time, is not asked for in one piece.
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
        // Without those of discards, the block layer writes zeroes where it is asked to, in order, and discards nothing.
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
        // Of an append.
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
    fn a_zoned_device_has_zones_and_no_discards() {
        let zones = Some(Zones { len: 64 << 20, max_open: 3, max_active: 5, longest: u32::MAX });
        let bytes = Parameters { zones, ..PLAIN }.encode();
        assert_eq!([word(&bytes, 4), word(&bytes, 16), word(&bytes, 20)], [1 | 8, 512, (64 << 20) / 512]);
        assert_eq!([76, 80, 84].map(|at| word(&bytes, at)), [3, 5, 512]);
        let plain = PLAIN.encode();
        assert_eq!([word(&plain, 4), word(&plain, 16), word(&plain, 20)], [1 | 2, 512, 0]);
        assert_eq!([76, 80, 84].map(|at| word(&plain, at)), [0; 3]);
    }

    #[test]
    fn what_the_driver_would_refuse_is_not_asked() {
        // Fewer zones than may be open, zones shorter than the longest request, a request longer than can be copied.
        let zones = Some(Zones { len: 128 << 10, max_open: 9, max_active: 8, longest: u32::MAX });
        let bytes = Parameters { zones, len: 1 << 20, ..PLAIN }.encode();
        assert_eq!([16, 76, 80, 84].map(|at| word(&bytes, at)), [256, 0, 8, 256]);
        let zones = Some(Zones { len: 1 << 30, max_open: 0, max_active: 0, longest: u32::MAX });
        let bytes = Parameters { zones, longest: 1 << 26, ..PLAIN }.encode();
        assert_eq!([16, 84].map(|at| word(&bytes, at)), [65536, 65536]);
    }

    #[test]
    fn the_store_cuts_no_request() {
        for (limit, longest) in [(64 << 10, 64 << 10), ((127 << 10) + 512, 124 << 10), (512, 4096)] {
            let zones = Some(Zones { len: 64 << 20, max_open: 0, max_active: 0, longest: limit });
            let bytes = Parameters { zones, ..PLAIN }.encode();
            assert_eq!([16, 84].map(|at| word(&bytes, at)), [longest / 512; 2]);
        }
    }
}
