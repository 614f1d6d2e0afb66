//! Exit status and hint of each kind of error of the library.

use std::io;

use inlock_afalg::AfAlgError;
use inlock_engine::{ControlError, TargetError};
use inlock_nbd_store::OpenError;
use inlock_open::error::{TokenHint, ZoneHint};
use inlock_open::{Error, ErrorKind};
use inlock_rbd_store::OpenError as ImageError;
use inlock_volume::PolicyError;

use super::{CliError, Status, hint_of_export, hint_of_image, hint_of_policy, status_of_policy};

/// Returns the exit status. `None`: that of the causes.
pub(super) fn status(error: &Error) -> Option<Status> {
    Some(match error.kind() {
        ErrorKind::Failed => return None,
        ErrorKind::NoInput => return cause::<CliError>(error).map(CliError::status),
        ErrorKind::NoKey
        | ErrorKind::OtherKey
        | ErrorKind::WrongVolumeKey
        | ErrorKind::OtherPassphrase
        | ErrorKind::TokenPassphrase(_)
        | ErrorKind::CorruptBlock => Status::Permission,
        ErrorKind::NoDevice { .. }
        | ErrorKind::NotADevice
        | ErrorKind::NoExport
        | ErrorKind::NoFreshnessFile
        | ErrorKind::FreshnessOfOther
        | ErrorKind::HeaderNotFresh
        | ErrorKind::NotFresh
        | ErrorKind::FreshnessUnknown => Status::Device,
        ErrorKind::NoImage => match cause(error) {
            Some(ImageError::Locked(_) | ImageError::LockedByHand) => Status::Busy,
            _ => Status::Device,
        },
        ErrorKind::AgainstPolicy | ErrorKind::NewAgainstPolicy => {
            cause::<PolicyError>(error).map_or(Status::Wrong, status_of_policy)
        }
        ErrorKind::Mounted
        | ErrorKind::InUse
        | ErrorKind::HeaderLocked
        | ErrorKind::OpenElsewhere
        | ErrorKind::Overlaps
        | ErrorKind::BeingReencrypted
        | ErrorKind::ZonedFileInUse
        | ErrorKind::FreshnessFileInUse
        | ErrorKind::SidecarExists
        | ErrorKind::LoopDeviceInUse => Status::Busy,
        _ => Status::Wrong,
    })
}

fn cause<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    error.cause().and_then(|cause| cause.downcast_ref())
}

/// Whether options are wrong, so that the hint is the help of the action.
pub(super) fn is_of_command_line(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::AcceptNeedsWriting
            | ErrorKind::SameDataDevice
            | ErrorKind::IntegrityOption
            | ErrorKind::IntegrityLineHash
            | ErrorKind::KeyLinkNeedsLuks2
            | ErrorKind::NeedsIntegrity
            | ErrorKind::KeyFileSize
            | ErrorKind::TableInput
            | ErrorKind::RootHash
            | ErrorKind::VerityLayout
            | ErrorKind::InvalidOption
            | ErrorKind::OutputIsInput
            | ErrorKind::InputIsOutput
            | ErrorKind::InputIsDirectory
    )
}

