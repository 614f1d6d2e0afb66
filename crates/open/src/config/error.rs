//! Errors of the options of a volume: the option, and what is wrong with it.
//!
//! A program writes the names of options as its users do: with dashes on the command line, without them in a file.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

use inlock_cipher::{InvalidCipherSpec, InvalidDataUnitSize};

use crate::error::{Error, message_of};

/// An option of a volume that cannot be used.
#[derive(Debug)]
pub struct ConfigError {
    /// Name of the option.
    pub option: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with an option of a volume.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It is zero.
    Zero,
    /// It is above a maximum, or zero.
    Above(u64),
    /// It needs another option, perhaps with a value.
    Needs(&'static str),
    /// It needs another cipher.
    NeedsCipher(&'static str),
    /// It does not go with another option, or a type of volume.
    NotAllowed(With),
    /// The policy has a key of the same meaning.
    InPolicy(&'static str),
    /// It means the same as another option.
    OneOf(&'static str),
    /// It cannot be combined with another option; both may have values.
    Combined(&'static str, &'static str),
    /// A policy pins parts of a header.
    PolicyOfHeader(With),
    /// A policy is that of a dm-verity device.
    PolicyOfVerity,
    /// There is no such type of volume.
    UnknownType(String),
    /// There is no such hash.
    UnknownHash(String),
    /// There is no such cipher.
    UnknownCipher(String, InvalidCipherSpec),
    /// The cipher takes no key of this length.
    KeyLen {
        /// The cipher.
        cipher: String,
        /// Length in bits.
        bits: u32,
        /// Lengths in bytes that it takes.
        takes: Vec<usize>,
    },
    /// The length of a key is no multiple of 8 bits.
    KeyBits,
    /// There is no such data unit.
    SectorSize(InvalidDataUnitSize),
    /// A size is no multiple of a sector.
    PartOfSector,
    /// The volume has no sectors.
    NoSectors,
    /// An offset or a size is too large.
    TooLong,
    /// The directory of the helpers of tokens is a relative path.
    RelativePath(PathBuf),
    /// A file that it names, or its value, cannot be used.
    Open(Error),
}

/// What an option does not go with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum With {
    /// An option.
    Option(&'static str),
    /// A type of volume.
    Type(String),
}

impl With {
    fn text(&self, dashes: &str) -> String {
        match self {
            Self::Option(option) => format!("{dashes}{option}"),
            Self::Type(name) => format!("type {name}"),
        }
    }
}

impl Fault {
    /// Returns the error of this option.
    pub(super) fn of(self, option: &'static str) -> ConfigError {
        ConfigError { option, fault: self }
    }

    /// Returns what follows the name of the option in a sentence. `None`: it is a sentence of its own.
    fn predicate(&self, dashes: &str) -> Option<String> {
        Some(match self {
            Self::Zero => "needs a number above zero".to_owned(),
            Self::Above(most) => format!("takes 1 to {most}"),
            Self::Needs(other) => format!("needs {dashes}{other}"),
            Self::NeedsCipher(cipher) => format!("needs the cipher {cipher}"),
            Self::NotAllowed(with) => format!("is not allowed with {}", with.text(dashes)),
            Self::InPolicy(key) => format!("is not allowed with a policy that has {key}"),
            _ => return None,
        })
    }

    fn sentence(&self, dashes: &str, option: &str) -> String {
        match self {
            Self::OneOf(other) => format!("Only one of {dashes}{option} and {dashes}{other} is allowed."),
            Self::Combined(one, other) => format!("Options {dashes}{one} and {dashes}{other} cannot be combined."),
            Self::PolicyOfHeader(with) => {
                format!("A policy with uuid, header-digest or pbkdf is not allowed with {}.", with.text(dashes))
            }
            Self::PolicyOfVerity => "A policy with data-blocks is allowed with dm-verity devices only.".to_owned(),
            Self::UnknownType(name) => format!("Unrecognized metadata device type {name}."),
            Self::UnknownHash(name) => format!("Hash '{name}' is not available."),
            Self::UnknownCipher(text, _) => format!("No known cipher specification pattern detected in '{text}'."),
            Self::KeyLen { cipher, bits, takes } => {
                format!("Cipher {cipher} takes no key of {bits} bits; it takes {} bits.", in_bits(takes))
            }
            Self::KeyBits => "Key size must be a multiple of 8 bits.".to_owned(),
            Self::SectorSize(error) => format!("Unsupported encryption sector size: {error}."),
            Self::PartOfSector => "Device size must be multiple of 512 bytes sector.".to_owned(),
            Self::NoSectors => "The size of the volume is zero.".to_owned(),
            Self::TooLong => "The offset or the size exceeds 2^64 bytes.".to_owned(),
            Self::RelativePath(dir) => format!("Failed to set external tokens path {}.", dir.display()),
            Self::Open(error) => error.to_string(),
            predicate => {
                format!("Option {dashes}{option} {}.", predicate.predicate(dashes).unwrap_or_default())
            }
        }
    }
}

/// Lists lengths of keys, which are in bytes.
fn in_bits(lens: &[usize]) -> String {
    let takes: Vec<String> = lens.iter().map(|len| (len * 8).to_string()).collect();
    match takes.as_slice() {
        [one] => one.clone(),
        [few @ .., last] if few.len() < 6 => format!("{} or {last}", few.join(", ")),
        [first, .., last] => format!("{first} to {last}"),
        [] => "none".to_owned(),
    }
}

impl ConfigError {
    /// Returns a sentence. `dashes` precede the name of an option.
    pub fn sentence(&self, dashes: &str) -> String {
        self.fault.sentence(dashes, self.option)
    }

    /// Returns what is wrong, with causes, for a reader who knows the option.
    pub fn reason(&self) -> String {
        self.fault.predicate("").unwrap_or_else(|| message_of(self))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence(""))
    }
}

impl StdError for ConfigError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.fault {
            Fault::Open(error) => error.source(),
            Fault::UnknownCipher(_, error) => Some(error),
            _ => None,
        }
    }
}
