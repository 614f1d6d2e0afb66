//! The declaration of an action, which parser, help and dispatch share, and groups of options that actions have in
//! common.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::options::Options;
use crate::error::CliError;
use inlock_serve::control::files::Files;
use inlock_serve::control::name::Name;

/// An action of the command line.
pub(crate) struct Action {
    pub name: &'static str,
    pub aliases: &'static [Alias],
    /// Positional arguments as help shows them: `[<x>]` is optional, `...` may be repeated.
    pub arguments: &'static [&'static str],
    /// Long names of the options that it takes in addition to [`GENERAL`].
    pub options: &'static [&'static [&'static str]],
    /// Line of help.
    pub about: &'static str,
    /// Checks options and arguments without touching a device, and returns what runs the action.
    pub prepare: fn(Options, Arguments) -> anyhow::Result<Prepared>,
}

/// Another name of an action, which cryptsetup has.
pub(crate) struct Alias {
    pub name: &'static str,
    /// Value of `--type` that it implies.
    pub volume_type: Option<&'static str>,
    /// Its two arguments are in the other order.
    pub is_swapped: bool,
}

impl Alias {
    /// Returns an alias that is just another name.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, volume_type: None, is_swapped: false }
    }
}

impl Action {
    /// Whether `name` is its name or an alias. Names are case-sensitive, as cryptsetup's are.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias.name == name)
    }

    /// Returns its positional arguments as one word list.
    pub(crate) fn synopsis(&self) -> String {
        self.arguments.join(" ")
    }

    /// Returns the minimum and maximum number of arguments.
    pub(crate) fn argument_count(&self) -> (usize, usize) {
        let required = self.arguments.iter().filter(|argument| !argument.starts_with('[')).count();
        let has_many = self.arguments.iter().any(|argument| argument.contains("..."));
        (required, if has_many { usize::MAX } else { self.arguments.len() })
    }

    /// Returns the position of the argument that `--table` stands for, if the option does.
    pub(crate) fn source_position(&self) -> Option<usize> {
        self.arguments.iter().position(|argument| [SOURCE, IMAGE].contains(argument))
    }

    /// Whether it takes the option with this long name.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        GENERAL.contains(&option) || self.options.iter().any(|group| group.contains(&option))
    }
}

/// Returns the first option of the command line that is in none of the groups, and no option of every action.
pub(crate) fn option_outside<'a>(options: &'a Options, groups: &[&[&str]]) -> Option<&'a str> {
    let is_outside = |name: &&str| !GENERAL.contains(name) && !groups.iter().any(|group| group.contains(name));
    options.given.iter().map(String::as_str).find(is_outside)
}

/// Returns the command that an old name of integritysetup and veritysetup stands for. `create` has the name of the
/// volume before its device.
pub(crate) fn old_name(command: String, arguments: &mut Arguments) -> String {
    match command.as_str() {
        "create" => {
            if let [name, device, ..] = arguments.0.as_mut_slice() {
                std::mem::swap(name, device);
            }
            "open".to_owned()
        }
        "remove" => "close".to_owned(),
        _ => command,
    }
}

/// A checked command line, ready to run.
pub(crate) struct Prepared {
    run: Box<dyn FnOnce() -> anyhow::Result<u8>>,
    /// Standard output carries data, and no messages.
    pub stdout_is_data: bool,
}

impl Prepared {
    /// Returns an action that exits with status 0 unless it fails.
    pub(crate) fn new(run: impl FnOnce() -> anyhow::Result<()> + 'static) -> Self {
        Self::with_status(move || run().map(|()| 0))
    }

    /// Returns an action that may exit with the status of a program that it ran.
    pub(crate) fn with_status(run: impl FnOnce() -> anyhow::Result<u8> + 'static) -> Self {
        Self { run: Box::new(run), stdout_is_data: false }
    }

    /// Declares whether standard output carries data.
    pub(crate) fn with_data_on_stdout(self, stdout_is_data: bool) -> Self {
        Self { stdout_is_data, ..self }
    }

    /// Runs the action, and returns the exit status.
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        (self.run)()
    }
}

/// Positional arguments of an action, whose number was checked.
#[derive(Debug)]
pub(crate) struct Arguments(pub std::vec::IntoIter<OsString>);

impl Arguments {
    /// Takes the next argument, if there is one.
    pub(crate) fn optional(&mut self) -> Option<PathBuf> {
        self.0.next().map(PathBuf::from)
    }

    /// Takes the next argument as a path.
    pub(crate) fn path(&mut self) -> anyhow::Result<PathBuf> {
        self.optional().ok_or_else(|| CliError::usage("An argument is missing."))
    }

    /// Takes the next argument as a word.
    pub(crate) fn word(&mut self) -> anyhow::Result<String> {
        self.path().map(|word| word.to_string_lossy().into_owned())
    }

    /// Takes the next argument as the name of a running volume.
    pub(crate) fn name(&mut self) -> anyhow::Result<Name> {
        running_name(self.path()?)
    }

    /// Takes the next argument as the name of a volume, or fails with `usage`.
    pub(crate) fn name_or(&mut self, usage: &str) -> anyhow::Result<Name> {
        name_of(self.optional().ok_or_else(|| CliError::usage(usage))?)
    }

    /// Takes all other arguments as names of running volumes.
    pub(crate) fn names(self) -> anyhow::Result<Vec<Name>> {
        self.0.map(|word| running_name(word.into())).collect()
    }

    /// Returns the arguments that are left, as paths.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.as_slice().iter().map(PathBuf::from).collect()
    }

    /// Returns the number of arguments that are left.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Converts an argument to the name of a running volume: the name itself, or the path of its device or of a link to it