/// Returns what to do next.
pub(super) fn hint(error: &Error) -> Option<String> {
    let path = error.path().map(|path| path.display().to_string()).unwrap_or_default();
    Some(match error.kind() {
        ErrorKind::NoInput => return cause::<CliError>(error).and_then(CliError::hint),
        ErrorKind::NoDevice { to_create: true } => {
            let missing = cause::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
            return missing.then(|| format!("create an image file first: truncate -s SIZE {path}"));
        }
        ErrorKind::NoExport => return cause::<OpenError>(error).and_then(hint_of_export).map(str::to_owned),
        ErrorKind::NoImage => return cause::<ImageError>(error).and_then(hint_of_image).map(str::to_owned),
        ErrorKind::TooSmall { len, needed } => {
            format!("enlarge it from {len} to at least {needed} bytes: truncate -s SIZE {path}")
        }
        ErrorKind::AgainstPolicy => return cause::<PolicyError>(error).and_then(hint_of_policy).map(str::to_owned),
        ErrorKind::NewAgainstPolicy => {
            let hint = cause::<PolicyError>(error).and_then(hint_of_policy);
            return hint.map(|hint| hint.replace("to open it", "to create it"));
        }
        ErrorKind::NotLuks { found: Some(version), .. } => {
            format!("use --type luks{version} for its LUKS{version} header, or --type luks for any version")
        }
        ErrorKind::NotLuks { may_be_plain: false, .. } => {
            format!("run `inlock doctor {path}` to search for a header; --header names a detached one")
        }
        ErrorKind::Luks1Reencrypted => {
            format!(
                "go on in the directory of that file with `inlock reencrypt {path}`; the volume does not open meanwhile"
            )
        }
        ErrorKind::LoopDeviceInUse => format!("unmount {path}, or stop its other users, and detach it"),
        ErrorKind::NoEngine => hint_of_engine(cause(error)),
        ErrorKind::Length => return cause::<ControlError>(error).and_then(hint_of_length).map(str::to_owned),
        kind if is_of_command_line(kind) => "run `inlock --help` to list actions and options".to_owned(),
        kind => fixed_hint(kind)?.to_owned(),
    })
}

fn hint_of_length(error: &ControlError) -> Option<&'static str> {
    match error {
        ControlError::Target(TargetError::BeyondStore { .. }) => {
            Some("enlarge the image first, or give a smaller --size")
        }
        ControlError::Target(TargetError::UnitLength { .. }) => Some("give a --size of whole encryption sectors"),
        _ => None,
    }
}

fn hint_of_engine(error: Option<&AfAlgError>) -> String {
    match error {
        Some(AfAlgError::NoSockets) => {
            "load the modules af_alg and algif_skcipher, or use --engine software".to_owned()
        }
        Some(AfAlgError::Algorithm(name)) => {
            format!(
                "load algif_skcipher and the modules of {name} (grep '{name}' /proc/crypto), or use --engine software"
            )
        }
        _ => "use --engine software".to_owned(),
    }
}

/// Returns a hint that names no object.
fn fixed_hint(kind: ErrorKind) -> Option<&'static str> {
    of_device(kind)
        .or_else(|| of_key(kind))
        .or_else(|| of_token(kind))
        .or_else(|| of_layer(kind))
        .or_else(|| of_table(kind))
        .or_else(|| of_resize(kind))
        .or_else(|| of_copy(kind))
}

