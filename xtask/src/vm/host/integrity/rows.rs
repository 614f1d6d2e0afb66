//! The volumes of the test, each described in a line.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use inlock_cipher::VolumeKey;
use inlock_integrity::{FormatOptions, JournalCipher, Mode, OpenOptions, TagHash};

/// Keys, in the guest as files in `/vm/keys`.
pub(super) const KEYS: [(&str, &[u8]); 3] =
    [("tag", &[0x5a; 40]), ("journal-integrity", &[0x17; 32]), ("journal-crypt", &[0x93; 32])];

/// Volumes: hash, then words: J, B or D; bytes of a block; `tag=`, `interleave=`, `journal=` (bytes), `bit=` (sectors),
/// `mac=`, `crypt=`; `separate` metadata device; `grown`; `legacy-padding`, `legacy-hmac`.
pub(super) const LINES: [&str; 17] = [
    "crc32c J 512 journal=1048576 grown",
    "crc32 J 512",
    "crc32c J 512",
    "crc32c J 4096 journal=1048576 interleave=1024",
    "crc32c J 512 interleave=8 journal=1048576",
    "crc32c J 4096 separate journal=1048576",
    "crc32c J 512 legacy-padding",
    "crc32c J 512 tag=7 interleave=2048 journal=1048576",
    "crc32c B 512 separate bit=512",
    "crc32c D 512",
    "xxhash64 B 4096 bit=256",
    "sha1 J 4096 tag=12",
    "sha256 J 4096 tag=255 journal=1048576",
    "sha512 J 4096 journal=1048576",
    "hmac-sha256 J 512 journal=1048576 mac=hmac-sha256 legacy-hmac",
    "hmac-sha256 J 4096 journal=1048576 mac=hmac-sha256 crypt=ctr-aes",
    "hmac-sha256 J 512 journal=1048576 mac=hmac-sha1 crypt=cbc-aes",
];

/// Further volumes, with `--full`.
pub(super) const MORE_LINES: [&str; 32] = [
    "crc32c J 512 journal=1048576",
    "crc32c J 4096",
    "crc32c J 1024 journal=1048576",
    "crc32c J 2048 journal=1048576",
    "crc32c J 512 separate",
    "crc32c J 4096 legacy-padding interleave=4096 journal=1048576",
    "crc32c J 4096 tag=64 journal=1048576",
    "crc32c B 512",
    "crc32c B 4096 bit=64",
    "crc32c D 4096 interleave=512",
    "crc32c D 512 separate",
    "crc32c D 512 legacy-padding",
    "crc32c B 4096 legacy-padding bit=128",
    "xxhash64 J 512 journal=1048576",
    "xxhash64 J 4096 separate",
    "xxhash64 D 4096 tag=4",
    "sha1 J 512 journal=1048576",
    "sha1 D 4096",
    "sha256 J 512 journal=1048576",
    "sha256 J 4096 separate",
    "sha256 B 512 bit=4096",
    "hmac-sha1 J 512 journal=1048576",
    "hmac-sha256 J 512",
    "hmac-sha256 J 4096 journal=1048576 mac=hmac-sha256",
    "hmac-sha256 J 4096 separate mac=hmac-sha256 crypt=ctr-aes",
    "hmac-sha256 J 4096 separate legacy-hmac",
    "hmac-sha256 B 4096 bit=64",
    "hmac-sha512 J 4096 tag=16 journal=1048576",
    "hmac-sha512 J 512 mac=hmac-sha512 journal=1048576",
    "hmac-sha512 D 4096 separate",
    "crc32c J 512 crypt=ctr-aes journal=1048576",
    "sha256 J 4096 crypt=cbc-aes mac=hmac-sha256 legacy-hmac",
];

/// A parsed line.
#[derive(Clone)]
pub(super) struct Row {
    pub name: String,
    pub separate: bool,
    /// Whether Inlock creates its volume shorter, and resizes it.
    pub grown: bool,
    pub mode: Mode,
    pub sectors_per_bit: Option<u32>,
    pub format: FormatOptions,
    /// Options of integritysetup for creating and for opening.
    pub args: [String; 2],
}

impl Row {
    pub(super) fn parse(line: &str) -> Result<Self> {
        let mut words = line.split(' ');
        let hash = words.next().context("no hash")?;
        let mut row = Self {
            name: line.replace(' ', ","),
            separate: false,
            grown: false,
            mode: Mode::Journal,
            sectors_per_bit: None,
            format: FormatOptions { internal_hash: Some(keyed(hash, 0)?), ..FormatOptions::default() },
            args: Default::default(),
        };
        let mut both = format!("-I {hash}{}", key_args("integrity", "tag", hash, 0));
        let (mut format, mut open) = (String::new(), String::new());
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "J" => {}
                "B" => (row.mode, both) = (Mode::Bitmap, both + " -B"),
                "D" => (row.mode, both) = (Mode::Direct, both + " -D"),
                "512" | "1024" | "2048" | "4096" => {
                    row.format.block_len = key.parse()?;
                    format += &format!(" -s {key}");
                }
                "tag" => {
                    row.format.tag_size = Some(value.parse()?);
                    format += &format!(" -t {value}");
                }
                "interleave" => {
                    row.format.interleave_sectors = value.parse()?;
                    format += &format!(" --interleave-sectors {value}");
                }
                "journal" => {
                    row.format.journal_sectors = Some(value.parse::<u64>()? / 512);
                    format += &format!(" --journal-size {value}");
                }
                "bit" => {
                    row.format.sectors_per_bit = value.parse()?;
                    row.sectors_per_bit = Some(row.format.sectors_per_bit);
                    open = format!(" --bitmap-sectors-per-bit {value}");
                }
                "mac" => {
                    row.format.journal_mac = Some(keyed(value, 1)?);
                    let key = key_args("journal-integrity", "journal-integrity", value, 1);
                    both += &format!(" --journal-integrity {value}{key}");
                }
                "crypt" => {
                    let key = VolumeKey::new(KEYS[2].1);
                    row.format.journal_cipher = Some(Arc::new(JournalCipher::new(value, &key)?));
                    let key = key_args("journal-crypt", "journal-crypt", "hmac-", 2);
                    both += &format!(" --journal-crypt {value}{key}");
                }
                "separate" => row.separate = true,
                "grown" => row.grown = true,
                "legacy-padding" => {
                    row.format.fix_padding = false;
                    both += " --integrity-legacy-padding";
                }
                "legacy-hmac" => {
                    row.format.fix_hmac = false;
                    both += " --integrity-legacy-hmac";
                }
                other => bail!("there is no word '{other}'"),
            }
        }
        row.args = [both.clone() + &format, both + &open];
        Ok(row)
    }

    pub(super) fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::new(self.mode);
        options.internal_hash = self.format.internal_hash.clone();
        options.journal_mac = self.format.journal_mac.clone();
        options.journal_cipher = self.format.journal_cipher.clone();
        options.sectors_per_bit = self.sectors_per_bit;
        options
    }
}

fn keyed(name: &str, key: usize) -> Result<Arc<TagHash>> {
    let key = if name.starts_with("hmac-") { KEYS[key].1 } else { &[] };
    Ok(Arc::new(TagHash::new(name.parse()?, key)?))
}

/// Returns the options of integritysetup for a key, if the algorithm has one.
fn key_args(option: &str, file: &str, algorithm: &str, key: usize) -> String {
    if !algorithm.starts_with("hmac-") {
        return String::new();
    }
    format!(" --{option}-key-file /vm/keys/{file} --{option}-key-size {}", KEYS[key].1.len())
}
