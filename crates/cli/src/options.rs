//! Every option of the command line, once: all of them may stand before or after the verb, as cryptsetup's may.
//!
//! There are no clap subcommands. One flat table is parsed, and `allowed` says afterwards which verb takes what, so that
//! `inlock -q --key-file k luksFormat disk.img` and `inlock luksFormat disk.img -q --key-file k` are the same command.
//! `-h` is `--hash` as in cryptsetup; help is `-?` or `--help`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

use crate::control::Name;
use crate::values::{self, Ciphers, Listen, Range};

/// All options, and the positional words: the first is the verb.
#[derive(Parser, Debug)]
#[command(
    name = "inlock",
    about = "Open, create and serve encrypted volumes in user space",
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    override_usage = "inlock [OPTION...] <action> [<argument>...]"
)]
pub(crate) struct Options {
    /// The verb and its arguments
    #[arg(value_name = "ACTION", num_args = 0.., hide = true)]
    pub words: Vec<OsString>,

    /// Show this help message; after a verb, that verb's
    #[arg(short = '?', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub help: bool,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub version: bool,
    /// Say how the command ended
    #[arg(short = 'v', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub verbose: bool,
    /// Do not ask for confirmation, show no progress
    #[arg(short = 'q', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub batch_mode: bool,

    /// Read the key from a file ("-": standard input, to its end)
    #[arg(short = 'd', long, value_name = "FILE", help_heading = "Keys")]
    pub key_file: Option<PathBuf>,
    /// Number of bytes to skip in the key file
    #[arg(long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub keyfile_offset: Option<u64>,
    /// Limits the read from the key file
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub keyfile_size: Option<u64>,
    /// Use only this key slot
    #[arg(short = 'S', long, value_name = "N", help_heading = "Keys")]
    pub key_slot: Option<u32>,
    /// How often the passphrase may be typed
    #[arg(short = 'T', long, value_name = "N", help_heading = "Keys")]
    pub tries: Option<u32>,
    /// Seconds to wait for a passphrase at the terminal
    #[arg(short = 't', long, value_name = "SECS", help_heading = "Keys")]
    pub timeout: Option<u64>,
    /// Ask for the passphrase twice
    #[arg(short = 'y', long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub verify_passphrase: bool,