fn of_device(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NothingToRead => "pass the passphrase on standard input or with --key-file",
        ErrorKind::ReadOnly => "make it writable, or work on a copy",
        ErrorKind::Mounted => "stop its users; it is mounted, or part of another device",
        ErrorKind::InUse => {
            "run `inlock list` to see the volumes that use it, and `inlock close NAME`; a process without a name is not \
             listed"
        }
        ErrorKind::HeaderLocked => "try again when the other program has released the lock of the header",
        ErrorKind::OpenElsewhere => "close it there; if this is a copy of it on other storage, use --allow-copy",
        ErrorKind::Overlaps => "give each volume a range of its own with --offset and --size, and --shared",
        ErrorKind::ZonedFileInUse => "another process has the zoned file open",
        ErrorKind::FreshnessFileInUse => "use a file for each volume",
        ErrorKind::NoLock => "set XDG_RUNTIME_DIR to a directory of your own",
        ErrorKind::NoDerivationLock => "run it as root, or leave --serialize-memory-hard-pbkdf out",
        ErrorKind::ExportName { has_shared_key: true } => {
            "let the server use certificates, and name them: nbds://HOST/?tls-certificates=DIR"
        }
        ErrorKind::ExportName { has_shared_key: false } => {
            "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; a file name begins with ./"
        }
        ErrorKind::ImageName => {
            "write rbd:POOL[/NAMESPACE]/IMAGE[@SNAP][:id=USER][:conf=FILE]; a file name begins with ./"
        }
        ErrorKind::JournaledImage => "disable it: rbd feature disable POOL/IMAGE journaling",
        ErrorKind::NoFlush => "use --read-only, or a server with flushes (nbd-server: flush = true)",
        ErrorKind::NotOnThisHost => "copy it to a file or a block device, or open it with --table, which takes exports",
        ErrorKind::ServerBlocks { of_volume: true } => {
            "create the volume with a larger --sector-size, or let the server take smaller blocks"
        }
        ErrorKind::ServerBlocks { of_volume: false } => "let the server take smaller blocks",
        ErrorKind::WritesLost => "check the device, and restore the data written since the last successful flush",
        ErrorKind::ZoneMisfit(ZoneHint::Plain) => "align --offset, --size and --sector-size with the zones",
        ErrorKind::ZoneMisfit(ZoneHint::Table) => "align the lines of the table with the zones",
        ErrorKind::ZoneMisfit(ZoneHint::Header) => "use --read-only, or --header with a copy of the header in a file",
        ErrorKind::ZoneMisfit(ZoneHint::Format) => "create the volume on these zones with `inlock luksFormat`",
        ErrorKind::ZoneMisfit(ZoneHint::NewHeader) => "use another file or device for the header",
        ErrorKind::ZoneMisfit(ZoneHint::Detached) => "use a detached header: inlock luksFormat --header FILE DEVICE",
        ErrorKind::ZoneMisfit(ZoneHint::Unit) => "set a smaller unit with --sector-size",
        ErrorKind::ZoneMisfit(ZoneHint::Offset) => "set the data offset with --offset",
        ErrorKind::SidecarExists => "remove it to start over",
        ErrorKind::ZonedFileEmpty => "add the length of all zones together, as in --size 1G",
        ErrorKind::ZonedFileHoldsData => "name a new file, or an empty one made by truncate",
        ErrorKind::SidecarMissing => "move and copy a zoned file together with its sidecar FILE.zones",
        ErrorKind::ZonedFileDamaged => "restore FILE and FILE.zones from the same backup",
        ErrorKind::NeedsBothKeys => {
            "open it with both, as `--volume-key-file OLD --volume-key-file NEW`, or go on with `inlock reencrypt \
             --resume-only --volume-key-file OLD --new-volume-key-file NEW`; do not restore a header backup"
        }
        ErrorKind::FileSystemCut => {
            "shrink it first (`resize2fs`, `btrfs filesystem resize`); with --force-offline-reencrypt its end is lost"
        }
        ErrorKind::EngineIdle => {
            "use --engine software; engines encrypt LUKS and plain volumes, without integrity protection"
        }
        _ => return None,
    })
}

