//! All options of the command line. They may precede or follow the action, as in cryptsetup.
//!
//! There are no clap subcommands: one flat set of options is parsed, and checked afterwards against those that the
//! [action](super::action::Action) takes. `inlock -q --key-file k luksFormat disk.img` and `inlock luksFormat disk.img
//! -q --key-file k` are the same command. `-h` is `--hash` as in cryptsetup; help is `-?` or `--help`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser};
use inlock_engine::store::file::IoMode;
use inlock_open::config::values::{Ciphers, Engine, Holes};

use crate::values::{self, Range};
use inlock_serve::control::name::Name;
use inlock_serve::listen::Listen;

/// All options, and the positional arguments, of which the first is the action.
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
    /// The action and its arguments
    #[arg(value_name = "ACTION", num_args = 0.., hide = true)]
    pub words: Vec<OsString>,

    /// Show this help message, or with an action its help
    #[arg(short = '?', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub help: bool,
    /// Print package version
    #[arg(short = 'V', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub version: bool,
    /// Print a brief usage
    #[arg(long, action = ArgAction::SetTrue, help_heading = "General")]
    pub usage: bool,
    /// Print the result of the command at the end
    #[arg(short = 'v', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub verbose: bool,
    /// Do not ask for confirmation; show no progress
    #[arg(short = 'q', long, action = ArgAction::SetTrue, help_heading = "General")]
    pub batch_mode: bool,
    /// Show debug messages
    #[arg(long, action = ArgAction::SetTrue, help_heading = "General")]
    pub debug: bool,
    /// Show debug messages including JSON metadata
    #[arg(long, action = ArgAction::SetTrue, help_heading = "General")]
    pub debug_json: bool,
    /// Do not run action, just validate all command line parameters
    #[arg(long, action = ArgAction::SetTrue, help_heading = "General")]
    pub test_args: bool,

    /// Read the key from a file ("-": all of standard input)
    #[arg(short = 'd', long = "key-file", value_name = "FILE", action = ArgAction::Append, help_heading = "Keys")]
    pub key_files: Vec<PathBuf>,
    /// The only one of `key_files`.
    #[arg(skip)]
    pub key_file: Option<PathBuf>,
    /// Long names of the options that the command line has.
    #[arg(skip)]
    pub given: Vec<String>,
    /// Number of bytes to skip in keyfile
    #[arg(long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub keyfile_offset: Option<u64>,
    /// Limits the read from keyfile
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub keyfile_size: Option<u64>,
    /// Keyslot to try or to change; for luksFormat and luksAddKey, that of the new key (default: the first free one)
    #[arg(short = 'S', long, value_name = "N", value_parser = values::number::<u32>, help_heading = "Keys")]
    pub key_slot: Option<u32>,
    /// Number of passphrase attempts (default: 3)
    #[arg(short = 'T', long, value_name = "N", help_heading = "Keys")]
    pub tries: Option<u32>,
    /// Timeout for interactive passphrase prompt (in seconds)
    #[arg(short = 't', long, value_name = "SECS", help_heading = "Keys")]
    pub timeout: Option<u64>,
    /// Verifies the passphrase by asking for it twice
    #[arg(short = 'y', long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub verify_passphrase: bool,
    /// Disable password quality check, which Inlock does not have
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub force_password: bool,
    /// Use the volume key from file; with luksDump --dump-volume-key, write it to the file
    #[arg(
        long = "volume-key-file", alias = "master-key-file", value_name = "FILE", action = ArgAction::Append,
        help_heading = "Keys"
    )]
    pub volume_key_files: Vec<PathBuf>,
    /// The first of `volume_key_files`. A volume in re-encryption has another one.
    #[arg(skip)]
    pub volume_key_file: Option<PathBuf>,
    /// Use the specified keyring key as a volume key: a number, or %TYPE:NAME
    #[arg(long = "volume-key-keyring", value_name = "KEY", action = ArgAction::Append, help_heading = "Keys")]
    pub volume_key_keyrings: Vec<String>,
    /// The first of `volume_key_keyrings`. A volume in re-encryption has another one.
    #[arg(skip)]
    pub volume_key_keyring: Option<String>,
    /// Add the volume key to a keyring of the kernel: KEYRING::[%TYPE:]DESCRIPTION
    #[arg(long, value_name = "KEYRING::KEY", help_heading = "Keys")]
    pub link_vk_to_keyring: Vec<String>,
    /// Read the key for a new slot from a file ("-": all of standard input)
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    pub new_keyfile: Option<PathBuf>,
    /// Number of bytes to skip in newly added keyfile
    #[arg(long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub new_keyfile_offset: Option<u64>,
    /// Limits the read from newly added keyfile
    #[arg(long, value_name = "BYTES", value_parser = values::count, help_heading = "Keys")]
    pub new_keyfile_size: Option<u64>,
    /// Slot number for new key (default: the first free one); --key-slot is then the existing one
    #[arg(long, value_name = "N", help_heading = "Keys")]
    pub new_key_slot: Option<u32>,
    /// Token that has the passphrase of the new keyslot
    #[arg(long, value_name = "N", help_heading = "Keys")]
    pub new_token_id: Option<u32>,
    /// Key of the kernel's keyring with the passphrase of the new keyslot
    #[arg(long, value_name = "TEXT", help_heading = "Keys")]
    pub new_key_description: Option<String>,
    /// Use global lock to serialize memory hard PBKDF (OOM workaround)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub serialize_memory_hard_pbkdf: bool,
    /// Create, dump or try an unbound LUKS2 keyslot, whose key is not that of the volume
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub unbound: bool,

    /// Token number (default: any)
    #[arg(long, value_name = "N", help_heading = "Tokens")]
    pub token_id: Option<u32>,
    /// Restrict allowed token types used to retrieve LUKS2 key
    #[arg(long, value_name = "TYPE", help_heading = "Tokens")]
    pub token_type: Option<String>,
    /// Do not ask for passphrase if activation by token fails
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Tokens")]
    pub token_only: bool,
    /// Replace the current token
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Tokens")]
    pub token_replace: bool,
    /// Key description in the kernel's keyring
    #[arg(long, value_name = "TEXT", help_heading = "Tokens")]
    pub key_description: Option<String>,
    /// Read or write the json from or to a file ("-": standard input or output)
    #[arg(long, value_name = "FILE", help_heading = "Tokens")]
    pub json_file: Option<PathBuf>,
    /// Run no helpers of tokens
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Tokens")]
    pub disable_external_tokens: bool,
    /// Directory with helpers of tokens (default: /usr/lib/inlock/tokens)
    #[arg(long, value_name = "DIRECTORY", help_heading = "Tokens")]
    pub external_tokens_path: Option<PathBuf>,
    /// Time limit for a token's helper, in seconds (default: 30)
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..=86_400), help_heading = "Tokens")]
    pub token_timeout: Option<u32>,

    /// Type of volume: luks, luks1, luks2, plain, or raw, which is unencrypted (default: luks)
    #[arg(short = 'M', long = "type", value_name = "TYPE", help_heading = "Volume")]
    pub volume_type: Option<String>,
    /// Device-mapper table, in a file or as one line
    #[arg(long, value_name = "FILE|LINE", help_heading = "Volume")]
    pub table: Option<OsString>,
    /// Device or file with separated LUKS header
    #[arg(long, value_name = "FILE", help_heading = "Volume")]
    pub header: Option<PathBuf>,
    /// File with LUKS header and keyslots backup
    #[arg(long, value_name = "FILE", help_heading = "Volume")]
    pub header_backup_file: Option<PathBuf>,
    /// Search the whole device for headers, even if one is at its start (doctor)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub scan: bool,
    /// The cipher used to encrypt the disk, such as aes-xts-plain64
    #[arg(short = 'c', long, value_name = "SPEC", help_heading = "Volume")]
    pub cipher: Option<String>,
    /// The size of the encryption key
    #[arg(short = 's', long, value_name = "BITS", value_parser = values::number::<u32>, help_heading = "Volume")]
    pub key_size: Option<u32>,
    /// The hash used to create the encryption key from the passphrase, or of a LUKS header
    #[arg(short = 'h', long, value_name = "HASH", help_heading = "Volume")]
    pub hash: Option<String>,
    /// Encryption sector size (data unit), in bytes
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u32>, help_heading = "Volume")]
    pub sector_size: Option<u32>,
    /// Use IV counted in sector size (not in 512 bytes) (plain)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub iv_large_sectors: bool,
    /// Use the tweak of SPDK: IV number in the upper eight bytes (plain)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub spdk_tweak: bool,
    /// The start offset in the backend device (in 512-byte sectors)
    #[arg(short = 'o', long, value_name = "SECTORS", value_parser = values::count, help_heading = "Volume")]
    pub offset: Option<u64>,
    /// How many sectors of the encrypted data to skip at the beginning: the first IV number (plain)
    #[arg(short = 'p', long, value_name = "SECTORS", value_parser = values::count, help_heading = "Volume")]
    pub skip: Option<u64>,
    /// Size of the device (plain) or of all zones (zoned): 512-byte sectors, or with a unit, as in 1G
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = values::sectors, help_heading = "Volume")]
    pub size: Option<u64>,
    /// Use only specified device size, in bytes or with a unit (ignore rest of device)
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Volume")]
    pub device_size: Option<u64>,
    /// Share device with another non-overlapping crypt segment (plain); each of them needs the option
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Volume")]
    pub shared: bool,

    /// Allow a null cipher, which does not encrypt
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_null_cipher: bool,
    /// Allow a cipher without IV (LUKS)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_null_iv: bool,
    /// Allow an unencrypted segment (LUKS)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_linear_segment: bool,
    /// Allow a superblock of dm-integrity behind a header without integrity protection (LUKS)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Header policy")]
    pub allow_integrity_superblock: bool,
    /// Refuse a volume with any other cipher
    #[arg(long, value_name = "SPEC[,SPEC]", value_parser = values::ciphers, help_heading = "Header policy")]
    pub require_cipher: Option<Ciphers>,
    /// Refuse a volume with any other UUID (LUKS)
    #[arg(long, value_name = "UUID", value_parser = values::uuid, help_heading = "Header policy")]
    pub expect_uuid: Option<String>,
    /// Refuse a volume that does not comply with a policy file
    #[arg(long, value_name = "FILE", help_heading = "Header policy")]
    pub policy: Option<PathBuf>,

    /// PBKDF algorithm (for LUKS2): argon2id, argon2i, pbkdf2
    #[arg(long, value_name = "KDF", help_heading = "Creating")]
    pub pbkdf: Option<String>,
    /// PBKDF iteration time for LUKS (in ms)
    #[arg(short = 'i', long, value_name = "MSECS", help_heading = "Creating")]
    pub iter_time: Option<u32>,
    /// PBKDF iterations cost (forced, disables benchmark)
    #[arg(long, value_name = "N", help_heading = "Creating")]
    pub pbkdf_force_iterations: Option<u32>,
    /// PBKDF memory cost limit
    #[arg(long, value_name = "KILOBYTES", help_heading = "Creating")]
    pub pbkdf_memory: Option<u32>,
    /// PBKDF parallel cost
    #[arg(long, value_name = "THREADS", help_heading = "Creating")]
    pub pbkdf_parallel: Option<u32>,
    /// LUKS2 keyslot: The cipher used for keyslot encryption
    #[arg(long, value_name = "SPEC", help_heading = "Creating")]
    pub keyslot_cipher: Option<String>,
    /// LUKS2 keyslot: The size of the encryption key
    #[arg(long, value_name = "BITS", help_heading = "Creating")]
    pub keyslot_key_size: Option<u32>,
    /// LUKS2 header metadata area size
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Creating")]
    pub luks2_metadata_size: Option<u64>,
    /// LUKS2 header keyslots area size
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Creating")]
    pub luks2_keyslots_size: Option<u64>,
    /// Align payload at SECTORS sector boundaries
    #[arg(long, value_name = "SECTORS", value_parser = values::count, help_heading = "Creating")]
    pub align_payload: Option<u64>,
    /// Use /dev/random for generating volume key: the kernel has one generator for both
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Creating")]
    pub use_random: bool,
    /// Use /dev/urandom for generating volume key: the kernel has one generator for both
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Creating")]
    pub use_urandom: bool,
    /// UUID for device to use; with luksUUID, the new one
    #[arg(long, value_name = "UUID", help_heading = "Creating")]
    pub uuid: Option<String>,
    /// Set label for the LUKS2 device
    #[arg(long, value_name = "TEXT", help_heading = "Creating")]
    pub label: Option<String>,
    /// Set subsystem label for the LUKS2 device
    #[arg(long, value_name = "TEXT", help_heading = "Creating")]
    pub subsystem: Option<String>,
    /// Keyslot priority: ignore, normal, prefer
    #[arg(long, value_name = "PRIORITY", help_heading = "Creating")]
    pub priority: Option<String>,
    /// Longest time for connecting to an NBD server or a Ceph cluster, in seconds (default: 10)
    #[arg(long, value_name = "SECS", help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub connect_timeout: Option<u64>,
    /// How long requests wait for a lost NBD server before they fail, in seconds (default: 60)
    #[arg(long, value_name = "SECS", help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub reconnect_delay: Option<u64>,
    /// Longest time for a request to an NBD server or a Ceph cluster in all, in seconds (default: 120)
    #[arg(long, value_name = "SECS", help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub store_timeout: Option<u64>,
    /// Memory for writes since the last flush, which are made again if the NBD server is lost (default: none)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub replay: Option<u64>,
    /// Open a copy of a volume that is open, if an export cannot be told from the other's storage
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub allow_copy: bool,
    /// Take the lock of an image of Ceph RBD from another client, which can then no longer use the image
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub steal_lock: bool,
    /// Content of holes of an image of Ceph RBD: noise, as in dm-crypt, or zero, as in librbd (default: noise)
    #[arg(long, value_name = "MEANING", value_parser = values::choice::<Holes>(), help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub holes: Option<Holes>,
    /// Fail requests that wait for an NBD server or Ceph; remove or close a volume with clients, or an unreadable state
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Exports of NBD servers, images of Ceph RBD")]
    pub force: bool,
    /// Disable locking of on-disk metadata
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Access")]
    pub disable_locks: bool,
    /// Disable loading volume keys via kernel keyring, which Inlock never does
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Access")]
    pub disable_keyring: bool,
    /// Disable blkid on-disk signature detection and wiping
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Creating")]
    pub disable_blkid: bool,
    /// Refresh (reactivate) device with new parameters
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Access")]
    pub refresh: bool,
    /// Set activation flags persistent for device (LUKS2)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Access")]
    pub persistent: bool,

    /// Zone size: distance between the starts of two zones (for create)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub zone_size: Option<u64>,
    /// Zone capacity (default: the zone size)
    #[arg(long, alias = "capacity", value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub zone_capacity: Option<u64>,
    /// Number of conventional zones, at the start (default: 0)
    #[arg(long, alias = "conventional", value_name = "N", help_heading = "Zones")]
    pub conventional_zones: Option<u32>,
    /// Maximum number of open zones (default: no limit)
    #[arg(long, alias = "max-open", value_name = "N", help_heading = "Zones")]
    pub max_open_zones: Option<u32>,
    /// Maximum number of active (open or closed) zones (default: no limit)
    #[arg(long, alias = "max-active", value_name = "N", help_heading = "Zones")]
    pub max_active_zones: Option<u32>,
    /// Zone write granularity (default: 4096)
    #[arg(long, alias = "granularity", value_name = "BYTES", value_parser = values::size, help_heading = "Zones")]
    pub zone_write_granularity: Option<u64>,

    /// Data integrity algorithm: crc32c (default), crc32, xxhash64, sha1, sha256, sha512, hmac-sha1, hmac-sha256 or
    /// hmac-sha512; with luksFormat hmac-sha1, hmac-sha256, hmac-sha512, aead or poly1305
    #[arg(short = 'I', long, value_name = "NAME", help_heading = "Integrity")]
    pub integrity: Option<String>,
    /// Read the integrity key from a file
    #[arg(long, value_name = "FILE", help_heading = "Integrity")]
    pub integrity_key_file: Option<PathBuf>,
    /// The size of the data integrity key; in bits with luksFormat
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Integrity")]
    pub integrity_key_size: Option<u64>,
    /// Tag size (per-sector); a size below that of a keyed hash is needed at every use
    #[arg(long, value_name = "BYTES", help_heading = "Integrity")]
    pub tag_size: Option<u32>,
    /// Interleave sectors (default: 32768)
    #[arg(long, value_name = "SECTORS", help_heading = "Integrity")]
    pub interleave_sectors: Option<u32>,
    /// Path to data device (if separated)
    #[arg(long, value_name = "FILE", help_heading = "Integrity")]
    pub data_device: Option<PathBuf>,
    /// Journal size
    #[arg(short = 'j', long, value_name = "BYTES", value_parser = values::size, help_heading = "Integrity")]
    pub journal_size: Option<u64>,
    /// Journal watermark; accepted, the journal is copied when it is half full
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Integrity")]
    pub journal_watermark: Option<u32>,
    /// Journal commit time (in ms, default: 10000)
    #[arg(long, value_name = "MSECS", help_heading = "Integrity")]
    pub journal_commit_time: Option<u32>,
    /// Journal integrity algorithm: hmac-sha1, hmac-sha256 or hmac-sha512
    #[arg(long, value_name = "NAME", help_heading = "Integrity")]
    pub journal_integrity: Option<String>,
    /// Read the journal integrity key from a file
    #[arg(long, value_name = "FILE", help_heading = "Integrity")]
    pub journal_integrity_key_file: Option<PathBuf>,
    /// The size of the journal integrity key
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Integrity")]
    pub journal_integrity_key_size: Option<u64>,
    /// Journal encryption algorithm: ctr-aes or cbc-aes
    #[arg(long, value_name = "NAME", help_heading = "Integrity")]
    pub journal_crypt: Option<String>,
    /// Read the journal encryption key from a file
    #[arg(long, value_name = "FILE", help_heading = "Integrity")]
    pub journal_crypt_key_file: Option<PathBuf>,
    /// The size of the journal encryption key
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Integrity")]
    pub journal_crypt_key_size: Option<u64>,
    /// Use bitmap to track changes and disable journal for integrity device
    #[arg(short = 'B', long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_bitmap_mode: bool,
    /// Number of 512-byte sectors per bit (bitmap mode)
    #[arg(long, value_name = "SECTORS", help_heading = "Integrity")]
    pub bitmap_sectors_per_bit: Option<u32>,
    /// Bitmap mode flush time (in ms, default: 10000)
    #[arg(long, value_name = "MSECS", help_heading = "Integrity")]
    pub bitmap_flush_time: Option<u32>,
    /// Disable journal for integrity device
    #[arg(short = 'D', long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_no_journal: bool,
    /// Recovery mode (no journal, no tag checking)
    #[arg(short = 'R', long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_recovery_mode: bool,
    /// Open a volume whose journal is damaged: what is damaged in it is lost, the rest is replayed
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_salvage_journal: bool,
    /// Accept a journal of more than 1 GiB
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_long_journal: bool,
    /// Recalculate initial tags automatically
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_recalculate: bool,
    /// Reset automatic recalculate position
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_recalculate_reset: bool,
    /// Use inefficient legacy padding (old kernels)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_legacy_padding: bool,
    /// Do not protect superblock with HMAC (old kernels)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_legacy_hmac: bool,
    /// Allow recalculating of volumes with HMAC keys (old kernels)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_legacy_recalculate: bool,
    /// Use the metadata of the device for tags; refused, no store has them
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_inline: bool,
    /// Do not wipe device after format
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub no_wipe: bool,
    /// Do not wipe device after luksFormat
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_no_wipe: bool,
    /// Mark blocks as never written instead of wiping them: they read as zeroes; needs tags with a key
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub integrity_lazy: bool,
    /// File outside the image that records its newest state; an older copy of the image is refused
    #[arg(long, value_name = "FILE", help_heading = "Integrity")]
    pub freshness: Option<PathBuf>,
    /// Record the present state without comparing it
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub freshness_accept: bool,
    /// Also record a digest of all tags when the volume is closed
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub freshness_tags: bool,
    /// Continue an interrupted wipe: fill the blocks that cannot be read with zeroes, and keep all others
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub resume_wipe: bool,
    /// Wipe the end of the device after resize
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Integrity")]
    pub wipe: bool,

    /// Format type: 1 (default), or 0 (original Chrome OS)
    #[arg(long, value_name = "NUMBER", help_heading = "Verity")]
    pub format: Option<u32>,
    /// Block size on the data device (default: 4096)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Verity")]
    pub data_block_size: Option<u64>,
    /// Block size on the hash device (default: 4096)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Verity")]
    pub hash_block_size: Option<u64>,
    /// The number of blocks in the data file
    #[arg(long, value_name = "BLOCKS", value_parser = values::count, help_heading = "Verity")]
    pub data_blocks: Option<u64>,
    /// Starting offset on the hash device
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Verity")]
    pub hash_offset: Option<u64>,
    /// Salt ("-": none; default: 32 random bytes, for fsverity none)
    #[arg(long, value_name = "HEX", help_heading = "Verity")]
    pub salt: Option<String>,
    /// Do not use verity superblock
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub no_superblock: bool,
    /// Path to root hash file
    #[arg(long, value_name = "FILE", help_heading = "Verity")]
    pub root_hash_file: Option<PathBuf>,
    /// Path to root hash signature file; refused, the kernel's keys verify it
    #[arg(long, value_name = "FILE", help_heading = "Verity")]
    pub root_hash_signature: Option<PathBuf>,
    /// Ignore corruption, log it only
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub ignore_corruption: bool,
    /// Restart kernel if corruption is detected; refused
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub restart_on_corruption: bool,
    /// Panic kernel if corruption is detected; refused
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub panic_on_corruption: bool,
    /// Do not verify zeroed blocks
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub ignore_zero_blocks: bool,
    /// Verify data block only the first time it is read; refused, every read is verified
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub check_at_most_once: bool,
    /// Use kernel tasklets for performance; accepted, no effect here
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub use_tasklets: bool,
    /// Path to device with error correction data
    #[arg(long, value_name = "FILE", help_heading = "Verity")]
    pub fec_device: Option<PathBuf>,
    /// Starting offset on the FEC device (default: 0)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Verity")]
    pub fec_offset: Option<u64>,
    /// FEC parity bytes (default: 2)
    #[arg(long, value_name = "BYTES", help_heading = "Verity")]
    pub fec_roots: Option<u32>,

    /// Hash of an fs-verity digest: sha256 (default) or sha512
    #[arg(long, value_name = "NAME", help_heading = "Verity")]
    pub hash_alg: Option<String>,
    /// Block size of an fs-verity digest (default: 4096)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Verity")]
    pub block_size: Option<u64>,
    /// Print fs-verity digests alone
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Verity")]
    pub compact: bool,
    /// Write the fs-verity descriptor to a file
    #[arg(long, value_name = "FILE", help_heading = "Verity")]
    pub out_descriptor: Option<PathBuf>,

    /// Dump info in JSON format (LUKS2 only)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub dump_json_metadata: bool,
    /// Dump volume key instead of keyslots info
    #[arg(long, alias = "dump-master-key", action = ArgAction::SetTrue, help_heading = "Output")]
    pub dump_volume_key: bool,
    /// Print the volume key in the table
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub showkeys: bool,
    /// Print results as JSON
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub json: bool,
    /// Print the rates of one second and exit
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub once: bool,
    /// Encrypt a device in place
    #[arg(short = 'N', long, alias = "new", action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub encrypt: bool,
    /// Decrypt a volume in place
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub decrypt: bool,
    /// Initialize LUKS2 reencryption in metadata only
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub init_only: bool,
    /// Resume initialized LUKS2 reencryption only
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub resume_only: bool,
    /// Re-encrypt the open volume of this name
    #[arg(long, value_name = "NAME", help_heading = "Re-encryption")]
    pub active_name: Option<PathBuf>,
    /// Start to re-encrypt an open volume
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub start: bool,
    /// Pause the re-encryption of an open volume
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub pause: bool,
    /// Go on with the re-encryption of an open volume
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub resume: bool,
    /// Show how far the re-encryption of an open volume is
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub status: bool,
    /// Limit the re-encryption of an open volume to these bytes a second (0: no limit)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Re-encryption")]
    pub rate: Option<u64>,
    /// Reencryption hotzone resilience type: checksum (default), journal, none
    #[arg(long, value_name = "TYPE", help_heading = "Re-encryption")]
    pub resilience: Option<String>,
    /// Reencryption hotzone checksums hash (default: sha256)
    #[arg(long, value_name = "HASH", help_heading = "Re-encryption")]
    pub resilience_hash: Option<String>,
    /// Maximal reencryption hotzone size (default: 64M)
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Re-encryption")]
    pub hotzone_size: Option<u64>,
    /// Reduce data device size (move data offset); half of it is for the header
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Re-encryption")]
    pub reduce_device_size: Option<u64>,
    /// Do not change volume key
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub keep_key: bool,
    /// Leave holes of a sparse image holes: data that were never written, or discarded
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub keep_holes: bool,
    /// Use fsync after each block (LUKS1; always)
    #[arg(long, action = ArgAction::SetTrue, hide = true)]
    pub use_fsync: bool,
    /// Use direct-io when accessing devices (LUKS1; no effect)
    #[arg(long, action = ArgAction::SetTrue, hide = true)]
    pub use_directio: bool,
    /// Update log file after every block (LUKS1; always)
    #[arg(long, action = ArgAction::SetTrue, hide = true)]
    pub write_log: bool,
    /// Use the volume key from file as the new one
    #[arg(long, value_name = "FILE", help_heading = "Re-encryption")]
    pub new_volume_key_file: Option<PathBuf>,
    /// Use the specified keyring key as the new volume key: a number, or %TYPE:NAME
    #[arg(long, value_name = "KEY", help_heading = "Re-encryption")]
    pub new_volume_key_keyring: Option<String>,
    /// Re-encrypt by both volume keys; remove all keyslots at the end
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub force_no_keyslots: bool,
    /// Size of the new volume key (default: --key-size)
    #[arg(long, value_name = "BITS", help_heading = "Re-encryption")]
    pub new_key_size: Option<u32>,
    /// Force offline LUKS2 reencryption, also to longer sectors than a file system may take
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Re-encryption")]
    pub force_offline_reencrypt: bool,

    /// Print progress data in JSON format
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Output")]
    pub progress_json: bool,
    /// Progress line update (in seconds)
    #[arg(long, value_name = "SECS", help_heading = "Output")]
    pub progress_frequency: Option<u64>,

    /// Address of the NBD server: unix:PATH, or tcp:HOST:PORT with --tls-verify-peer or --insecure
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen_argument(), help_heading = "Serving")]
    pub nbd: Option<Listen>,
    /// Serve the volumes of a TOML file, each under its name; file with the keys of a volume to add
    #[arg(long, value_name = "FILE", help_heading = "Serving")]
    pub config: Option<PathBuf>,
    /// Use a configuration and its key-command also if other users can replace them
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub allow_untrusted_config: bool,
    /// Socket for `inlock control`, with --config
    #[arg(long, value_name = "PATH", help_heading = "Serving")]
    pub control: Option<PathBuf>,
    /// How to attach the volume (default: auto, the first of these that works)
    #[arg(long, value_name = "METHOD", value_parser = ["auto", "ublk", "nbd", "loop", "fuse"], help_heading = "Attaching")]
    pub via: Option<String>,
    /// Run in the foreground until the volume is closed
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Attaching")]
    pub foreground: bool,
    /// Device removal is deferred until the last user closes it
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Attaching")]
    pub deferred: bool,
    /// Cancel a previously set deferred device removal
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Attaching")]
    pub cancel_deferred: bool,
    /// Options for mount(8)
    #[arg(long, value_name = "OPTIONS", help_heading = "Attaching")]
    pub mount_options: Option<String>,
    /// Name of the NBD export (default: empty)
    #[arg(long, value_name = "NAME", help_heading = "Serving")]
    pub export_name: Option<String>,
    /// Serve OpenMetrics on unix:PATH or tcp:HOST:PORT (TCP: to all users of this machine)
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen_argument(), help_heading = "Control")]
    pub metrics: Option<Listen>,
    /// Length at which a background process begins a new log, and keeps the last one (default: 1M)
    #[arg(long, value_name = "BYTES", value_parser = values::log_limit, help_heading = "Serving")]
    pub log_limit: Option<u64>,
    /// Serve in the background, and return when clients can connect (needs --name)
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub background: bool,
    /// Marks the background process
    #[arg(long, action = ArgAction::SetTrue, hide = true)]
    pub launched: bool,
    /// Name of the volume for status, suspend and close
    #[arg(long, value_name = "NAME", value_parser = Name::new, help_heading = "Control")]
    pub name: Option<Name>,
    /// Serve while a shell command runs, and exit with its status
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true, help_heading = "Serving")]
    pub run: Option<OsString>,
    /// Create a readonly mapping
    #[arg(short = 'r', long = "read-only", alias = "readonly", action = ArgAction::SetTrue, help_heading = "Access")]
    pub read_only: bool,
    /// Allow discards (aka TRIM) requests for device
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Access")]
    pub allow_discards: bool,
    /// dm-crypt's same_cpu_crypt; recorded and shown, no effect here
    #[arg(long = "perf-same_cpu_crypt", action = ArgAction::SetTrue, help_heading = "Access")]
    pub same_cpu_crypt: bool,
    /// dm-crypt's submit_from_crypt_cpus; recorded and shown, no effect here
    #[arg(long = "perf-submit_from_crypt_cpus", action = ArgAction::SetTrue, help_heading = "Access")]
    pub submit_from_crypt_cpus: bool,
    /// dm-crypt's no_read_workqueue; recorded and shown, no effect here
    #[arg(long = "perf-no_read_workqueue", action = ArgAction::SetTrue, help_heading = "Access")]
    pub no_read_workqueue: bool,
    /// dm-crypt's no_write_workqueue; recorded and shown, no effect here
    #[arg(long = "perf-no_write_workqueue", action = ArgAction::SetTrue, help_heading = "Access")]
    pub no_write_workqueue: bool,
    /// dm-crypt's high_priority; recorded and shown, no effect here
    #[arg(long = "perf-high_priority", action = ArgAction::SetTrue, help_heading = "Access")]
    pub high_priority: bool,
    /// I/O engine for the underlying device (default: auto)
    #[arg(long, value_name = "ENGINE", value_parser = values::choice::<IoMode>(), help_heading = "Performance")]
    pub io: Option<IoMode>,
    /// Number of worker threads (default: number of CPUs, at most 4)
    #[arg(long, value_name = "N", value_parser = values::number::<u16>, help_heading = "Performance")]
    pub threads: Option<u16>,
    /// Requests to encrypt or decrypt on a pool of threads (default: none)
    #[arg(long, value_name = "WHICH", value_parser = ["none", "reads", "writes", "both", "auto"], help_heading = "Performance")]
    pub offload: Option<String>,
    /// Number of threads in the pool of --offload (default: number of CPUs)
    #[arg(long, value_name = "N", help_heading = "Performance")]
    pub offload_threads: Option<u16>,
    /// Cipher engine for long requests (default: software)
    #[arg(long, value_name = "ENGINE", value_parser = values::choice::<Engine>(), help_heading = "Performance")]
    pub engine: Option<Engine>,
    /// Length of the shortest request for the cipher engine (default: 128K)
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Performance")]
    pub engine_threshold: Option<u64>,
    /// Microseconds to poll for the next short request before sleeping (default: auto, up to 50 where it helps)
    #[arg(long, value_name = "USECS", help_heading = "Performance")]
    pub busy_poll: Option<String>,
    /// Allow NBD over TCP without TLS or without certificates of clients, and metrics for other machines
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub insecure: bool,
    /// Offer TLS to clients (on), or accept no others (require) (default: off)
    #[arg(long, value_name = "MODE", value_parser = inlock_serve::tls::MODES, help_heading = "Serving")]
    pub tls: Option<String>,
    /// Directory with server-cert.pem, server-key.pem, ca-cert.pem and ca-crl.pem
    #[arg(long, value_name = "DIR", help_heading = "Serving")]
    pub tls_certificates: Option<PathBuf>,
    /// Accept only clients with a certificate of ca-cert.pem
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Serving")]
    pub tls_verify_peer: bool,
    /// Pre-shared keys, which are not supported
    #[arg(long, value_name = "FILE", hide = true)]
    pub tls_psk: Option<PathBuf>,

    /// Also write the results as an HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Measuring")]
    pub report: Option<PathBuf>,
    /// Exit with status 1 unless the results meet all thresholds
    #[arg(long, alias = "bars", action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub check: bool,
    /// With --check: accept thresholds that were not measured
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub allow_missing: bool,
    /// Measure for seconds instead of minutes
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Measuring")]
    pub quick: bool,
    /// Number of measurements of each case
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub rounds: Option<u16>,
    /// Duration of one measurement (in ms)
    #[arg(long, value_name = "MSECS", help_heading = "Measuring")]
    pub slice_ms: Option<u32>,
    /// Directory for test images (default: /dev/shm, or the temporary directory)
    #[arg(long, value_name = "DIRECTORY", help_heading = "Measuring")]
    pub dir: Option<PathBuf>,

    /// Part of the volume to copy, as in 1M:512K; without LENGTH, to the end
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = values::range, help_heading = "Copying")]
    pub range: Option<Range>,

    /// Do not activate device, just check passphrase
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Keys")]
    pub test_passphrase: bool,
}

impl Options {
    /// Sets the options that are the first of several.
    pub(crate) fn take_first(&mut self) {
        self.key_file = self.key_files.first().cloned();
        self.volume_key_file = self.volume_key_files.first().cloned();
        self.volume_key_keyring = self.volume_key_keyrings.first().cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn short_option_is_that_of_cryptsetup() {
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
