//! `reencrypt`: changes cipher, key or sector size of a LUKS2 volume in place, encrypts a device, or decrypts one.

mod online;

use std::ops::ControlFlow;
use std::path::PathBuf;

use inlock_cipher::DataUnitSize;
use inlock_open::ErrorKind;
use inlock_open::create::CreateOptions;
use inlock_open::edit::{OpenedKeyslot, scrubbed};
use inlock_open::reencryption::{NewEncryption, NewParameters, Offline, ZoneProtection};
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, KeySource, VolumeKeyOptions, VolumeKeyOrigin};
use inlock_volume::luks2::reencryption::ReencryptionMode;
use inlock_volume::{Hash, KdfKind};

use self::online::OnlineArgs;
use crate::args::action::{Action, Alias, HEADER, IMAGE, KDF, KEY, KEYSLOT, Prepared, TOKENS};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure};
use crate::args::options::Options;
use crate::args::source::{cipher_of, header_args, key_bytes, key_len_of};
use crate::error::CliError;
use crate::host::context;
use crate::system::signals;
use crate::ui::progress::{Progress, Show};
use crate::ui::terminal;

pub(crate) const ACTION: Action = Action {
    name: "reencrypt",
    aliases: &[Alias::new("luksReencrypt")],
    arguments: &[IMAGE],
    options: &[KEY, HEADER, KDF, KEYSLOT, TOKENS, REENCRYPTION],
    about: "re-encrypt, encrypt or decrypt a LUKS2 volume in place",
    prepare: |options, mut arguments| {
        if OnlineArgs::is_asked(&options) {
            let args = OnlineArgs::new(options, arguments.name()?)?;
            return Ok(Prepared::new(move || scrubbed(|| args.run())));
        }
        let args = ReencryptArgs::new(&options, arguments.path()?)?;
        Ok(Prepared::new(move || scrubbed(|| args.run())))
    },
};

const REENCRYPTION: &[&str] = &[
    "tries",
    "key-slot",
    "encrypt",
    "decrypt",
    "init-only",
    "resume-only",
    "cipher",
    "key-size",
    "sector-size",
    "keep-key",
    "new-volume-key-file",
    "resilience",
    "resilience-hash",
    "hotzone-size",
    "device-size",
    "reduce-device-size",
    "force-offline-reencrypt",
    "uuid",
    "label",
    "subsystem",
    "progress-json",
    "progress-frequency",
    "start",
    "pause",
    "resume",
    "rate",
    "status",
    "json",
];

/// A volume to re-encrypt.
struct ReencryptArgs {
    at: HeaderOptions,
    key: KeyOptions,
    mode: ReencryptionMode,
    is_init_only: bool,
    is_resume_only: bool,
    /// `--force-offline-reencrypt`
    is_forced: bool,
    create: CreateOptions,
    /// Cipher and key length, if one of them is given.
    has_cipher: bool,
    key_len: Option<usize>,
    unit: Option<DataUnitSize>,
    keyslot: KeyslotArgs,
    keeps_key: bool,
    new_key: Option<PathBuf>,
    /// `None`: not given.
    protection: Option<ZoneProtection>,
    longest_zone: Option<u64>,
    data_len: Option<u64>,
    reduced_by: Option<u64>,
    show: Show,
    batch: bool,
}