fn of_key(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::BackupExists => "choose another name; an old backup is never overwritten",
        ErrorKind::BackupNotWritten => "check the directory, its permissions and its free space",
        ErrorKind::NotABackup => "use a file that `luksHeaderBackup` has created",
        ErrorKind::NotLuks2 => "only LUKS2 has this; `inlock luksDump` shows the version",
        ErrorKind::NotLuks { .. } => "use --type plain for a volume without a header, --header for a detached header",
        ErrorKind::Ambiguous => {
            "`inlock doctor` tells what is there; if it is the LUKS volume that you need, `inlock repair` \
             restores its header after a question, and --disable-blkid uses its second copy as it is"
        }
        ErrorKind::EncryptedClone => {
            "open it through librbd, or flatten it: rbd flatten POOL/IMAGE \
             --encryption-passphrase-file FILE_OF_THE_CLONE --encryption-passphrase-file FILE_OF_ITS_PARENT"
        }
        ErrorKind::PolicyTooLong => "check the name of the file; it is no policy",
        ErrorKind::PolicyFile => "correct the file",
        ErrorKind::HeaderInPayload => {
            "name the device that has the payload, or copy the header to a file: inlock luksHeaderBackup"
        }
        ErrorKind::NoPayload => "name the data device, and this file with --header",
        ErrorKind::PayloadMisfit | ErrorKind::MappingMisfit => {
            "the image is truncated, or the header belongs to another image"
        }
        ErrorKind::PlainMisfit => "check --offset, --size and --sector-size against the length of the device",
        ErrorKind::UnitMisfit => "make the length of the image a multiple of its sector size: truncate -s SIZE",
        ErrorKind::ReplacedHeaderChanged => "nothing was written; run `inlock luksDump` to see the header",
        ErrorKind::HeaderChanged => "nothing was changed; run `inlock luksDump` to see the header, and try again",
        ErrorKind::NoUsableKeyslot => "restore the header from a backup; all keyslots were erased",
        ErrorKind::WrongVolumeKey => "check the volume key; it belongs to another volume",
        ErrorKind::OtherKey => "check the passphrase and the header; the volume stays suspended",
        ErrorKind::OtherPassphrase => "try again; nothing was changed",
        ErrorKind::KeyslotInactive | ErrorKind::KeyslotInvalid | ErrorKind::KeyslotInUse => {
            "run `inlock luksDump` to list the keyslots"
        }
        ErrorKind::NoFreeKeyslot | ErrorKind::NoFreeArea => "remove a keyslot first: inlock luksKillSlot DEVICE NUMBER",
        ErrorKind::ZoneLost => "restore the device from a backup; nothing was written",
        ErrorKind::ZoneHot => "run `inlock repair`, or open it for writing, which recovers the zone",
        ErrorKind::BeingReencrypted => {
            "wait until the re-encryption has ended: `inlock reencrypt NAME --status` of an open volume; a process stops \
             after a zone"
        }
        ErrorKind::NotReencrypted => {
            "begin without --resume-only, or with `inlock reencrypt NAME --start` if the volume is open"
        }
        ErrorKind::AlreadyReencrypted => {
            "go on with `inlock reencrypt --resume-only`, or `inlock reencrypt NAME --resume` if the volume is open"
        }
        ErrorKind::NoReencryptionLog => {
            "change to the directory where the re-encryption has begun; nothing was written"
        }
        ErrorKind::ReencryptionFile => "put the files LUKS-UUID.* of this re-encryption here; nothing was written",
        ErrorKind::ReencryptionFileLeft => "move it away, unless it is of a re-encryption that has not ended",
        ErrorKind::OtherReencryption => "leave --encrypt and --decrypt out, or give the one with which it has begun",
        ErrorKind::InvalidUuid => "write it as 8-4-4-4-12 hexadecimal digits",
        ErrorKind::NoKeyLen | ErrorKind::VolumeKeyFileTooShort => "set --key-size to the length of the key in bits",
        ErrorKind::KeyFileIsDirectory => "name a file, not a directory",
        ErrorKind::KeyFileOffset => "use a --keyfile-offset within the key file",
        ErrorKind::KeyOffset => "use a --keyfile-offset within the key",
        ErrorKind::KeyFileTooShort => "use a --keyfile-size within the key file",
        ErrorKind::KeyFileTooLong => "use --keyfile-size to read a part of the file",
        ErrorKind::PassphraseTooShort => "use a --keyfile-size within the passphrase",
        ErrorKind::PassphraseTooLong => "pass a passphrase of one line of text",
        ErrorKind::KeyType => "name a key of type user: %user:DESCRIPTION; programs cannot read keys of other types",
        ErrorKind::InvalidKeyLink => "use KEYRING::DESCRIPTION, KEYRING::%user:… or KEYRING::%logon:PREFIX:…",
        _ => return None,
    })
}

