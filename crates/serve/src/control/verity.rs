//! State and counters of a running dm-verity device.

use std::fmt;

use inlock_verity::VerityStore;
use serde::{Deserialize, Serialize};

/// State of a dm-verity device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerityStatus {
    /// Type of the hash tree: 0 or 1.
    pub hash_type: u32,
    /// Hash of the tree.
    pub hash: String,
    /// Length of a data block in bytes.
    pub data_block_size: u32,
    /// Length of a block of the tree in bytes.
    pub hash_block_size: u32,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// In hexadecimal digits.
    pub salt: String,
    /// Blocks of data that were compared with their digests.
    pub verified_blocks: u64,
    /// Blocks of the tree that were read and verified.
    pub verified_hash_blocks: u64,
    /// Bad blocks, as often as they were read.
    pub corrupted: u64,
    /// Blocks that were rebuilt from the parity, as often as they were read.
    #[serde(default)]
    pub repaired: u64,
    /// Bytes of parity in a code word; none without error correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fec_roots: Option<u32>,
    /// Bad blocks are read as they are.
    #[serde(default)]
    pub ignore_corruption: bool,
    /// Blocks whose digest is that of zeroes are not read.
    #[serde(default)]
    pub ignore_zero_blocks: bool,
}

impl VerityStatus {
    pub(crate) fn of(store: &VerityStore) -> Self {
        let (parameters, counters) = (store.layout().parameters(), store.snapshot());
        Self {
            hash_type: parameters.hash_type.number(),
            hash: parameters.hash.name().to_owned(),
            data_block_size: parameters.data_block_len,
            hash_block_size: parameters.hash_block_len,
            data_blocks: parameters.data_blocks,
            salt: parameters.salt.iter().map(|byte| format!("{byte:02x}")).collect(),
            verified_blocks: counters.data_blocks,
            verified_hash_blocks: counters.hash_blocks,
            corrupted: counters.corrupted,
            repaired: counters.repaired,
            fec_roots: store.fec().map(|fec| fec.parameters().roots),
            ignore_corruption: store.options().ignore_corruption,
            ignore_zero_blocks: store.options().ignore_zero_blocks,
        }
    }

    /// Returns the words of its table for what happens on a fault.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = [(self.ignore_corruption, "ignore_corruption"), (self.ignore_zero_blocks, "ignore_zero_blocks")];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word)
    }

    /// Writes the lines that veritysetup has.
    pub fn write_parameters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  status:      {}", if self.corrupted > 0 { "corrupted" } else { "verified" })?;
        writeln!(f, "  hash type:   {}", self.hash_type)?;
        writeln!(f, "  data block:  {}", self.data_block_size)?;
        writeln!(f, "  hash block:  {}", self.hash_block_size)?;
        writeln!(f, "  hash name:   {}", self.hash)?;
        writeln!(f, "  salt:        {}", if self.salt.is_empty() { "-" } else { &self.salt })
    }

    /// Writes the counters.
    pub fn write_counters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  verified: {} data blocks, {} hash blocks; {} corrupted",
            self.verified_blocks, self.verified_hash_blocks, self.corrupted
        )?;
        if self.fec_roots.is_some() { writeln!(f, ", {} rebuilt", self.repaired) } else { writeln!(f) }
    }
}
