//! Unlocking with LUKS2 tokens: a key in the kernel's keyring, or the passphrase that a helper prints.
//!
//! As in cryptsetup, tokens are tried before a passphrase is asked for or a key file is read, and a PIN is asked for
//! only if the user requests a token. No failure of a token prevents the use of another one, or of the passphrase.

mod lookup;
mod process;

use crate::error::{Error, ErrorKind, Result, TokenHint, cannot_unlock, message_of};
use std::collections::BTreeSet;

use inlock_volume::luks2::reencryption::{Reencryption, ReencryptionKeys};
use inlock_volume::luks2::{Luks2, TokenError, TokenFailure, TokenHandler, TokenOptions, TokenRequest};
use inlock_volume::{Printable, Secret, UnlockOptions, Unlocked};

use super::device::Device;
use super::keyring;
use super::lock::{self, Lock, Mode};
use super::secret::{self, Ask};
use super::source::{KeyOptions, TokenChoice};

/// Type of the tokens that need no helper.
const KEYRING: &str = "luks2-keyring";

/// Directory of the helpers, unless another one is named.
pub const HELPERS: &str = "/usr/lib/inlock/tokens";

impl TokenChoice {
    /// Whether the user requests a token.
    pub fn is_requested(&self) -> bool {
        self.only || self.number.is_some() || self.kind.is_some()
    }

    /// Returns the subject of a sentence about the requested token.
    fn subject(&self) -> String {
        match (self.number, &self.kind) {
            (Some(number), _) => format!("Token {number}"),
            (None, Some(kind)) => format!("Token (type {})", Printable::new(kind)),
            (None, None) => "Token".to_owned(),
        }
    }

    /// Returns the error of a volume without a token to try.
    pub(crate) fn none_usable(&self, hint: TokenHint) -> Error {
        let of_kind = self.kind.as_ref().map(|kind| format!(" (type {})", Printable::new(kind)));
        let text = format!("No usable token{} is available.", of_kind.unwrap_or_default());
        Error::new(ErrorKind::NoToken(hint), text)
    }
}

/// A volume that a token has unlocked.
pub struct ByToken {
    /// The volume.
    pub unlocked: Unlocked,
    /// The passphrase of the token.
    pub passphrase: Secret,
}

/// Tries to unlock the volume with a token. `None`: no token did, and the user may be asked for a passphrase.
pub(super) fn unlock(
    luks2: &Luks2,
    device: &Device,
    key: &KeyOptions,
    options: &UnlockOptions,
    ask: Ask<'_>,
) -> Result<Option<ByToken>> {
    let file = device.header()?;
    let unlocked = unlock_as(device, key, ask, |handler, tokens| {
        luks2.unlock_with_tokens(&file, handler, tokens, options).map(|(_, unlocked)| unlocked)
    });
    Ok(unlocked?.map(|(unlocked, passphrase)| ByToken { unlocked, passphrase }))
}

/// Tries to unlock both keys of a volume that is re-encrypted with a token, as [`unlock`] does.
pub(super) fn unlock_reencryption(
    luks2: &Luks2,
    device: &Device,
    key: &KeyOptions,
    options: &UnlockOptions,
    ask: Ask<'_>,
) -> Result<Option<(Reencryption, ReencryptionKeys)>> {
    let file = device.header()?;
    let unlocked = unlock_as(device, key, ask, |handler, tokens| {
        luks2.unlock_reencryption_with_tokens(&file, handler, tokens, options).map(|(_, unlocked)| unlocked)
    });
    Ok(unlocked?.map(|(unlocked, _)| unlocked))
}

