//! Unlocking with LUKS2 tokens: a key in the kernel's keyring, or the passphrase that a helper prints.
//!
//! As in cryptsetup, tokens are tried before a passphrase is asked for or a key file is read, and a PIN is asked for
//! only if the user requests a token. No failure of a token prevents the use of another one, or of the passphrase.

mod lookup;
mod process;

use std::collections::BTreeSet;

use inlock_volume::luks2::{Luks2, TokenError, TokenFailure, TokenHandler, TokenOptions, TokenRequest};
use inlock_volume::{Printable, Secret, UnlockOptions, Unlocked};

use super::device::Device;
use super::keyring;
use super::lock::{self, Lock, Mode};
use super::secret::{self, Ask};
use super::source::{KeyArgs, TokenArgs};
use crate::error::{CliError, Status, cannot_unlock, message_of};
use crate::ui::print::{print_debug, print_stderr, warn};

/// Type of the tokens that need no helper.
const KEYRING: &str = "luks2-keyring";

/// Directory of the helpers, unless another one is named.
pub(crate) const HELPERS: &str = "/usr/lib/inlock/tokens";

impl TokenArgs {
    /// Whether the user requests a token.
    pub(crate) fn is_requested(&self) -> bool {
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
    pub(super) fn none_usable(&self, hint: Option<&'static str>) -> CliError {
        let of_kind = self.kind.as_ref().map(|kind| format!(" (type {})", Printable::new(kind)));
        let message = format!("No usable token{} is available.", of_kind.unwrap_or_default());
        let hint = hint.unwrap_or("run `inlock luksDump` to list tokens and their keyslots");
        CliError::Refused { message, hint }
    }
}

/// A volume that a token has unlocked.
pub(crate) struct ByToken {
    pub unlocked: Unlocked,
    /// The passphrase of the token.
    pub passphrase: Secret,
}

/// Tries to unlock the volume with a token. `None`: no token did, and the user may be asked for a passphrase.
pub(super) fn unlock(
    luks2: &Luks2,
    device: &Device,
    key: &KeyArgs,
    options: &UnlockOptions,
    ask: Ask<'_>,
) -> anyhow::Result<Option<ByToken>> {
    let args = &key.tokens;
    let mut tokens = TokenOptions::default();
    (tokens.number, tokens.kind) = (args.number, args.kind.clone());
    let file = device.header()?;
    let mut handler = Handler::new(args, device);
    let try_tokens = |handler: &mut Handler<'_>| {
        let unlocked = luks2.unlock_with_tokens(&file, handler, &tokens, options);
        (handler.lock, handler.serial) = (None, None);
        match handler.stop.take() {
            Some(stop) => Err(stop),
            None => Ok(unlocked.map(|(_, unlocked)| unlocked)),
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
                Err(TokenError::PinRequired) => print_stderr("No token could be unlocked with this PIN."),
                _ => break,
            }
        }
    }
    let error = match outcome {
        Ok(unlocked) => {
            let passphrase = handler.last.take().unwrap_or_else(|| Secret::new(Vec::new()));
            return Ok(Some(ByToken { unlocked, passphrase }));
        }
        Err(error) => explain(error, args, device, handler.hint),
    };
    if args.only {
        return Err(error);
    }
    if args.is_requested() {
        let text = message_of(&error);
        let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        warn(format_args!("{}{}", first.to_lowercase(), rest.trim_end_matches('.')));
    }
    Ok(None)
}

/// Returns the passphrase of a token, for a new keyslot. Asks for the token's PIN if it needs one.
pub(crate) fn passphrase(
    luks2: &Luks2,
    device: &Device,
    key: &KeyArgs,
    number: u32,
    ask: Ask<'_>,
) -> anyhow::Result<Secret> {
    let args = TokenArgs { number: Some(number), kind: None, only: true, ..key.tokens.clone() };
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
pub(crate) fn keyring_passphrase(description: &str) -> anyhow::Result<Secret> {
    keyring::read_passphrase(description).map_err(|_| {
        CliError::refused(
            format!("Failed to find key '{description}' in the session keyring."),
            "add the passphrase as a key of type user: keyctl padd user DESCRIPTION @u",
        )
    })
}

/// Whether the user has ended a prompt.
fn is_interruption(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CliError::Interrupted(_) | CliError::PromptTimeout))
}

fn read_pin(args: &TokenArgs, key: &KeyArgs, ask: Ask<'_>) -> anyhow::Result<Secret> {
    let prompt = match args.number {
        Some(number) => format!("Enter token {number} PIN: "),
        None => "Enter token PIN: ".to_owned(),
    };
    secret::read_line(&prompt, key.timeout_secs, ask)
}

