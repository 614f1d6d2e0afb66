//! Changing a LUKS header: asking for an existing key, and writing under the exclusive lock of the header.
//!
//! The lock of the header is enough, also while the volume is served: a process that serves it writes only to the
//! payload, and reads the header under the same lock whenever it needs it again (docs/decisions/luks-headers.md).
//!
//! The user is asked, and keys are derived, before the lock is taken. Another program may change the header meanwhile,
//! so what was checked by then is checked again under the lock ([`Header::edit`]).

use crate::error::{Error, ErrorKind, Result, cannot_edit, cannot_unlock};
use crate::host::Context;
use inlock_cipher::scrub_stack;
use inlock_volume::{
    EditError, HeaderPolicy, KeyslotStatus, NewKeyslot, Secret, UnlockError, UnlockOptions, Volume, VolumeKey,
};

use super::device::{Device, OpenMode};
use super::header::{Header, unlock_options};
use super::lock::{self, DeviceLock, Mode};
use super::remote::DeviceHeader;
use super::secret::{self, Ask, SCRUB};
use super::source::{HeaderOptions, KeyOptions, Luks, VolumeKeyOptions};

/// Runs an action that handles keys, and wipes the stack memory that it has used.
pub fn scrubbed<T>(run: impl FnOnce() -> T) -> T {
    let result = on_own_frame(run);
    scrub_stack::<SCRUB>();
    result
}

#[inline(never)]
fn on_own_frame<T>(run: impl FnOnce() -> T) -> T {
    run()
}

/// Part of a header that a command has checked, and that must be the same under the lock.
#[derive(Clone, Copy, Debug)]
pub enum Checked {
    /// The keyslot that a passphrase has opened, or that is to be removed.
    Keyslot(u32),
    /// The token that has given a passphrase.
    Token(u32),
}

/// A keyslot that a passphrase has opened.
pub struct OpenedKeyslot {
    /// Number of the keyslot.
    pub number: u32,
    /// The key that it holds.
    pub key: VolumeKey,
    /// The passphrase that has opened it.
    pub passphrase: Secret,
}

impl Header {
    /// Loads the header at `args` for changing it, as [`Header::load`] does.
    pub fn load_to_edit(context: &Context, args: &HeaderOptions) -> Result<Self> {
        let device = Device::open(context, args.header.as_deref().unwrap_or(&args.image), OpenMode::Header)?;
        Self::load_from(device, args.luks, false)?.complying(args)
    }

    /// Fails unless the header is LUKS2.
    pub fn check_luks2(&self) -> Result<()> {
        match self.volume.version() {
            2 => Ok(()),
            _ => Err(Error::not_luks2(&self.device.path)),
        }
    }

    /// Locks the header exclusively, loads it again, and changes it. If another program has changed it since it was
    /// loaded, it must comply with the policy, and have everything that was `checked`.
    pub fn edit<T>(
        &mut self,
        checked: &[Checked],
        change: impl FnOnce(&mut Volume, &DeviceHeader) -> Result<T, EditError>,
    ) -> Result<T> {
        let _lock = lock::header(&self.device, Mode::Exclusive)?;
        self.device.drop_cache();
        let current = self.read_again(Luks::Any)?;
        if !current.is_same_header(&self.volume) {
            self.check_again(&current, checked)?;
        }
        self.volume = current;
        let device = self.device.header()?;
        change(&mut self.volume, &device).map_err(cannot_edit(&self.device.path))
    }