impl ReencryptArgs {
    fn new(options: &Options, image: PathBuf) -> anyhow::Result<Self> {
        check(options)?;
        let at = header_args(options, image)?;
        let unit = options.sector_size.map(DataUnitSize::new).transpose().map_err(|_| unsupported_sector())?;
        let unit = unit.filter(|unit| unit.bytes() <= 4096 || options.sector_size.is_none());
        if options.sector_size.is_some() && unit.is_none() {
            return Err(unsupported_sector());
        }
        let keyslot = keyslot_args(options)?;
        let defaults = CreateOptions::luks2(&at.image);
        let cipher = cipher_of(options)?;
        let hash = keyslot.hash.unwrap_or(defaults.hash);
        let create = CreateOptions {
            header: at.header.clone(),
            cipher,
            key_len: key_len_of(options, cipher, true)?,
            hash,
            kdf: keyslot.kdf.request(KdfKind::Argon2id, hash),
            keyslot: options.key_slot.unwrap_or(0),
            keyslot_cipher: keyslot.cipher,
            sector_size: Some(unit.map_or(512, |unit| unit.bytes() as u32)),
            uuid: options.uuid.clone(),
            label: options.label.clone(),
            subsystem: options.subsystem.clone(),
            policy: at.policy.clone(),
            ..defaults
        };
        create.check()?;
        let key_len = match (&options.cipher, options.key_size) {
            (_, Some(bits)) => Some(key_bytes(bits)?),
            (Some(_), None) => Some(create.key_len),
            (None, None) => None,
        };
        Ok(Self {
            key: KeyOptions { tries: options.tries.unwrap_or(3), ..existing_key_args(options, None)? },
            mode: match (options.encrypt, options.decrypt) {
                (true, _) => ReencryptionMode::Encrypt,
                (_, true) => ReencryptionMode::Decrypt,
                _ => ReencryptionMode::Reencrypt,
            },
            is_init_only: options.init_only,
            is_resume_only: options.resume_only,
            is_forced: options.force_offline_reencrypt,
            create,
            has_cipher: options.cipher.is_some(),
            key_len,
            unit,
            keyslot,
            keeps_key: options.keep_key,
            new_key: options.new_volume_key_file.clone(),
            protection: protection_of(options)?,
            longest_zone: options.hotzone_size,
            data_len: options.device_size,
            reduced_by: options.reduce_device_size,
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
            batch: options.batch_mode,
            at,
        })
    }

    fn run(&self) -> anyhow::Result<()> {
        let mut offline = match self.mode {
            ReencryptionMode::Encrypt if !self.is_resume_only && !self.has_header() => self.begin_encryption()?,
            ReencryptionMode::Decrypt if self.is_header_missing() => {
                let at = HeaderOptions {
                    header: None,
                    policy: self.at.policy.clone(),
                    image: self.at.image.clone(),
                    ..self.at
                };
                self.begin_decryption(Offline::open(context(), &at)?)?
            }
            mode => {
                let offline = Offline::open(context(), &self.at)?;
                match (offline.has_begun()?, mode) {
                    (true, _) if self.is_init_only => return Err(already().into()),
                    (true, _) => self.unlock(offline)?,
                    (false, _) if self.is_resume_only => return Err(not_begun().into()),
                    (false, ReencryptionMode::Encrypt) => return Err(is_luks(&self.at).into()),
                    (false, ReencryptionMode::Decrypt) => self.begin_decryption(offline)?,
                    (false, ReencryptionMode::Reencrypt) => self.begin(offline)?,
                }
            }
        };
        if self.is_init_only { Ok(()) } else { self.go_on(&mut offline) }
    }

    /// Whether the device, or that of the header, has a header already.
    fn has_header(&self) -> bool {
        inlock_open::header::Header::load(context(), &self.at, true).is_ok()
    }

    /// Whether `--header` names a file that does not exist.
    fn is_header_missing(&self) -> bool {
        self.at.header.as_ref().is_some_and(|header| !header.exists())
    }

    /// Returns the parameters. `keyslot`: those of new keyslots.
    fn parameters(&self, keyslot: inlock_volume::NewKeyslot) -> anyhow::Result<NewParameters> {
        let new_key = self.new_key.as_ref().map(|file| {
            let origin = VolumeKeyOrigin::File(file.clone());
            secret::read_volume_key(&VolumeKeyOptions { origin, len: self.key_len }, Some(self.create.key_len))
        });
        Ok(NewParameters {
            mode: self.mode,
            cipher: self.has_cipher.then_some(self.create.cipher),
            key_len: self.key_len,
            unit: self.unit,
            keeps_key: self.keeps_key,
            key: new_key.transpose()?,
            keyslot,
            hash: self.keyslot.hash.unwrap_or(Hash::Sha256),
            protection: self.protection.clone().unwrap_or_else(|| ZoneProtection::Checksum("sha256".to_owned())),
            data_len: self.data_len,
        })
    }

    /// Unlocks a re-encryption that has begun.
    fn unlock(&self, mut offline: Offline) -> anyhow::Result<Offline> {
        let image = &self.at.image;
        offline.unlock(&self.key, Ask { device: image, prompt: None, verify: false, context: context() })?;
        if let Some(protection) = &self.protection {
            let kdf = self.keyslot.kdf.request(KdfKind::Pbkdf2, Hash::Sha256);
            offline.change_protection(protection, kdf)?;
        }
        Ok(offline)
    }