fn of_token(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NoKeyringKey => KEYRING,
        ErrorKind::NoToken(hint) => reason(hint).unwrap_or("run `inlock luksDump` to list tokens and their keyslots"),
        ErrorKind::TokenPassphrase(hint) => {
            reason(hint).unwrap_or("use a passphrase; the passphrase of the keyslot may have been changed")
        }
        ErrorKind::TokenPin => "try again with its PIN",
        ErrorKind::TokenResource => "plug in its device or start its server, or use a passphrase",
        ErrorKind::TokenFailed => "check the helper of its type, or use a passphrase",
        ErrorKind::TokenOfRemovedKeyslot => "name a token of another keyslot, or use a passphrase of one",
        _ => return None,
    })
}

const KEYRING: &str = "add the passphrase as a key of type user: keyctl padd user DESCRIPTION @u";

fn reason(hint: TokenHint) -> Option<&'static str> {
    Some(match hint {
        TokenHint::Keyring => KEYRING,
        TokenHint::Newline => "the helper's output ends with a newline, which is part of the passphrase",
        TokenHint::Systemd => {
            "Inlock does not run systemd's plugins yet; use a passphrase or the recovery key, or add a key file with \
             cryptsetup: cryptsetup luksAddKey --token-only IMAGE KEYFILE"
        }
        TokenHint::Recovery => "type the recovery key as the passphrase; this token only marks its keyslot",
        TokenHint::Clevis => {
            "install the helper contrib/tokens/clevis in /usr/lib/inlock/tokens, or use: clevis luks pass -d IMAGE -s \
             SLOT | inlock open --key-file - IMAGE NAME"
        }
        TokenHint::Ssh => "fetch the key file with ssh: ssh USER@SERVER cat PATH | inlock open --key-file - IMAGE NAME",
        TokenHint::Helper => "install a helper for its type in /usr/lib/inlock/tokens, or use a passphrase",
        _ => return None,
    })
}

fn of_layer(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::FreshnessNeedsTags => "add --freshness-tags, or leave --integrity-no-journal out",
        ErrorKind::FreshnessJournal => "use --integrity-no-journal and --freshness-tags",
        ErrorKind::NoFreshnessFile => {
            "if the image is known to be the newest one, create the file: add --freshness-accept to a writable open"
        }
        ErrorKind::FreshnessOfOther => {
            "name the file of this volume, or add --freshness-accept to record its present state"
        }
        ErrorKind::NotAFreshnessFile => "name another file; nothing was written to this one",
        ErrorKind::FreshnessForeign => "name another file, or remove this one if it is no longer needed",
        ErrorKind::HeaderNotFresh => "if you changed the header, add --freshness-accept; otherwise it is an older copy",
        ErrorKind::NotFresh => {
            "use the newest copy of the image; if another program has written to it, add --freshness-accept"
        }
        ErrorKind::FreshnessUnknown => "check the data, and add --freshness-accept to record the present state",
        ErrorKind::NotIntegrity => "check the device; `inlock luksDump` shows a LUKS2 volume with integrity protection",
        ErrorKind::NoJournalMac => {
            "give its hash and key with --journal-integrity and --journal-integrity-key-file, if it was formatted with \
             them; otherwise the superblock was changed"
        }
        ErrorKind::Journal => {
            "nothing was written; check the hash and its key, the key of the journal, and the device; \
             --integrity-salvage-journal opens the volume without what is damaged, whose writes are then lost"
        }
        ErrorKind::LongJournal => "use --integrity-long-journal, if you know that its journal is this long",
        ErrorKind::IntegrityMisfit => "the header belongs to another image, or one of the two was changed",
        ErrorKind::RemovedIntegrity => {
            "restore the header from a backup; if the volume was formatted again without integrity protection, use \
             --allow-integrity-superblock until its first block is written"
        }
        ErrorKind::IntegrityOnZones { is_new: true } => "leave --integrity out, or use another device",
        ErrorKind::IntegrityOnZones { is_new: false } => {
            "dm-integrity writes tags in place, which zones do not allow; use another device"
        }
        ErrorKind::NoHoles => "use --holes noise: a hole is then what it decrypts to, as in dm-crypt",
        ErrorKind::NotVerity => "name the device with the superblock, its --hash-offset, or --no-superblock",
        ErrorKind::VerityParameter => "leave it out, or use --no-superblock for a device without superblock",
        ErrorKind::VerityOverlap => "set --data-blocks and --hash-offset, so that the tree is behind the data",
        ErrorKind::VerityDataBlocks => "lower --data-blocks, or leave it out",
        ErrorKind::FecOverlaps => {
            "set --fec-offset, so that the parity is behind the tree, or use another --fec-device"
        }
        ErrorKind::CorruptRoot => "check the root hash; the tree belongs to another one, or was changed",
        ErrorKind::CorruptBlock => "restore the block from a copy",
        _ => return None,
    })
}

