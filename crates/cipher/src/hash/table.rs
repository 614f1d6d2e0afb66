//! The table of hashes.

use super::{block_len_of, digest_of, pbkdf2_of};
use crate::sha256;
use crate::stopped::Stopped;
use digest::consts::{U16, U20, U28, U32, U48, U64};
use hmac::{Hmac, SimpleHmac};
use zeroize::Zeroizing;

/// Declares the hashes: `Variant: "name of cryptsetup", kernel name, [other names], length, library's type, HMAC`.
///
/// `SimpleHmac` serves those whose libraries process blocks lazily or have no blocks.
macro_rules! hashes {
    ($($(#[$doc:meta])* $hash:ident: $name:literal, $kernel:expr, $aliases:expr, $len:literal, $type:ty, $hmac:ident;)*) => {
        /// A hash.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Hash {
            $($(#[$doc])* $hash,)*
        }

        impl Hash {
            /// All hashes.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$hash),*];

            /// Returns the name in headers and on cryptsetup's command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$hash => $name,)* }
            }

            /// Returns the Linux kernel's name, if it has the hash or had it.
            pub fn kernel_name(self) -> Option<&'static str> {
                match self { $(Self::$hash => $kernel,)* }
            }

            /// Returns other names, which cryptsetup accepts too.
            pub(super) fn aliases(self) -> &'static [&'static str] {
                match self { $(Self::$hash => &$aliases,)* }
            }

            /// Returns the length of a digest in bytes.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(self) -> usize {
                match self { $(Self::$hash => $len,)* }
            }

            /// Returns the length of a block in bytes, which HMAC pads keys to.
            pub fn block_len(self) -> usize {
                match self { $(Self::$hash => block_len_of::<$type>(),)* }
            }

            /// Returns the digest of the concatenated `parts`: the first [`Hash::len`] bytes of the array.
            pub fn digest(self, parts: &[&[u8]]) -> Zeroizing<[u8; Self::MAX_LEN]> {
                match self { $(Self::$hash => digest_of::<$type>(parts),)* }
            }

            /// Computes PBKDF2 (RFC 8018) with HMAC over this hash; `iterations` is at least 1.
            pub fn pbkdf2(self, passphrase: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
                self.pbkdf2_until(&|| false, passphrase, salt, iterations, key).expect("it is not stopped");
            }

            /// As [`Hash::pbkdf2`]. Asks `is_stopped` every few milliseconds.
            ///
            /// # Errors
            ///
            /// Fails if it was stopped; `key` then has parts of a key.
            pub fn pbkdf2_until(
                self,
                is_stopped: &dyn Fn() -> bool,
                passphrase: &[u8],
                salt: &[u8],
                iterations: u32,
                key: &mut [u8],
            ) -> Result<(), Stopped> {
                if self == Self::Sha256
                    && let Some(done) = sha256::pbkdf2(passphrase, salt, iterations, key, is_stopped)
                {
                    return done;
                }
                match self {
                    $(Self::$hash => pbkdf2_of::<$hmac<$type>>(passphrase, salt, iterations, key, is_stopped),)*
                }
            }
        }
    };
}

