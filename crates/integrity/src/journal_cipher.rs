//! Encryption of the journal.
//!
//! With counter mode one key stream covers the whole journal, padded to pages of 4096 bytes, and after it the commit
//! ids. With CBC each section is a chain by itself, and its IV is the encrypted number of the section.

use crate::error::IntegrityError;
use inlock_cipher::{DataUnitSize, InOut, IvNumber, IvNumbering, SectorCipher, VolumeKey, new_sector_cipher};
use std::fmt;

const BLOCK: usize = 16;
const UNIT: usize = 512;

/// Cipher of a journal with its key: `ctr(aes)` or `cbc(aes)`.
pub struct JournalCipher {
    mode: Mode,
    cipher: Box<dyn SectorCipher>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Ctr,
    Cbc,
}

impl JournalCipher {
    /// Makes a cipher by the kernel's name (`ctr(aes)`) or integritysetup's (`ctr-aes`).
    ///
    /// # Errors
    ///
    /// Fails if the cipher is not supported or does not accept the key's length.
    #[allow(clippy::missing_panics_doc)] // Both specifications are known.
    pub fn new(name: &str, key: &VolumeKey) -> Result<Self, IntegrityError> {
        let (mode, spec) = match name {
            "ctr(aes)" | "ctr-aes" => (Mode::Ctr, "aes-ecb"),
            "cbc(aes)" | "cbc-aes" => (Mode::Cbc, "aes-cbc-null"),
            _ => {
                let reason = "the cipher is not supported (ctr-aes and cbc-aes are)";
                return Err(IntegrityError::option("journal-crypt", reason));
            }
        };
        let spec = spec.parse().expect("the specification is one of the known ones");
        let cipher = new_sector_cipher(&spec, key.as_bytes(), DataUnitSize::SECTOR, IvNumbering::Sectors);
        let reason = "the cipher does not accept the key's length";
        let cipher = cipher.map_err(|_| IntegrityError::option("journal-crypt-key-file", reason))?;
        Ok(Self { mode, cipher })
    }

    /// Encrypts the section that starts at byte `at` of the journal.
    pub(crate) fn encrypt(&self, section: u32, at: u64, image: &mut [u8]) {
        match self.mode {
            Mode::Ctr => self.add_key_stream(at, image),
            Mode::Cbc => {
                let mut iv = self.section_iv(section);
                for unit in image.chunks_exact_mut(UNIT) {
                    add(unit, &iv);
                    self.cipher.encrypt(IvNumber(0), InOut::InPlace(unit));
                    iv.copy_from_slice(&unit[UNIT - BLOCK..]);
                }
            }
        }
    }

    /// Decrypts a section.
    pub(crate) fn decrypt(&self, section: u32, at: u64, image: &mut [u8]) {
        match self.mode {
            Mode::Ctr => self.add_key_stream(at, image),
            Mode::Cbc => {
                let mut iv = self.section_iv(section);
                for unit in image.chunks_exact_mut(UNIT) {
                    let next: [u8; BLOCK] = unit[UNIT - BLOCK..].try_into().expect("the slice is one block");
                    self.cipher.decrypt(IvNumber(0), InOut::InPlace(unit));
                    add(unit, &iv);
                    iv = next;
                }
            }
        }
    }

    /// Encrypts the commit ids of a journal of `journal_len` bytes. CBC leaves them as they are.
    pub(crate) fn encrypt_ids(&self, ids: &mut [u64; 4], journal_len: u64) {
        if self.mode == Mode::Cbc {
            return;
        }
        let mut bytes = [0; 32];
        for (to, id) in bytes.chunks_exact_mut(8).zip(&*ids) {
            to.copy_from_slice(&id.to_le_bytes());
        }
        self.add_key_stream(journal_len.next_multiple_of(4096), &mut bytes);
        for (id, from) in ids.iter_mut().zip(bytes.as_chunks().0) {
            *id = u64::from_le_bytes(*from);
        }
    }

    /// XORs the key stream from byte `at`, a multiple of the cipher block.
    fn add_key_stream(&self, at: u64, data: &mut [u8]) {
        let mut stream = [0; 4096];
        let mut counter = u128::from(at / BLOCK as u64);
        for piece in data.chunks_mut(stream.len()) {
            for block in stream.as_chunks_mut::<BLOCK>().0 {
                *block = counter.to_be_bytes();
                counter += 1;
            }
            self.cipher.encrypt(IvNumber(0), InOut::InPlace(&mut stream));
            add(piece, &stream);
        }
        zeroize::Zeroize::zeroize(&mut stream);
    }