    /// Kind of volume: luks, luks1, luks2, plain, raw
    #[arg(short = 'M', long = "type", value_name = "TYPE", help_heading = "Volume")]
    pub volume_type: Option<String>,
    /// dm-crypt's table, in a file or as a line, in place of the volume
    #[arg(long, value_name = "FILE|LINE", help_heading = "Volume")]
    pub table: Option<OsString>,
    /// Device or file with the detached LUKS header
    #[arg(long, value_name = "FILE", help_heading = "Volume")]
    pub header: Option<PathBuf>,
    /// The cipher, as dm-crypt writes it
    #[arg(short = 'c', long, value_name = "SPEC", help_heading = "Volume")]
    pub cipher: Option<String>,
    /// The size of the volume key
    #[arg(short = 's', long, value_name = "BITS", help_heading = "Volume")]
    pub key_size: Option<u32>,
    /// The hash of the header, or of a plain volume's passphrase
    #[arg(short = 'h', long, value_name = "HASH", help_heading = "Volume")]
    pub hash: Option<String>,
    /// Size of a data unit
    #[arg(long, value_name = "BYTES", help_heading = "Volume")]
    pub sector_size: Option<u32>,
    /// Count IVs in data units, not in sectors of 512 bytes (plain)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub iv_large_sectors: bool,
    /// Put the IV number into the upper eight bytes of the tweak, as SPDK does (plain)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub spdk_tweak: bool,
    /// Where the data start in the device, in sectors of 512 bytes (plain, luksFormat)
    #[arg(short = 'o', long, value_name = "SECTORS", value_parser = values::count, help_heading = "Volume")]
    pub offset: Option<u64>,
    /// The IV number of the first sector (plain)
    #[arg(short = 'p', long, value_name = "SECTORS", value_parser = values::count, help_heading = "Volume")]
    pub skip: Option<u64>,
    /// The size of the volume (plain) or of all zones (zoned): a number of sectors of 512 bytes, or with a unit, as in 1G
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = values::sectors, help_heading = "Volume")]
    pub size: Option<u64>,

    /// Open a volume, or a table, whose cipher does not encrypt
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_null_cipher: bool,
    /// Open a LUKS volume whose cipher has no IV
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_null_iv: bool,
    /// Open a LUKS volume that is stored unencrypted in part
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_linear_segment: bool,
    /// Refuse a volume with another cipher than these
    #[arg(long, value_name = "SPEC[,SPEC]", value_parser = values::ciphers, help_heading = "Header policy")]
    pub require_cipher: Option<Ciphers>,
    /// Refuse a LUKS volume with another UUID
    #[arg(long, value_name = "UUID", value_parser = values::uuid, help_heading = "Header policy")]
    pub expect_uuid: Option<String>,

    /// PBKDF for the key slot: argon2id, argon2i, pbkdf2
    #[arg(long, value_name = "KDF", help_heading = "Creating")]
    pub pbkdf: Option<String>,
    /// How long unlocking shall take
    #[arg(short = 'i', long, value_name = "MSECS", help_heading = "Creating")]
    pub iter_time: Option<u32>,
    /// PBKDF cost, without a benchmark
    #[arg(long, value_name = "N", help_heading = "Creating")]
    pub pbkdf_force_iterations: Option<u32>,
    /// The most memory the PBKDF may take
    #[arg(long, value_name = "KILOBYTES", help_heading = "Creating")]
    pub pbkdf_memory: Option<u32>,
    /// The most threads the PBKDF may take
    #[arg(long, value_name = "THREADS", help_heading = "Creating")]
    pub pbkdf_parallel: Option<u32>,
    /// UUID of the new volume
    #[arg(long, value_name = "UUID", help_heading = "Creating")]
    pub uuid: Option<String>,
    /// Label of the new volume (LUKS2)
    #[arg(long, value_name = "TEXT", help_heading = "Creating")]
    pub label: Option<String>,
    /// Subsystem label of the new volume (LUKS2)
    #[arg(long, value_name = "TEXT", help_heading = "Creating")]
    pub subsystem: Option<String>,

    /// From one zone's start to the next
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub zone_size: Option<u64>,
    /// How much of a sequential zone can be written; all of it unless given
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub capacity: Option<u64>,
    /// How many zones, from the first on, take writes in any order
    #[arg(long, value_name = "N", help_heading = "Zones")]
    pub conventional: Option<u32>,
    /// How many zones may be open at a time
    #[arg(long, value_name = "N", help_heading = "Zones")]
    pub max_open: Option<u32>,
    /// How many zones may be open or closed at a time
    #[arg(long, value_name = "N", help_heading = "Zones")]
    pub max_active: Option<u32>,
    /// Writes to sequential zones begin and end on multiples of this; 4096 unless given
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub granularity: Option<u64>,

    /// Print the LUKS2 metadata as stored
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub dump_json_metadata: bool,
    /// Print the volume key
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub showkeys: bool,
    /// Print results as JSON
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub json: bool,
    /// Look for one second, print, and end (top)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub once: bool,
    /// Print progress as lines of JSON
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub progress_json: bool,
    /// Print a line of progress every so many seconds
    #[arg(long, value_name = "SECS", help_heading = "Output")]
    pub progress_frequency: Option<u64>,

    /// Where the NBD server listens: unix:PATH, or with --insecure tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen, help_heading = "Serving")]
    pub nbd: Option<Listen>,
    /// How the volume is handed out: auto, ublk, nbd, loop, fuse
    #[arg(long, value_name = "WAY", value_parser = ["auto", "ublk", "nbd", "loop", "fuse"], help_heading = "Opening")]
    pub via: Option<String>,
    /// Stay in the foreground until the volume is closed
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Opening")]
    pub foreground: bool,
    /// Close as soon as nobody uses the volume any more
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Opening")]
    pub deferred: bool,
    /// Options for mount(8)
    #[arg(long, value_name = "OPTIONS", help_heading = "Opening")]
    pub mount_options: Option<String>,
    /// Name of the export
    #[arg(long, value_name = "NAME", help_heading = "Serving")]
    pub export_name: Option<String>,
    /// Serve OpenMetrics on unix:PATH or tcp:HOST:PORT (TCP: to every user of this machine)
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen, help_heading = "Serving")]
    pub metrics: Option<Listen>,
    /// Serve in the background, as soon as clients can connect (needs --name)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub background: bool,
    /// Given by a process to the one that it starts in the background
    #[arg(long, action = ArgAction::SetTrue, hide = true)]
    pub launched: bool,
    /// Name by which the running volume is asked and steered (status, suspend, close)
    #[arg(long, value_name = "NAME", value_parser = Name::new, help_heading = "Serving")]
    pub name: Option<Name>,
    /// Serve while this shell command runs, and end with its status
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true, help_heading = "Serving")]
    pub run: Option<OsString>,
    /// Refuse writes
    #[arg(short = 'r', long = "read-only", alias = "readonly", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub read_only: bool,
    /// Pass discards on to the device below
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub allow_discards: bool,
    /// Encrypt on the processor that the request came from (kept for whoever looks, as dm-crypt's others are)
    #[arg(long = "perf-same_cpu_crypt", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub same_cpu_crypt: bool,
    /// Submit writes from where they were encrypted
    #[arg(long = "perf-submit_from_crypt_cpus", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub submit_from_crypt_cpus: bool,
    /// Decrypt where the read ends
    #[arg(long = "perf-no_read_workqueue", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub no_read_workqueue: bool,
    /// Encrypt where the write begins
    #[arg(long = "perf-no_write_workqueue", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub no_write_workqueue: bool,
    /// Encrypt with high priority
    #[arg(long = "perf-high_priority", action = ArgAction::SetTrue, help_heading = "Serving")]
    pub high_priority: bool,
    /// How the device below is read and written: auto, uring, sync
    #[arg(long, value_name = "WAY", value_parser = ["auto", "uring", "sync"], help_heading = "Serving")]
    pub io: Option<String>,
    /// Number of worker threads
    #[arg(long, value_name = "N", help_heading = "Serving")]
    pub threads: Option<u16>,
    /// Which requests' cipher work goes to other threads: none, reads, writes, both, auto
    #[arg(long, value_name = "WHICH", value_parser = ["none", "reads", "writes", "both", "auto"], help_heading = "Serving")]
    pub offload: Option<String>,
    /// Number of threads for that work
    #[arg(long, value_name = "N", help_heading = "Serving")]
    pub offload_threads: Option<u16>,
    /// Allow NBD over TCP, which every user of this machine can connect to, and addresses that other machines reach
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub insecure: bool,

    /// Also write the results as a page
    #[arg(long, value_name = "FILE.html", help_heading = "Measuring")]
    pub report: Option<PathBuf>,
    /// Exit with status 1 unless all thresholds are met
    #[arg(long, alias = "bars", action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub check: bool,
    /// With --check: accept thresholds that were not measured
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub allow_missing: bool,
    /// Measure for seconds instead of minutes
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub quick: bool,
    /// How often each case has its turn
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub rounds: Option<u16>,
    /// How long a turn takes
    #[arg(long, value_name = "MSECS", help_heading = "Measuring")]
    pub slice_ms: Option<u32>,
    /// Where images are made for measuring; a file system in memory unless given
    #[arg(long, value_name = "FOLDER", help_heading = "Measuring")]
    pub dir: Option<PathBuf>,

    /// The part of the volume to copy; LENGTH may be left out: to the end
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = values::range, help_heading = "Copying")]
    pub range: Option<Range>,

    /// Only check that the passphrase opens the volume (open)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub test_passphrase: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    LuksFormat,
    IsLuks,
    LuksUuid,
    LuksDump,
    Open,
    Mount,
    Umount,
    Serve,
    Status,
    List,
    Top,
    Suspend,
    Resume,
    Reload,
    Refresh,
    Resize,
    Close,
    Export,
    Import,
    Benchmark,
    Bench,
    Table,
    Zoned,
}

