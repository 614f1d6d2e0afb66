//! `reencrypt` of LUKS1 volumes: their state is in files of the current directory.

use std::path::PathBuf;

use anyhow::Context as _;
use inlock_cipher::CipherSpec;
use inlock_open::edit::{OpenedKeyslot, holds_volume_key, keyslots};
use inlock_open::reencryption::luks1::{Luks1Offline, Luks1Options, NewLuks1, Present};
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, KeySource, Luks, VolumeKeyOptions, VolumeKeyOrigin};
use inlock_volume::luks2::reencryption::ReencryptionMode;
use inlock_volume::{Hash, KdfKind, KdfRequest, NewKeyslot};

use super::errors::{interrupted, not_begun};
use super::progress::{Watch, has_reached_end};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure};
use crate::args::options::Options;
use crate::args::source::{cipher_of, header_args, key_bytes};
use crate::error::CliError;
use crate::host::context;
use crate::system::signals;
use crate::ui::print::print_stderr;
use crate::ui::progress::Show;
use crate::ui::terminal;

/// Length of a new volume key in bytes, and the one that is used if the header would have no room.
const KEY_LENS: [usize; 2] = [64, 32];

/// Options of LUKS1 alone, and those of LUKS2 that it does not have.
#[derive(Debug)]
pub(super) struct Luks1Args {
    at: HeaderOptions,
    key: KeyOptions,
    mode: ReencryptionMode,
    uuid: Option<String>,
    is_resume_only: bool,
    cipher: Option<CipherSpec>,
    key_len: Option<usize>,
    keyslot: KeyslotArgs,
    keeps_key: bool,
    new_key: Option<PathBuf>,
    longest_zone: Option<u64>,
    data_len: Option<u64>,
    reduced_by: Option<u64>,
    /// `--force-offline-reencrypt`
    cuts_file_system: bool,
    /// The first option that only LUKS2 has.
    misfit: Option<&'static str>,
    show: Show,
    batch: bool,
}

impl Luks1Args {
    /// Returns what the options ask of a LUKS1 volume, without a check of those of LUKS2.
    pub(super) fn new(options: &Options, image: PathBuf, has_name: bool) -> anyhow::Result<Self> {
        let key = existing_key_args(options, None)?;
        let misfits = [
            (has_name, "a name"),
            (options.init_only, "--init-only"),
            (options.sector_size.is_some_and(|bytes| bytes != 512), "--sector-size"),
            (options.offset.is_some(), "--offset"),
            (options.resilience.is_some(), "--resilience"),
            (options.resilience_hash.is_some(), "--resilience-hash"),
            (options.keep_holes, "--keep-holes"),
            (options.force_no_keyslots, "--force-no-keyslots"),
            (options.new_volume_key_keyring.is_some(), "--new-volume-key-keyring"),
            (options.key_description.is_some(), "--key-description"),
            (options.label.is_some(), "--label"),
            (options.subsystem.is_some(), "--subsystem"),
            (options.keyslot_cipher.is_some(), "--keyslot-cipher"),
            (options.token_id.is_some() || options.token_type.is_some() || options.token_only, "a token"),
        ];
        Ok(Self {
            at: header_args(options, image)?,
            key: KeyOptions { tries: options.tries.unwrap_or(3), volume_key: None, ..key },
            mode: match (options.encrypt, options.decrypt) {
                (true, _) => ReencryptionMode::Encrypt,
                (_, true) => ReencryptionMode::Decrypt,
                _ => ReencryptionMode::Reencrypt,
            },
            uuid: options.uuid.clone(),
            is_resume_only: options.resume_only,
            cipher: options.cipher.is_some().then(|| cipher_of(options)).transpose()?,
            key_len: options.new_key_size.or(options.key_size).map(key_bytes).transpose()?,
            keyslot: keyslot_args(options)?,
            keeps_key: options.keep_key,
            new_key: options.new_volume_key_file.clone().or_else(|| options.volume_key_file.clone()),
            longest_zone: options.hotzone_size,
            data_len: options.device_size,
            reduced_by: options.reduce_device_size,
            cuts_file_system: options.force_offline_reencrypt,
            misfit: misfits.iter().find(|(is_given, _)| *is_given).map(|(_, name)| *name),
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
            batch: options.batch_mode,
        })
    }

