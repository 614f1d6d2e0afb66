//! Kinds of errors, by which a program decides what to do.

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system or another library has failed; the source tells why.
    Failed,
    /// The user has ended a prompt by this signal.
    Interrupted(i32),
    /// No passphrase was typed in time.
    PromptTimeout,
    /// The program cannot give a passphrase or a key.
    NoInput,
    /// The input of the program is empty.
    NothingToRead,

    /// The device cannot be opened. `to_create`: it was to get a new volume.
    NoDevice {
        /// Whether it was to get a new volume.
        to_create: bool,
    },
    /// The name is neither that of a regular file nor of a block device.
    NotADevice,
    /// The device is too small.
    TooSmall {
        /// Its length in bytes.
        len: u64,
        /// The length in bytes that it needs.
        needed: u64,
    },
    /// The device cannot be written.
    ReadOnly,
    /// The device is mounted, or part of another device.
    Mounted,
    /// Another process has locked the device.
    InUse,
    /// Another process has locked the header.
    HeaderLocked,
    /// The volume is open under another name of its storage.
    OpenElsewhere,
    /// Another volume has a part of the range.
    Overlaps,
    /// Another process has the zoned file open.
    ZonedFileInUse,
    /// Another process uses the freshness file.
    FreshnessFileInUse,
    /// There is no way to lock the image against other writers.
    NoLock,
    /// The lock of memory-hard key derivations cannot be taken.
    NoDerivationLock,
    /// The export of an NBD server cannot be opened.
    NoExport,
    /// The image of Ceph RBD cannot be opened.
    NoImage,
    /// The URI of an export cannot be used.
    ExportName {
        /// Whether it asks for a shared key.
        has_shared_key: bool,
    },
    /// The name of an image of Ceph RBD cannot be used.
    ImageName,
    /// The image of Ceph RBD has a journal, which encrypted images cannot have.
    JournaledImage,
    /// The server of an export cannot flush.
    NoFlush,
    /// The device is not on this host.
    NotOnThisHost,
    /// The blocks of the server are longer than the sectors of the volume.
    ServerBlocks {
        /// Whether sectors could be longer.
        of_volume: bool,
    },

    /// There is no LUKS header of an accepted version.
    NotLuks {
        /// Version of the header that there is.
        found: Option<u32>,
        /// Whether the volume may be a plain one.
        may_be_plain: bool,
    },
    /// The header is not LUKS2.
    NotLuks2,
    /// The device has a LUKS header and signatures of other formats.
    Ambiguous,
    /// The device is a clone that librbd has encrypted by itself.
    EncryptedClone,
    /// The volume is refused by the policy.
    AgainstPolicy,
    /// A new volume is refused by the policy.
    NewAgainstPolicy,
    /// A file with a policy is too long.
    PolicyTooLong,
    /// A file with a policy has a fault.
    PolicyFile,
    /// The device for a detached header is that with the data.
    SameHeaderDevice,
    /// The header lies in the payload.
    HeaderInPayload,
    /// The file has a detached header and no payload.
    NoPayload,
    /// The payload does not fit the device.
    PayloadMisfit,
    /// The segments of a plain volume do not fit the device.
    PlainMisfit,
    /// The mapping does not fit the device.
    MappingMisfit,
    /// The length of the device is no multiple of the data unit.
    UnitMisfit,
    /// The header was replaced or changed by another program.
    HeaderChanged,
    /// The header that a new volume was to replace was changed by another program.
    ReplacedHeaderChanged,

    /// A zone that was being re-encrypted cannot be recovered.
    ZoneLost,
    /// A zone that was being re-encrypted has to be recovered, which needs writing.
    ZoneHot,
    /// Another process re-encrypts the volume.
    BeingReencrypted,
    /// The volume is not being re-encrypted.
    NotReencrypted,
    /// The volume is being re-encrypted already.
    AlreadyReencrypted,
    /// A volume of this kind cannot be re-encrypted, or not with these options.
    CannotReencrypt,
    /// One of both keys of a volume in re-encryption has no keyslot.
    NeedsBothKeys,
    /// A file system is longer than what is left of its device.
    FileSystemCut,
    /// The volume is in a re-encryption of LUKS1.
    Luks1Reencrypted,
    /// A re-encryption of LUKS1 has no log here.
    NoReencryptionLog,
    /// A file of a re-encryption of LUKS1 is damaged, or that of another one.
    ReencryptionFile,
    /// A file is left of a re-encryption of LUKS1 that has not begun or has ended.
    ReencryptionFileLeft,
    /// The re-encryption has begun with other options.
    OtherReencryption,

    /// No keyslot opens with the passphrase.
    NoKey,
    /// No keyslot is left that could open.
    NoUsableKeyslot,
    /// The volume key is not that of the volume.
    WrongVolumeKey,
    /// The key is not that of the suspended volume.
    OtherKey,
    /// Two passphrases that were to be the same are not.
    OtherPassphrase,
    /// The keyslot has no key.
    KeyslotInactive,
    /// There is no keyslot of this number.
    KeyslotInvalid,
    /// The keyslot has a key already.
    KeyslotInUse,
    /// All keyslots are in use.
    NoFreeKeyslot,
    /// There is no space for the key material of another keyslot.
    NoFreeArea,
    /// An option of a change, or of a new volume, is not valid.
    InvalidOption,
    /// The UUID is not one.
    InvalidUuid,
    /// The length of the volume key is not known.
    NoKeyLen,
    /// A file with a volume key is too short.
    VolumeKeyFileTooShort,
    /// A key file is a directory.
    KeyFileIsDirectory,
    /// A key file ends before the offset.
    KeyFileOffset,
    /// A key ends before the offset.
    KeyOffset,
    /// A size above the maximum of a key file was asked for.
    KeyFileSize,
    /// A key file is shorter than the size.
    KeyFileTooShort,
    /// A key file is longer than the maximum.
    KeyFileTooLong,
    /// A passphrase is shorter than the size.
    PassphraseTooShort,
    /// A passphrase is longer than the maximum.
    PassphraseTooLong,

    /// A key of the keyring is of a type that programs cannot read.
    KeyType,
    /// The place of a linked key is not valid.
    InvalidKeyLink,
    /// A linked key needs a LUKS2 volume.
    KeyLinkNeedsLuks2,
    /// There is no key with this description in the keyring.
    NoKeyringKey,
    /// No token can be used; the hint tells why.
    NoToken(TokenHint),
    /// A token needs a PIN.
    TokenPin,
    /// A token needs a device or a server that is missing.
    TokenResource,
    /// The passphrase of a token opens no keyslot.
    TokenPassphrase(TokenHint),
    /// The helper of a token has failed.
    TokenFailed,
    /// The token opens the keyslot that is to be removed.
    TokenOfRemovedKeyslot,

    /// Freshness or a resumed wipe needs integrity protection.
    NeedsIntegrity,
    /// Accepting a state needs a volume that is opened for writing.
    AcceptNeedsWriting,
    /// Freshness without a journal needs the digest of the tags.
    FreshnessNeedsTags,
    /// The journal is too short for freshness.
    FreshnessJournal,
    /// There is no freshness file.
    NoFreshnessFile,
    /// The freshness file has no record of the volume.
    FreshnessOfOther,
    /// The file is no freshness file.
    NotAFreshnessFile,
    /// The freshness file has records of another volume, or is damaged.
    FreshnessForeign,
    /// The header is not the recorded one.
    HeaderNotFresh,
    /// The volume is older than the record.
    NotFresh,
    /// The last state of the volume is not known.
    FreshnessUnknown,

    /// The device has no superblock of dm-integrity.
    NotIntegrity,
    /// An option does not fit the superblock of dm-integrity.
    IntegrityOption,
    /// The data device is the device with the metadata.
    SameDataDevice,
    /// The superblock says that the journal has a MAC, and no hash for it is given.
    NoJournalMac,
    /// The journal is damaged.
    Journal,
    /// The journal is longer than is accepted without being asked for.
    LongJournal,
    /// Blocks or tags are not those that the header says.
    IntegrityMisfit,
    /// A LUKS header without integrity protection is before a superblock of dm-integrity.
    RemovedIntegrity,
    /// Integrity protection on zones.
    IntegrityOnZones {
        /// Whether the volume was to be created.
        is_new: bool,
    },
    /// The program has stopped a wipe, which can be continued.
    WipeStopped,
    /// Holes cannot read as zeroes.
    NoHoles,

    /// The table is not one.
    Table,
    /// The table is no text, or empty.
    TableInput,
    /// A key in an argument would be readable by all users.
    TableKeyInArgument,
    /// The table is on another device than the running volume.
    TableOtherDevice,
    /// The table changes what a running volume cannot change.
    TableChanges,
    /// The table allows discards, and the volume does not.
    TableAllowsDiscards,
    /// The table allows no discards, and the volume does.
    TableForbidsDiscards,
    /// A line does not fit the direct I/O of the running volume.
    TableDirectIo,
    /// The table has a legacy cipher, and the volume can be written.
    TableLegacyCipher,
    /// The table has other zones.
    TableZones,
    /// The volume does not accept this table.
    OtherTable,
    /// A table allows discards, which a volume with integrity protection has not.
    SealedDiscards,
    /// A table with a hash tree is not suspended.
    StackSuspend,
    /// A length is longer than 2^64 bytes.
    SizeOverflow,
    /// A length does not fit the device, or the data units.
    Length,
    /// A volume cannot end within its zones.
    ZonesResize,
    /// The table says how long the volume is.
    TableResize,
    /// A LUKS2 volume with integrity protection is not resized.
    SealedResize,
    /// The hash tree says how long the device is.
    TreeResize,
    /// The integrity line has a hash that it must not have, or lacks one.
    IntegrityLineHash,
    /// Only the kernel can use the mode of the integrity line.
    IntegrityLineMode,
    /// The integrity line has another length than its device.
    IntegrityLineLen,
    /// The integrity line differs from the superblock.
    IntegrityLineMisfit,
    /// The integrity line changes what a running volume cannot change.
    IntegrityLineChanges,
    /// Only the kernel can stop or restart the machine.
    VerityLineStops,
    /// Only the kernel can read the key of a signature.
    VerityLineSignature,
    /// A verity device has a table of its own.
    IsVerity,
    /// A dm-integrity device has no table.
    IsIntegrity,

    /// The device has no superblock of dm-verity.
    NotVerity,
    /// The root hash is not one.
    RootHash,
    /// A parameter is not that of the superblock of dm-verity.
    VerityParameter,
    /// An offset or a length of a dm-verity device is not supported.
    VerityLayout,
    /// The hash tree overlaps the data.
    VerityOverlap,
    /// The data device has fewer blocks than were asked for.
    VerityDataBlocks,
    /// The parity overlaps the hash tree.
    FecOverlaps,
    /// The root hash is not that of the tree.
    CorruptRoot,
    /// A block is not that of the tree.
    CorruptBlock,

    /// The volume does not fit the zones of its device.
    ZoneMisfit(ZoneHint),
    /// A sidecar of a zoned file exists already.
    SidecarExists,
    /// The file for zones is empty, and its length is not given.
    ZonedFileEmpty,
    /// The file for zones holds data.
    ZonedFileHoldsData,
    /// A zoned file and its sidecar do not belong together.
    SidecarMissing,
    /// A zoned file is damaged.
    ZonedFileDamaged,
    /// The range does not start at a multiple of the write granularity of the zones.
    ZoneGranularity,
    /// The data are longer than the capacity of a zone.
    ZoneCapacity,
    /// The write pointer of a zone is elsewhere.
    ZonePointer,
    /// A zone cannot be written.
    ZoneState,
    /// More zones would be active than the device allows.
    TooManyZones,

    /// The range exceeds the volume.
    OutsideVolume,
    /// The input is the image that it is copied into.
    InputIsOutput,
    /// The input is a directory.
    InputIsDirectory,
    /// The input is longer than the volume or the range.
    InputTooLong,
    /// The input is shorter than the range.
    InputTooShort,
    /// The input goes on behind the volume or the range, which were written.
    InputGoesOn,

    /// The file for a backup of a header exists.
    BackupExists,
    /// The file for a backup of a header cannot be written.
    BackupNotWritten,
    /// The file is no backup of a header.
    NotABackup,

    /// The output is an input, too.
    OutputIsInput,
    /// There is something under the name of a new file.
    OutputExists,
    /// The reader of the output has closed it.
    OutputClosed,
    /// The output has too little room.
    OutputTooSmall,
    /// The output is the file of a loop device, about which the error is, and that is in use.
    LoopDeviceInUse,

    /// A cipher engine has nothing to do.
    EngineIdle,
    /// A cipher engine cannot be used.
    NoEngine,
    /// Writes may be lost.
    WritesLost,
}

/// Why no token could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenHint {
    /// Nothing more is known.
    None,
    /// The passphrase is not in the kernel's keyring.
    Keyring,
    /// The output of the helper ends with a newline.
    Newline,
    /// There is no helper for a token of systemd.
    Systemd,
    /// The token only marks a keyslot with a recovery key.
    Recovery,
    /// There is no helper for a token of clevis.
    Clevis,
    /// There is no helper for a token of ssh.
    Ssh,
    /// There is no helper for its type.
    Helper,
}

/// What could be changed so that a volume fits zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZoneHint {
    /// Offset, size and data unit of a plain volume.
    Plain,
    /// The lines of a table.
    Table,
    /// The place of the header.
    Header,
    /// The header has to be made for the zones.
    Format,
    /// The device of a new detached header.
    NewHeader,
    /// A detached header.
    Detached,
    /// The data unit of a new volume.
    Unit,
    /// The data offset of a new volume.
    Offset,
}