impl Verb {
    /// Every verb, in the order of the help text.
    pub(crate) const ALL: [Self; 23] = [
        Self::LuksFormat,
        Self::IsLuks,
        Self::LuksUuid,
        Self::LuksDump,
        Self::Open,
        Self::Mount,
        Self::Umount,
        Self::Serve,
        Self::Status,
        Self::List,
        Self::Top,
        Self::Suspend,
        Self::Resume,
        Self::Reload,
        Self::Refresh,
        Self::Resize,
        Self::Close,
        Self::Export,
        Self::Import,
        Self::Benchmark,
        Self::Bench,
        Self::Table,
        Self::Zoned,
    ];

    /// Verbs are case-sensitive, as cryptsetup's are.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "luksOpen" | "plainOpen" | "create" => return Some(Self::Open),
            "luksSuspend" => return Some(Self::Suspend),
            "luksResume" => return Some(Self::Resume),
            "remove" | "luksClose" | "plainClose" => return Some(Self::Close),
            _ => {}
        }
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// The word on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LuksFormat => "luksFormat",
            Self::IsLuks => "isLuks",
            Self::LuksUuid => "luksUUID",
            Self::LuksDump => "luksDump",
            Self::Open => "open",
            Self::Mount => "mount",
            Self::Umount => "umount",
            Self::Serve => "serve",
            Self::Status => "status",
            Self::List => "list",
            Self::Top => "top",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Reload => "reload",
            Self::Refresh => "refresh",
            Self::Resize => "resize",
            Self::Close => "close",
            Self::Export => "export",
            Self::Import => "import",
            Self::Benchmark => "benchmark",
            Self::Bench => "bench",
            Self::Table => "table",
            Self::Zoned => "zoned",
        }
    }

    /// The words it takes after its name, and how many at least and at most.
    pub(crate) fn operands(self) -> (&'static str, usize, usize) {
        match self {
            Self::LuksFormat => ("<image> [<key file>]", 1, 2),
            Self::IsLuks | Self::LuksUuid | Self::LuksDump => ("<image>", 1, 1),
            Self::Open => ("<source> <name>", 1, 2),
            Self::Mount => ("<source> <directory>", 2, 2),
            Self::Umount => ("<directory>", 1, 1),
            Self::Serve => ("<source>", 1, 1),
            Self::Status | Self::Suspend | Self::Resume | Self::Reload | Self::Refresh => ("<name>", 1, 1),
            Self::Resize | Self::Close => ("<name>", 1, 1),
            Self::List => ("", 0, 0),
            Self::Top => ("[<name>...]", 0, usize::MAX),
            Self::Export => ("<image> <output file or ->", 2, 2),
            Self::Import => ("<input file or -> <image>", 2, 2),
            Self::Benchmark => ("", 0, 0),
            Self::Bench => ("cipher|path|latency|compare|all", 1, 1),
            Self::Table => ("<source>", 1, 1),
            Self::Zoned => ("create|report <file or device>", 2, 2),
        }
    }

    /// One line of help.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::LuksFormat => "create a LUKS volume in an image file or on a device",
            Self::IsLuks => "tell by the exit status whether there is a LUKS header",
            Self::LuksUuid => "print the UUID of a LUKS volume",
            Self::LuksDump => "print the header of a LUKS volume",
            Self::Open => "make a volume a block device or a file; with --test-passphrase, check a passphrase",
            Self::Mount => "open a volume and mount the file system in it",
            Self::Umount => "unmount the file system of a volume, and close it",
            Self::Serve => "serve the decrypted volume over NBD",
            Self::Status => "show what is served under a name, and how it is",
            Self::List => "list the names in use",
            Self::Top => "watch what running volumes do; q ends it",
            Self::Suspend => "let all requests wait, and wipe the key from memory",
            Self::Resize => "make a volume as long as the device below is now",
            Self::Resume => "give the key back, and let requests go on",
            Self::Reload => "put another table (--table) in place of what is served",
            Self::Refresh => "change the flags of a running volume: to what its header says, and what is given",
            Self::Close => "close an open or served volume when everything is written",
            Self::Export => "decrypt a volume, or a part of it, to a raw image",
            Self::Import => "encrypt a raw image into an existing volume",
            Self::Benchmark => "measure key derivation and ciphers",
            Self::Bench => "measure cipher kernels, the way of a request, and other servers beside it",
            Self::Table => "print the line that dm-crypt would get for a volume",
            Self::Zoned => "make a file with zones as a zoned drive has them; show the zones of a file or drive",
        }
    }

    /// The long names of the options it takes, besides those every verb takes.
    fn options(self) -> &'static [&'static [&'static str]] {
        const KEY: &[&str] = &["key-file", "keyfile-offset", "keyfile-size", "timeout", "verify-passphrase"];
        const UNLOCK: &[&str] = &["tries", "key-slot", "type", "header"];
        const PLAIN: &[&str] =
            &["cipher", "key-size", "hash", "sector-size", "iv-large-sectors", "spdk-tweak", "offset", "skip", "size"];
        const POLICY: &[&str] =
            &["allow-null-cipher", "allow-null-iv", "allow-linear-segment", "require-cipher", "expect-uuid"];
        const COPY: &[&str] = &["range", "progress-json", "progress-frequency"];
        const KDF: &[&str] = &["pbkdf", "iter-time", "pbkdf-force-iterations", "pbkdf-memory", "pbkdf-parallel"];
        const FORMAT: &[&str] = &[
            "type",
            "header",
            "key-slot",
            "cipher",
            "key-size",
            "hash",
            "sector-size",
            "offset",
            "uuid",
            "label",
            "subsystem",
        ];
        const FLAGS: &[&str] = &[
            "perf-same_cpu_crypt",
            "perf-submit_from_crypt_cpus",
            "perf-no_read_workqueue",
            "perf-no_write_workqueue",
            "perf-high_priority",
        ];
        const OPEN: &[&str] = &["via", "read-only", "allow-discards", "foreground", "launched", "threads", "metrics"];
        const SERVE: &[&str] = &[
            "nbd",
            "export-name",
            "name",
            "metrics",
            "background",
            "launched",
            "run",
            "read-only",
            "allow-discards",
            "io",
            "threads",
            "offload",
            "offload-threads",
            "insecure",
        ];
        const ZONES: &[&str] = &["zone-size", "capacity", "conventional", "max-open", "max-active", "granularity"];
        match self {
            Self::LuksFormat => &[KEY, FORMAT, KDF, &["allow-null-cipher", "allow-null-iv"]],
            Self::IsLuks | Self::LuksUuid => &[&["type", "header"]],
            Self::LuksDump => &[&["type", "header", "dump-json-metadata"]],
            Self::Open => &[KEY, UNLOCK, PLAIN, POLICY, OPEN, FLAGS, &["table", "test-passphrase"]],
            Self::Mount => &[KEY, UNLOCK, PLAIN, POLICY, OPEN, FLAGS, &["table", "name", "mount-options"]],
            Self::Umount => &[&["deferred"]],
            Self::Serve => &[KEY, UNLOCK, PLAIN, POLICY, SERVE, FLAGS, &["table"]],
            Self::Status | Self::List => &[&["json"]],
            Self::Top => &[&["json", "once"]],
            Self::Resume => &[KEY, &["tries", "key-slot", "header"]],
            Self::Suspend | Self::Resize => &[],
            Self::Reload => &[&["table", "allow-null-cipher", "require-cipher"]],
            Self::Refresh => &[FLAGS, &["allow-discards"]],
            Self::Close => &[&["deferred"]],
            Self::Export | Self::Import => &[KEY, UNLOCK, PLAIN, POLICY, COPY, &["table"]],
            Self::Benchmark => &[&["cipher", "key-size", "hash", "iter-time"], KDF],
            Self::Bench => &[&["json", "report", "check", "allow-missing", "quick", "rounds", "slice-ms", "dir"]],
            Self::Zoned => &[&["json", "size"], ZONES],
            Self::Table => &[KEY, UNLOCK, PLAIN, POLICY, FLAGS, &["table", "allow-discards", "showkeys", "json"]],
        }
    }

    /// Whether the option with this long name may be given with this verb.
    pub(crate) fn allows(self, option: &str) -> bool {
        matches!(option, "help" | "version" | "verbose" | "batch-mode")
            || self.options().iter().any(|group| group.contains(&option))
    }
}

