//! Digests of files as fs-verity of Linux computes them.
//!
//! The tree has the same shape as that of a device; its root and the length of the file are in a descriptor, whose hash
//! is the digest of the file. Memory is bounded: each level keeps the block that is being filled.

use crate::error::{InvalidField, VerityError, check};
use crate::hasher::Hasher;
use crate::layout::{HashType, Parameters};
use inlock_cipher::Hash;
use std::io::{self, Read};

/// Bytes that are read and hashed at a time.
const PIECE_LEN: usize = 512 << 10;
/// Length of a descriptor in bytes.
const DESCRIPTOR_LEN: usize = 256;
/// Longest salt in bytes.
const MAX_SALT_LEN: usize = 32;
const MAX_BLOCK_LEN: u32 = 512 << 10;

/// Parameters of a file's digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileParameters {
    /// SHA-256 or SHA-512.
    pub hash: Hash,
    /// Length of a block of the file and of the tree in bytes.
    pub block_len: u32,
    /// Salt of up to 32 bytes.
    pub salt: Vec<u8>,
}

impl Default for FileParameters {
    /// Describes SHA-256 of blocks of 4096 bytes without salt.
    fn default() -> Self {
        Self { hash: Hash::Sha256, block_len: 4096, salt: Vec::new() }
    }
}

/// The digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// Hash of the topmost block of the tree.
    pub root: Vec<u8>,
    /// Descriptor with root and length of the file.
    pub descriptor: [u8; DESCRIPTOR_LEN],
    /// Hash of the descriptor.
    pub digest: Vec<u8>,
}

impl FileParameters {
    /// Returns the number of the hash in descriptors.
    fn hash_number(&self) -> Result<u8, InvalidField> {
        match self.hash {
            Hash::Sha256 => Ok(1),
            Hash::Sha512 => Ok(2),
            _ => Err(InvalidField { field: "hash_algorithm", value: 0, reason: "it is neither sha256 nor sha512" }),
        }
    }

    fn hasher(&self) -> Result<Hasher, VerityError> {
        self.hash_number()?;
        let len = self.block_len;
        let good = len.is_power_of_two() && (512..=MAX_BLOCK_LEN).contains(&len);
        check(good, "log_blocksize", len.into(), "a block has a power of two from 512 to 524288 bytes")?;
        check(self.salt.len() <= MAX_SALT_LEN, "salt_size", self.salt.len() as u64, "a salt has at most 32 bytes")?;
        // The salt fills a block of the hash, so that its state can be kept.
        let mut salt = self.salt.clone();
        if !salt.is_empty() {
            salt.resize(self.hash.block_len(), 0);
        }
        let parameters = Parameters { hash_type: HashType::Normal, hash: self.hash, salt, ..Parameters::default() };
        Ok(Hasher::new(&parameters)?)
    }

    fn descriptor(&self, root: &[u8], len: u64) -> Result<[u8; DESCRIPTOR_LEN], InvalidField> {
        let mut descriptor = [0; DESCRIPTOR_LEN];
        descriptor[..4].copy_from_slice(&[1, self.hash_number()?, self.block_len.ilog2() as u8, self.salt.len() as u8]);
        descriptor[8..16].copy_from_slice(&len.to_le_bytes());
        descriptor[16..16 + root.len()].copy_from_slice(root);
        descriptor[80..80 + self.salt.len()].copy_from_slice(&self.salt);
        Ok(descriptor)
    }
}

/// A level of a tree that is being made.
struct Filling {
    block: Vec<u8>,
    used: usize,
}

/// Computes the digest of everything that `file` has.
///
/// # Errors
///
/// Names a parameter that is not possible; otherwise the errors of the file.
pub fn digest_file(file: &mut dyn Read, parameters: &FileParameters) -> Result<FileDigest, FileError> {
    let hasher = parameters.hasher()?;
    let block_len = parameters.block_len as usize;
    let digest_len = hasher.len();
    let mut piece = vec![0; PIECE_LEN];
    let mut digests = vec![0; PIECE_LEN / block_len * digest_len];
    let mut levels: Vec<Filling> = Vec::new();
    let (mut len, mut first) = (0u64, None);
    loop {
        let count = read_full(file, &mut piece)?;
        if count == 0 {
            break;
        }
        len += count as u64;
        let padded = count.next_multiple_of(block_len);
        piece[count..padded].fill(0);
        let digests = &mut digests[..padded / block_len * digest_len];
        hasher.digest_blocks(&piece[..padded], block_len, digest_len, digests);
        first.get_or_insert_with(|| digests[..digest_len].to_vec());
        for digest in digests.chunks_exact(digest_len) {
            push(&mut levels, 0, digest, &hasher, block_len);
        }
    }
    let root = match first {
        // An empty file has a root of zeroes.
        None => vec![0; digest_len],
        Some(first) if len <= block_len as u64 => first,
        Some(_) => finish(&mut levels, &hasher),
    };
    let descriptor = parameters.descriptor(&root, len)?;
    let digest = parameters.hash.digest(&[&descriptor])[..digest_len].to_vec();
    Ok(FileDigest { root, descriptor, digest })
}

/// Adds a digest to a level. A full block is hashed into the level above when the next digest comes: the last block of
/// a level alone may be the top.
fn push(levels: &mut Vec<Filling>, level: usize, digest: &[u8], hasher: &Hasher, block_len: usize) {
    if levels.len() == level {
        levels.push(Filling { block: vec![0; block_len], used: 0 });
    }
    if levels[level].used == block_len {
        let above = hasher.digest(&levels[level].block);
        levels[level].block.fill(0);
        levels[level].used = 0;
        push(levels, level + 1, &above, hasher, block_len);
    }
    let filling = &mut levels[level];
    filling.block[filling.used..][..digest.len()].copy_from_slice(digest);
    filling.used += digest.len();
}

/// Hashes the last blocks of all levels, and returns the root.
fn finish(levels: &mut Vec<Filling>, hasher: &Hasher) -> Vec<u8> {
    let mut level = 0;
    loop {
        let block = std::mem::take(&mut levels[level].block);
        let digest = hasher.digest(&block);
        if level + 1 == levels.len() {
            return digest;
        }
        push(levels, level + 1, &digest, hasher, block.len());
        level += 1;
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A digest cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A parameter is impossible.
    #[error(transparent)]
    Parameters(#[from] VerityError),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<InvalidField> for FileError {
    fn from(field: InvalidField) -> Self {
        Self::Parameters(field.into())
    }
}
