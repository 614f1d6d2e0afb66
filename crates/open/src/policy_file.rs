//! Policy files (`--policy`): a [`HeaderPolicy`] as TOML, read, and written for the header of a volume.
//!
//! docs/guide/volumes.md describes the keys. An unknown key, or a value of a wrong kind, is an error with its line.

use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_open};
use crate::host::{Host, Level};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use inlock_cipher::DataUnitSize;
use inlock_volume::{Hash, HeaderDigest, HeaderPolicy, KdfKind, KdfRule};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::any_cipher::AnyCipher;
use crate::trusted::{self, Groups, Untrusted};

/// Maximum length of a file in bytes.
const MAX_LEN: u64 = 1 << 20;

/// The keys of a policy file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct PolicyFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    header_digest: Option<Word<HeaderDigest>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cipher: Option<List<Word<AnyCipher>>>,
    /// In bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_size: Option<List<KeySize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sector_size: Option<List<SectorSize>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_null_cipher: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_null_iv: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_linear_segment: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_integrity_superblock: bool,
    /// Of a dm-verity device.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pbkdf: Option<Pbkdf>,
}

/// The allowed key derivations; without this table all are.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Pbkdf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pbkdf2: Option<Pbkdf2>,
    #[serde(skip_serializing_if = "Option::is_none")]
    argon2i: Option<Argon2>,
    #[serde(skip_serializing_if = "Option::is_none")]
    argon2id: Option<Argon2>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Pbkdf2 {
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<List<Word<Hash>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Argon2 {
    #[serde(skip_serializing_if = "Option::is_none")]
    min_iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
    /// In KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_memory: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_memory: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_parallel: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_parallel: Option<u32>,
}

/// A value that is parsed from a string.
#[derive(Clone, Copy)]
struct Word<T>(T);

impl<T: Display> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|error| de::Error::custom(format!("'{text}': {error}")))
    }
}

/// A list with at least one item: an empty one would allow nothing.
#[derive(Clone, Serialize)]
struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items = Vec::deserialize(deserializer)?;
        if items.is_empty() { Err(de::Error::custom("an empty list allows nothing")) } else { Ok(Self(items)) }
    }
}

/// The length of a key in bytes, written in bits.
#[derive(Clone, Copy)]
struct KeySize(usize);

impl Serialize for KeySize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0 as u64 * 8)
    }
}

impl<'de> Deserialize<'de> for KeySize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            bits if bits % 8 == 0 => Ok(Self(bits as usize / 8)),
            bits => Err(de::Error::custom(format!("{bits} bits are no multiple of 8"))),
        }
    }
}

#[derive(Clone, Copy)]
struct SectorSize(DataUnitSize);

impl Serialize for SectorSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.bytes() as u64)
    }
}

impl<'de> Deserialize<'de> for SectorSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DataUnitSize::new(u32::deserialize(deserializer)?).map(Self).map_err(de::Error::custom)
    }
}

/// Reads the policy in a file.
pub fn read(host: &dyn Host, path: &Path) -> Result<HeaderPolicy> {
    let mut text = String::new();
    let file = File::open(path).map_err(cannot_open(path, false))?;
    if let Err(reason @ (Untrusted::OtherOwner { .. } | Untrusted::Writable { .. })) =
        trusted::check(path, Groups::Private)
    {
        host.tell(Level::Warning, &format_args!("policy {} protects little, because {reason}", path.display()));
    }
    let cannot_read = || format!("cannot read policy {}", path.display());
    file.take(MAX_LEN + 1).read_to_string(&mut text).with_context(cannot_read)?;
    if text.len() as u64 > MAX_LEN {
        let message = format!("Policy {} has more than {MAX_LEN} bytes.", path.display());
        return Err(Error::new(ErrorKind::PolicyTooLong, message));
    }
    parse(&text).map_err(|error| Error::new(ErrorKind::PolicyFile, format!("Policy {}, {error}.", path.display())))
}

/// Parses a policy. An error is the number of a line, and what is wrong there.
fn parse(text: &str) -> Result<HeaderPolicy, String> {
    let file: PolicyFile = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line}: {}", error.message().replace('\n', " "))
    })?;
    file.policy()
}

