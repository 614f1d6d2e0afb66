//! Writes of partial data units: the only read-modify-write there is.
//!
//! A write that covers only part of its first or last data unit reads those units, decrypts them, keeps the bytes
//! around the new ones, and encrypts and writes the whole cover. Between the read and the write nobody else may write
//! these units, and nobody may read them half-written: bytes that nobody writes must not change for a moment. So *every*
//! read and write of an encrypted device holds the lock of its cover: exclusive where a write reads first, else shared.
//! A read that fails makes the write fail, with nothing written.

mod locks;

use crate::target::{CryptTarget, Extent};
pub use locks::{Granted, LockId, Purpose, UnitLocks};

/// A data unit at an edge of the cover that has to be read before a partial write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where the unit is in the store.
    pub store_offset: u64,
    /// Where the unit goes in the spare buffer.
    pub spare_offset: usize,
    /// Bytes in the unit.
    pub len: usize,
}

/// The units to read before a write of `extent`: the first, the last, both or none. When both edges lie in one unit it
/// is read once, as the first.
pub fn edges(extent: &Extent) -> [Option<Edge>; 2] {
    let len = extent.granule;
    let one_unit = extent.cover_len == len;
    let head = extent.partial_head() || (one_unit && extent.partial_tail());
    let tail = extent.partial_tail() && !one_unit;
    let last = extent.store_offset + (extent.cover_len - len) as u64;
    [
        head.then_some(Edge { store_offset: extent.store_offset, spare_offset: 0, len }),
        tail.then_some(Edge { store_offset: last, spare_offset: len, len }),
    ]
}

/// Bytes of spare buffer that [`edges`] may ask for.
pub fn spare_len(extent: &Extent) -> usize {
    if extent.is_partial() { 2 * extent.granule } else { 0 }
}

/// Decrypts the edge units in `spare` and copies what surrounds the requested bytes into `cover`.
pub fn keep_surroundings(target: &CryptTarget, extent: &Extent, spare: &mut [u8], cover: &mut [u8]) {
    let [head, tail] = edges(extent);
    let requested = extent.requested();
    if let Some(edge) = head {
        let unit = &mut spare[edge.spare_offset..edge.spare_offset + edge.len];
        target.decrypt_in_place(extent, 0, unit);
        cover[..requested.start].copy_from_slice(&unit[..requested.start]);
        if requested.end < edge.len {
            cover[requested.end..edge.len].copy_from_slice(&unit[requested.end..]);
        }
    }
    if let Some(edge) = tail {
        let unit = &mut spare[edge.spare_offset..edge.spare_offset + edge.len];
        let start = extent.cover_len - edge.len;
        target.decrypt_in_place(extent, start, unit);
        cover[requested.end..extent.cover_len].copy_from_slice(&unit[requested.end - start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    fn target() -> CryptTarget {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        CryptTarget::new(&[segment], &VolumeKey::new(&[3; 64]), 4096).unwrap()
    }

    #[test]
    fn edges_are_the_units_that_are_not_replaced_whole() {
        let target = target();
        let edges_of = |offset, len| {
            let extent = target.locate(offset, len, 4096).unwrap();
            edges(&extent).map(|e| e.map(|e| (e.store_offset, e.spare_offset)))
        };
        assert_eq!(edges_of(512, 1024), [None, None]);
        assert_eq!(edges_of(513, 10), [Some((512, 0)), None]);
        assert_eq!(edges_of(512, 10), [Some((512, 0)), None]);
        assert_eq!(edges_of(1000, 24), [Some((512, 0)), None]);
        assert_eq!(edges_of(512, 513), [None, Some((1024, 512))]);
        assert_eq!(edges_of(511, 2), [Some((0, 0)), Some((512, 512))]);
        assert_eq!(edges_of(1, 1023), [Some((0, 0)), None]);
    }

    #[test]
    fn every_split_of_a_write_keeps_its_surroundings() {
        let target = target();
        let old: Vec<u8> = (0..2048u32).map(|i| (i % 251) as u8).collect();
        for offset in (0..1100).step_by(37) {
            for len in [1, 15, 16, 511, 512, 513, 900] {
                let extent = target.locate(offset, len, 4096).unwrap();
                let start = extent.store_offset as usize;
                let mut cover = vec![0xee; extent.cover_len];
                cover[extent.requested()].fill(0xaa);
                let mut spare = vec![0; spare_len(&extent)];
                for edge in edges(&extent).into_iter().flatten() {
                    let unit = &old[edge.store_offset as usize..][..edge.len];
                    let whole = target.locate(edge.store_offset, edge.len as u64, 4096).unwrap();
                    let stored = target.encrypt_from(&whole, unit, crate::buffer::Buffer::new(edge.len));
                    spare[edge.spare_offset..][..edge.len].copy_from_slice(&stored.into_buffer().data()[..edge.len]);
                }
                keep_surroundings(&target, &extent, &mut spare, &mut cover);
                let mut expected = old[start..start + extent.cover_len].to_vec();
                expected[extent.requested()].fill(0xaa);
                assert_eq!(cover, expected, "{len} bytes at {offset}");
            }
        }
    }
}
