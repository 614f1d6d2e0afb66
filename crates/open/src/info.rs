//! Information about an opened volume, without secrets: its type, segments, flags and devices.

use std::path::{Path, PathBuf};

use inlock_volume::table::{CryptOptions, TableLine, Target};
use inlock_volume::{AuthenticatedSegment, Segment, Table};
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::key_check::KeyCheck;
use super::source::{OpenOptions, VolumeType};

/// An opened volume.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// `LUKS1`, `LUKS2`, `PLAIN`, `TABLE`, `INTEGRITY`, `VERITY`, `RAW`.
    pub kind: String,
    /// The device with the data.
    pub device: PathBuf,
    /// A detached header.
    pub header: Option<PathBuf>,
    /// Identity of the device that the header was read from.
    pub header_identity: Option<String>,
    /// UUID of the header or of the superblock.
    pub uuid: Option<String>,
    /// Passphrase hash of a plain volume.
    pub hash: Option<String>,
    /// Segments, or the lines of a table.
    pub segments: Vec<SegmentInfo>,
    /// Recognizes the key after it was wiped.
    pub check: Option<KeyCheck>,
    /// Discards and dm-crypt's thread flags, as the header or the table sets them.
    pub own_flags: CryptOptions,
    /// `own_flags` and those of the command line.
    pub flags: CryptOptions,
    /// Identities of the devices, in the order of the engine's stores.
    pub devices: Vec<String>,
}

/// One segment of a volume, or one line of a table. Sectors have 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    /// First sector.
    pub start: u64,
    /// `None`: to the end.
    pub sectors: Option<u64>,
    /// `crypt`, `linear`, `zero`, `error`.
    pub target: String,
    /// Cipher as the header or the table has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// Length of the volume key.
    pub key_bits: usize,
    /// Length of a data unit in bytes.
    pub sector_size: usize,
    /// Whether IVs count data units, not sectors.
    pub large_iv: bool,
    /// First sector on the device.
    pub offset: u64,
    /// Added to the number of each sector for its IV.
    pub iv_offset: u64,
    /// Device of a table's line.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::path_text::optional")]
    pub device: Option<PathBuf>,
}

impl VolumeInfo {
    /// Starts with the values that are known before the header is loaded.
    pub(crate) fn new(args: &OpenOptions, data: &Device) -> Self {
        let (kind, hash) = match &args.volume_type {
            VolumeType::Luks(_) => ("LUKS", None),
            VolumeType::Plain(plain) => ("PLAIN", Some(plain.hash.to_string())),
            VolumeType::Integrity(_) => ("INTEGRITY", None),
            VolumeType::Verity(_) => ("VERITY", None),
            VolumeType::Raw | VolumeType::Table(_) => ("RAW", None),
        };
        Self {
            kind: kind.to_owned(),
            device: resolved(&data.path),
            header: None,
            header_identity: None,
            uuid: None,
            hash,
            segments: Vec::new(),
            check: None,
            own_flags: CryptOptions::default(),
            flags: args.flags,
            devices: vec![data.identity()],
        }
    }
}

impl SegmentInfo {
    /// Describes a segment whose key has `key_len` bytes.
    pub fn of(segment: &Segment, key_len: usize) -> Self {
        let target = if segment.cipher.is_some() { "crypt" } else { "linear" };
        Self {
            start: segment.start.0,
            sectors: segment.sectors,
            target: target.to_owned(),
            cipher: segment.cipher.map(|cipher| cipher.to_string()),
            key_bits: key_len * 8,
            sector_size: segment.unit.bytes(),
            large_iv: segment.large_iv,
            offset: segment.data_offset.0,
            iv_offset: segment.iv_offset.0,
            device: None,
        }
    }

    /// Describes the segment of a volume with integrity protection, whose key has `key_len` bytes.
    pub(crate) fn of_authenticated(segment: &AuthenticatedSegment, key_len: usize) -> Self {
        Self {
            start: 0,
            sectors: None,
            target: "crypt".to_owned(),
            cipher: Some(segment.spec.luks2_names().0),
            key_bits: key_len * 8,
            sector_size: segment.unit.bytes(),
            large_iv: false,
            offset: segment.data_offset.0,
            iv_offset: segment.iv_offset.0,
            device: None,
        }
    }

    /// Describes the lines of a table.
    pub(crate) fn of_table(table: &Table) -> Vec<Self> {
        let line = |line: &TableLine| {
            let (key_len, target) = match &line.target {
                Target::Crypt(crypt) => (crypt.key.len(), "crypt"),
                Target::Linear { .. } => (0, "linear"),
                Target::Zero => (0, "zero"),
                Target::Error => (0, "error"),
            };
            let device = line.device().map(|name| resolved(Path::new(name)));
            let mut info = Self { target: target.to_owned(), device, ..Self::of(&line.segment(), key_len) };
            if let Target::Crypt(crypt) = &line.target {
                info.cipher = Some(crypt.cipher_name.clone());
            }
            info
        };
        table.lines().iter().map(line).collect()
    }
}

/// Returns the names of the flags of dm-crypt's threads, as its table spells them.
pub fn thread_flags(options: &CryptOptions) -> Vec<String> {
    options.names().into_iter().filter(|name| *name != "allow_discards").map(str::to_owned).collect()
}

/// Returns the absolute path of a device, without links.
pub fn resolved(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
