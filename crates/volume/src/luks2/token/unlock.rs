//! Unlocking with the passphrases of tokens.

use super::kind;
use crate::attempts::Attempts;
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::luks2::Luks2;
use crate::luks2::metadata::{KeyslotKind, Token};
use crate::secret::Secret;
use crate::unlock::{UnlockOptions, Unlocked};
use serde_json::Value;
use std::cmp::Reverse;

/// The tokens to try. The default tries all.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TokenOptions {
    /// The only token to try. It also opens keyslots of priority 0.
    pub number: Option<u32>,
    /// The only type of token to try.
    pub kind: Option<String>,
}

/// A source of the passphrases that tokens describe: a keyring, a security chip, a server.
///
/// The crate itself has none, since it does no I/O except on the header.
pub trait TokenHandler {
    /// Returns the passphrase of a token. It may block.
    ///
    /// # Errors
    ///
    /// Fails if there is no passphrase; other tokens are then tried.
    fn passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure>;
}

/// A token whose passphrase is needed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TokenRequest<'a> {
    /// Its number.
    pub number: u32,
    /// Its type. Of a known type the fields comply with its rules.
    pub kind: &'a str,
    /// The token's object as JSON text: from the header, thus not trusted.
    pub json: &'a str,
}

/// The reason why a token has no passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFailure {
    /// Its type is not supported.
    Unsupported,
    /// A PIN is needed, or the given one is wrong.
    PinRequired,
    /// A device or a server is not there.
    ResourceMissing,
    /// Its source does not have the passphrase.
    NoPassphrase,
    /// Its source failed.
    Failed,
}

/// No token unlocked the volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// No token is assigned to a keyslot that may be tried, or none of a type that is supported.
    #[error("no usable token is available")]
    NoUsableToken,
    /// The requested token violates the rules of its type.
    #[error("LUKS2 header: tokens/{number}: {reason}")]
    Invalid {
        /// Number of the token.
        number: u32,
        /// The violated rule.
        reason: &'static str,
    },
    /// A token needs a PIN, or the given one is wrong.
    #[error("a token requires a PIN")]
    PinRequired,
    /// A token needs a device or a server that is not there.
    #[error("a token requires an additional missing resource")]
    ResourceMissing,
    /// No passphrase of a token opens a keyslot that it is assigned to.
    #[error("no token can unlock its keyslots")]
    WrongPassphrase,
    /// The source of a token's passphrase failed.
    #[error("a token failed")]
    Failed,
    /// The volume or a keyslot cannot be unlocked by any passphrase.
    #[error(transparent)]
    Unlock(#[from] UnlockError),
}

impl Luks2 {
    /// Unlocks the volume with the passphrase of a token that `handler` gets, and returns the token's number.
    ///
    /// Tokens are tried in the order of their numbers, those assigned to a keyslot of priority 2 first, and only with
    /// keyslots that they are assigned to. A keyslot of priority 0 is tried only if it or the token is requested.
    ///
    /// ```
    /// use inlock_volume::luks2::{TokenFailure, TokenHandler, TokenOptions, TokenRequest};
    /// use inlock_volume::{Secret, UnlockOptions};
    ///
    /// struct Vault;
    ///
    /// impl TokenHandler for Vault {
    ///     fn passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
    ///         match token.kind {
    ///             "my-vault" => Ok(Secret::new(b"fetched by a field of token.json".to_vec())),
    ///             _ => Err(TokenFailure::Unsupported),
    ///         }
    ///     }
    /// }
    ///
    /// # fn unlock(luks2: &inlock_volume::luks2::Luks2, device: &dyn inlock_volume::HeaderDevice) {
    /// let options = UnlockOptions::default();
    /// match luks2.unlock_with_tokens(device, &mut Vault, &TokenOptions::default(), &options) {
    ///     Ok((token, unlocked)) => println!("token {token} opened keyslot {:?}", unlocked.keyslot),
    ///     Err(error) => println!("{error}; ask for a passphrase"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if no token unlocks the volume, with the reason that is the most useful one of all tokens; or as
    /// [`Volume::unlock`](crate::Volume::unlock) if no passphrase can.
    pub fn unlock_with_tokens(
        &self,
        device: &dyn HeaderDevice,
        handler: &mut dyn TokenHandler,
        tokens: &TokenOptions,
        options: &UnlockOptions,
    ) -> Result<(u32, Unlocked), TokenError> {
        let target = self.target(options)?;
        let mut attempts = Attempts::new(&options.limits);
        let mut open = |passphrase: &Secret, keyslots: &[u32]| {
            self.open_target(device, passphrase, keyslots, &target, &mut attempts)
        };
        match self.try_tokens(handler, tokens, (target.keyslots, options.keyslot), &mut open) {
            Ok((number, (keyslot, key))) => Ok((number, self.unlocked(key, Some(keyslot), target.payload))),
            Err(worst) => Err(of_keyslots(worst, attempts.into_error())),
        }
    }

