//! The options of passphrases and keys.

use std::path::PathBuf;
use std::time::Duration;

use inlock_volume::table::CryptOptions;

use super::{Fault, OpenConfig, Result, key_bytes};
use crate::keyring::KeyLink;
use crate::source::{KeyOptions, KeySource, TokenChoice, VolumeKeyOptions, VolumeKeyOrigin};
use crate::token::HELPERS;

/// Options that only a program with a user has: prompts, tokens, keyrings; and flags of dm-crypt that have no effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MoreOptions {
    /// Number of passphrases that are asked for.
    pub tries: Option<u32>,
    /// Seconds to type a passphrase. 0: no limit.
    pub timeout: Option<u64>,
    /// A passphrase is asked for twice.
    pub verify_passphrase: bool,
    /// A key of the kernel's keyring is the volume key.
    pub volume_key_keyring: Option<String>,
    /// The second volume key of a volume in re-encryption.
    pub second_volume_key: Option<VolumeKeyOrigin>,
    /// Keyrings that get the volume key.
    pub link_vk_to_keyring: Vec<String>,
    /// No keyring is used.
    pub disable_keyring: bool,
    /// Token to use.
    pub token_id: Option<u32>,
    /// Type of the tokens to use.
    pub token_type: Option<String>,
    /// Nothing is asked for if no token opens the volume.
    pub token_only: bool,
    /// No helper of a token is run.
    pub disable_external_tokens: bool,
    /// Directory of the helpers.
    pub external_tokens_path: Option<PathBuf>,
    /// Seconds that a helper has.
    pub token_timeout: Option<u32>,
    /// The flags replace those of the header.
    pub persistent: bool,
    /// Other plain volumes on the device may be open.
    pub shared: bool,
    /// Flags of dm-crypt's threads.
    pub thread_flags: CryptOptions,
}

/// Returns a key file with this name: `-` is the input of the program.
pub fn key_source(file: PathBuf) -> KeySource {
    if file.as_os_str() == "-" { KeySource::Input } else { KeySource::File(file) }
}

impl OpenConfig {
    /// Returns where the passphrase or key comes from.
    pub fn key(&self) -> Result<KeyOptions> {
        if self.key_file.is_none() && self.keyfile_offset.is_some() {
            return Err(Fault::Needs("key-file").of("keyfile-offset"));
        }
        let more = &self.more;
        if more.tries == Some(0) {
            return Err(Fault::Zero.of("tries"));
        }
        if self.keyfile_size == Some(0) {
            return Err(Fault::Zero.of("keyfile-size"));
        }
        Ok(KeyOptions {
            source: self.key_file.clone().map_or(KeySource::Ask, key_source),
            offset: self.keyfile_offset.unwrap_or(0),
            size: self.keyfile_size,
            slot: self.key_slot,
            tries: more.tries.unwrap_or(3),
            timeout: more.timeout.filter(|secs| *secs > 0).map(Duration::from_secs),
            verify: more.verify_passphrase,
            volume_key: self.volume_key()?,
            second_volume_key: more.second_volume_key.clone(),
            tokens: self.tokens()?,
        })
    }

    fn tokens(&self) -> Result<TokenChoice> {
        let more = &self.more;
        let dir = more.external_tokens_path.clone();
        if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_absolute()) {
            return Err(Fault::RelativePath(dir.clone()).of("external-tokens-path"));
        }
        let dir = dir.unwrap_or_else(|| PathBuf::from(HELPERS));
        Ok(TokenChoice {
            number: more.token_id,
            kind: more.token_type.clone(),
            only: more.token_only,
            helpers: (!more.disable_external_tokens).then_some(dir),
            timeout: Duration::from_secs(more.token_timeout.unwrap_or(30).into()),
        })
    }

    fn volume_key(&self) -> Result<Option<VolumeKeyOptions>> {
        let origin = match (&self.volume_key_file, &self.more.volume_key_keyring) {
            (None, None) => return Ok(None),
            (Some(path), None) => VolumeKeyOrigin::File(path.clone()),
            (None, Some(key)) => VolumeKeyOrigin::Keyring(key.clone()),
            (Some(_), Some(_)) => return Err(Fault::OneOf("volume-key-keyring").of("volume-key-file")),
        };
        Ok(Some(VolumeKeyOptions { origin, len: self.key_size.map(key_bytes).transpose()? }))
    }

    /// Returns the keyrings that get the volume key.
    pub fn links(&self) -> Result<Vec<KeyLink>> {
        const OPTION: &str = "link-vk-to-keyring";
        let links = &self.more.link_vk_to_keyring;
        if self.more.disable_keyring && !links.is_empty() {
            return Err(Fault::NotAllowed(super::With::Option("disable-keyring")).of(OPTION));
        }
        links.iter().map(|text| KeyLink::parse(text).map_err(|error| Fault::Open(error).of(OPTION))).collect()
    }
}