/// Explains, in cryptsetup's words, why no token unlocks the volume.
fn explain(error: TokenError, args: &TokenArgs, device: &Device, hint: Option<&'static str>) -> anyhow::Error {
    let subject = args.subject();
    let with = |status, text: String, hint: &str| CliError::Remote(text, Some(hint.to_owned()), status).into();
    match error {
        TokenError::PinRequired => with(Status::Wrong, format!("{subject} requires PIN."), "try again with its PIN"),
        TokenError::ResourceMissing => with(
            Status::Wrong,
            format!("{subject} requires additional missing resource."),
            "plug in its device or start its server, or use a passphrase",
        ),
        TokenError::WrongPassphrase => with(
            Status::Permission,
            format!("{subject} cannot unlock assigned keyslot(s) (wrong keyslot passphrase)."),
            hint.unwrap_or("use a passphrase; the passphrase of the keyslot may have been changed"),
        ),
        TokenError::Failed => {
            with(Status::Wrong, format!("{subject} failed."), "check the helper of its type, or use a passphrase")
        }
        TokenError::Unlock(error) => cannot_unlock(&device.path)(error),
        TokenError::Invalid { .. } => anyhow::Error::from(error).context(args.none_usable(hint)),
        _ => args.none_usable(hint).into(),
    }
}

/// Gets passphrases of tokens.
struct Handler<'a> {
    args: &'a TokenArgs,
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
    hint: Option<&'static str>,
    /// Error that ends the search.
    stop: Option<anyhow::Error>,
}

impl TokenHandler for Handler<'_> {
    fn passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        (self.lock, self.serial) = (None, None);
        print_debug(format_args!("Trying token {} ({}).", token.number, token.kind));
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
        let locks = lock::memory_hard_pbkdf().and_then(|serial| Ok((serial, lock::header(self.device, Mode::Shared)?)));
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
    fn new(args: &'a TokenArgs, device: &'a Device) -> Self {
        Self {
            args,
            device,
            pin: None,
            needs_pin: BTreeSet::new(),
            lock: None,
            serial: None,
            last: None,
            hint: None,
            stop: None,
        }
    }
}

impl Handler<'_> {
    fn keyring_passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        let object: serde_json::Value = serde_json::from_str(token.json).map_err(|_| TokenFailure::Unsupported)?;
        let description = object["key_description"].as_str().ok_or(TokenFailure::Unsupported)?;
        keyring::read_passphrase(description).map_err(|_| {
            self.hint = Some("add the passphrase as a key of type user: keyctl padd user DESCRIPTION @u");
            TokenFailure::NoPassphrase
        })
    }

    fn helper_passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        let helper = match self.args.helpers.as_deref().map(|dir| lookup::find(dir, token.kind)) {
            None | Some(Ok(None)) => {
                self.hint = Some(without_helper(token.kind));
                return Err(TokenFailure::Unsupported);
            }
            Some(Ok(Some(helper))) => helper,
            Some(Err(error)) => {
                warn_of(token, &error);
                return Err(TokenFailure::Failed);
            }
        };
        let run = process::Run { helper: &helper, pin: self.pin.as_ref(), timeout: self.args.timeout };
        match run.passphrase(token) {
            Ok(Ok(passphrase)) => {
                if passphrase.as_bytes().ends_with(b"\n") {
                    self.hint = Some("the helper's output ends with a newline, which is part of the passphrase");
                }
                Ok(passphrase)
            }
            Ok(Err(process::Failure { failure, text })) => {
                if let Some(text) = text {
                    warn_of(token, &text);
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

fn warn_of(token: &TokenRequest<'_>, text: &dyn std::fmt::Display) {
    warn(format_args!("token {} ({}): {text}", token.number, Printable::new(token.kind)));
}

/// Returns what to do about a token whose type has no helper.
fn without_helper(kind: &str) -> &'static str {
    match kind {
        "systemd-tpm2" | "systemd-fido2" | "systemd-pkcs11" => {
            "Inlock does not run systemd's plugins yet; use a passphrase or the recovery key, or add a key file with \
             cryptsetup: cryptsetup luksAddKey --token-only IMAGE KEYFILE"
        }
        "systemd-recovery" => "type the recovery key as the passphrase; this token only marks its keyslot",
        "clevis" => {
            "install the helper contrib/tokens/clevis in /usr/lib/inlock/tokens, or use: clevis luks pass -d IMAGE -s \
             SLOT | inlock open --key-file - IMAGE NAME"
        }
        "ssh" => "fetch the key file with ssh: ssh USER@SERVER cat PATH | inlock open --key-file - IMAGE NAME",
        _ => "install a helper for its type in /usr/lib/inlock/tokens, or use a passphrase",
    }
}