/// in `/dev/inlock` or `/dev/mapper`.
pub(crate) fn running_name(word: PathBuf) -> anyhow::Result<Name> {
    if !word.is_absolute() {
        return name_of(word);
    }
    let is_link = ["/dev/mapper", "/dev/inlock"].iter().any(|dir| word.parent() == Some(Path::new(dir)));
    match word.file_name() {
        Some(name) if is_link => name_of(name.into()),
        _ => Files::of_node(&word)?
            .map(|files| files.name().clone())
            .ok_or_else(|| inlock_serve::Error::Inactive { name: word.display().to_string() }.into()),
    }
}

/// Converts an argument, or part of one, to the name of a volume.
pub(crate) fn name_of(word: PathBuf) -> anyhow::Result<Name> {
    let text = word.to_str().unwrap_or("\0");
    Name::new(text).map_err(|why| CliError::usage(format!("Name '{}' cannot be used: {why}.", word.display())))
}

/// A volume: an image, a device, or with `--table` nothing.
pub(crate) const SOURCE: &str = "<source>";
/// An image or device.
pub(crate) const IMAGE: &str = "<image>";
/// The name of a running volume.
pub(crate) const NAME: &str = "<name>";

/// Options of every action.
pub(crate) const GENERAL: &[&str] =
    &["help", "usage", "version", "verbose", "batch-mode", "debug", "debug-json", "test-args"];
/// Source of a passphrase or key.
pub(crate) const KEY: &[&str] = &["key-file", "keyfile-offset", "keyfile-size", "timeout", "verify-passphrase"];
/// A volume key in place of a passphrase.
pub(crate) const VOLUME_KEY: &[&str] = &["volume-key-file", "volume-key-keyring"];
/// Unlocking a volume.
pub(crate) const UNLOCK: &[&str] = &[
    "tries",
    "key-slot",
    "type",
    "header",
    "disable-locks",
    "disable-blkid",
    "disable-keyring",
    "volume-key-file",
    "volume-key-keyring",
];
/// Devices that are not on this host.
pub(crate) const REMOTE: &[&str] =
    &["connect-timeout", "reconnect-delay", "store-timeout", "steal-lock", "replay", "allow-copy"];
/// Unlocking a volume with a token.
pub(crate) const TOKENS: &[&str] =
    &["token-id", "token-type", "token-only", "disable-external-tokens", "external-tokens-path", "token-timeout"];
/// A LUKS2 volume with integrity protection.
pub(crate) const SEALED: &[&str] = &[
    "integrity-no-journal",
    "integrity-salvage-journal",
    "integrity-long-journal",
    "freshness",
    "freshness-accept",
    "freshness-tags",
];
/// Holes of the underlying device.
pub(crate) const HOLES: &[&str] = &["holes"];
/// A LUKS header.
pub(crate) const HEADER: &[&str] = &[
    "policy",
    "type",
    "header",
    "disable-locks",
    "disable-blkid",
    "connect-timeout",
    "store-timeout",
    "steal-lock",
    "allow-copy",
];
/// Replacing a LUKS header as a whole.
pub(crate) const WHOLE_HEADER: &[&str] = &[
    "header",
    "header-backup-file",
    "disable-locks",
    "disable-blkid",
    "connect-timeout",
    "store-timeout",
    "steal-lock",
];
/// Plain volumes.
pub(crate) const PLAIN: &[&str] = &[
    "cipher",
    "key-size",
    "hash",
    "sector-size",
    "iv-large-sectors",
    "spdk-tweak",
    "offset",
    "skip",
    "size",
    "device-size",
];
/// Header policy.
pub(crate) const POLICY: &[&str] = &[
    "allow-null-cipher",
    "allow-null-iv",
    "allow-linear-segment",
    "allow-integrity-superblock",
    "require-cipher",
    "expect-uuid",
    "policy",
];
/// Copying.
pub(crate) const COPY: &[&str] = &["range", "progress-json", "progress-frequency"];
/// Key derivation.
pub(crate) const KDF: &[&str] = &["pbkdf", "iter-time", "pbkdf-force-iterations", "pbkdf-memory", "pbkdf-parallel"];
/// Cost and cipher of a new keyslot.
pub(crate) const KEYSLOT: &[&str] = &["hash", "keyslot-cipher", "keyslot-key-size", "force-password"];
/// Passphrase or key of a new keyslot.
pub(crate) const NEW_KEY: &[&str] = &["new-keyfile-offset", "new-keyfile-size"];
/// Flags of dm-crypt's threads.
pub(crate) const THREAD_FLAGS: &[&str] = &[
    "perf-same_cpu_crypt",
    "perf-submit_from_crypt_cpus",
    "perf-no_read_workqueue",
    "perf-no_write_workqueue",
    "perf-high_priority",
];
/// Attaching a volume.
pub(crate) const ATTACH: &[&str] = &[
    "via",
    "read-only",
    "allow-discards",
    "launched",
    "threads",
    "metrics",
    "log-limit",
    "engine",
    "engine-threshold",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_count_follows_from_arguments() {
        let action = |arguments| Action {
            name: "x",
            aliases: &[],
            arguments,
            options: &[],
            about: "",
            prepare: |_, _| Ok(Prepared::new(|| Ok(()))),
        };
        for (arguments, count) in [
            (&[][..], (0, 0)),
            (&["<image>"], (1, 1)),
            (&["<image>", "[<key file>]"], (1, 2)),
            (&["[<name>...]"], (0, usize::MAX)),
        ] {
            assert_eq!(action(arguments).argument_count(), count, "{arguments:?}");
        }
        assert_eq!(action(&["<input>", "<image>"]).source_position(), Some(1));
        assert_eq!(action(&["<name>"]).source_position(), None);
    }
}
