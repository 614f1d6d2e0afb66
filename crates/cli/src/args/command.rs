//! Commands as the command line's words are turned into: typed, checked, and not yet carried out.

use std::ffi::OsString;
use std::path::PathBuf;

use inlock_cipher::{CipherSpec, DataUnitSize};
use inlock_engine::OffloadOptions;
use inlock_volume::plain::Plain;
use inlock_volume::table::CryptOptions;
use inlock_volume::{Hash, HeaderPolicy, KdfKind};

use crate::bench::BenchArgs;
use crate::commands::zoned::ZonedArgs;
use crate::control::Name;
use crate::options::Verb;
use crate::table::TableArg;
use crate::values::{Listen, Range};
use crate::way::Via;

/// What to do, with everything it needs to know.
#[derive(Debug)]
pub(crate) enum Command {
    Help(Option<Verb>),
    Version,
    LuksFormat(Box<FormatArgs>),
    IsLuks(HeaderArgs),
    LuksUuid(HeaderArgs),
    LuksDump { at: HeaderArgs, json: bool },
    TestPassphrase(SourceArgs),
    Open(Box<OpenArgs>),
    Mount(Box<MountArgs>),
    Umount { dir: PathBuf, deferred: bool },
    Serve(Box<ServeArgs>),
    Status { name: Name, json: bool },
    List { json: bool },
    Top { names: Vec<Name>, once: bool, json: bool },
    Suspend(Name),
    Resume(ResumeArgs),
    Reload { name: Name, table: TableArg, policy: HeaderPolicy },
    Refresh { name: Name, flags: CryptOptions },
    Resize(Name),
    Close { name: Name, deferred: bool },
    Export(CopyArgs),
    Import(CopyArgs),
    Benchmark(BenchmarkArgs),
    Bench(BenchArgs),
    Table { source: SourceArgs, showkeys: bool, json: bool },
    Zoned(ZonedArgs),
}

/// Where a LUKS header is.
#[derive(Debug)]
pub(crate) struct HeaderArgs {
    pub image: PathBuf,
    pub header: Option<PathBuf>,
    pub luks: Luks,
}

/// Which LUKS versions are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Luks {
    Any,
    One,
    Two,
}

/// A key file, or standard input read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyFile {
    Path(PathBuf),
    Stdin,
}

/// Where the passphrase or key comes from.
#[derive(Clone, Debug)]
pub(crate) struct KeyArgs {
    pub file: Option<KeyFile>,
    pub offset: u64,
    pub size: Option<u64>,
    pub slot: Option<u32>,
    pub tries: u32,
    pub timeout_secs: Option<u64>,
    pub verify: bool,
}

/// The volume that is opened.
#[derive(Debug)]
pub(crate) struct SourceArgs {
    pub image: PathBuf,
    pub header: Option<PathBuf>,
    pub kind: Kind,
    pub key: KeyArgs,
    /// On top of what the header or the table says.
    pub flags: CryptOptions,
    /// What it may be.
    pub policy: HeaderPolicy,
}

/// What kind of volume it is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Luks(Luks),
    Plain(Plain),
    Table(TableArg),
    Raw,
}

/// A new LUKS volume.
#[derive(Debug)]
pub(crate) struct FormatArgs {
    pub image: PathBuf,
    pub header: Option<PathBuf>,
    /// 1 or 2.
    pub version: u8,
    pub key: KeyArgs,
    pub cipher: CipherSpec,
    pub key_len: usize,
    pub hash: Hash,
    pub sector_size: Option<DataUnitSize>,
    /// Start of the data in sectors of 512 bytes.
    pub offset: Option<u64>,
    pub uuid: Option<String>,
    pub label: Option<String>,
    pub subsystem: Option<String>,
    pub kdf: KdfArgs,
    /// What it may be.
    pub policy: HeaderPolicy,
}

/// The cost of a key slot.
#[derive(Clone, Debug)]
pub(crate) struct KdfArgs {
    pub kind: Option<KdfKind>,
    pub iter_time_ms: Option<u32>,
    pub force_iterations: Option<u32>,
    pub memory_kib: Option<u32>,
    pub parallel: Option<u32>,
}

/// A volume that becomes a block device or a file.
#[derive(Debug)]
pub(crate) struct OpenArgs {
    pub source: SourceArgs,
    pub name: Name,
    /// `None`: the best there is.
    pub via: Option<Via>,
    pub place: Place,
    pub read_only: bool,
    pub threads: Option<u16>,
    /// Where scrapers connect.
    pub metrics: Option<Listen>,
}

/// A volume whose file system is mounted.
#[derive(Debug)]
pub(crate) struct MountArgs {
    pub open: OpenArgs,
    pub dir: PathBuf,
    /// For mount(8).
    pub options: Option<String>,
}

/// A server and what it serves.
#[derive(Debug)]
pub(crate) struct ServeArgs {
    pub source: SourceArgs,
    pub listen: Option<Listen>,
    pub export_name: String,
    /// By which the control commands find it.
    pub name: Option<Name>,
    /// Where scrapers connect.
    pub metrics: Option<Listen>,
    pub place: Place,
    pub run: Option<OsString>,
    pub read_only: bool,
    pub io: Io,
    pub threads: Option<u16>,
    pub offload: OffloadOptions,
    pub insecure: bool,
}

/// Which process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This one, until it ends.
    Here,
    /// Another one, that this one starts.
    Background,
    /// This one, which was started for it.
    Launched,
}

/// A volume that gets its key back.
#[derive(Debug)]
pub(crate) struct ResumeArgs {
    pub name: Name,
    pub key: KeyArgs,
    /// Another place for the header than the one that the volume was opened with.
    pub header: Option<PathBuf>,
}

/// How a store is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Auto,
    Uring,
    Sync,
}

/// A copy out of a volume or into one; `None` is standard output or input.
#[derive(Debug)]
pub(crate) struct CopyArgs {
    pub source: SourceArgs,
    pub other: Option<PathBuf>,
    pub range: Option<Range>,
    pub progress_json: bool,
    pub progress_secs: Option<u64>,
}

/// What `benchmark` measures: everything, unless something is named.
#[derive(Debug)]
pub(crate) struct BenchmarkArgs {
    pub cipher: Option<CipherSpec>,
    pub key_len: Option<usize>,
    pub hash: Option<Hash>,
    pub kdf: KdfArgs,
}
