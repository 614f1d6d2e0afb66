//! Parameters of a hash tree, and the places of its levels.

use crate::error::{InvalidField, VerityError, check};
use inlock_cipher::Hash;

/// Longest salt in bytes.
pub const MAX_SALT_LEN: usize = 256;
/// Longest block in bytes.
const MAX_BLOCK_LEN: u32 = 512 << 10;
const MIN_BLOCK_LEN: u32 = 512;
/// Lengths and positions stay below this, as offsets of files do.
pub(crate) const MAX_POSITION: u64 = i64::MAX as u64;

/// Type of a hash tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashType {
    /// Type 0, of Chrome OS: the salt is hashed after the block, and digests follow each other.
    ChromeOs,
    /// Type 1: the salt is hashed first, and digests are padded to a power of two.
    #[default]
    Normal,
}

impl HashType {
    /// Returns the number in superblocks and tables.
    pub const fn number(self) -> u32 {
        match self {
            Self::ChromeOs => 0,
            Self::Normal => 1,
        }
    }

    /// Returns the type of a number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::ChromeOs),
            1 => Some(Self::Normal),
            _ => None,
        }
    }
}

/// Parameters of a hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Type.
    pub hash_type: HashType,
    /// Hash.
    pub hash: Hash,
    /// Length of a block of data in bytes.
    pub data_block_len: u32,
    /// Length of a block of the tree in bytes.
    pub hash_block_len: u32,
    /// Number of blocks of data.
    pub data_blocks: u64,
    /// Salt of up to [`MAX_SALT_LEN`] bytes.
    pub salt: Vec<u8>,
}

impl Default for Parameters {
    /// Describes a tree with the defaults of `veritysetup`, without salt, of no data.
    fn default() -> Self {
        Self {
            hash_type: HashType::Normal,
            hash: Hash::Sha256,
            data_block_len: 4096,
            hash_block_len: 4096,
            data_blocks: 0,
            salt: Vec::new(),
        }
    }
}

impl Parameters {
    /// Checks all parameters and returns the places of the levels. Allocates no more than a few bytes for each level.
    ///
    /// # Errors
    ///
    /// Names the first parameter that is not possible.
    pub fn layout(&self) -> Result<Layout, InvalidField> {
        check_block_len("data_block_size", self.data_block_len)?;
        check_block_len("hash_block_size", self.hash_block_len)?;
        check(self.salt.len() <= MAX_SALT_LEN, "salt_size", self.salt.len() as u64, "a salt has at most 256 bytes")?;
        check(self.data_blocks > 0, "data_blocks", 0, "there are no data")?;
        let data_len = self.data_blocks.checked_mul(self.data_block_len.into()).filter(|len| *len <= MAX_POSITION);
        check(data_len.is_some(), "data_blocks", self.data_blocks, "the data are longer than a file can be")?;
        let per_block_bits = (self.hash_block_len as usize / self.hash.len()).ilog2();
        let reason = "a block of the tree has room for at least two digests";
        check(per_block_bits > 0, "hash_block_size", self.hash_block_len.into(), reason)?;
        // The topmost level is the first that has one block.
        let mut blocks = Vec::new();
        let mut below = self.data_blocks;
        while below > 1 {
            below = below.div_ceil(1 << per_block_bits);
            blocks.push(below);
        }
        let mut start_block = 0;
        let mut levels: Vec<Level> = Vec::with_capacity(blocks.len());
        for &blocks in blocks.iter().rev() {
            levels.push(Level { start_block, blocks });
            start_block += blocks;
        }
        levels.reverse();
        let tree_len = start_block.checked_mul(self.hash_block_len.into()).filter(|len| *len <= MAX_POSITION);
        check(tree_len.is_some(), "data_blocks", self.data_blocks, "the tree is longer than a file can be")?;
        let digest_stride = match self.hash_type {
            HashType::ChromeOs => self.hash.len(),
            HashType::Normal => self.hash.len().next_power_of_two(),
        };
        Ok(Layout { parameters: self.clone(), levels, per_block_bits, digest_stride })
    }
}

/// Returns a salt of 32 random bytes.
///
/// # Errors
///
/// Fails if the system returns none.
pub fn random_salt() -> Result<Vec<u8>, VerityError> {
    let mut salt = vec![0; 32];
    getrandom::fill(&mut salt).map_err(VerityError::Random)?;
    Ok(salt)
}

/// Checks a length of blocks.
fn check_block_len(field: &'static str, len: u32) -> Result<(), InvalidField> {
    let good = len.is_power_of_two() && (MIN_BLOCK_LEN..=MAX_BLOCK_LEN).contains(&len);
    check(good, field, len.into(), "it is no power of two from 512 to 524288")
}

/// A level of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// First block, counted from the first of the tree.
    pub start_block: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Checked parameters, and the places of the levels.
#[derive(Clone, Debug)]
pub struct Layout {
    parameters: Parameters,
    levels: Vec<Level>,
    per_block_bits: u32,
    digest_stride: usize,
}

impl Layout {
    /// Returns the parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the levels, from the one with the digests of the data up to the one with a single block. They are
    /// stored in the opposite order. Data of one block have no tree: the root hash is the digest of that block.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Returns the length of the data in bytes.
    pub fn data_len(&self) -> u64 {
        self.parameters.data_blocks * u64::from(self.parameters.data_block_len)
    }

    /// Returns the number of blocks of the tree.
    pub fn tree_blocks(&self) -> u64 {
        self.levels.iter().map(|level| level.blocks).sum()
    }

    /// Returns the length of the tree in bytes.
    pub fn tree_len(&self) -> u64 {
        self.tree_blocks() * u64::from(self.parameters.hash_block_len)
    }

    /// Returns the logarithm of the number of digests in a block.
    pub(crate) fn per_block_bits(&self) -> u32 {
        self.per_block_bits
    }

    /// Returns the number of digests in a block.
    pub(crate) fn per_block(&self) -> u64 {
        1 << self.per_block_bits
    }

    /// Returns the distance of two digests in a block.
    pub(crate) fn stride(&self) -> usize {
        self.digest_stride
    }

    pub(crate) fn data_block_len(&self) -> usize {
        self.parameters.data_block_len as usize
    }

    pub(crate) fn hash_block_len(&self) -> usize {
        self.parameters.hash_block_len as usize
    }
}