    /// Whether the volume is one of LUKS1, or is to become one.
    pub(super) fn is_asked(&self) -> anyhow::Result<bool> {
        // What cannot be read is reported by those who need it.
        let present = Present::find(context(), &self.at).ok();
        let is_luks1 = matches!(present, Some(Present::Luks1(_) | Present::Marked(_)));
        match (self.at.luks, present) {
            (Luks::One, Some(Present::Other)) if self.mode != ReencryptionMode::Encrypt => Err(CliError::refused(
                format!("Conflicting versions. Device {} is LUKS2.", self.header_path().display()),
                "leave --type out",
            )),
            (Luks::One, _) => Ok(true),
            (Luks::Two, _) if is_luks1 && self.mode != ReencryptionMode::Encrypt => Err(CliError::refused(
                format!("Conflicting versions. Device {} is LUKS1.", self.header_path().display()),
                "leave --type out; `inlock convert` makes a LUKS2 volume of it",
            )),
            (_, Some(Present::Nothing)) if self.mode == ReencryptionMode::Decrypt && self.at.header.is_none() => {
                Ok(self.uuid.is_some())
            }
            _ => Ok(is_luks1),
        }
    }

    fn header_path(&self) -> &PathBuf {
        self.at.header.as_ref().unwrap_or(&self.at.image)
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.check()?;
        let directory = std::env::current_dir().context("cannot find the current directory")?;
        let uuid = self.uuid.as_deref().filter(|_| self.mode == ReencryptionMode::Decrypt);
        let options = Luks1Options { at: &self.at, mode: self.mode, uuid, directory: &directory };
        let mut offline = Luks1Offline::open(context(), &options)?;
        if offline.has_begun() {
            print_stderr(format_args!("Going on with the re-encryption of {}.", offline.log_path().display()));
            let ask = Ask { device: &self.at.image, prompt: None, verify: false, context: context() };
            offline.unlock(&self.key, self.data_len, ask)?;
        } else if offline.is_finished() {
            print_stderr("The re-encryption has ended; its files are removed.");
        } else if self.is_resume_only {
            return Err(not_begun().into());
        } else {
            match self.mode {
                ReencryptionMode::Encrypt => self.begin_encryption(&mut offline)?,
                _ => self.begin(&mut offline)?,
            }
        }
        self.go_on(&mut offline)
    }

    /// Refuses options that do not go together.
    fn check(&self) -> anyhow::Result<()> {
        if let Some(option) = self.misfit {
            return Err(CliError::refused(
                format!("LUKS1 re-encryption does not take {option}."),
                "leave it out; `inlock convert` makes a LUKS2 volume of a LUKS1 one",
            ));
        }
        let changes_data = self.cipher.is_some() || self.key_len.is_some() || self.new_key.is_some();
        if self.keeps_key && (changes_data || self.reduced_by.is_some()) {
            return Err(CliError::refused(
                "With --keep-key only the header of a LUKS1 volume is written.",
                "use it with --hash, --iter-time or --pbkdf-force-iterations only, or leave --keep-key out",
            ));
        }
        if self.reduced_by.is_some() && self.at.header.is_some() {
            return Err(CliError::usage("Options --reduce-device-size and --header cannot be combined."));
        }
        Ok(())
    }

    /// Returns the costs of new keyslots, measured.
    fn kdf(&self, hash: Hash, key_len: usize) -> anyhow::Result<KdfRequest> {
        if self.keyslot.kdf.kind.is_some_and(|kind| kind != KdfKind::Pbkdf2) {
            return Err(CliError::refused(
                "Requested PBKDF type is not supported for LUKS1.",
                "leave --pbkdf out: LUKS1 has pbkdf2 only",
            ));
        }
        let mut keyslot = NewKeyslot::default();
        keyslot.kdf = self.keyslot.kdf.request(KdfKind::Pbkdf2, hash);
        measure(&mut keyslot, key_len)?;
        Ok(keyslot.kdf)
    }

    /// Returns the parameters. `key_len`: length of the new volume key in bytes.
    fn parameters(&self, key_len: usize) -> anyhow::Result<NewLuks1> {
        let hash = self.keyslot.hash.unwrap_or(Hash::Sha256);
        let new_key = self.new_key.as_ref().map(|file| {
            let origin = VolumeKeyOrigin::File(file.clone());
            secret::read_volume_key(&VolumeKeyOptions { origin, len: Some(key_len) }, None)
        });
        Ok(NewLuks1 {
            mode: self.mode,
            cipher: self.cipher,
            key_len: Some(key_len),
            key: new_key.transpose()?,
            keeps_key: self.keeps_key,
            hash,
            kdf: self.kdf(hash, key_len)?,
            reduced_by: self.reduced_by.unwrap_or(0),
            cuts_file_system: self.cuts_file_system,
            data_len: self.data_len,
            longest_zone: self.longest_zone,
            policy: self.at.policy.clone(),
        })
    }

