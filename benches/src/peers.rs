//! The compared implementations, behind one trait.

use aes::cipher::KeyInit;
use inlock_cipher::{AesKernel, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, Limit, SectorCipher};
use openssl::cipher::{Cipher, CipherRef};
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use std::error::Error;
use xts_mode::Xts128;

/// Bytes behind a request that some bindings require although they write nothing there.
pub(crate) const SLACK: usize = 64;

/// Parameters of a comparison.
pub(crate) struct Case<'a> {
    pub(crate) spec: CipherSpec,
    pub(crate) key: &'a [u8],
    pub(crate) unit: usize,
    pub(crate) encrypt: bool,
}

impl Case<'_> {
    /// Whether the cipher is XTS; otherwise it is CBC with ESSIV.
    pub(crate) fn is_xts(&self) -> bool {
        self.spec == CipherSpec::AES_XTS_PLAIN64
    }

    /// Returns the bits of the AES key.
    pub(crate) fn key_bits(&self) -> usize {
        self.key.len() * if self.is_xts() { 4 } else { 8 }
    }
}

/// An implementation for one case. It works on a request in place, in the direction of the case; IV numbers grow by one
/// per unit.
pub(crate) trait Peer {
    /// Returns its name in tables.
    fn name(&self) -> String;
    /// Processes the first `len` bytes, which are whole units, and returns the number of bytes processed.
    fn run(&mut self, first: u64, data: &mut [u8], len: usize) -> usize;
    /// Whether it computes nothing that can be compared.
    fn is_limit(&self) -> bool {
        false
    }
}

/// AES rounds alone.
pub(crate) struct LimitPeer(pub(crate) Limit);

impl Peer for LimitPeer {
    fn name(&self) -> String {
        "limit".to_owned()
    }

    fn run(&mut self, _: u64, _: &mut [u8], _: usize) -> usize {
        self.0.run(1) as usize
    }

    fn is_limit(&self) -> bool {
        true
    }
}

/// Inlock: the whole request in one call, or one call per unit, like libraries with single-unit functions.
pub(crate) struct InlockPeer {
    cipher: Box<dyn SectorCipher>,
    encrypt: bool,
    unit_by_unit: bool,
}

impl InlockPeer {
    pub(crate) fn new(kernel: AesKernel, case: &Case<'_>, unit_by_unit: bool) -> Result<Self, Box<dyn Error>> {
        let unit = DataUnitSize::new(case.unit as u32)?;
        let cipher = inlock_cipher::new_sector_cipher_on(kernel, &case.spec, case.key, unit, IvNumbering::DataUnits)?;
        Ok(Self { cipher, encrypt: case.encrypt, unit_by_unit })
    }
}

impl Peer for InlockPeer {
    fn name(&self) -> String {
        format!("inlock {}{}", self.cipher.kernel(), if self.unit_by_unit { ", a call a unit" } else { "" })
    }

    fn run(&mut self, first: u64, data: &mut [u8], len: usize) -> usize {
        let call_len = if self.unit_by_unit { self.cipher.unit().bytes() } else { len };
        for (number, call) in (first..).zip(data[..len].chunks_exact_mut(call_len)) {
            let (number, call) = (IvNumber(number), InOut::InPlace(call));
            if self.encrypt { self.cipher.encrypt(number, call) } else { self.cipher.decrypt(number, call) }
        }
        len
    }
}

/// OpenSSL's EVP interface, one call per unit: the key is set up once, only the IV is set for each unit.
pub(crate) struct OpenSslPeer {
    context: CipherCtx,
    /// Encrypts the IV, for ESSIV.
    essiv: Option<CipherCtx>,
    unit: usize,
    encrypt: bool,
}

impl OpenSslPeer {
    pub(crate) fn new(case: &Case<'_>) -> Result<Self, ErrorStack> {
        let cipher: &CipherRef = match (case.is_xts(), case.key_bits()) {
            (true, 256) => Cipher::aes_256_xts(),
            (true, _) => Cipher::aes_128_xts(),
            (false, 256) => Cipher::aes_256_cbc(),
            (false, _) => Cipher::aes_128_cbc(),
        };
        let mut context = CipherCtx::new()?;
        if case.encrypt {
            context.encrypt_init(Some(cipher), Some(case.key), None)?;
        } else {
            context.decrypt_init(Some(cipher), Some(case.key), None)?;
        }
        context.set_padding(false);
        let essiv = if case.is_xts() {
            None
        } else {
            let mut essiv = CipherCtx::new()?;
            essiv.encrypt_init(Some(Cipher::aes_256_ecb()), Some(&openssl::sha::sha256(case.key)), None)?;
            essiv.set_padding(false);
            Some(essiv)
        };
        Ok(Self { context, essiv, unit: case.unit, encrypt: case.encrypt })
    }

    /// Processes the first unit of `data`.
    fn unit(&mut self, number: u64, data: &mut [u8]) -> Result<(), ErrorStack> {
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
        self.context.cipher_update_inplace(data, self.unit)?;
        Ok(())
    }
}

impl Peer for OpenSslPeer {
    fn name(&self) -> String {
        // "OpenSSL 3.6.0 1 Oct 2025": its name and number.
        openssl::version::version().splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ")
    }

    fn run(&mut self, first: u64, data: &mut [u8], len: usize) -> usize {
        for (number, at) in (first..).zip((0..len).step_by(self.unit)) {
            self.unit(number, &mut data[at..]).expect("EVP takes a unit under a key and an IV of the right lengths");
        }
        len
    }
}

/// The `xts-mode` crate over the `aes` crate, one call per unit.
pub(crate) struct XtsModePeer {
    cipher: Box<XtsModeCipher>,
    unit: usize,
    encrypt: bool,
}

#[allow(clippy::large_enum_variant)] // There is one, and it is boxed.
enum XtsModeCipher {
    Aes128(Xts128<aes::Aes128>),
    Aes256(Xts128<aes::Aes256>),
}

impl XtsModePeer {
    pub(crate) fn new(case: &Case<'_>) -> Result<Self, Box<dyn Error>> {
        let (data, tweak) = case.key.split_at(case.key.len() / 2);
        let cipher = if case.key_bits() == 256 {
            let (data, tweak) = (aes::Aes256::new_from_slice(data)?, aes::Aes256::new_from_slice(tweak)?);
            XtsModeCipher::Aes256(Xts128::new(data, tweak))
        } else {
            let (data, tweak) = (aes::Aes128::new_from_slice(data)?, aes::Aes128::new_from_slice(tweak)?);
            XtsModeCipher::Aes128(Xts128::new(data, tweak))
        };
        Ok(Self { cipher: Box::new(cipher), unit: case.unit, encrypt: case.encrypt })
    }
}

impl Peer for XtsModePeer {
    fn name(&self) -> String {
        "xts-mode".to_owned()
    }

    fn run(&mut self, first: u64, data: &mut [u8], len: usize) -> usize {
        for (number, unit) in (first..).zip(data[..len].chunks_exact_mut(self.unit)) {
            let tweak = u128::from(number).to_le_bytes().into();
            match (&*self.cipher, self.encrypt) {
                (XtsModeCipher::Aes128(cipher), true) => cipher.encrypt_sector(unit, tweak),
                (XtsModeCipher::Aes128(cipher), false) => cipher.decrypt_sector(unit, tweak),
                (XtsModeCipher::Aes256(cipher), true) => cipher.encrypt_sector(unit, tweak),
                (XtsModeCipher::Aes256(cipher), false) => cipher.decrypt_sector(unit, tweak),
            }
        }
        len
    }
}