impl PolicyFile {
    fn policy(self) -> Result<HeaderPolicy, String> {
        let mut policy = HeaderPolicy::default();
        policy.expected_uuid = self.uuid;
        policy.expected_digest = self.header_digest.map(|digest| digest.0);
        let ciphers = items(self.cipher, |cipher| cipher.0);
        (policy.required_ciphers, policy.required_aeads) = AnyCipher::divide(&ciphers);
        policy.key_lens = items(self.key_size, |size| size.0);
        policy.units = items(self.sector_size, |size| size.0);
        policy.allow_null_cipher = self.allow_null_cipher;
        policy.allow_null_iv = self.allow_null_iv;
        policy.allow_linear_segment = self.allow_linear_segment;
        policy.allow_integrity_superblock = self.allow_integrity_superblock;
        policy.data_blocks = self.data_blocks;
        let Some(pbkdf) = self.pbkdf else { return Ok(policy) };
        if let Some(own) = pbkdf.pbkdf2 {
            let mut rule = KdfRule::any(KdfKind::Pbkdf2);
            rule.hashes = items(own.hash, |hash| hash.0);
            rule.iterations = range("pbkdf.pbkdf2.iterations", own.min_iterations, own.max_iterations)?;
            policy.kdfs.push(rule);
        }
        for (kind, own) in [(KdfKind::Argon2i, pbkdf.argon2i), (KdfKind::Argon2id, pbkdf.argon2id)] {
            let Some(own) = own else { continue };
            let mut rule = KdfRule::any(kind);
            rule.iterations = range(&format!("pbkdf.{kind}.iterations"), own.min_iterations, own.max_iterations)?;
            rule.memory_kib = range(&format!("pbkdf.{kind}.memory"), own.min_memory, own.max_memory)?;
            rule.lanes = range(&format!("pbkdf.{kind}.parallel"), own.min_parallel, own.max_parallel)?;
            policy.kdfs.push(rule);
        }
        if policy.kdfs.is_empty() {
            return Err("table pbkdf: an empty table allows no keyslot".to_owned());
        }
        Ok(policy)
    }

    fn of(policy: &HeaderPolicy) -> Self {
        let rule = |kind| policy.kdfs.iter().find(|rule| rule.kind == kind);
        let argon2 = |kind| {
            rule(kind).map(|rule| Argon2 {
                min_iterations: least(&rule.iterations),
                max_iterations: most(&rule.iterations),
                min_memory: least(&rule.memory_kib),
                max_memory: most(&rule.memory_kib),
                min_parallel: least(&rule.lanes),
                max_parallel: most(&rule.lanes),
            })
        };
        let pbkdf2 = rule(KdfKind::Pbkdf2).map(|rule| Pbkdf2 {
            hash: list(&rule.hashes, Word),
            min_iterations: least(&rule.iterations),
            max_iterations: most(&rule.iterations),
        });
        let plain = policy.required_ciphers.iter().map(|spec| AnyCipher::Plain(*spec));
        let authenticated = policy.required_aeads.iter().map(|spec| AnyCipher::Authenticated(*spec));
        let ciphers: Vec<_> = plain.chain(authenticated).collect();
        Self {
            uuid: policy.expected_uuid.clone(),
            header_digest: policy.expected_digest.map(Word),
            cipher: list(&ciphers, Word),
            key_size: list(&policy.key_lens, KeySize),
            sector_size: list(&policy.units, SectorSize),
            allow_null_cipher: policy.allow_null_cipher,
            allow_null_iv: policy.allow_null_iv,
            allow_linear_segment: policy.allow_linear_segment,
            allow_integrity_superblock: policy.allow_integrity_superblock,
            data_blocks: policy.data_blocks,
            pbkdf: (!policy.kdfs.is_empty()).then(|| Pbkdf {
                pbkdf2,
                argon2i: argon2(KdfKind::Argon2i),
                argon2id: argon2(KdfKind::Argon2id),
            }),
        }
    }
}

/// Returns the text of a file with this policy.
pub fn text_of(policy: &HeaderPolicy) -> Result<String> {
    Ok(toml::to_string(&PolicyFile::of(policy))?)
}

fn items<T, U>(list: Option<List<T>>, item: impl Fn(T) -> U) -> Vec<U> {
    list.map_or_else(Vec::new, |list| list.0.into_iter().map(item).collect())
}

fn list<T: Clone, U>(items: &[T], item: impl Fn(T) -> U) -> Option<List<U>> {
    if items.is_empty() { None } else { Some(List(items.iter().cloned().map(item).collect())) }
}

fn range(what: &str, min: Option<u32>, max: Option<u32>) -> Result<RangeInclusive<u32>, String> {
    let range = min.unwrap_or(0)..=max.unwrap_or(u32::MAX);
    if range.is_empty() { Err(format!("{what}: the minimum is above the maximum")) } else { Ok(range) }
}

fn least(range: &RangeInclusive<u32>) -> Option<u32> {
    Some(*range.start()).filter(|min| *min > 0)
}

