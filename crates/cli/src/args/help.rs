//! Help texts: of the program, or of one action with the options that it takes.

use clap::CommandFactory;

use super::action::{Action, IMAGE, NAME, SOURCE};
use super::options::Options;
use crate::ui::print::print;

/// Prints the help of `action`, or of the program with all `actions`.
pub(crate) fn print_help(actions: &[&Action], action: Option<&Action>) -> anyhow::Result<()> {
    print(match action {
        Some(action) => of_action(action),
        None => of_program(actions),
    })
}

/// Prints the usage of `action`, or of the program: all options in brief.
pub(crate) fn print_usage(action: Option<&Action>) -> anyhow::Result<()> {
    print(brief(action))
}

/// Returns the options in lines of at most 80 characters.
fn brief(action: Option<&Action>) -> String {
    let mut words: Vec<String> = Vec::new();
    for arg in Options::command().get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long().filter(|long| action.is_none_or(|action| action.has_option(long))) else {
            continue;
        };
        let short = arg.get_short().map_or_else(String::new, |short| format!("-{short}|"));
        let takes_value = arg.get_action().takes_values();
        let value = arg.get_value_names().filter(|_| takes_value).and_then(<[_]>::first);
        let value = value.map_or_else(String::new, |value| format!("={value}"));
        words.push(format!("[{short}--{long}{value}]"));
    }
    words.push(match action {
        Some(action) => format!("{} {}", action.name, action.synopsis()).trim_end().to_owned(),
        None => "<action> [<argument>...]".to_owned(),
    });
    let mut text = String::new();
    let mut line = "Usage: inlock".to_owned();
    for word in words {
        if line.len() + 1 + word.len() > 80 {
            text += &format!("{line}\n");
            line = " ".repeat(7);
        }
        line += &format!(" {word}");
    }
    text + &line + "\n"
}

fn of_action(action: &Action) -> String {
    let mut command = Options::command()
        .about(format!("inlock {}: {}", action.name, action.about))
        .override_usage(format!("inlock {} [OPTION...] {}", action.name, action.synopsis()).trim_end().to_owned())
        .mut_args(|arg| {
            let is_hidden = arg.is_hide_set() || !arg.get_long().is_some_and(|long| action.has_option(long));
            arg.hide(is_hidden)
        });
    let mut notes: Vec<String> = action.arguments.iter().filter_map(|argument| of_argument(action, argument)).collect();
    if !action.aliases.is_empty() {
        let names: Vec<&str> = action.aliases.iter().map(|alias| alias.name).collect();
        notes.push(format!("Aliases: {}", names.join(", ")));
    }
    if !notes.is_empty() {
        command = command.after_help(notes.join("\n"));
    }
    command.render_help().to_string()
}

/// Explains a positional argument. `None`: its name is enough.
fn of_argument(action: &Action, argument: &str) -> Option<String> {
    let text = match argument {
        SOURCE | IMAGE if action.has_option("table") => "an image file or a block device; left out with --table",
        SOURCE | IMAGE => "an image file or a block device",
        NAME => "name of a running volume, or its device; `inlock list` shows all",
        "[<source>]" => "the image or device of the volume; it is checked",
        "[<name>]" if action.has_option("test-passphrase") => {
            "name for the volume, needed unless --test-passphrase is given"
        }
        "[<name>]" => "name for the volume (open)",
        "<command>" => return commands_of(action),
        "[<name>...]" => "names of running volumes (default: all)",
        "[<key file>]" => "the same as --key-file",
        "<input file or ->" => "- is standard input",
        "<output file or ->" => "- is standard output",
        _ => return None,
    };
    Some(format!("{argument}: {text}"))
}

/// Lists the commands of an action with their arguments. `None`: the names of its arguments are enough.
fn commands_of(action: &Action) -> Option<String> {
    let commands: &[&str] = match action.name {
        "verity" => &[
            "format DATA HASH",
            "verify DATA HASH [ROOT]",
            "open DATA NAME HASH [ROOT]",
            "serve DATA HASH [ROOT]",
            "table DATA HASH [ROOT]",
            "dump HASH",
            "status NAME",
            "close NAME",
        ],
        "integrity" => &[
            "format DEVICE",
            "open DEVICE NAME",
            "serve DEVICE",
            "dump DEVICE",
            "resize DEVICE",
            "status NAME",
            "close NAME",
        ],
        "fsverity" => &["digest FILE...", "verify FILE DIGEST"],
        "control" => &["list", "status NAME", "top", "add NAME KEY=VALUE...", "remove NAME", "close NAME", "reload"],
        _ => return None,
    };
    Some(format!("Commands:\n  {}", commands.join("\n  ")))
}

fn of_program(actions: &[&Action]) -> String {
    // Actions and compiled-in defaults, in cryptsetup's words, which scripts look for.
    let mut text = String::from("<action> is one of:\n");
    for action in actions {
        text += &format!("  {} - {}\n", format!("{} {}", action.name, action.synopsis()).trim_end(), action.about);
    }
    text += "\nOptions may precede or follow the action. `inlock <action> --help` shows the options of one action.\n\
        Passphrases come from the terminal, from the first line of standard input, or from a key file;\n\
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
    Options::command().after_help(text).render_help().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::action::{ATTACH, Alias, HEADER, Prepared};
    use super::*;

    const ACTION: Action = Action {
        name: "look",
        aliases: &[Alias::new("luksLook")],
        arguments: &["<image>"],
        options: &[HEADER, ATTACH],
        about: "look at a volume",
        prepare: |_, _| Ok(Prepared::new(|| Ok(()))),
    };

    #[test]
    fn help_of_action_has_its_options_only() {
        let help = of_action(&ACTION);
        for part in ["inlock look: look at a volume", "Usage: inlock look [OPTION...] <image>\n", "luksLook"] {
            assert!(help.contains(part), "{help}");
        }
        assert!(help.contains("--header") && help.contains("--verbose"), "{help}");
        assert!(!help.contains("--pbkdf") && !help.contains("--nbd"), "{help}");
        assert!(!help.contains("--launched"), "{help}");
        assert!(help.contains("<image>: an image file or a block device\nAliases: luksLook"), "{help}");
    }

    #[test]
    fn usage_has_all_options_in_short_lines() {
        let usage = brief(None);
        assert!(usage.starts_with("Usage: inlock [-?|--help]"), "{usage}");
        assert!(usage.contains("[-d|--key-file=FILE]") && usage.contains("[--deferred]"), "{usage}");
        assert!(!usage.contains("launched") && usage.lines().all(|line| line.len() <= 88), "{usage}");
        let usage = brief(Some(&ACTION));
        assert!(usage.ends_with("look <image>\n") && !usage.contains("--pbkdf"), "{usage}");
    }

    #[test]
    fn help_of_program_has_actions_and_defaults() {
        let help = of_program(&[&ACTION]);
        assert!(help.contains("\n  look <image> - look at a volume\n"), "{help}");
        assert!(help.contains("Maximum keyfile size: 8192kB"), "{help}");
    }
}
