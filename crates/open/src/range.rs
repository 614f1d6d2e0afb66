//! Byte ranges.

/// A byte range of a volume's plaintext, or of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes. `None`: to the end.
    pub len: Option<u64>,
}
