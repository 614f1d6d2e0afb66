//! Digests that recognize sections of the journal.

use sha2::{Digest as _, Sha256};

/// A SHA-256.
pub type Digest = [u8; 32];

/// Bytes of a section that its digest covers: its first sector, with the first entry, its tag and the commit id. A
/// power cut leaves that sector old or new.
const SECTION_DIGEST_LEN: usize = 512;

/// Returns the SHA-256 of bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// Returns the digest of a sealed section.
pub(crate) fn section_digest(image: &[u8]) -> Digest {
    digest(&image[..SECTION_DIGEST_LEN])
}