    fn section_iv(&self, section: u32) -> [u8; BLOCK] {
        let mut unit = [0; UNIT];
        unit[..4].copy_from_slice(&section.to_le_bytes());
        self.cipher.encrypt(IvNumber(0), InOut::InPlace(&mut unit));
        unit[..BLOCK].try_into().expect("the slice is one block")
    }
}

impl fmt::Debug for JournalCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mode == Mode::Ctr { "JournalCipher(ctr(aes))" } else { "JournalCipher(cbc(aes))" })
    }
}

/// XORs `with` to `data`, up to the end of the shorter one.
fn add(data: &mut [u8], with: &[u8]) {
    data.iter_mut().zip(with).for_each(|(byte, with)| *byte ^= with);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST SP 800-38A, key of F.2.1 and F.5.1.
    const KEY: [u8; 16] =
        [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];

    fn independent(spec: &str, data: &mut [u8], unit: u32) {
        let unit = DataUnitSize::new(unit).unwrap();
        let cipher = new_sector_cipher(&spec.parse().unwrap(), &KEY, unit, IvNumbering::Sectors).unwrap();
        cipher.encrypt(IvNumber(0), InOut::InPlace(data));
    }

    #[test]
    fn counter_mode_is_one_stream_over_the_journal() {
        let cipher = JournalCipher::new("ctr(aes)", &VolumeKey::new(&KEY)).unwrap();
        let mut whole = vec![0; 65536];
        independent("aes-ctr-null", &mut whole, 65536);
        for (at, len) in [(0, 65536), (512, 5120), (40960, 4096 + 512)] {
            let mut piece = vec![0; len];
            cipher.encrypt(3, at as u64, &mut piece);
            assert!(piece == whole[at..at + len], "{at}");
            cipher.decrypt(3, at as u64, &mut piece);
            assert!(piece.iter().all(|byte| *byte == 0));
        }
        let mut ids = [0; 4];
        cipher.encrypt_ids(&mut ids, 8192 - 512);
        assert_eq!(ids[1].to_le_bytes(), whole[8192 + 8..8192 + 16]);
    }

    #[test]
    fn cbc_is_one_chain_for_each_section() {
        let cipher = JournalCipher::new("cbc(aes)", &VolumeKey::new(&KEY)).unwrap();
        let plain: Vec<u8> = (0..4096u32).map(|byte| (byte * 7) as u8).collect();
        let mut number = [0; 512];
        number[0] = 5;
        independent("aes-ecb", &mut number, 512);
        let mut chain = plain.clone();
        add(&mut chain, &number[..16]);
        independent("aes-cbc-null", &mut chain, 4096);
        let mut image = plain.clone();
        cipher.encrypt(5, 999 * 512, &mut image);
        assert!(image == chain);
        cipher.decrypt(5, 0, &mut image);
        assert!(image == plain);
    }

    /// The key stream of a counter is the same for every write: with it the journal can be read.
    #[test]
    fn key_stream_is_not_left_on_the_stack() {
        use inlock_tests::memory_search::Inverted;
        use std::sync::mpsc::channel;
        // No other test has this stream.
        let key = KEY.map(|byte| byte ^ 0x77);
        let secret = || {
            let unit = DataUnitSize::new(4096).unwrap();
            let spec = "aes-ctr-null".parse().unwrap();
            let mut stream = vec![0; 4096];
            let cipher = new_sector_cipher(&spec, &key, unit, IvNumbering::Sectors).unwrap();
            cipher.encrypt(IvNumber(0), InOut::InPlace(&mut stream));
            let part = Inverted::new(stream[1024..1056].to_vec());
            zeroize::Zeroize::zeroize(&mut stream);
            inlock_cipher::scrub_stack::<{ 64 << 10 }>();
            part
        };
        let secret = secret();
        for is_left in [false, true] {
            let ((encrypted, at_rest), (leave, left)) = (channel(), channel::<()>());
            let thread = std::thread::spawn(move || {
                let mut image = vec![if is_left { 0 } else { 0x5a }; 4096];
                JournalCipher::new("ctr(aes)", &VolumeKey::new(&key)).unwrap().encrypt(0, 0, &mut image);
                encrypted.send(image).unwrap();
                left.recv().unwrap();
            });
            let image = at_rest.recv().unwrap();
            // The control: encrypted zeroes are the stream.
            assert_eq!(secret.is_in_own_memory().unwrap(), is_left);
            drop((image, leave.send(())));
            thread.join().unwrap();
        }
    }

    #[test]
    fn unknown_cipher_or_key_length_is_refused_by_name() {
        for (name, len) in [("xts(aes)", 32), ("", 16), ("ctr(aes)", 15), ("cbc(aes)", 64)] {
            let error = JournalCipher::new(name, &VolumeKey::zeroed(len)).unwrap_err().to_string();
            assert!(error.starts_with("option journal-crypt"), "{error}");
        }
    }
}
