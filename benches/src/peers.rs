//! The implementations that are compared, behind one trait.

use aes::cipher::KeyInit;
use inlock_cipher::{CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, SectorCipher, XtsKernel};
use openssl::cipher::{Cipher, CipherRef};
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use std::error::Error;
use xts_mode::Xts128;

/// Works on a request in place. IV numbers grow by one a unit.
pub(crate) trait Peer {
    /// What the table calls it.
    fn name(&self) -> String;
    /// The directions that this instance can run.
    fn directions(&self) -> &'static [bool] {
        &[true, false]
    }
    /// Encrypts, or decrypts, whole units. The result need not be left in `data` unless it is to `keep` it.
    fn run(&mut self, first: u64, data: &mut [u8], encrypt: bool, keep: bool);
}

/// Inlock, the whole request in one call.
pub(crate) struct InlockPeer {
    cipher: Box<dyn SectorCipher>,
}

impl InlockPeer {
    /// On one kernel.
    pub(crate) fn new(kernel: XtsKernel, spec: &CipherSpec, key: &[u8], unit: u32) -> Result<Self, Box<dyn Error>> {
        let cipher: Result<_, CipherError> =
            inlock_cipher::new_sector_cipher_on(kernel, spec, key, DataUnitSize::new(unit)?, true);
        Ok(Self { cipher: cipher? })
    }
}

impl Peer for InlockPeer {
    fn name(&self) -> String {
        format!("inlock {}", self.cipher.kernel())
    }

    fn run(&mut self, first: u64, data: &mut [u8], encrypt: bool, _: bool) {
        let (first, data) = (IvNumber(first), InOut::InPlace(data));
        if encrypt { self.cipher.encrypt(first, data) } else { self.cipher.decrypt(first, data) }
    }
}

/// OpenSSL's EVP interface, a call a unit, in the direction that the context was made for.
pub(crate) struct OpenSslPeer {
    context: CipherCtx,
    /// Encrypts the IV, for ESSIV.
    essiv: Option<CipherCtx>,
    unit: usize,
    encrypt: bool,
    /// This binding works from buffer to buffer. The copy back is not EVP's and not counted.
    out: Vec<u8>,
}

impl OpenSslPeer {
    /// With the key set up once.
    pub(crate) fn new(spec: &CipherSpec, key: &[u8], unit: usize, encrypt: bool) -> Result<Self, ErrorStack> {
        let xts = *spec == CipherSpec::AES_XTS_PLAIN64;
        let cipher: &CipherRef = match (xts, key.len()) {
            (true, 64) => Cipher::aes_256_xts(),
            (true, _) => Cipher::aes_128_xts(),
            (false, 32) => Cipher::aes_256_cbc(),
            (false, _) => Cipher::aes_128_cbc(),
        };
        let mut context = CipherCtx::new()?;
        if encrypt {
            context.encrypt_init(Some(cipher), Some(key), None)?;
        } else {
            context.decrypt_init(Some(cipher), Some(key), None)?;
        }
        context.set_padding(false);
        let essiv = if xts {
            None
        } else {
            let mut essiv = CipherCtx::new()?;
            essiv.encrypt_init(Some(Cipher::aes_256_ecb()), Some(&openssl::sha::sha256(key)), None)?;
            essiv.set_padding(false);
            Some(essiv)
        };
        Ok(Self { context, essiv, unit, encrypt, out: vec![0; unit + 32] })
    }

    fn unit(&mut self, number: u64, unit: &[u8]) -> Result<(), ErrorStack> {
        let mut iv = u128::from(number).to_le_bytes();
        if let Some(essiv) = &mut self.essiv {
            let mut encrypted = [0; 32];
            essiv.cipher_update(&iv, Some(&mut encrypted))?;
            iv.copy_from_slice(&encrypted[..16]);
        }
        if self.encrypt {
            self.context.encrypt_init(None, None, Some(&iv))?;
        } else {
            self.context.decrypt_init(None, None, Some(&iv))?;
        }
        self.context.cipher_update(unit, Some(&mut self.out))?;
        Ok(())
    }
}

impl Peer for OpenSslPeer {
    fn name(&self) -> String {
        // "OpenSSL 3.6.0 1 Oct 2025": its name and number.
        openssl::version::version().splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ")
    }

    fn directions(&self) -> &'static [bool] {
        if self.encrypt { &[true] } else { &[false] }
    }

    fn run(&mut self, first: u64, data: &mut [u8], encrypt: bool, keep: bool) {
        assert_eq!(encrypt, self.encrypt, "the context was made for the other direction");
        for (number, unit) in (first..).zip(data.chunks_exact_mut(self.unit)) {
            self.unit(number, unit).expect("EVP takes a unit under a key and an IV of the right lengths");
            if keep {
                unit.copy_from_slice(&self.out[..unit.len()]);
            }
        }
    }
}

/// The `xts-mode` crate over the `aes` crate, a call a unit.
pub(crate) struct XtsModePeer {
    cipher: Box<XtsModeCipher>,
    unit: usize,
}

#[allow(clippy::large_enum_variant)] // There is one, and it is boxed.
enum XtsModeCipher {
    Aes128(Xts128<aes::Aes128>),
    Aes256(Xts128<aes::Aes256>),
}

impl XtsModePeer {
    /// With both keys set up once.
    pub(crate) fn new(key: &[u8], unit: usize) -> Result<Self, Box<dyn Error>> {
        let (data, tweak) = key.split_at(key.len() / 2);
        let cipher = if key.len() == 64 {
            let (data, tweak) = (aes::Aes256::new_from_slice(data)?, aes::Aes256::new_from_slice(tweak)?);
            XtsModeCipher::Aes256(Xts128::new(data, tweak))
        } else {
            let (data, tweak) = (aes::Aes128::new_from_slice(data)?, aes::Aes128::new_from_slice(tweak)?);
            XtsModeCipher::Aes128(Xts128::new(data, tweak))
        };
        Ok(Self { cipher: Box::new(cipher), unit })
    }
}

impl Peer for XtsModePeer {
    fn name(&self) -> String {
        "xts-mode".to_owned()
    }

    fn run(&mut self, first: u64, data: &mut [u8], encrypt: bool, _: bool) {
        for (number, unit) in (first..).zip(data.chunks_exact_mut(self.unit)) {
            let tweak = u128::from(number).to_le_bytes().into();
            match (&*self.cipher, encrypt) {
                (XtsModeCipher::Aes128(cipher), true) => cipher.encrypt_sector(unit, tweak),
                (XtsModeCipher::Aes128(cipher), false) => cipher.decrypt_sector(unit, tweak),
                (XtsModeCipher::Aes256(cipher), true) => cipher.encrypt_sector(unit, tweak),
                (XtsModeCipher::Aes256(cipher), false) => cipher.decrypt_sector(unit, tweak),
            }
        }
    }
}
