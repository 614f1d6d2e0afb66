//! The superblock: its fields, and its place before the tree.

use crate::error::{InvalidField, VerityError, check};
use crate::layout::{HashType, Layout, MAX_SALT_LEN, Parameters};
use inlock_cipher::Hash;
use inlock_engine::BackingStore;
use inlock_engine::store::{read_all, write_all};

/// Length of a superblock in bytes.
pub const SUPERBLOCK_LEN: usize = 512;
const MAGIC: &[u8; 8] = b"verity\0\0";
const VERSION: u32 = 1;
const NAME_LEN: usize = 32;

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID as stored.
    pub uuid: [u8; 16],
    /// Name of the hash, in lower case.
    pub hash_name: String,
    /// Parameters of the tree.
    pub parameters: Parameters,
}

/// Returns the hash that the kernel or `veritysetup` has under this name.
pub fn hash_named(name: &str) -> Option<Hash> {
    Hash::from_kernel_name(name).or_else(|| name.parse().ok())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has this length")
}

impl Superblock {
    /// Reads the superblock at byte `offset` of a device and checks it, also against the lengths of the devices. Writes
    /// nothing, and allocates no more than the superblock has.
    ///
    /// # Errors
    ///
    /// Names the first field that is not possible.
    pub fn read(hash: &dyn BackingStore, offset: u64) -> Result<Self, VerityError> {
        check(offset.is_multiple_of(512), "hash_offset", offset, "it is no multiple of 512")?;
        let len = hash.geometry().len;
        let fits = offset.checked_add(SUPERBLOCK_LEN as u64).is_some_and(|end| end <= len);
        check(fits, "hash_offset", offset, "the device ends before the superblock does")?;
        let mut bytes = [0; SUPERBLOCK_LEN];
        read_all(hash, &mut bytes, offset).map_err(VerityError::io("read the superblock"))?;
        if !bytes.starts_with(MAGIC) {
            return Err(VerityError::NoSuperblock);
        }
        Ok(Self::decode(&bytes)?)
    }

    /// Writes the superblock at byte `offset` of a device.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub fn write(&self, hash: &dyn BackingStore, offset: u64) -> Result<(), VerityError> {
        write_all(hash, &self.encode(), offset).map_err(VerityError::io("write the superblock"))
    }

    /// Returns the byte at which the tree begins: the first block behind a superblock at byte `offset`.
    ///
    /// # Errors
    ///
    /// Refuses an offset that no file has.
    pub fn tree_offset(offset: u64, hash_block_len: u32) -> Result<u64, InvalidField> {
        let end = offset.checked_add(SUPERBLOCK_LEN as u64);
        let start = end.and_then(|end| end.checked_next_multiple_of(hash_block_len.into()));
        start.ok_or(InvalidField { field: "hash_offset", value: offset, reason: "no device is as long" })
    }

    /// Decodes a superblock and checks it.
    ///
    /// # Errors
    ///
    /// Names the first field that is not possible.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` are fewer than 512.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        let number = |at| u32::from_le_bytes(array(bytes, at));
        let magic = u64::from_le_bytes(array(bytes, 0));
        check(bytes.starts_with(MAGIC), "signature", magic, "this is no superblock")?;
        check(number(8) == VERSION, "version", number(8).into(), "only version 1 is known")?;
        let hash_type = HashType::from_number(number(12));
        let hash_type = hash_type.ok_or(InvalidField {
            field: "hash_type",
            value: number(12).into(),
            reason: "it is neither 0 nor 1",
        })?;
        let hash_name = decode_name(&bytes[32..32 + NAME_LEN])?;
        let hash = hash_named(&hash_name);
        let hash = hash.ok_or(InvalidField { field: "algorithm", value: 0, reason: "this hash is not supported" })?;
        let salt_len = u16::from_le_bytes(array(bytes, 80));
        check(usize::from(salt_len) <= MAX_SALT_LEN, "salt_size", salt_len.into(), "a salt has at most 256 bytes")?;
        let parameters = Parameters {
            hash_type,
            hash,
            data_block_len: number(64),
            hash_block_len: number(68),
            data_blocks: u64::from_le_bytes(array(bytes, 72)),
            salt: bytes[88..88 + usize::from(salt_len)].to_vec(),
        };
        parameters.layout()?;
        Ok(Self { uuid: array(bytes, 16), hash_name, parameters })
    }

    /// Returns the bytes of the superblock.
    ///
    /// # Panics
    ///
    /// Panics if the name of the hash or the salt is too long.
    pub fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        let parameters = &self.parameters;
        let salt_len = u16::try_from(parameters.salt.len()).expect("a salt has at most 256 bytes");
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        assert!(self.hash_name.len() < NAME_LEN, "names of hashes are short");
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &parameters.hash_type.number().to_le_bytes());
        put(16, &self.uuid);
        put(32, self.hash_name.as_bytes());
        put(64, &parameters.data_block_len.to_le_bytes());
        put(68, &parameters.hash_block_len.to_le_bytes());
        put(72, &parameters.data_blocks.to_le_bytes());
        put(80, &salt_len.to_le_bytes());
        put(88, &parameters.salt);
        bytes
    }

    /// Returns the places of the levels.
    ///
    /// # Errors
    ///
    /// Names the first parameter that is not possible.
    pub fn layout(&self) -> Result<Layout, InvalidField> {
        self.parameters.layout()
    }
}

fn decode_name(field: &[u8]) -> Result<String, InvalidField> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    check(len < field.len(), "algorithm", 0, "the name of the hash has no end")?;
    check(len > 0, "algorithm", 0, "there is no name of a hash")?;
    let good = field[..len].iter().all(|byte| byte.is_ascii_graphic());
    check(good, "algorithm", 0, "the name of the hash has other characters than letters, digits and signs")?;
    check(field[len..].iter().all(|byte| *byte == 0), "algorithm", 0, "there are bytes behind the name of the hash")?;
    Ok(field[..len].iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect())
}
