//! `reencrypt`: changes cipher, key or sector size of a LUKS volume in place, encrypts a device, or decrypts one.

mod errors;
mod luks1;
mod online;
mod progress;
mod volume_keys;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use inlock_cipher::DataUnitSize;
use inlock_open::create::{CreateOptions, DataStart};
use inlock_open::edit::{OpenedKeyslot, scrubbed};
use inlock_open::reencryption::{NewEncryption, NewParameters, Offline, ZoneProtection};
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, KeySource, VolumeKeyOptions};
use inlock_open::token;
use inlock_serve::control::name::Name;
use inlock_volume::luks2::reencryption::ReencryptionMode;
use inlock_volume::{Hash, KdfKind, NewKeyslot, Secret, Volume};

use self::errors::{already, interrupted, is_luks, not_begun};
use self::luks1::Luks1Args;
use self::online::OnlineArgs;
use self::progress::{Watch, has_reached_end};
use self::volume_keys::{has_volume_key, new_key_of};
use crate::args::action::{Action, Alias, HEADER, IMAGE, KDF, KEY, KEYSLOT, Prepared, TOKENS, name_of, running_name};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure};
use crate::args::options::Options;
use crate::args::source::{cipher_of, header_args, key_bytes, key_len_of};
use crate::error::{CliError, Status};
use crate::host::context;
use crate::system::signals;
use crate::ui::progress::Show;
use crate::ui::terminal;

pub(crate) const ACTION: Action = Action {
    name: "reencrypt",
    aliases: &[Alias::new("luksReencrypt")],
    arguments: &[IMAGE, "[<name>]"],
    options: &[KEY, HEADER, KDF, KEYSLOT, TOKENS, REENCRYPTION],
    about: "re-encrypt, encrypt or decrypt a LUKS volume in place",
    prepare: |options, mut arguments| {
        if OnlineArgs::is_asked(&options) {
            let (name, image) = match options.active_name.clone() {
                None => (arguments.name()?, None),
                // Without an argument the name is in its place.
                Some(active) => {
                    let image = arguments.optional().filter(|image| *image != active);
                    (running_name(active)?, image)
                }
            };
            let args = OnlineArgs::new(options, name, image)?;
            return Ok(Prepared::new(move || scrubbed(|| args.run())));
        }
        let image = arguments.path()?;
        let name = arguments.optional().map(name_of).transpose()?;
        let luks1 = Luks1Args::new(&options, image.clone(), name.is_some())?;
        let args = ReencryptArgs::new(&options, image, name)?;
        Ok(Prepared::new(move || {
            scrubbed(|| match online::volume_on(&args.at.image)? {
                Some(name) => OnlineArgs::new(options, name, None)?.run(),
                None if luks1.is_asked()? => luks1.run(),
                None => args.run(),
            })
        }))
    },
};

const REENCRYPTION: &[&str] = &[
    "tries",
    "key-slot",
    "key-description",
    "disable-keyring",
    "encrypt",
    "decrypt",
    "init-only",
    "resume-only",
    "cipher",
    "key-size",
    "new-key-size",
    "sector-size",
    "offset",
    "keep-key",
    "keep-holes",
    "new-volume-key-file",
    "new-volume-key-keyring",
    "volume-key-file",
    "volume-key-keyring",
    "force-no-keyslots",
    "active-name",
    "use-fsync",
    "use-directio",
    "write-log",
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
    /// Reason why a LUKS2 volume does not take the options, although one of LUKS1 does.
    luks1_option: Option<&'static str>,
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
    new_key: Option<VolumeKeyOptions>,
    /// `--force-no-keyslots`
    drops_keyslots: bool,
    /// `None`: not given.
    resilience: Option<Resilience>,
    longest_zone: Option<u64>,
    keeps_holes: bool,
    data_len: Option<u64>,
    reduced_by: Option<u64>,
    /// Start of the new data, in sectors of 512 bytes.
    offset: Option<u64>,
    /// Name under which a volume whose encryption has begun is opened.
    name: Option<Name>,
    /// `--policy`
    policy: Option<PathBuf>,
    show: Show,
    batch: bool,
}

