//! Encrypt-then-MAC (the Linux kernel's `authenc`): HMAC over additional data and ciphertext. Units are encrypted in
//! one batch, on the kernels for AES-XTS and AES-CBC.

use super::{Sealer, Tag, Units};
use crate::aes::{self, AesKernel, CbcJob, IV_MARGIN, IvSource, MAX_BATCH, Schedule, XtsJob, XtsKeys};
use crate::block_cipher::Block;
use crate::locked_box::LockedBox;
use crate::messages::{Algorithm, HmacBatch};
use crate::modes::{Chain, new_chain};
use crate::sha256::Sha256;
use crate::sha512::Sha512;
use crate::{AeadError, AeadSpec, ChainMode, Cipher, CipherError, DataUnitSize, Hash, HashKernel, InOut};
use digest::{FixedOutput, KeyInit, Update};
use hmac::Hmac;

/// Returns the sealer of `key`, whose length has been checked.
pub(super) fn new(kernel: AesKernel, spec: &AeadSpec, mac: Hash, key: &[u8]) -> Result<Box<dyn Sealer>, AeadError> {
    let (key, mac_key) = key.split_at(key.len() - spec.mac_key_len());
    let inner = spec.inner().expect("authenc has a cipher");
    let cipher = BatchCipher::new(kernel, inner.cipher, inner.mode, key).ok_or(CipherError::Unsupported(inner))?;
    let kernel_of_mac = HashKernel::best(mac)?;
    Ok(match mac {
        Hash::Sha1 => Box::new(Authenc { cipher, mac: HmacSha1::new(mac_key) }),
        Hash::Sha256 => Box::new(Authenc { cipher, mac: HmacBatch::new_on(kernel_of_mac, Sha256, mac.len(), mac_key) }),
        Hash::Sha512 => {
            Box::new(Authenc { cipher, mac: HmacBatch::new_on(kernel_of_mac, Sha512::Bits512, mac.len(), mac_key) })
        }
        _ => unreachable!("specifications have no HMAC of {mac}"),
    })
}

/// A cipher and a MAC with their keys.
struct Authenc<M> {
    cipher: BatchCipher,
    mac: M,
}

trait Mac: Send + Sync {
    /// Writes the MAC of every unit of `ciphertext`.
    fn tags(&self, units: &Units<'_>, ciphertext: &[u8], tags: &mut [Tag]);
}

impl<A: Algorithm<BLOCK>, const BLOCK: usize> Mac for HmacBatch<A, BLOCK> {
    fn tags(&self, units: &Units<'_>, ciphertext: &[u8], tags: &mut [Tag]) {
        HmacBatch::tags(self, |at| units.additional_data(at), ciphertext, units.unit.bytes(), tags);
    }
}

/// HMAC-SHA-1 is computed of one unit after the other.
struct HmacSha1(LockedBox<Hmac<sha1::Sha1>>);

impl HmacSha1 {
    fn new(key: &[u8]) -> Self {
        Self(LockedBox::new(Hmac::new_from_slice(key).expect("HMAC takes keys of every length")))
    }
}

impl Mac for HmacSha1 {
    fn tags(&self, units: &Units<'_>, ciphertext: &[u8], tags: &mut [Tag]) {
        for (at, (unit, tag)) in ciphertext.chunks_exact(units.unit.bytes()).zip(tags).enumerate() {
            let mut mac = (*self.0).clone();
            mac.update(&units.additional_data(at));
            mac.update(unit);
            let digest = mac.finalize_fixed();
            tag[..digest.len()].copy_from_slice(&digest);
        }
    }
}

impl<M: Mac> Sealer for Authenc<M> {
    fn seal(&self, units: &Units<'_>, mut data: InOut<'_>, tags: &mut [Tag]) {
        self.cipher.run(units, data.reborrow(), true);
        self.mac.tags(units, data.destination(), tags);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.mac.tags(units, data.source(), tags);
        self.cipher.run(units, data, false);
    }

    fn kernel(&self) -> &'static str {
        self.cipher.kernel()
    }
}

/// A cipher that encrypts a batch of units with given IVs.
enum BatchCipher {
    Xts(AesKernel, LockedBox<XtsKeys>),
    Cbc(AesKernel, LockedBox<Schedule>),
    Any(Box<dyn Chain>),
}

impl BatchCipher {
    fn new(kernel: AesKernel, cipher: Cipher, mode: ChainMode, key: &[u8]) -> Option<Self> {
        let has_kernel = kernel != AesKernel::Portable && cipher == Cipher::Aes;
        Some(match mode {
            // Kernels support the two key lengths of IEEE 1619.
            ChainMode::Xts if has_kernel && key.len() != 48 => {
                let (data, tweak) = key.split_at(key.len() / 2);
                let mut keys = LockedBox::new(XtsKeys { data: Schedule::EMPTY, tweak: Schedule::EMPTY });
                keys.data.expand(data);
                keys.tweak.expand(tweak);
                Self::Xts(kernel, keys)
            }
            ChainMode::Cbc if has_kernel => {
                let mut keys = LockedBox::new(Schedule::EMPTY);
                keys.expand(key);
                Self::Cbc(kernel, keys)
            }
            _ => Self::Any(new_chain(kernel, cipher, mode, key)?),
        })
    }

    fn run(&self, units: &Units<'_>, data: InOut<'_>, encrypt: bool) {
        let mut room = [[0; 16]; MAX_BATCH + IV_MARGIN];
        let ivs = units.ivs;
        match self {
            Self::Xts(kernel, keys) => {
                let copy = |to: &mut [Block]| to[..ivs.len()].copy_from_slice(ivs);
                let mut job = XtsJob::new(keys, units.unit, &mut room, data, copy);
                aes::xts(*kernel, &mut job, encrypt);
            }
            Self::Cbc(kernel, keys) => {
                let source = GivenIvs(ivs);
                let job = CbcJob::new(keys, &source, units.unit, data);
                if encrypt { aes::cbc_encrypt(*kernel, &job) } else { aes::cbc_decrypt(*kernel, &job) }
            }
            Self::Any(chain) => {
                let room = &mut room[..ivs.len()];
                room.copy_from_slice(ivs);
                in_place(&**chain, room, data, units.unit, encrypt);
            }
        }
    }

    fn kernel(&self) -> &'static str {
        match self {
            Self::Xts(kernel, _) | Self::Cbc(kernel, _) => kernel.name(),
            Self::Any(_) => AesKernel::Portable.name(),
        }
    }
}

fn in_place(chain: &dyn Chain, ivs: &mut [Block], data: InOut<'_>, unit: DataUnitSize, encrypt: bool) {
    let data = data.into_in_place();
    if encrypt { chain.encrypt(ivs, data, unit.bytes()) } else { chain.decrypt(ivs, data, unit.bytes()) }
}

/// The IVs of a batch.
struct GivenIvs<'a>(&'a [Block]);

impl IvSource for GivenIvs<'_> {
    fn fill(&self, unit: usize, ivs: &mut [Block]) {
        ivs.copy_from_slice(&self.0[unit..unit + ivs.len()]);
    }
}