fn most(range: &RangeInclusive<u32>) -> Option<u32> {
    Some(*range.end()).filter(|max| *max < u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_file_reads_back_as_written() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let text = format!(
            r#"uuid = "a\"\u001bb"
header-digest = "{digest}"
cipher = ["aes-xts-plain64", "capi:cbc(aes)-essiv:sha256", "aes-gcm-random+aead"]
key-size = [256, 512]
sector-size = [512, 4096]
allow-null-iv = true
allow-integrity-superblock = true
data-blocks = 65536

[pbkdf.pbkdf2]
hash = ["sha256", "sha512"]
min-iterations = 1000
[pbkdf.argon2id]
min-memory = 65536
max-memory = 1048576
max-parallel = 4
"#
        );
        let policy = parse(&text).unwrap();
        assert_eq!(policy.expected_uuid.as_deref(), Some("a\"\u{1b}b"));
        assert_eq!((policy.key_lens.as_slice(), policy.units.len()), (&[32, 64][..], 2));
        assert_eq!(policy.required_aeads[0].to_string(), "capi:gcm(aes)-random");
        assert_eq!(policy.required_ciphers[1].to_string(), "aes-cbc-essiv:sha256");
        assert!(policy.allow_integrity_superblock && policy.data_blocks == Some(65536));
        assert!(policy.allow_null_iv && !policy.allow_null_cipher && !policy.allow_linear_segment);
        assert_eq!(policy.kdfs.len(), 2);
        assert_eq!(policy.kdfs[1].memory_kib, 65536..=1048576);
        let again = text_of(&policy).unwrap();
        assert_eq!(parse(&again).unwrap(), policy, "{again}");
        assert_eq!(parse("").unwrap(), HeaderPolicy::default());
        assert_eq!(text_of(&HeaderPolicy::default()).unwrap(), "");
    }

    #[test]
    fn each_exception_is_one_of_its_own() {
        type Exception = (&'static str, fn(&mut HeaderPolicy) -> &mut bool);
        let exceptions: [Exception; 4] = [
            ("allow-null-cipher", |policy| &mut policy.allow_null_cipher),
            ("allow-null-iv", |policy| &mut policy.allow_null_iv),
            ("allow-linear-segment", |policy| &mut policy.allow_linear_segment),
            ("allow-integrity-superblock", |policy| &mut policy.allow_integrity_superblock),
        ];
        for (key, exception) in exceptions {
            let mut expected = HeaderPolicy::default();
            *exception(&mut expected) = true;
            let text = format!("{key} = true\n");
            assert_eq!(parse(&text).unwrap(), expected, "{key}");
            assert_eq!(text_of(&expected).unwrap(), text);
            assert_eq!(parse(&format!("{key} = false\n")).unwrap(), HeaderPolicy::default(), "{key}");
        }
    }

    #[test]
    fn errors_of_policy_files_have_lines() {
        for (text, expected) in [
            ("uuid = \"x\"\nciphers = []\n", "line 2: unknown field `ciphers`, expected one of `uuid`"),
            ("\n\n[pbkdf.argon2id]\nmax-memroy = 1\n", "line 4: unknown field `max-memroy`"),
            ("[pbkdf.scrypt]\n", "line 1: unknown field `scrypt`"),
            ("cipher = [\n\"aes-xts-plain64\",\n\"aes-wtf-plain64\"]\n", "line 1: 'aes-wtf-plain64': unsupported mode"),
            ("cipher = \"aes-xts-plain64\"\n", "line 1: invalid type: string"),
            ("key-size = []\n", "line 1: an empty list allows nothing"),
            ("key-size = [511]\n", "line 1: 511 bits are no multiple of 8"),
            ("sector-size = [513]\n", "line 1: "),
            ("header-digest = \"sha256:00\"\n", "line 1: 'sha256:00': expected sha256: and 64"),
            ("uuid = 1\nuuid = 2\n", "line "),
            ("[pbkdf.pbkdf2]\nhash = [\"md4\"]\n", "line 2: 'md4': hash is not supported"),
            ("[pbkdf.argon2i]\nmin-memory = 2\nmax-memory = 1\n", "pbkdf.argon2i.memory: the minimum is above"),
            ("[pbkdf]\n", "table pbkdf: an empty table allows no keyslot"),
            ("allow-null-cipher = 1\n", "line 1: invalid type"),
            ("max = -1\n", "line 1: unknown field"),
            ("[pbkdf.argon2id]\nmax-memory = -1\n", "line 2: "),
            ("[pbkdf.argon2id]\nmax-memory = 4294967296\n", "line 2: "),
            ("x = {\n", "line "),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