impl ReencryptArgs {
    fn new(options: &Options, image: PathBuf, name: Option<Name>) -> anyhow::Result<Self> {
        check(options)?;
        if name.is_some() && !(options.encrypt && options.init_only) {
            return Err(CliError::usage("A name is taken with --encrypt and --init-only."));
        }
        let at = header_args(options, image)?;
        let unit = options.sector_size.map(DataUnitSize::new).transpose().map_err(|_| unsupported_sector())?;
        let unit = unit.filter(|unit| unit.bytes() <= 4096 || options.sector_size.is_none());
        if options.sector_size.is_some() && unit.is_none() {
            return Err(unsupported_sector());
        }
        let keyslot = keyslot_args(options)?;
        let create = create_options(options, &at, &keyslot, unit)?;
        // With the old volume key, --key-size is its length.
        let own_size = options.key_size.filter(|_| !has_volume_key(options));
        let key_len = match (&options.cipher, options.new_key_size.or(own_size)) {
            (_, Some(bits)) => Some(key_bytes(bits)?),
            (Some(_), None) => Some(create.key_len),
            (None, None) => None,
        };
        Ok(Self {
            key: KeyOptions { tries: options.tries.unwrap_or(3), ..key_of(options)? },
            luks1_option: luks1_option(options),
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
            new_key: new_key_of(options)?,
            drops_keyslots: options.force_no_keyslots,
            resilience: resilience_of(options)?,
            longest_zone: options.hotzone_size,
            keeps_holes: options.keep_holes,
            data_len: options.device_size,
            reduced_by: options.reduce_device_size,
            offset: options.offset,
            name,
            policy: options.policy.clone(),
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
            batch: options.batch_mode,
            at,
        })
    }