/// Tries to unlock a volume as `unlock` does, and returns the passphrase that has, too. Asks for a PIN if a requested
/// token needs one.
fn unlock_as<T>(
    device: &Device,
    key: &KeyOptions,
    ask: Ask<'_>,
    unlock: impl Fn(&mut Handler<'_>, &TokenOptions) -> Result<T, TokenError>,
) -> Result<Option<(T, Secret)>> {
    let args = &key.tokens;
    let mut tokens = TokenOptions::default();
    (tokens.number, tokens.kind) = (args.number, args.kind.clone());
    let mut handler = Handler::new(args, device);
    let try_tokens = |handler: &mut Handler<'_>| {
        let unlocked = unlock(handler, &tokens);
        (handler.lock, handler.serial) = (None, None);
        match handler.stop.take() {
            Some(stop) => Err(stop),
            None => Ok(unlocked),
        }
    };
    let mut outcome = try_tokens(&mut handler)?;
    if matches!(outcome, Err(TokenError::PinRequired)) && args.is_requested() {
        let tries = if secret::can_ask(ask) { key.tries } else { 1 };
        for _ in 0..tries {
            handler.pin = match read_pin(args, key, ask) {
                Ok(pin) if pin.is_empty() => break,
                Ok(pin) => Some(pin),
                Err(error) if args.only || is_interruption(&error) => return Err(error),
                // A passphrase may still come, from a key file for example.
                Err(_) => break,
            };
            outcome = try_tokens(&mut handler)?;
            match &outcome {
                Err(TokenError::PinRequired) => ask.context.notice("No token could be unlocked with this PIN."),
                _ => break,
            }
        }
    }
    let error = match outcome {
        Ok(unlocked) => {
            let passphrase = handler.last.take().unwrap_or_else(|| Secret::new(Vec::new()));
            return Ok(Some((unlocked, passphrase)));
        }
        Err(error) => explain(error, args, device, handler.hint),
    };
    if args.only {
        return Err(error);
    }
    if args.is_requested() {
        let text = message_of(&error);
        let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        ask.context.warn(format_args!("{}{}", first.to_lowercase(), rest.trim_end_matches('.')));
    }
    Ok(None)
}

/// Returns the passphrase of a token, for a new keyslot. Asks for the token's PIN if it needs one.
pub fn passphrase(luks2: &Luks2, device: &Device, key: &KeyOptions, number: u32, ask: Ask<'_>) -> Result<Secret> {
    let args = TokenChoice { number: Some(number), kind: None, only: true, ..key.tokens.clone() };
    let mut handler = Handler::new(&args, device);
    let get = |handler: &mut Handler<'_>| {
        let passphrase = luks2.token_passphrase(number, handler);
        (handler.lock, handler.serial) = (None, None);
        match handler.stop.take() {
            Some(stop) => Err(stop),
            None => Ok(passphrase),
        }
    };
    let mut outcome = get(&mut handler)?;
    let tries = if secret::can_ask(ask) { key.tries } else { 1 };
    for _ in 0..tries {
        if !matches!(outcome, Err(TokenError::PinRequired)) {
            break;
        }
        handler.pin = Some(read_pin(&args, key, ask)?);
        outcome = get(&mut handler)?;
    }
    outcome.map_err(|error| explain(error, &args, device, handler.hint))
}

/// Returns the passphrase that is stored in the kernel's keyring under this description.
pub fn keyring_passphrase(description: &str) -> Result<Secret> {
    keyring::read_passphrase(description).map_err(|_| {
        Error::new(ErrorKind::NoKeyringKey, format!("Failed to find key '{description}' in the session keyring."))
    })
}

/// Whether the user has ended a prompt.
fn is_interruption(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted(_) | ErrorKind::PromptTimeout)
}

fn read_pin(args: &TokenChoice, key: &KeyOptions, ask: Ask<'_>) -> Result<Secret> {
    let prompt = match args.number {
        Some(number) => format!("Enter token {number} PIN: "),
        None => "Enter token PIN: ".to_owned(),
    };
    secret::read_pin(&prompt, key.timeout, ask)
}

/// Explains, in cryptsetup's words, why no token unlocks the volume.
fn explain(error: TokenError, args: &TokenChoice, device: &Device, hint: TokenHint) -> Error {
    let subject = args.subject();
    match error {
        TokenError::PinRequired => Error::new(ErrorKind::TokenPin, format!("{subject} requires PIN.")),
        TokenError::ResourceMissing => {
            Error::new(ErrorKind::TokenResource, format!("{subject} requires additional missing resource."))
        }
        TokenError::WrongPassphrase => {
            let text = format!("{subject} cannot unlock assigned keyslot(s) (wrong keyslot passphrase).");
            Error::new(ErrorKind::TokenPassphrase(hint), text)
        }
        TokenError::Failed => Error::new(ErrorKind::TokenFailed, format!("{subject} failed.")),
        TokenError::Unlock(error) => cannot_unlock(&device.path)(error),
        TokenError::Invalid { .. } => {
            let none = args.none_usable(hint);
            Error::with_source(none.kind(), none.to_string(), error)
        }
        _ => args.none_usable(hint),
    }
}