hashes! {
    /// MD5 (RFC 1321). LUKS1 does not take it: its digest is too short.
    Md5: "md5", Some("md5"), ["ssl3-md5"], 16, md5::Md5, Hmac;
    /// SHA-1 (FIPS 180-4).
    Sha1: "sha1", Some("sha1"), ["sha-1", "ssl3-sha1"], 20, sha1::Sha1, Hmac;
    /// SHA-224 (FIPS 180-4).
    Sha224: "sha224", Some("sha224"), ["sha-224", "sha2-224"], 28, sha2::Sha224, Hmac;
    /// SHA-256 (FIPS 180-4).
    Sha256: "sha256", Some("sha256"), ["sha-256", "sha2-256"], 32, sha2::Sha256, Hmac;
    /// SHA-384 (FIPS 180-4).
    Sha384: "sha384", Some("sha384"), ["sha-384", "sha2-384"], 48, sha2::Sha384, Hmac;
    /// SHA-512 (FIPS 180-4).
    Sha512: "sha512", Some("sha512"), ["sha-512", "sha2-512"], 64, sha2::Sha512, Hmac;
    /// SHA-512/224 (FIPS 180-4).
    Sha512_224: "sha512-224", None, ["sha-512/224", "sha2-512/224", "sha512_224"], 28, sha2::Sha512_224, Hmac;
    /// SHA-512/256 (FIPS 180-4).
    Sha512_256: "sha512-256", None, ["sha-512/256", "sha2-512/256", "sha512_256"], 32, sha2::Sha512_256, Hmac;
    /// SHA3-224 (FIPS 202).
    Sha3_224: "sha3-224", Some("sha3-224"), [], 28, sha3::Sha3_224, SimpleHmac;
    /// SHA3-256 (FIPS 202).
    Sha3_256: "sha3-256", Some("sha3-256"), [], 32, sha3::Sha3_256, SimpleHmac;
    /// SHA3-384 (FIPS 202).
    Sha3_384: "sha3-384", Some("sha3-384"), [], 48, sha3::Sha3_384, SimpleHmac;
    /// SHA3-512 (FIPS 202).
    Sha3_512: "sha3-512", Some("sha3-512"), [], 64, sha3::Sha3_512, SimpleHmac;
    /// Keccak-224, as before SHA-3's padding.
    Keccak224: "keccak-224", None, [], 28, sha3::Keccak224, SimpleHmac;
    /// Keccak-256.
    Keccak256: "keccak-256", None, [], 32, sha3::Keccak256, SimpleHmac;
    /// Keccak-384.
    Keccak384: "keccak-384", None, [], 48, sha3::Keccak384, SimpleHmac;
    /// Keccak-512.
    Keccak512: "keccak-512", None, [], 64, sha3::Keccak512, SimpleHmac;
    /// RIPEMD-160.
    Ripemd160: "ripemd160", Some("rmd160"), ["ripemd-160", "ripemd"], 20, ripemd::Ripemd160, Hmac;
    /// Whirlpool (ISO/IEC 10118-3).
    Whirlpool: "whirlpool", Some("wp512"), [], 64, whirlpool::Whirlpool, Hmac;
    /// BLAKE2b with 20 bytes, unkeyed (RFC 7693).
    Blake2b160: "blake2b-160", Some("blake2b-160"), [], 20, blake2::Blake2b<U20>, SimpleHmac;
    /// BLAKE2b with 32 bytes.
    Blake2b256: "blake2b-256", Some("blake2b-256"), [], 32, blake2::Blake2b<U32>, SimpleHmac;
    /// BLAKE2b with 48 bytes.
    Blake2b384: "blake2b-384", Some("blake2b-384"), [], 48, blake2::Blake2b<U48>, SimpleHmac;
    /// BLAKE2b with 64 bytes.
    Blake2b512: "blake2b-512", Some("blake2b-512"), ["blake2b512"], 64, blake2::Blake2b<U64>, SimpleHmac;
    /// BLAKE2s with 16 bytes, unkeyed (RFC 7693).
    Blake2s128: "blake2s-128", Some("blake2s-128"), [], 16, blake2::Blake2s<U16>, SimpleHmac;
    /// BLAKE2s with 20 bytes.
    Blake2s160: "blake2s-160", Some("blake2s-160"), [], 20, blake2::Blake2s<U20>, SimpleHmac;
    /// BLAKE2s with 28 bytes.
    Blake2s224: "blake2s-224", Some("blake2s-224"), [], 28, blake2::Blake2s<U28>, SimpleHmac;
    /// BLAKE2s with 32 bytes.
    Blake2s256: "blake2s-256", Some("blake2s-256"), ["blake2s256"], 32, blake2::Blake2s<U32>, SimpleHmac;
    /// SM3 (GB/T 32905).
    Sm3: "sm3", Some("sm3"), [], 32, sm3::Sm3, Hmac;
    /// Streebog with 256 bits (RFC 6986).
    Streebog256: "stribog256", Some("streebog256"), [], 32, streebog::Streebog256, Hmac;
    /// Streebog with 512 bits.
    Streebog512: "stribog512", Some("streebog512"), [], 64, streebog::Streebog512, Hmac;
}
