//! Devices, random numbers and a reader that shares no code with the engine.

use aes::cipher::KeyInit;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::{Access, BackingStore, Device};
use std::sync::Arc;

/// Returns `base` with some of its fields changed.
macro_rules! with {
    ($base:expr; $($field:ident: $value:expr),+ $(,)?) => {{
        let mut value = $base;
        $(value.$field = $value;)+
        value
    }};
}
pub(crate) use with;

/// xorshift64*; a failing run is repeated by its seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A range within `len` bytes: mostly small, sometimes whole units, sometimes long.
    pub(crate) fn range(&mut self, len: u64, unit: u64) -> (u64, u64) {
        let offset = self.below(len);
        let longest = len - offset;
        match self.below(4) {
            0 => {
                let offset = offset / unit * unit;
                (offset, (1 + self.below(4)).saturating_mul(unit).min(len - offset))
            }
            1 => (offset, longest.min(1 + self.below(3 * unit))),
            2 => (offset, longest.min(1 + self.below(32))),
            _ => (offset, 1 + self.below(longest)),
        }
    }
}

/// Bytes in front of the data, so that a wrong store offset shows.
pub(crate) const DATA_OFFSET: usize = 3 * 512;
/// Added to every IV number, so that forgetting it shows.
pub(crate) const IV_OFFSET: u64 = 77 * 8;

pub(crate) fn key() -> VolumeKey {
    VolumeKey::new(&(0..64).map(|i| i * 3 + 1).collect::<Vec<u8>>())
}

pub(crate) fn segment(unit: u32) -> Segment {
    with!(
        Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).expect("tests use valid units"));
        data_offset: Sector(DATA_OFFSET as u64 / 512),
        iv_offset: Sector(IV_OFFSET),
    )
}

pub(crate) fn device(store: Arc<dyn BackingStore>, unit: u32) -> Arc<Device> {
    let access = Access { read_only: false, allow_discards: true };
    Arc::new(Device::new(&[segment(unit)], &key(), store, access).expect("the segment fits"))
}

/// Decrypts the whole data area with the `xts-mode` crate.
pub(crate) fn independent_plaintext(image: &[u8], unit: u32) -> Vec<u8> {
    independent_plaintext_at(image, DATA_OFFSET, IV_OFFSET, unit)
}

/// [`independent_plaintext`] of a data area that starts at byte `start`, and whose first IV is of this number.
pub(crate) fn independent_plaintext_at(image: &[u8], start: usize, first_iv: u64, unit: u32) -> Vec<u8> {
    let key = key();
    let (data, tweak) = key.as_bytes().split_at(32);
    let cipher = |key| aes::Aes256::new_from_slice(key).expect("32 bytes");
    let xts = xts_mode::Xts128::new(cipher(data), cipher(tweak));
    let mut plain = image[start..].to_vec();
    for (index, unit_bytes) in plain.chunks_exact_mut(unit as usize).enumerate() {
        let number = index as u64 * u64::from(unit / 512) + first_iv;
        xts.decrypt_sector(unit_bytes, xts_mode::get_tweak_default(number.into()));
    }
    plain
}

/// An image whose data area decrypts to `plain`.
pub(crate) fn image_of(plain: &[u8], unit: u32) -> Vec<u8> {
    let store = Arc::new(inlock_engine::store::memory::MemoryStore::new(vec![0; DATA_OFFSET + plain.len()]));
    let device = inlock_engine::BlockingDevice::new(device(Arc::clone(&store) as _, unit));
    device.write_at(plain, 0).expect("memory does not fail");
    store.contents()
}

/// A new file, on a file system in memory where there is one: to a ring it is a file like any other.
pub(crate) fn file_in_memory() -> tempfile::NamedTempFile {
    let memory = std::path::Path::new("/dev/shm");
    let named = if memory.is_dir() { tempfile::NamedTempFile::new_in(memory) } else { tempfile::NamedTempFile::new() };
    named.expect("a temporary file")
}
