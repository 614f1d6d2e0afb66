//! Encryption of disk sectors: every cipher specification of dm-crypt without integrity, with fast kernels for AES,
//! Serpent and Adiantum.
//!
//! [`new_sector_cipher`] makes a [`SectorCipher`] from a [`CipherSpec`] such as `aes-xts-plain64`, a key, and the size
//! of a data unit. One call encrypts or decrypts any number of whole data units, in place or from one buffer into
//! another ([`InOut`]). Keys and schedules are in locked memory that is wiped when it is dropped ([`VolumeKey`]). The
//! crate does no I/O. [`Segment`] describes where the data of a volume is and how it is encrypted; `inlock-volume`
//! makes segments and `inlock-engine` uses them. [`HashBatch`] hashes several messages at a time.
//!
//! ```
//! use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, VolumeKey, new_sector_cipher};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec: CipherSpec = "aes-xts-plain64".parse()?;
//! let key = VolumeKey::new(&[7; 64]);
//! let cipher = new_sector_cipher(&spec, key.as_bytes(), DataUnitSize::SECTOR, IvNumbering::Sectors)?;
//!
//! let mut data = [0; 4096]; // eight data units of 512 bytes
//! let first = IvNumber(2048); // the sector at which they are stored
//! cipher.encrypt(first, InOut::InPlace(&mut data));
//! assert_ne!(data, [0; 4096]);
//! cipher.decrypt(first, InOut::InPlace(&mut data));
//! assert_eq!(data, [0; 4096]);
//! # Ok(())
//! # }
//! ```
//!
//! The kernel is chosen for the CPU: portable, AES-NI, or VAES with vectors of 256 or 512 bits ([`AesKernel`]); for
//! Serpent and Adiantum AVX2 or AVX-512. The environment variable `INLOCK_CPU` limits the choice. These kernels take
//! the same time for every key and all data. Data may be in several pieces ([`ScatterList`]).

#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod aead;
mod aes;
mod argon2;
mod blake2b;
mod block_cipher;
mod diffusion;
mod error;
mod hash;
mod hash_batch;
#[cfg(any(not(unix), test))]
#[cfg_attr(unix, allow(unreachable_pub, reason = "tests alone use it here"))]
#[allow(unsafe_code)] // Bytes of lines of the heap.
mod heap;
mod in_out;
mod isa;
mod iv;
mod key;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector loads and stores, and calls of functions that enable instructions.
mod lanes;
#[cfg(unix)]
#[allow(unsafe_code)] // Maps, locks and wipes pages of its own.
mod locked;
#[allow(unsafe_code)] // A value in memory that is not Rust's own.
mod locked_box;
mod messages;
mod modes;
mod scatter;
#[cfg(unix)]
#[allow(unsafe_code)] // Maps, advises and unmaps pages of its own.
mod scratch;
mod scrub;
mod sector_cipher;
mod segment;
mod sha256;
mod sha512;
mod spec;
mod stopped;
#[cfg(test)]
mod testing;
mod unit;

#[cfg(not(unix))]
use heap as locked;
#[cfg(not(unix))]
use heap as scratch;

pub use aead::{Aead, BadUnits};
pub use aes::{AesKernel, Limit};
pub use argon2::{Argon2, Argon2Variant};
pub use diffusion::Diffusion;
pub use error::{AeadError, CipherError};
pub use hash::{Hash, UnknownHash};
pub use hash_batch::HashBatch;
pub use in_out::InOut;
pub use isa::{AesNi, Avx2, Avx512, CPU_LIMIT_VARIABLE, CpuLimit, Sha, Vaes256, Vaes512};
pub use iv::UnitIvs;
pub use key::VolumeKey;
pub use locked::memory_lock_failed;
pub use messages::HashKernel;
pub use scatter::ScatterList;
pub use scratch::ScratchMemory;
pub use scrub::scrub_stack;
pub use sector_cipher::{SectorCipher, new_sector_cipher, new_sector_cipher_on};
pub use segment::{Segment, TargetType};
pub use spec::{
    AeadAlgorithm, AeadIv, AeadSpec, ChainMode, Cipher, CipherSpec, InvalidCipherSpec, IvMode, KeyCount, KeyParts,
    known_aead_specs, known_specs,
};
pub use stopped::Stopped;
pub use unit::{DataUnitSize, InvalidDataUnitSize, IvNumber, IvNumbering, SECTOR_SIZE, Sector};
