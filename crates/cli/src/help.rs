//! Help texts: all of it, or what one verb takes.

use clap::CommandFactory;

use crate::exit;
use crate::options::{Options, Verb};

/// Prints the help for `verb`, or for everything.
pub(crate) fn print(verb: Option<Verb>) -> anyhow::Result<()> {
    exit::print(text(verb))
}

fn text(verb: Option<Verb>) -> String {
    let mut command = Options::command();
    match verb {
        Some(verb) => {
            let (operands, ..) = verb.operands();
            command = command
                .about(format!("inlock {}: {}", verb.name(), verb.about()))
                .override_usage(format!("inlock {} [OPTION...] {operands}", verb.name()))
                .mut_args(|arg| {
                    let hidden = arg.is_positional() || arg.get_long().is_some_and(|long| !verb.allows(long));
                    arg.hide(hidden)
                });
        }
        None => command = command.after_help(after()),
    }
    command.render_help().to_string()
}

/// The verbs, and the defaults, in cryptsetup's words where scripts look for them.
fn after() -> String {
    let mut text = String::from("<action> is one of:\n");
    for verb in Verb::ALL {
        let (operands, ..) = verb.operands();
        text += &format!("  {} {operands} - {}\n", verb.name(), verb.about());
    }
    text += "\nOptions may stand before or after the action. `inlock <action> --help` shows what one action takes.\n\
        Passphrases come from the terminal, from standard input up to the first newline, or from a key file;\n\
        never from arguments or the environment.\n\n\
        Default compiled-in metadata format is LUKS2 (for luksFormat action).\n\n\
        Default compiled-in key and passphrase parameters:\n\
        \tMaximum keyfile size: 8192kB, Maximum interactive passphrase length 512 (characters)\n\
        Default PBKDF for LUKS1: pbkdf2, iteration time: 2000 (ms)\n\
        Default PBKDF for LUKS2: argon2id\n\
        \tIteration time: 2000, Memory required: 1048576kB, Parallel threads: 4\n\n\
        Default compiled-in device cipher parameters:\n\
        \tplain: aes-xts-plain64, Key: 256 bits, Password hashing: sha256\n\
        \tLUKS: aes-xts-plain64, Key: 256 bits, LUKS header hashing: sha256\n\
        \tLUKS: Default keysize with XTS mode (two internal keys) will be doubled.\n\n\
        Exit status: 0 success, 1 wrong parameters or any other error, 2 no permission or bad passphrase,\n\
        3 out of memory, 4 wrong device, 5 device busy or exists.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_a_verb_has_its_options_only() {
        let dump = text(Some(Verb::LuksDump));
        assert!(dump.contains("--dump-json-metadata") && dump.contains("--header"), "{dump}");
        assert!(!dump.contains("--pbkdf") && !dump.contains("--nbd"), "{dump}");
    }

    #[test]
    fn the_help_has_every_verb_and_what_scripts_look_for() {
        let all = text(None);
        for verb in Verb::ALL {
            assert!(all.contains(&format!("  {} ", verb.name())), "{}", verb.name());
        }
        assert!(all.contains("Maximum keyfile size: 8192kB"), "{all}");
    }
}
