//! `luksDump --dump-volume-key`, and `--unbound`: prints a key of the volume, or writes it to a file.
//!
//! cryptsetup's words and layout, which scripts read.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use inlock_volume::luks2::metadata::SegmentKind;
use inlock_volume::{KeyslotStatus, Printable, Volume, VolumeKey};
use zeroize::Zeroizing;

use crate::error::CliError;
use crate::host::context;
use crate::ui::print::print;
use crate::ui::terminal::confirm_change;
use inlock_open::header::Header;
use inlock_open::path_text;
use inlock_open::secret::Ask;
use inlock_open::source::{HeaderOptions, KeyOptions};
use inlock_open::{ErrorKind, output};

const VOLUME_KEY_WARNING: &str = "The header dump with volume key is sensitive information\n\
    that allows access to encrypted partition without a passphrase.\n\
    This dump should be stored encrypted in a safe place.";
const UNBOUND_KEY_WARNING: &str = "The header dump with unbound key is sensitive information.\n\
    This dump should be stored encrypted in a safe place.";

/// A key to print.
pub(super) struct DumpKeyArgs {
    pub(super) at: HeaderOptions,
    pub(super) key: KeyOptions,
    /// A new file for the key, in place of standard output.
    pub(super) output: Option<PathBuf>,
    /// Number of the unbound keyslot. `None`: the volume key.
    pub(super) unbound: Option<u32>,
    /// `--batch-mode`
    pub(super) batch: bool,
}

impl DumpKeyArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let header = Header::load(context(), &self.at, false)?;
        if let Some(number) =
            self.unbound.filter(|number| header.volume.keyslot_status(*number) != KeyslotStatus::Unbound)
        {
            return Err(CliError::refused(
                format!("Keyslot {number} does not contain unbound key."),
                "run `inlock luksDump` to list the keyslots",
            ));
        }
        let warning = if self.unbound.is_some() { UNBOUND_KEY_WARNING } else { VOLUME_KEY_WARNING };
        confirm_change(self.batch, warning, "Operation aborted.")?;
        let ask = Ask { device: header.path(), prompt: None, verify: self.key.verify, context: context() };
        let opened = match self.unbound {
            Some(_) => header.open_keyslot(&self.key, ask)?,
            None => header.open_bound_keyslot(&self.key, ask)?,
        };
        self.show(&header, &opened.key)
    }

    fn show(&self, header: &Header, key: &VolumeKey) -> anyhow::Result<()> {
        let device = header.path().display().to_string();
        let mut text = Zeroizing::new(String::with_capacity(1024 + 4 * key.len()));
        writeln!(text, "LUKS header information for {}", Printable::new(&device))?;
        let uuid = Printable::new(header.volume.uuid());
        let name = match self.unbound {
            Some(number) => {
                writeln!(text, "UUID:    \t{uuid}\nKeyslot: \t{number}\nKey bits:\t{}", key.len() * 8)?;
                "Unbound Key"
            }
            None => {
                let cipher = cipher(&header.volume);
                let (cipher, mode) = cipher.split_once('-').unwrap_or((&cipher, ""));
                writeln!(
                    text,
                    "Cipher name:   \t{}\nCipher mode:   \t{}",
                    Printable::new(cipher),
                    Printable::new(mode)
                )?;
                writeln!(text, "Payload offset:\t{}\nUUID:          \t{uuid}", header.volume.data_offset() / 512)?;
                writeln!(text, "MK bits:       \t{}", key.len() * 8)?;
                "MK dump"
            }
        };
        match &self.output {
            Some(path) => {
                write_key(path, key)?;
                writeln!(text, "Key stored to file {}.", path_text::shown(path))?;
            }
            None => {
                for (number, line) in key.as_bytes().chunks(16).enumerate() {
                    match number {
                        0 => write!(text, "{name}:\t")?,
                        _ => write!(text, "\t\t")?,
                    }
                    for byte in line {
                        write!(text, "{byte:02x} ")?;
                    }
                    text.push('\n');
                }
            }
        }
        print(text.as_str())
    }
}

/// Returns the cipher of the payload as the header names it.
fn cipher(volume: &Volume) -> String {
    match volume {
        Volume::Luks1(luks1) => luks1.cipher(),
        Volume::Luks2(luks2) => {
            let crypt = luks2.metadata().segments.values().find_map(|segment| match &segment.kind {
                SegmentKind::Crypt(crypt) => Some(crypt.cipher.clone()),
                _ => None,
            });
            crypt.unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// Writes the key to a new file, for its owner only.
fn write_key(path: &Path, key: &VolumeKey) -> anyhow::Result<()> {
    output::write_new(context(), path, key.as_bytes()).map_err(|error| {
        let message = format!("Cannot open keyfile {} for write.", path.display());
        match error.kind() {
            ErrorKind::OutputExists => {
                CliError::refused(message, "name a new file; an existing one is not overwritten")
            }
            _ => anyhow::Error::from(error).context(message),
        }
    })
}