/// Whether cryptsetup has a long option of this name that Inlock does not have.
pub(crate) fn is_only_cryptsetups(option: &str) -> bool {
    option.strip_prefix("--").is_some_and(|name| ONLY_CRYPTSETUPS.contains(&name))
}

/// Long options of cryptsetup that Inlock does not have.
const ONLY_CRYPTSETUPS: &[&str] = &[
    "active-name",
    "align-payload",
    "block-size",
    "cancel-deferred",
    "debug",
    "debug-json",
    "decrypt",
    "device-size",
    "disable-blkid",
    "disable-external-tokens",
    "disable-keyring",
    "disable-locks",
    "disable-veracrypt",
    "dump-master-key",
    "dump-volume-key",
    "encrypt",
    "external-tokens-path",
    "force-no-keyslots",
    "force-offline-reencrypt",
    "force-password",
    "header-backup-file",
    "hotzone-size",
    "hw-opal",
    "hw-opal-only",
    "init-only",
    "integrity",
    "integrity-key-size",
    "integrity-legacy-padding",
    "integrity-no-journal",
    "integrity-no-wipe",
    "json-file",
    "keep-key",
    "key-description",
    "keyslot-cipher",
    "keyslot-key-size",
    "link-vk-to-keyring",
    "luks2-keyslots-size",
    "luks2-metadata-size",
    "master-key-file",
    "new-key-slot",
    "new-keyfile",
    "new-keyfile-offset",
    "new-keyfile-size",
    "new-token-id",
    "persistent",
    "priority",
    "reduce-device-size",
    "refresh",
    "resilience",
    "resilience-hash",
    "resume-only",
    "serialize-memory-hard-pbkdf",
    "shared",
    "tcrypt-backup",
    "tcrypt-hidden",
    "tcrypt-system",
    "test-args",
    "token-id",
    "token-only",
    "token-replace",
    "token-type",
    "unbound",
    "usage",
    "use-directio",
    "use-random",
    "use-urandom",
    "veracrypt",
    "veracrypt-pim",
    "veracrypt-query-pim",
    "volume-key-file",
    "volume-key-keyring",
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_table_of_options_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn verbs_name_only_options_that_exist_and_every_option_has_a_verb() {
        let command = Options::command();
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        for verb in Verb::ALL {
            for option in verb.options().iter().copied().flatten() {
                assert!(known.contains(option), "{} names --{option}", verb.name());
            }
        }
        for option in known {
            assert!(Verb::ALL.iter().any(|verb| verb.allows(option)), "no verb takes --{option}");
        }
    }

    #[test]
    fn an_option_is_ours_or_cryptsetup_s_alone() {
        for arg in Options::command().get_arguments() {
            assert!(!arg.get_long().is_some_and(|long| is_only_cryptsetups(&format!("--{long}"))), "{arg:?}");
        }
        assert!(is_only_cryptsetups("--integrity") && !is_only_cryptsetups("--nonsense"));
    }

    #[test]
    fn short_options_are_those_of_cryptsetup() {
        let command = Options::command();
        let long_of = |short| {
            let found = command.get_arguments().find(|arg| arg.get_short() == Some(short));
            found.and_then(|arg| arg.get_long())
        };
        for (short, long) in [
            ('q', "batch-mode"),
            ('c', "cipher"),
            ('h', "hash"),
            ('d', "key-file"),
            ('s', "key-size"),
            ('S', "key-slot"),
            ('l', "keyfile-size"),
            ('o', "offset"),
            ('r', "read-only"),
            ('b', "size"),
            ('p', "skip"),
            ('t', "timeout"),
            ('T', "tries"),
            ('i', "iter-time"),
            ('M', "type"),
            ('v', "verbose"),
            ('y', "verify-passphrase"),
            ('V', "version"),
            ('?', "help"),
        ] {
            assert_eq!(long_of(short), Some(long), "-{short}");
        }
    }
}