/// Gets passphrases of tokens.
struct Handler<'a> {
    args: &'a TokenChoice,
    device: &'a Device,
    /// With a PIN, only those of `needs_pin` are tried.
    pin: Option<Secret>,
    needs_pin: BTreeSet<u32>,
    /// Held while keyslots are read, and not while a helper runs, which may take its time or lock the header itself.
    lock: Option<Lock>,
    /// Lock of memory-hard key derivations, held as long as `lock`.
    serial: Option<Lock>,
    /// Passphrase of the token that was tried last.
    last: Option<Secret>,
    /// Hint about a token that cannot be used.
    hint: TokenHint,
    /// Error that ends the search.
    stop: Option<Error>,
}

impl TokenHandler for Handler<'_> {
    fn passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        (self.lock, self.serial) = (None, None);
        self.device.context().debug(format_args!("Trying token {} ({}).", token.number, token.kind));
        if self.stop.is_some() || (self.pin.is_some() && !self.needs_pin.contains(&token.number)) {
            return Err(TokenFailure::Unsupported);
        }
        let passphrase = match token.kind {
            KEYRING => self.keyring_passphrase(token),
            _ => self.helper_passphrase(token),
        };
        if matches!(passphrase, Err(TokenFailure::PinRequired)) {
            self.needs_pin.insert(token.number);
        }
        let passphrase = passphrase?;
        let locks = lock::memory_hard_pbkdf(self.device.context())
            .and_then(|serial| Ok((serial, lock::header(self.device, Mode::Shared)?)));
        match locks {
            Ok((serial, lock)) => (self.serial, self.lock) = (serial, Some(lock)),
            Err(error) => {
                self.stop = Some(error);
                return Err(TokenFailure::Failed);
            }
        }
        self.last = Some(copy_of(&passphrase));
        Ok(passphrase)
    }
}

fn copy_of(secret: &Secret) -> Secret {
    Secret::new(secret.as_bytes().to_vec())
}

impl<'a> Handler<'a> {
    fn new(args: &'a TokenChoice, device: &'a Device) -> Self {
        Self {
            args,
            device,
            pin: None,
            needs_pin: BTreeSet::new(),
            lock: None,
            serial: None,
            last: None,
            hint: TokenHint::None,
            stop: None,
        }
    }
}

impl Handler<'_> {
    fn warn_of(&self, token: &TokenRequest<'_>, text: &dyn std::fmt::Display) {
        let kind = Printable::new(token.kind);
        self.device.context().warn(format_args!("token {} ({kind}): {text}", token.number));
    }

    fn keyring_passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        let object: serde_json::Value = serde_json::from_str(token.json).map_err(|_| TokenFailure::Unsupported)?;
        let description = object["key_description"].as_str().ok_or(TokenFailure::Unsupported)?;
        keyring::read_passphrase(description).map_err(|_| {
            self.hint = TokenHint::Keyring;
            TokenFailure::NoPassphrase
        })
    }

    fn helper_passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        let helper = match self.args.helpers.as_deref().map(|dir| lookup::find(dir, token.kind)) {
            None | Some(Ok(None)) => {
                self.hint = without_helper(token.kind);
                return Err(TokenFailure::Unsupported);
            }
            Some(Ok(Some(helper))) => helper,
            Some(Err(error)) => {
                self.warn_of(token, &error);
                return Err(TokenFailure::Failed);
            }
        };
        let run = process::Run {
            context: self.device.context(),
            helper: &helper,
            pin: self.pin.as_ref(),
            timeout: self.args.timeout,
        };
        match run.passphrase(token) {
            Ok(Ok(passphrase)) => {
                if passphrase.as_bytes().ends_with(b"\n") {
                    self.hint = TokenHint::Newline;
                }
                Ok(passphrase)
            }
            Ok(Err(process::Failure { failure, text })) => {
                if let Some(text) = text {
                    self.warn_of(token, &text);
                }
                Err(failure)
            }
            Err(stop) => {
                self.stop = Some(stop);
                Err(TokenFailure::Failed)
            }
        }
    }
}

/// Returns why a token whose type has no helper is not used.
fn without_helper(kind: &str) -> TokenHint {
    match kind {
        "systemd-tpm2" | "systemd-fido2" | "systemd-pkcs11" => TokenHint::Systemd,
        "systemd-recovery" => TokenHint::Recovery,
        "clevis" => TokenHint::Clevis,
        "ssh" => TokenHint::Ssh,
        _ => TokenHint::Helper,
    }
}