    /// Checks what another program has left of the header.
    fn check_again(&self, current: &Volume, checked: &[Checked]) -> Result<()> {
        let path = self.device.path.display();
        self.device.context().debug(format_args!("The header on {path} was changed since it was loaded."));
        let refused = |what: String| Err(Error::new(ErrorKind::HeaderChanged, format!("{what} by another program.")));
        if (current.version(), current.uuid()) != (self.volume.version(), self.volume.uuid()) {
            return refused(format!("The header on device {path} was replaced"));
        }
        current.check_policy_for_keys(&self.policy).map_err(cannot_unlock(&self.device.path))?;
        for part in checked {
            match *part {
                Checked::Keyslot(number) if !self.volume.has_same_keyslot(current, number) => {
                    return refused(format!("Keyslot {number} on device {path} was changed or removed"));
                }
                Checked::Token(number) if token_json(&self.volume, number) != token_json(current, number) => {
                    return refused(format!("Token {number} on device {path} was changed or removed"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a keyslot. If it is the last one under the lock, `confirm` asks the user, without the lock. It was asked
    /// before if `is_confirmed`.
    pub fn kill_keyslot<E: From<Error>>(
        &mut self,
        number: u32,
        checked: &[Checked],
        mut is_confirmed: bool,
        confirm: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.edit(checked, |volume, device| {
            if volume.keyslot_status(number) == KeyslotStatus::ActiveLast && !is_confirmed {
                return Ok(false);
            }
            volume.kill_keyslot(device, number).map(|()| true)
        })? {
            confirm()?;
            is_confirmed = true;
        }
        Ok(())
    }

    /// Reads a volume key, and verifies it.
    pub fn read_volume_key(&self, source: &VolumeKeyOptions) -> Result<VolumeKey> {
        let key = secret::read_volume_key(source, self.volume.volume_key_len())?;
        match self.volume.unlock_with_volume_key(key, &options_to_edit(None)) {
            Err(UnlockError::WrongPassphrase) => Err(Error::wrong_volume_key()),
            unlocked => unlocked.map(|unlocked| unlocked.key).map_err(cannot_unlock(&self.device.path)),
        }
    }

    /// Asks for passphrases until one opens a keyslot, as often as the options allow.
    pub fn open_keyslot(&self, key: &KeyOptions, ask: Ask<'_>) -> Result<OpenedKeyslot> {
        if let Some(opened) = self.open_with_token(key, ask)? {
            return Ok(opened);
        }
        self.ask_until(key, ask, |passphrase| self.open_keyslot_with(passphrase, key.slot))
    }

    /// Opens a keyslot with a token, if the user requests one. `None`: none does, and a passphrase may.
    fn open_with_token(&self, key: &KeyOptions, ask: Ask<'_>) -> Result<Option<OpenedKeyslot>> {
        if !key.tokens.is_requested() {
            return Ok(None);
        }
        let Some(by_token) = self.unlock_with_token(key, &options_to_edit(key.slot), ask)? else { return Ok(None) };
        let number = by_token.unlocked.keyslot.unwrap_or_default();
        self.device.context().detail(format_args!("Key slot {number} unlocked."));
        Ok(Some(OpenedKeyslot { number, key: by_token.unlocked.key, passphrase: by_token.passphrase }))
    }

    /// Like [`Header::open_keyslot`], for a keyslot that holds the volume key.
    pub fn open_bound_keyslot(&self, key: &KeyOptions, ask: Ask<'_>) -> Result<OpenedKeyslot> {
        if let Some(opened) = self.open_with_token(key, ask)? {
            return Ok(opened);
        }
        self.ask_until(key, ask, |passphrase| match self.open_keyslot_with(passphrase, key.slot)? {
            (number, _) if self.volume.keyslot_status(number) == KeyslotStatus::Unbound => match key.slot {
                Some(_) => Err(Error::no_key()),
                // The passphrase may be that of another keyslot as well.
                None => self.open_one_of(&keyslots(&self.volume, holds_volume_key), passphrase),
            },
            opened => Ok(opened),
        })
    }

    /// Asks for passphrases until one opens a keyslot other than `except`, or the last one. Returns its number.
    pub fn open_remaining_keyslot(&self, except: u32, key: &KeyOptions, ask: Ask<'_>) -> Result<u32> {
        let mut others = keyslots(&self.volume, holds_volume_key);
        if others.len() > 1 {
            others.retain(|number| *number != except);
        }
        match self.open_with_token(key, ask)? {
            Some(opened) if others.contains(&opened.number) => return Ok(opened.number),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::TokenOfRemovedKeyslot,
                    format!("The token opens keyslot {except}, which is to be removed."),
                ));
            }
            None => {}
        }
        self.ask_until(key, ask, |passphrase| self.open_one_of(&others, passphrase)).map(|opened| opened.number)
    }

    /// Opens the first of some keyslots that the passphrase opens.
    fn open_one_of(&self, numbers: &[u32], passphrase: &Secret) -> Result<(u32, VolumeKey)> {
        let mut first_error = None;
        for number in numbers {
            match self.open_keyslot_with(passphrase, Some(*number)) {
                Err(error) if error.kind() == ErrorKind::NoKey => {}
                Err(error) => drop(first_error.get_or_insert(error)),
                opened => return opened,
            }
        }
        Err(first_error.unwrap_or_else(Error::no_key))
    }

    /// Opens a keyslot, `slot` or any, and returns its number and its key.
    fn open_keyslot_with(&self, passphrase: &Secret, slot: Option<u32>) -> Result<(u32, VolumeKey)> {
        let _serial = lock::memory_hard_pbkdf(self.device.context())?;
        let _lock = lock::header(&self.device, Mode::Shared)?;
        let device = self.device.header()?;
        let opened = self.volume.unlock_key(&device, passphrase, &options_to_edit(slot));
        let opened = opened.map_err(cannot_unlock(&self.device.path))?;
        self.device.context().detail(format_args!("Key slot {} unlocked.", opened.0));
        Ok(opened)
    }

    fn ask_until(
        &self,
        key: &KeyOptions,
        ask: Ask<'_>,
        open: impl Fn(&Secret) -> Result<(u32, VolumeKey)>,
    ) -> Result<OpenedKeyslot> {
        let ((number, key), passphrase) = self.ask_until_opened(key, ask, open)?;
        Ok(OpenedKeyslot { number, key, passphrase })
    }

    /// Asks for passphrases until one opens something, as often as the options allow. Returns that and the passphrase.
    pub(crate) fn ask_until_opened<T>(
        &self,
        key: &KeyOptions,
        ask: Ask<'_>,
        open: impl Fn(&Secret) -> Result<T>,
    ) -> Result<(T, Secret)> {
        self.report_memory(&options_to_edit(key.slot));
        let mut left = if secret::prompts(key, ask) { key.tries } else { 1 };
        loop {
            let given = secret::read(key, ask, None)?;
            left = left.saturating_sub(1);
            match open(&given.secret) {
                Err(error) if left > 0 && error.kind() == ErrorKind::NoKey => {
                    ask.context.notice(error);
                }
                opened => return Ok((opened?, given.secret)),
            }
        }
    }

    /// Gives a keyslot another passphrase. Without space for a second key, the keyslot is overwritten, with a warning.
    pub fn change_keyslot(
        &mut self,
        number: u32,
        key: &VolumeKey,
        passphrase: &Secret,
        mut new: NewKeyslot,
    ) -> Result<u32> {
        let context = self.device.context().clone();
        self.edit(&[Checked::Keyslot(number)], |volume, device| match volume.change_keyslot(device, number, key, passphrase, &new) {
            Err(EditError::NoFreeKeyslot | EditError::NoFreeArea { .. }) => {
                context.warn(format_args!(
                    "there is no space for a second keyslot; keyslot {number} is overwritten, and a power cut destroys it"
                ));
                new.may_overwrite = true;
                volume.change_keyslot(device, number, key, passphrase, &new)
            }
            changed => changed,
        })
    }

    /// Locks the device of the header as a whole: no process has the volume open.
    pub fn lock_unused(&self) -> Result<DeviceLock> {
        lock::whole_device(&self.device, Mode::Exclusive)
    }
}

/// Numbers of the keyslots in this state or states, in their order.
pub fn keyslots(volume: &Volume, is_wanted: impl Fn(KeyslotStatus) -> bool) -> Vec<u32> {
    (0..)
        .map(|number| (number, volume.keyslot_status(number)))
        .take_while(|(_, status)| *status != KeyslotStatus::Invalid)
        .filter_map(|(number, status)| is_wanted(status).then_some(number))
        .collect()
}

/// Whether a keyslot in this state holds the volume key.
pub fn holds_volume_key(status: KeyslotStatus) -> bool {
    matches!(status, KeyslotStatus::Active | KeyslotStatus::ActiveLast)
}

fn token_json(volume: &Volume, number: u32) -> Option<String> {
    match volume {
        Volume::Luks2(luks2) => luks2.token_json(number),
        _ => None,
    }
}

/// Returns the options to open a keyslot. No payload is used, so the volume may be one that a policy refuses to open.
fn options_to_edit(keyslot: Option<u32>) -> UnlockOptions {
    let mut policy = HeaderPolicy::default();
    (policy.allow_null_cipher, policy.allow_null_iv, policy.allow_linear_segment) = (true, true, true);
    unlock_options(keyslot, policy)
}
