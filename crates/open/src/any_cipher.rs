//! Names of ciphers, with and without integrity protection.

use crate::error::Result;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use inlock_cipher::{AeadSpec, CipherSpec, InvalidCipherSpec};

/// A cipher, authenticated or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyCipher {
    /// A cipher without integrity protection.
    Plain(CipherSpec),
    /// A cipher with integrity protection.
    Authenticated(AeadSpec),
}

impl AnyCipher {
    /// Returns the ciphers of each kind.
    pub fn divide(all: &[Self]) -> (Vec<CipherSpec>, Vec<AeadSpec>) {
        let (mut plain, mut authenticated) = (Vec::new(), Vec::new());
        for cipher in all {
            match *cipher {
                Self::Plain(spec) => plain.push(spec),
                Self::Authenticated(spec) => authenticated.push(spec),
            }
        }
        (plain, authenticated)
    }
}

impl FromStr for AnyCipher {
    type Err = InvalidCipherSpec;

    fn from_str(text: &str) -> Result<Self, InvalidCipherSpec> {
        // `+` is in no other notation: `aes-gcm-random+aead`, `aes-xts-plain64+hmac-sha256`.
        if let Some((cipher, integrity)) = text.rsplit_once('+') {
            return AeadSpec::from_luks2(cipher, &integrity_in_header(integrity)).map(Self::Authenticated);
        }
        let plain = text.parse().map(Self::Plain);
        plain.or_else(|error| text.parse().map(Self::Authenticated).map_err(|_| error))
    }
}

impl fmt::Display for AnyCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(spec) => spec.fmt(f),
            Self::Authenticated(spec) => spec.fmt(f),
        }
    }
}

/// Returns the name that LUKS2 has for a value of `--integrity`: `hmac(sha256)` for `hmac-sha256`.
pub fn integrity_in_header(name: &str) -> Cow<'_, str> {
    match name.strip_prefix("hmac-") {
        Some(hash) => format!("hmac({hash})").into(),
        None => name.into(),
    }
}