    /// Whether data units become longer.
    fn has_longer_units(&self, offline: &Offline) -> bool {
        let segments = offline.header().volume.segments().unwrap_or_default();
        self.unit.zip(segments.first()).is_some_and(|(new, present)| new > present.unit)
    }

    /// Begins the re-encryption of an open volume, whose users know the length of its blocks.
    fn begin_open(&self, offline: Offline) -> anyhow::Result<Offline> {
        if self.has_longer_units(&offline) {
            return Err(CliError::refused(
                "Encryption sector size increase is not supported for an open volume.",
                "close it first",
            ));
        }
        self.begin(offline)
    }

    fn begin(&self, mut offline: Offline) -> anyhow::Result<Offline> {
        if !self.is_forced && self.has_longer_units(&offline) {
            return Err(CliError::refused(
                "Encryption sector size increase is not supported for offline device.",
                "a file system with blocks shorter than the new sectors would be lost; if it has none, use \
                 --force-offline-reencrypt",
            ));
        }
        let volume = &offline.header().volume;
        let mut keyslot = self.keyslot.request(volume)?;
        let key_len = self.key_len.or(volume.volume_key_len()).unwrap_or(64);
        let numbers = match self.key.slot {
            Some(number) => vec![number],
            None => offline.keyslots(),
        };
        if numbers.len() > 1 && !matches!(self.key.source, KeySource::Ask | KeySource::Input) {
            return Err(CliError::refused(
                "Key file or keyring key description can be used only with --key-slot or with exactly one key slot \
                 active.",
                "name the keyslot that is kept with --key-slot; the others are removed",
            ));
        }
        let opened = self.open_keyslots(&offline, &numbers)?;
        measure(&mut keyslot, key_len)?;
        offline.begin(&self.parameters(keyslot)?, &opened)?;
        Ok(offline)
    }

    /// Asks for the passphrases of keyslots.
    fn open_keyslots(&self, offline: &Offline, numbers: &[u32]) -> anyhow::Result<Vec<OpenedKeyslot>> {
        let mut opened = Vec::new();
        for number in numbers {
            let prompt = format!("Enter passphrase for key slot {number}: ");
            let key = KeyOptions { slot: Some(*number), ..self.key.clone() };
            let ask = Ask { device: &self.at.image, prompt: Some(&prompt), verify: false, context: context() };
            opened.push(offline.header().open_bound_keyslot(&key, ask)?);
        }
        Ok(opened)
    }