    /// Tries tokens in their order, each with those of the `bound` keyslots that it is assigned to, or with `only` one,
    /// until `open` succeeds with the passphrase of one.
    pub(crate) fn try_tokens<T>(
        &self,
        handler: &mut dyn TokenHandler,
        tokens: &TokenOptions,
        (bound, only): (&[u32], Option<u32>),
        open: &mut dyn FnMut(&Secret, &[u32]) -> Option<T>,
    ) -> Result<(u32, T), TokenError> {
        let mut worst = TokenError::NoUsableToken;
        for (number, token, keyslots) in self.candidates(bound, tokens, only) {
            let object = &self.map["tokens"][number.to_string()];
            let request = TokenRequest { number, kind: &token.kind, json: &object.to_string() };
            let valid = object.as_object().ok_or("is not an object").and_then(kind::check);
            let passphrase = match valid {
                Err(reason) if tokens.number.is_some() => return Err(TokenError::Invalid { number, reason }),
                Err(_) => Err(TokenFailure::Unsupported),
                Ok(()) => handler.passphrase(&request),
            };
            let error = match passphrase {
                Ok(passphrase) => match open(&passphrase, &keyslots) {
                    Some(opened) => return Ok((number, opened)),
                    None => TokenError::WrongPassphrase,
                },
                Err(failure) => failure.into(),
            };
            if rank(&error) > rank(&worst) {
                worst = error;
            }
        }
        Err(worst)
    }

    /// Returns the tokens to try in their order, each with the keyslots to try with its passphrase.
    fn candidates(&self, bound: &[u32], tokens: &TokenOptions, keyslot: Option<u32>) -> Vec<(u32, &Token, Vec<u32>)> {
        let least = u8::from(tokens.number.is_none() && keyslot.is_none());
        let priority = |number: u32| {
            let slot = self.metadata.keyslots.get(&number).filter(|slot| matches!(slot.kind, KeyslotKind::Luks2(_)));
            let is_to_try = bound.contains(&number) && keyslot.is_none_or(|only| only == number);
            slot.filter(|slot| is_to_try && slot.priority >= least).map(|slot| slot.priority)
        };
        let mut found = Vec::new();
        for (&number, token) in &self.metadata.tokens {
            let is_requested = tokens.number.is_none_or(|only| only == number)
                && tokens.kind.as_ref().is_none_or(|only| *only == token.kind);
            let mut keyslots: Vec<_> =
                token.keyslots.iter().filter_map(|&slot| Some((priority(slot)?, slot))).collect();
            keyslots.sort_by_key(|&(priority, slot)| (Reverse(priority), slot));
            if let Some(&(priority, _)) = keyslots.first().filter(|_| is_requested) {
                found.push((priority, number, token, keyslots.into_iter().map(|(_, slot)| slot).collect()));
            }
        }
        found.sort_by_key(|&(priority, number, ..)| (Reverse(priority), number));
        found.into_iter().map(|(_, number, token, keyslots)| (number, token, keyslots)).collect()
    }

    /// Returns the passphrase of a token, also of one that is assigned to no keyslot.
    ///
    /// # Errors
    ///
    /// Fails if there is no such token, or if `handler` has no passphrase for it.
    pub fn token_passphrase(&self, number: u32, handler: &mut dyn TokenHandler) -> Result<Secret, TokenError> {
        let Some(token) = self.metadata.tokens.get(&number) else { return Err(TokenError::NoUsableToken) };
        self.check_token(number)?;
        let object = &self.map["tokens"][number.to_string()];
        let request = TokenRequest { number, kind: &token.kind, json: &object.to_string() };
        handler.passphrase(&request).map_err(TokenError::from)
    }

    /// Checks a token's object by the rules of its type.
    ///
    /// # Errors
    ///
    /// Fails if the object violates them. A token that does not exist or is of an unknown type violates none.
    pub fn check_token(&self, number: u32) -> Result<(), TokenError> {
        let object = self.map.get("tokens").and_then(|tokens| tokens.get(number.to_string()));
        match object.and_then(Value::as_object).map(kind::check) {
            Some(Err(reason)) => Err(TokenError::Invalid { number, reason }),
            _ => Ok(()),
        }
    }
}

impl From<TokenFailure> for TokenError {
    fn from(failure: TokenFailure) -> Self {
        match failure {
            TokenFailure::Unsupported => Self::NoUsableToken,
            TokenFailure::PinRequired => Self::PinRequired,
            TokenFailure::ResourceMissing => Self::ResourceMissing,
            TokenFailure::NoPassphrase => Self::WrongPassphrase,
            TokenFailure::Failed => Self::Failed,
        }
    }
}

/// Returns the error of tokens whose passphrases open no keyslot, for the reason in `error`.
pub(crate) fn of_keyslots(worst: TokenError, error: UnlockError) -> TokenError {
    match (worst, error) {
        (TokenError::WrongPassphrase, UnlockError::WrongPassphrase | UnlockError::NoUsableKeyslot) => {
            TokenError::WrongPassphrase
        }
        (TokenError::WrongPassphrase, error) => error.into(),
        (worst, _) => worst,
    }
}

/// Returns the order of errors: that of the token which the user can most likely make work is the highest.
fn rank(error: &TokenError) -> u8 {
    match error {
        TokenError::NoUsableToken => 0,
        TokenError::Failed => 1,
        TokenError::WrongPassphrase => 2,
        TokenError::ResourceMissing => 3,
        _ => 4,
    }
}
