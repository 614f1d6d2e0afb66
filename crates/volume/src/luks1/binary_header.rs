//! The LUKS1 header's bytes (specification, figures 1 and 2). All numbers are big-endian.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 592;
/// Number of keyslots.
pub(crate) const KEYSLOTS: usize = 8;
/// [`RawKeyslot::active`] of a keyslot that holds a key.
pub(crate) const KEYSLOT_ENABLED: u32 = 0x00ac_71f3;
/// [`RawKeyslot::active`] of a keyslot that holds none.
pub(crate) const KEYSLOT_DISABLED: u32 = 0x0000_dead;

/// The header as stored.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    /// `LUKS\xba\xbe`
    pub magic: [u8; 6],
    /// 1.
    pub version: U16,
    /// Such as `aes`.
    pub cipher_name: [u8; 32],
    /// Such as `xts-plain64`.
    pub cipher_mode: [u8; 32],
    /// Such as `sha256`: of PBKDF2, the digest and the anti-forensic splitter.
    pub hash_spec: [u8; 32],
    /// Start of the payload, in sectors.
    pub payload_offset: U32,
    /// Length of the volume key in bytes.
    pub key_bytes: U32,
    /// PBKDF2 of the volume key.
    pub digest: [u8; 20],
    /// Its salt.
    pub digest_salt: [u8; 32],
    /// Its iterations.
    pub digest_iterations: U32,
    /// The UUID as text.
    pub uuid: [u8; 40],
    /// The keyslots.
    pub keyslots: [RawKeyslot; KEYSLOTS],
}

/// A keyslot as stored.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawKeyslot {
    /// [`KEYSLOT_ENABLED`] or [`KEYSLOT_DISABLED`].
    pub active: U32,
    /// PBKDF2 iterations.
    pub iterations: U32,
    /// PBKDF2 salt.
    pub salt: [u8; 32],
    /// Start of the key material, in sectors.
    pub offset: U32,
    /// Anti-forensic stripes.
    pub stripes: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN && size_of::<RawKeyslot>() == 48);