    fn begin(&self, offline: &mut Luks1Offline) -> anyhow::Result<()> {
        let header = offline.header().ok_or_else(not_begun)?;
        let key_len = self.key_len.or(header.volume.volume_key_len()).unwrap_or(KEY_LENS[0]);
        let all = keyslots(&header.volume, holds_volume_key);
        let numbers = match (self.key.slot, self.mode) {
            (Some(number), _) => vec![number],
            (None, ReencryptionMode::Decrypt) => Vec::new(),
            (None, _) => all,
        };
        if numbers.len() > 1 && !matches!(self.key.source, KeySource::Ask | KeySource::Input) {
            return Err(CliError::refused(
                "Key file can be used only with --key-slot or with exactly one key slot active.",
                "name the keyslot that is kept with --key-slot; the others are removed",
            ));
        }
        let new = self.parameters(key_len)?;
        let ask = Ask { device: &self.at.image, prompt: None, verify: false, context: context() };
        let mut opened: Vec<OpenedKeyslot> = Vec::new();
        for number in &numbers {
            let prompt = format!("Enter passphrase for key slot {number}: ");
            let key = KeyOptions { slot: Some(*number), ..self.key.clone() };
            opened.push(header.open_keyslot(&key, Ask { prompt: Some(&prompt), ..ask })?);
        }
        if opened.is_empty() {
            opened.push(header.open_keyslot(&self.key, ask)?);
        }
        Ok(offline.begin(&new, &opened)?)
    }

    fn begin_encryption(&self, offline: &mut Luks1Offline) -> anyhow::Result<()> {
        if self.reduced_by.is_none() && !offline.is_detached() {
            return Err(CliError::usage(
                "Encryption without detached header (--header) is not possible without data device size reduction \
                 (--reduce-device-size).",
            ));
        }
        let (image, is_asked) = (&self.at.image, terminal::stdin_is_terminal() && !self.batch);
        if is_asked {
            let text = match self.reduced_by {
                Some(bytes) => {
                    format!("This will encrypt {} in place; the last {bytes} bytes are lost.", image.display())
                }
                None => format!("This will encrypt {} in place.", image.display()),
            };
            terminal::confirm(&text, CliError::NotConfirmed)?;
        }
        let cipher = self.cipher.unwrap_or(CipherSpec::AES_XTS_PLAIN64);
        let fits = |len: &usize| {
            let mut header = inlock_volume::luks1::FormatOptions::default();
            header.key_len = *len;
            cipher.can_use_key_len(*len) && self.reduced_by.is_none_or(|bytes| header.header_len() <= bytes)
        };
        let key_len = self.key_len.or_else(|| KEY_LENS.into_iter().find(fits)).unwrap_or(KEY_LENS[1]);
        let new = self.parameters(key_len)?;
        let ask = Ask { device: image, prompt: None, verify: is_asked || self.key.verify, context: context() };
        let passphrase = secret::read(&self.key, ask, None)?.secret;
        Ok(offline.begin_encryption(&new, self.key.slot.unwrap_or(0), &passphrase)?)
    }

    /// Goes on to the end, or until a signal comes.
    fn go_on(&self, offline: &mut Luks1Offline) -> anyhow::Result<()> {
        let mode = offline.mode();
        let run = |watch: &mut Watch<'_>| offline.run(self.longest_zone, watch);
        if !has_reached_end(self.show, &self.at.image, &signals::catch()?, run)? {
            let hint = format!(
                "the volume does not open meanwhile; go on in this directory with `inlock reencrypt {}{}`",
                self.words_to_go_on(mode, offline.uuid()),
                self.at.image.display()
            );
            return Err(interrupted(hint));
        }
        Ok(())
    }

    /// Returns the options with which it goes on.
    fn words_to_go_on(&self, mode: Option<ReencryptionMode>, uuid: &str) -> String {
        let mut words = match (mode, self.at.header.is_some()) {
            (Some(ReencryptionMode::Encrypt), _) => "--encrypt --type luks1 ".to_owned(),
            (Some(ReencryptionMode::Decrypt), false) => format!("--decrypt --uuid {uuid} "),
            _ => String::new(),
        };
        if let (Some(bytes), Some(ReencryptionMode::Encrypt)) = (self.reduced_by, mode) {
            words += &format!("--reduce-device-size {bytes} ");
        }
        if let Some(file) = &self.at.header {
            words += &format!("--header {} ", file.display());
        }
        words
    }
}
