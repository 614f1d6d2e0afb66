//! ChaCha20-Poly1305 (RFC 8439). Both parts are libraries; the library of the whole compares tags itself.

use super::{Sealer, Tag, Units};
use crate::InOut;
use crate::aes::AesKernel;
use crate::locked_box::LockedBox;
use chacha20::cipher::{StreamCipher, StreamCipherSeek};
use chacha20::{ChaCha20, KeyIvInit};
use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};
use zeroize::Zeroizing;

/// ChaCha20-Poly1305 under a key.
pub(super) struct ChaCha20Poly1305(LockedBox<[u8; 32]>);

/// Length of the additional data: a sector and an IV.
const AD_LEN: usize = 20;
/// Bytes of the key stream before that of the data: a block of ChaCha20, of which half is the key of Poly1305.
const BLOCK: u32 = 64;

impl ChaCha20Poly1305 {
    /// Copies `key`, which has 32 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let mut locked = LockedBox::new([0; 32]);
        locked.copy_from_slice(key);
        Self(locked)
    }

    fn run(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag], encrypt: bool) {
        let data = data.into_in_place();
        for (at, (unit, tag)) in data.chunks_exact_mut(units.unit.bytes()).zip(tags).enumerate() {
            let nonce: &[u8; 12] = units.ivs[at].first_chunk().expect("an IV has 12 bytes");
            let mut stream = ChaCha20::new((&*self.0).into(), nonce.into());
            let mut mac_key = Zeroizing::new([0; 32]);
            stream.apply_keystream(&mut *mac_key);
            stream.seek(BLOCK);
            if encrypt {
                stream.apply_keystream(unit);
            }
            let mut mac = Poly1305::new((&*mac_key).into());
            mac.update_padded(&units.additional_data(at)[..AD_LEN]);
            mac.update_padded(unit);
            let lengths = AD_LEN as u128 | ((unit.len() as u128) << 64);
            mac.update(&[lengths.to_le_bytes().into()]);
            tag[..16].copy_from_slice(&mac.finalize());
            if !encrypt {
                stream.apply_keystream(unit);
            }
        }
    }
}

impl Sealer for ChaCha20Poly1305 {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, true);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, false);
    }

    fn kernel(&self) -> &'static str {
        AesKernel::Portable.name()
    }
}