    fn run(&self) -> anyhow::Result<()> {
        if let Some(text) = self.luks1_option {
            return Err(CliError::usage(text));
        }
        let mut offline = match self.mode {
            ReencryptionMode::Encrypt if !self.is_resume_only && !self.has_header() => {
                let (offline, passphrase) = self.begin_encryption()?;
                if let Some(name) = &self.name {
                    drop(offline);
                    return self.open(name, &passphrase);
                }
                offline
            }
            ReencryptionMode::Decrypt if self.is_header_missing() => {
                let at = HeaderOptions {
                    header: None,
                    policy: self.at.policy.clone(),
                    image: self.at.image.clone(),
                    ..self.at
                };
                let offline = Offline::open(context(), &at)?;
                if offline.has_begun()? {
                    return Err(already().into());
                }
                self.begin_decryption(offline)?
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

    /// Returns the parameters. `keyslot`: those of new keyslots. `key_len`: length of a new volume key.
    fn parameters(&self, keyslot: NewKeyslot, key_len: usize) -> anyhow::Result<NewParameters> {
        let new_key = self.new_key.as_ref().map(|key| secret::read_volume_key(key, Some(key_len)));
        Ok(NewParameters {
            mode: self.mode,
            cipher: self.has_cipher.then_some(self.create.cipher),
            key_len: self.key_len,
            unit: self.unit,
            keeps_key: self.keeps_key,
            key: new_key.transpose()?,
            keyslot,
            other_keyslots: Vec::new(),
            hash: self.keyslot.hash.unwrap_or(Hash::Sha256),
            protection: match &self.resilience {
                Some(resilience) => resilience.protection.clone(),
                None => ZoneProtection::Checksum("sha256".to_owned()),
            },
            data_len: self.data_len,
            longest_moved: self.longest_zone,
        })
    }

    /// Refuses a resilience that a re-encryption to begin cannot have. `is_shifted`: its data move.
    fn check_resilience(&self, is_shifted: bool) -> anyhow::Result<()> {
        self.resilience.as_ref().map_or(Ok(()), |resilience| resilience.check(self.mode, is_shifted))
    }

    /// Unlocks a re-encryption that has begun.
    fn unlock(&self, mut offline: Offline) -> anyhow::Result<Offline> {
        let image = &self.at.image;
        if let Some(begun) = offline.keyslot()? {
            if ![ReencryptionMode::Reencrypt, begun.mode].contains(&self.mode) {
                return Err(CliError::refused(
                    format!("Device {} is in another re-encryption: {}.", image.display(), begun.mode.name()),
                    "leave --encrypt and --decrypt out to go on with it",
                ));
            }
            if let Some(resilience) = &self.resilience {
                resilience.check(begun.mode, begun.resilience.shift.is_some())?;
            }
        }
        match &self.key.volume_key {
            Some(old) => {
                let volume = &offline.header().volume;
                let new = self.new_key.as_ref().map(|new| secret::read_volume_key(new, self.key_len));
                let (old, new) = (secret::read_volume_key(old, volume.volume_key_len())?, new.transpose()?);
                offline.unlock_with_keys(old, new)?;
            }
            None => {
                offline.unlock(&self.key, Ask { device: image, prompt: None, verify: false, context: context() })?;
            }
        }
        if let Some(len) = self.data_len {
            offline.check_len(len)?;
        }
        if let Some(resilience) = &self.resilience {
            let kdf = self.keyslot.kdf.request(KdfKind::Pbkdf2, Hash::Sha256);
            offline.change_protection(&resilience.protection, kdf)?;
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
        self.check_resilience(false)?;
        let volume = &offline.header().volume;
        let mut keyslot = self.keyslot.request(volume)?;
        let key_len = self.key_len.or(volume.volume_key_len()).unwrap_or(64);
        if let Some(old) = &self.key.volume_key {
            self.check_without_keyslots(&offline)?;
            let old = secret::read_volume_key(old, volume.volume_key_len())?;
            offline.begin_without_keyslots(&self.parameters(keyslot, key_len)?, &old)?;
            return Ok(offline);
        }
        let of_token = match self.key.slot {
            None if self.key.tokens.is_requested() => Some(self.open_keyslot(&offline, &self.key, None)?),
            _ => None,
        };
        let numbers = match (&of_token, self.key.slot) {
            (Some(opened), _) => vec![opened.number],
            (None, Some(number)) => vec![number],
            (None, None) => offline.keyslots(),
        };
        if numbers.len() > 1 && !matches!(self.key.source, KeySource::Ask | KeySource::Input) {
            return Err(CliError::refused(
                "Key file or keyring key description can be used only with --key-slot or with exactly one key slot \
                 active.",
                "name the keyslot that is kept with --key-slot; the others are removed",
            ));
        }
        let kept = if self.keyslot.has_costs() { Vec::new() } else { kept_costs(volume, &numbers) };
        let opened = match of_token {
            Some(opened) => vec![opened],
            None => self.open_keyslots(&offline, &numbers)?,
        };
        if kept.len() < numbers.len() {
            measure(&mut keyslot, key_len)?;
        }
        offline.begin(&NewParameters { other_keyslots: kept, ..self.parameters(keyslot, key_len)? }, &opened)?;
        Ok(offline)
    }

    /// Asks for the passphrases of keyslots.
    fn open_keyslots(&self, offline: &Offline, numbers: &[u32]) -> anyhow::Result<Vec<OpenedKeyslot>> {
        let mut opened = Vec::new();
        for number in numbers {
            let prompt = format!("Enter passphrase for key slot {number}: ");
            let key = KeyOptions { slot: Some(*number), ..self.key.clone() };
            opened.push(self.open_keyslot(offline, &key, Some(&prompt))?);
        }
        Ok(opened)
    }

    fn open_keyslot(&self, offline: &Offline, key: &KeyOptions, prompt: Option<&str>) -> anyhow::Result<OpenedKeyslot> {
        let ask = Ask { device: &self.at.image, prompt, verify: false, context: context() };
        Ok(offline.header().open_bound_keyslot(key, ask)?)
    }

    /// Returns the number of bytes by which the data of a device to encrypt move; `None`: they stay in their place.
    fn shift(&self) -> anyhow::Result<Option<u64>> {
        match (&self.at.header, self.reduced_by) {
            (Some(_), None) => Ok(None),
            (None, Some(bytes)) => match self.offset.map(|sectors| sectors.saturating_mul(512)) {
                Some(start) if start > bytes / 2 => Err(CliError::usage(
                    "Requested data offset must be less than or equal to half of --reduce-device-size parameter.",
                )),
                Some(start) => Ok(Some(start)),
                None => Ok(Some(bytes / 2)),
            },
            (None, None) => Err(CliError::usage(
                "Encryption without detached header (--header) is not possible without data device size reduction \
                 (--reduce-device-size).",
            )),
            (Some(_), Some(_)) => Err(CliError::usage("Options --reduce-device-size and --header cannot be combined.")),
        }
    }

    /// Begins to encrypt. Returns the passphrase as well.
    fn begin_encryption(&self) -> anyhow::Result<(Offline, Secret)> {
        let (image, is_asked) = (&self.at.image, terminal::stdin_is_terminal() && !self.batch);
        let shift = self.shift()?;
        if shift.is_none() {
            self.check_resilience(false)?;
        }
        if is_asked {
            let text = match shift {
                Some(shift) => {
                    format!("This will encrypt {} in place; the last {} bytes are lost.", image.display(), 2 * shift)
                }
                None => format!("This will encrypt {} in place.", image.display()),
            };
            terminal::confirm(&text, CliError::NotConfirmed)?;
        }
        let ask = Ask { device: image, prompt: None, verify: is_asked || self.key.verify, context: context() };
        let passphrase = secret::read(&self.key, ask, None)?.secret;
        let mut keyslot = NewKeyslot::default();
        keyslot.kdf = self.create.kdf;
        let parameters = self.parameters(keyslot, self.create.key_len)?;
        let new = NewEncryption {
            create: &self.create,
            parameters: &parameters,
            passphrase: &passphrase,
            cuts_file_system: self.is_forced,
        };
        let offline = match shift {
            Some(bytes) => new.begin_with_shift(context(), bytes)?,
            None => new.begin_detached(context())?,
        };
        Ok((offline, passphrase))
    }

    /// Opens a volume whose encryption has begun, in a process of its own as `open` does.
    fn open(&self, name: &Name, passphrase: &Secret) -> anyhow::Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("inlock").args(["open", "--type", "luks2", "--key-file", "-"]).stdin(Stdio::piped());
        for (option, file) in [("--header", &self.at.header), ("--policy", &self.policy)] {
            if let Some(file) = file {
                command.arg(option).arg(file);
            }
        }
        let mut child = command.arg(&self.at.image).arg(name.as_str()).spawn().context("cannot open the volume")?;
        if let Some(mut input) = child.stdin.take() {
            // A process that has ended says why by itself.
            let _ = input.write_all(passphrase.as_bytes());
        }
        let status = child.wait().context("cannot open the volume")?;
        if status.success() { Ok(()) } else { Err(CliError::Silent(Status::Wrong).into()) }
    }

    fn begin_decryption(&self, offline: Offline) -> anyhow::Result<Offline> {
        if self.is_resume_only {
            return Err(not_begun().into());
        }
        self.check_resilience(offline.header().volume.data_offset() > 0)?;
        let opened = |offline: &Offline| self.open_keyslot(offline, &self.key, None);
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
        let parameters = self.parameters(keyslot, self.create.key_len)?;
        // A header that was moved says that a decryption has begun, also after a signal.
        let caught = signals::catch()?;
        offline.begin_decryption(&parameters, &[opened])?;
        if caught.take().is_some() { Err(self.interrupted()) } else { Ok(offline) }
    }

    /// The error of a re-encryption that has begun, and that a signal has stopped.
    fn interrupted(&self) -> anyhow::Error {
        let header = self.at.header.as_ref().map_or(String::new(), |file| format!(" --header {}", file.display()));
        interrupted(format!(
            "the volume opens as it is; go on with `inlock reencrypt --resume-only {}{header}`",
            self.at.image.display()
        ))
    }

    /// Goes on to the end, or until a signal comes.
    fn go_on(&self, offline: &mut Offline) -> anyhow::Result<()> {
        let run = |watch: &mut Watch<'_>| offline.run(self.longest_zone, self.keeps_holes, watch);
        if !has_reached_end(self.show, &self.at.image, &signals::catch()?, run)? {
            return Err(self.interrupted());
        }
        Ok(())
    }
}

/// Returns the options of the passphrase, which may be in the kernel's keyring.
fn key_of(options: &Options) -> anyhow::Result<KeyOptions> {
    let key = existing_key_args(options, None)?;
    let Some(description) = &options.key_description else { return Ok(key) };
    if options.key_file.is_some() {
        return Err(CliError::usage("Only one of --key-file and --key-description is allowed."));
    }
    let passphrase = token::keyring_passphrase(description)?;
    Ok(KeyOptions { source: KeySource::bytes(passphrase.as_bytes()), ..key })
}

/// Returns new keyslots with the key derivations of these, as far as those can be used.
fn kept_costs(volume: &Volume, numbers: &[u32]) -> Vec<(u32, NewKeyslot)> {
    let Volume::Luks2(luks2) = volume else { return Vec::new() };
    numbers.iter().filter_map(|number| Some((*number, luks2.keyslot_like(*number)?))).collect()
}

/// Returns the header of a device to encrypt. `unit`: `None`: sectors of 512 bytes.
fn create_options(
    options: &Options,
    at: &HeaderOptions,
    keyslot: &KeyslotArgs,
    unit: Option<DataUnitSize>,
) -> anyhow::Result<CreateOptions> {
    let defaults = CreateOptions::luks2(&at.image);
    let cipher = cipher_of(options)?;
    let hash = keyslot.hash.unwrap_or(defaults.hash);
    // Otherwise it is that of the volume.
    let has_cipher = options.cipher.is_some() || options.encrypt;
    let create = CreateOptions {
        header: at.header.clone(),
        cipher,
        key_len: match options.new_key_size.or(options.key_size) {
            Some(bits) if !has_cipher || options.new_key_size.is_some() => key_bytes(bits)?,
            _ => key_len_of(options, cipher, true)?,
        },
        hash,
        kdf: keyslot.kdf.request(KdfKind::Argon2id, hash),
        keyslot: options.key_slot.unwrap_or(0),
        keyslot_cipher: keyslot.cipher,
        sector_size: Some(unit.map_or(512, |unit| unit.bytes() as u32)),
        uuid: options.uuid.clone(),
        label: options.label.clone(),
        subsystem: options.subsystem.clone(),
        policy: at.policy.clone(),
        start: options.offset.map_or(DataStart::Usual, DataStart::At),
        ..defaults
    };
    if has_cipher {
        create.check()?;
    }
    Ok(create)
}

/// Refuses options that do not go together.
fn check(options: &Options) -> anyhow::Result<()> {
    for (first, second, names) in [
        (options.encrypt, options.decrypt, "--encrypt and --decrypt"),
        (options.init_only, options.resume_only, "--init-only and --resume-only"),
        (options.decrypt, options.reduce_device_size.is_some(), "--decrypt and --reduce-device-size"),
        (options.keep_key, options.new_volume_key_file.is_some(), "--keep-key and --new-volume-key-file"),
        (options.force_no_keyslots, !has_volume_key(options), "--force-no-keyslots and a passphrase"),
        (has_volume_key(options), options.encrypt, "--volume-key-file and --encrypt"),
        (has_volume_key(options), options.decrypt, "--volume-key-file and --decrypt"),
        (has_volume_key(options), options.start, "--volume-key-file and --start"),
        (options.decrypt, options.cipher.is_some(), "--decrypt and --cipher"),
        (options.decrypt, options.sector_size.is_some(), "--decrypt and --sector-size"),
        (options.decrypt, options.new_key_size.is_some(), "--decrypt and --new-key-size"),
        (options.keep_holes, options.encrypt, "--keep-holes and --encrypt"),
        (options.keep_key, options.encrypt, "--keep-key and --encrypt"),
        (options.keep_key, options.decrypt, "--keep-key and --decrypt"),
        (options.decrypt, options.new_volume_key_file.is_some(), "--decrypt and --new-volume-key-file"),
    ] {
        if first && second {
            return Err(CliError::usage(format!("Options {names} cannot be combined.")));
        }
    }
    if options.offset.is_some() && !options.encrypt {
        return Err(CliError::usage("Option --offset needs --encrypt."));
    }
    let has_text = options.label.is_some() || options.subsystem.is_some();
    if has_text && !options.encrypt || options.uuid.is_some() && !options.encrypt && !options.decrypt {
        return Err(CliError::usage("Options --label, --subsystem and --uuid need --encrypt."));
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

/// Returns what is wrong with the options for a LUKS2 volume.
fn luks1_option(options: &Options) -> Option<&'static str> {
    if options.reduce_device_size.is_some() && !options.encrypt && !options.resume_only {
        return Some("Option --reduce-device-size needs --encrypt.");
    }
    if options.use_fsync || options.use_directio || options.write_log {
        return Some("Options --use-fsync, --use-directio and --write-log are for LUKS1; LUKS2 needs none of them.");
    }
    (options.uuid.is_some() && !options.encrypt).then_some("Options --label, --subsystem and --uuid need --encrypt.")
}

/// Converts `--resilience` and `--resilience-hash`.
fn resilience_of(options: &Options) -> anyhow::Result<Option<Resilience>> {
    let hash = options.resilience_hash.clone().unwrap_or_else(|| "sha256".to_owned());
    if hash.parse::<Hash>().is_err() {
        return Err(CliError::hash(&hash).into());
    }
    let (protection, has_shift) = match options.resilience.as_deref() {
        None if options.resilience_hash.is_none() => return Ok(None),
        None | Some("checksum") => (ZoneProtection::Checksum(hash), false),
        Some("datashift-checksum") => (ZoneProtection::Checksum(hash), true),
        Some("journal") => (ZoneProtection::Journal, false),
        Some("datashift-journal") => (ZoneProtection::Journal, true),
        Some("none") => (ZoneProtection::None, false),
        Some("datashift") => (ZoneProtection::None, true),
        Some(other) => {
            return Err(CliError::usage(format!(
                "Unknown resilience '{other}': use checksum, journal, none, datashift, datashift-checksum or \
                 datashift-journal."
            )));
        }
    };
    Ok(Some(Resilience { protection, has_shift }))
}

/// Value of `--resilience`.
#[derive(Clone)]
struct Resilience {
    protection: ZoneProtection,
    /// The data are said to move.
    has_shift: bool,
}

impl Resilience {
    /// Refuses one that a change of the data in this way cannot have. `is_shifted`: the data move.
    fn check(&self, mode: ReencryptionMode, is_shifted: bool) -> anyhow::Result<()> {
        let fits = match (is_shifted, mode) {
            (false, _) => !self.has_shift,
            // No zone needs anything.
            (true, ReencryptionMode::Encrypt) => self.has_shift && self.protection == ZoneProtection::None,
            // The first data are written over themselves.
            (true, _) => self.protection != ZoneProtection::None,
        };
        if fits {
            return Ok(());
        }
        Err(CliError::refused(
            "Requested --resilience option cannot be applied to current reencryption operation.",
            "use checksum, journal or none where data stay, checksum or journal for a decryption that moves them, and \
             leave it out for an encryption that does",
        ))
    }
}

fn unsupported_sector() -> anyhow::Error {
    CliError::usage("Unsupported encryption sector size.")
}