    fn begin_encryption(&self) -> anyhow::Result<Offline> {
        let (image, is_asked) = (&self.at.image, terminal::stdin_is_terminal() && !self.batch);
        match (&self.at.header, self.reduced_by) {
            (Some(_), None) | (None, Some(_)) => {}
            (None, None) => {
                return Err(CliError::usage(
                    "Encryption without detached header (--header) is not possible without data device size reduction \
                     (--reduce-device-size).",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(CliError::usage("Options --reduce-device-size and --header cannot be combined."));
            }
        }
        if is_asked {
            let text = match self.reduced_by {
                Some(_) => format!(
                    "This will encrypt {} in place; the last {} bytes are lost.",
                    image.display(),
                    self.reduced_by.unwrap_or_default()
                ),
                None => format!("This will encrypt {} in place.", image.display()),
            };
            terminal::confirm(&text, CliError::NotConfirmed)?;
        }
        let ask = Ask { device: image, prompt: None, verify: is_asked || self.key.verify, context: context() };
        let passphrase = secret::read(&self.key, ask, None)?.secret;
        let mut keyslot = inlock_volume::NewKeyslot::default();
        keyslot.kdf = self.create.kdf;
        let parameters = self.parameters(keyslot)?;
        let new = NewEncryption { create: &self.create, parameters: &parameters, passphrase: &passphrase };
        Ok(match self.reduced_by {
            Some(bytes) => new.begin_with_shift(context(), bytes / 2)?,
            None => new.begin_detached(context())?,
        })
    }

    fn begin_decryption(&self, offline: Offline) -> anyhow::Result<Offline> {
        if self.is_resume_only {
            return Err(not_begun().into());
        }
        let opened = |offline: &Offline| -> anyhow::Result<OpenedKeyslot> {
            let ask = Ask { device: &self.at.image, prompt: None, verify: false, context: context() };
            Ok(offline.header().open_bound_keyslot(&self.key, ask)?)
        };
        let (mut offline, opened) = match &self.at.header {
            Some(file) if self.is_header_missing() => {
                if terminal::stdin_is_terminal() && !self.batch {
                    let text = format!(
                        "Header file {} does not exist. Do you want to initialize LUKS2 decryption of device {} and \
                         export LUKS2 header to file {}?",
                        file.display(),
                        self.at.image.display(),
                        file.display()
                    );
                    terminal::confirm(&text, CliError::NotConfirmed)?;
                }
                let opened = opened(&offline)?;
                (offline.export_header(file)?, opened)
            }
            _ => {
                let opened = opened(&offline)?;
                (offline, opened)
            }
        };
        let keyslot = self.keyslot.request(&offline.header().volume)?;
        offline.begin_decryption(&self.parameters(keyslot)?, &[opened])?;
        Ok(offline)
    }

    /// Goes on to the end, or until a signal comes.
    fn go_on(&self, offline: &mut Offline) -> anyhow::Result<()> {
        let caught = signals::catch()?;
        let (mut progress, mut last) = (None, 0);
        let has_ended = offline.run(self.longest_zone, &mut |done, total| {
            let shown = progress.get_or_insert_with(|| {
                last = done;
                Progress::start(self.show, &self.at.image, Some(total - done), false)
            });
            shown.add(done - last);
            last = done;
            if caught.take().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if !has_ended {
            drop(progress);
            return Err(CliError::refused(
                "\nReencryption interrupted.",
                "the volume opens as it is; go on with `inlock reencrypt --resume-only`",
            ));
        }
        if let Some(progress) = progress {
            progress.finish();
        }
        Ok(())
    }
}

/// Refuses options that do not go together.
fn check(options: &Options) -> anyhow::Result<()> {
    for (first, second, names) in [
        (options.encrypt, options.decrypt, "--encrypt and --decrypt"),
        (options.init_only, options.resume_only, "--init-only and --resume-only"),
        (options.decrypt, options.reduce_device_size.is_some(), "--decrypt and --reduce-device-size"),
        (options.keep_key, options.new_volume_key_file.is_some(), "--keep-key and --new-volume-key-file"),
    ] {
        if first && second {
            return Err(CliError::usage(format!("Options {names} cannot be combined.")));
        }
    }
    if options.reduce_device_size.is_some() && !options.encrypt && !options.resume_only {
        return Err(CliError::usage("Option --reduce-device-size needs --encrypt."));
    }
    let sizes = [
        (options.hotzone_size, "hotzone-size"),
        (options.device_size, "device-size"),
        (options.reduce_device_size, "reduce-device-size"),
    ];
    match sizes.iter().find(|(size, _)| size.is_some_and(|size| size == 0 || !size.is_multiple_of(512))) {
        Some((_, name)) => Err(CliError::usage(format!("Option --{name} takes a multiple of 512 bytes."))),
        None => Ok(()),
    }
}

/// Converts `--resilience` and `--resilience-hash`.
fn protection_of(options: &Options) -> anyhow::Result<Option<ZoneProtection>> {
    let hash = options.resilience_hash.clone().unwrap_or_else(|| "sha256".to_owned());
    if hash.parse::<Hash>().is_err() {
        return Err(CliError::hash(&hash).into());
    }
    Ok(match options.resilience.as_deref() {
        None if options.resilience_hash.is_none() => None,
        None | Some("checksum" | "datashift-checksum") => Some(ZoneProtection::Checksum(hash)),
        Some("journal" | "datashift-journal") => Some(ZoneProtection::Journal),
        Some("none" | "datashift") => Some(ZoneProtection::None),
        Some(other) => {
            return Err(CliError::usage(format!(
                "Unknown resilience '{other}': use checksum, journal, none, datashift, datashift-checksum or \
                 datashift-journal."
            )));
        }
    })
}

fn unsupported_sector() -> anyhow::Error {
    CliError::usage("Unsupported encryption sector size.")
}

fn already() -> inlock_open::Error {
    let text = "LUKS2 reencryption already initialized. Aborting operation.";
    inlock_open::Error::new(ErrorKind::AlreadyReencrypted, text)
}

fn not_begun() -> inlock_open::Error {
    inlock_open::Error::new(ErrorKind::NotReencrypted, "Device reencryption not in progress.")
}

fn is_luks(at: &HeaderOptions) -> inlock_open::Error {
    let path = at.header.as_ref().unwrap_or(&at.image);
    let text = format!("Device {} is already LUKS device. Aborting operation.", path.display());
    inlock_open::Error::new(ErrorKind::CannotReencrypt, text)
}
