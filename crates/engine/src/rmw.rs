//! Read-modify-write for writes of partial data units.
//!
//! A write of only a part of its first or last data unit reads those units, decrypts them, merges the new bytes, and
//! encrypts and writes the whole aligned range. Between the read and the write no other request may write these units,
//! and none may read them half-written: bytes that no request writes must never appear changed. So *every* read and
//! write of an encrypted device holds the lock of its aligned range: exclusive for a write that reads first, otherwise
//! shared. If the read fails, the write fails with nothing written.

use crate::crypt_mapping::{CryptMapping, MappedRange};

/// Data unit at an edge of the aligned range that has to be read before a partial write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Position of the unit in the store, in bytes.
    pub store_offset: u64,
    /// Position of the unit in the spare buffer, in bytes.
    pub spare_offset: usize,
    /// Bytes in the unit.
    pub len: usize,
}

/// Returns the units to read before a write of `mapped`: the first, the last, both or none. If both edges lie in one
/// unit, it is read once, as the first.
pub fn edges(mapped: &MappedRange) -> [Option<Edge>; 2] {
    let len = mapped.unit_len;
    let one_unit = mapped.aligned_len == len;
    let head = mapped.has_partial_head() || (one_unit && mapped.has_partial_tail());
    let tail = mapped.has_partial_tail() && !one_unit;
    let last = mapped.store_offset + (mapped.aligned_len - len) as u64;
    [
        head.then_some(Edge { store_offset: mapped.store_offset, spare_offset: 0, len }),
        tail.then_some(Edge { store_offset: last, spare_offset: len, len }),
    ]
}

/// Returns the length in bytes of the spare buffer that [`edges`] may need.
pub fn spare_len(mapped: &MappedRange) -> usize {
    if mapped.is_partial() { 2 * mapped.unit_len } else { 0 }
}

/// Decrypts the edge units in `spare` and copies the bytes around the requested ones into the aligned range.
pub fn merge_edges(target: &CryptMapping, mapped: &MappedRange, spare: &mut [u8], cover: &mut [u8]) {
    let [head, tail] = edges(mapped);
    let requested = mapped.requested();
    if let Some(edge) = head {
        let unit = &mut spare[edge.spare_offset..edge.spare_offset + edge.len];
        target.decrypt_in_place(mapped, 0, unit);
        cover[..requested.start].copy_from_slice(&unit[..requested.start]);
        if requested.end < edge.len {
            cover[requested.end..edge.len].copy_from_slice(&unit[requested.end..]);
        }
    }
    if let Some(edge) = tail {
        let unit = &mut spare[edge.spare_offset..edge.spare_offset + edge.len];
        let start = mapped.aligned_len - edge.len;
        target.decrypt_in_place(mapped, start, unit);
        cover[requested.end..mapped.aligned_len].copy_from_slice(&unit[requested.end - start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    fn target() -> CryptMapping {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        CryptMapping::new(&[segment], &VolumeKey::new(&[3; 64]), 4096).unwrap()
    }

    #[test]
    fn edges_are_the_units_that_are_not_replaced_whole() {
        let target = target();
        let edges_of = |offset, len| {
            let mapped = target.locate(offset, len, 4096).unwrap();
            edges(&mapped).map(|e| e.map(|e| (e.store_offset, e.spare_offset)))
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
                let mapped = target.locate(offset, len, 4096).unwrap();
                let start = mapped.store_offset as usize;
                let mut cover = vec![0xee; mapped.aligned_len];
                cover[mapped.requested()].fill(0xaa);
                let mut spare = vec![0; spare_len(&mapped)];
                for edge in edges(&mapped).into_iter().flatten() {
                    let unit = &old[edge.store_offset as usize..][..edge.len];
                    let whole = target.locate(edge.store_offset, edge.len as u64, 4096).unwrap();
                    let stored = target.encrypt_from(&whole, unit, crate::buffer::Buffer::new(edge.len));
                    spare[edge.spare_offset..][..edge.len].copy_from_slice(&stored.into_buffer().data()[..edge.len]);
                }
                merge_edges(&target, &mapped, &mut spare, &mut cover);
                let mut expected = old[start..start + mapped.aligned_len].to_vec();
                expected[mapped.requested()].fill(0xaa);
                assert_eq!(cover, expected, "{len} bytes at {offset}");
            }
        }
    }
}