fn of_copy(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::OutputTooSmall => "use --range to export a part of the volume",
        ErrorKind::OutsideVolume => "use --range OFFSET:LENGTH, in bytes or with units: 1M:512K",
        ErrorKind::InputTooLong => "enlarge the image first (truncate -s SIZE IMAGE), or truncate the input",
        ErrorKind::InputTooShort => "use --range OFFSET: without a length for all of the input",
        ErrorKind::InputGoesOn => "enlarge the image, or truncate the input",
        ErrorKind::ZoneGranularity => "use a --range that starts at a multiple",
        ErrorKind::ZoneCapacity => "use an image for zones of this capacity",
        ErrorKind::ZonePointer => {
            "open the volume with --via ublk and reset its zones (blkzone reset), or use another --range"
        }
        ErrorKind::ZoneState => "use a --range without it",
        ErrorKind::TooManyZones => "use an image that leaves fewer zones partly written",
        _ => return None,
    })
}

fn of_resize(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::ZonesResize => "leave --size and --device-size out",
        ErrorKind::SealedResize => "copy the data to a new volume: inlock export, luksFormat, import",
        ErrorKind::TreeResize => "create a hash tree for the new length with `inlock verity format`",
        _ => return None,
    })
}

fn of_table(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::Table => "write the table as `dmsetup table` prints it",
        ErrorKind::TableKeyInArgument => "write the table to a file that other users cannot read: --table FILE",
        ErrorKind::TableOtherDevice => "use a table on the same devices",
        ErrorKind::TableAllowsDiscards => {
            "remove allow_discards from the table, or close the volume and open it with this table"
        }
        ErrorKind::TableForbidsDiscards => {
            "add allow_discards to every encrypted line, or close the volume and open it with this table"
        }
        ErrorKind::TableDirectIo | ErrorKind::TableZones => "close the volume and open it with this table",
        ErrorKind::TableLegacyCipher => "open the volume with --read-only first",
        ErrorKind::OtherTable | ErrorKind::TableResize => "close it, and open it with the new table",
        ErrorKind::SealedDiscards => "remove allow_discards from the line of crypt",
        ErrorKind::StackSuspend => "close it; its table opens it again",
        ErrorKind::IntegrityLineChanges => "give the volume its own table, or close it and open it with the other one",
        ErrorKind::IntegrityLineMode => {
            "its tags are in the metadata of the device's sectors, which only the Linux kernel can access"
        }
        ErrorKind::IntegrityLineLen => "give the line the length that the superblock has (inlock integrity dump)",
        ErrorKind::IntegrityLineMisfit => "compare the line with the output of `inlock integrity dump`",
        ErrorKind::VerityLineStops => "remove the option from the line; reads of corrupted blocks fail",
        ErrorKind::VerityLineSignature => {
            "only the kernel can read that key; verify the signature of the root hash before, and remove the option"
        }
        ErrorKind::IsVerity => "run `inlock verity table` for its table",
        ErrorKind::IsIntegrity => "run `inlock integrity dump` for its parameters",
        _ => return None,
    })
}
