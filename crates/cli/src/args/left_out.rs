//! Options and actions of cryptsetup that Inlock does not have, with the reason.

/// Options of cryptsetup that belong to one thing that Inlock does not do.
struct LeftOut {
    reason: &'static str,
    /// Long names, and single letters.
    options: &'static [&'static str],
}

const OPTIONS: &[LeftOut] = &[
    LeftOut {
        reason: "Inlock does not use the encryption of drives (OPAL)",
        options: &["disable-sum", "hw-opal", "hw-opal-factory-reset", "hw-opal-only"],
    },
    LeftOut {
        reason: "Inlock does not open TrueCrypt and VeraCrypt volumes",
        options: &[
            "disable-veracrypt",
            "tcrypt-backup",
            "tcrypt-hidden",
            "tcrypt-system",
            "veracrypt",
            "veracrypt-pim",
            "veracrypt-query-pim",
        ],
    },
];

/// Actions of cryptsetup that Inlock does not have.
const ACTIONS: &[&str] = &[
    "loopaesOpen",
    "loopaesClose",
    "tcryptOpen",
    "tcryptClose",
    "tcryptDump",
    "bitlkOpen",
    "bitlkClose",
    "bitlkDump",
    "fvault2Open",
    "fvault2Close",
    "fvault2Dump",
];

/// Types of volumes of cryptsetup that Inlock does not open.
const TYPES: &[&str] = &["bitlk", "fvault2", "loopaes", "tcrypt"];

/// Hint for what works with cryptsetup alone.
pub(super) const HINT: &str = "use cryptsetup on the same image; the format is the same";

/// Returns why Inlock does not have an option of cryptsetup, `--NAME` or `-X`. `None`: cryptsetup has no such option.
pub(super) fn reason(option: &str) -> Option<&'static str> {
    let name = option.strip_prefix("--").or_else(|| option.strip_prefix('-').filter(|name| name.len() == 1))?;
    OPTIONS.iter().find(|left_out| left_out.options.contains(&name)).map(|left_out| left_out.reason)
}

/// Whether cryptsetup alone has an action of this name.
pub(super) fn is_action(name: &str) -> bool {
    ACTIONS.contains(&name)
}

/// Whether cryptsetup alone has a type of volumes of this name.
pub(super) fn is_type(name: &str) -> bool {
    TYPES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::options::Options;
    use clap::CommandFactory;

    #[test]
    fn option_is_inlocks_or_left_out() {
        for arg in Options::command().get_arguments() {
            assert!(arg.get_long().is_none_or(|long| reason(&format!("--{long}")).is_none()), "{arg:?}");
            assert!(arg.get_short().is_none_or(|short| reason(&format!("-{short}")).is_none()), "{arg:?}");
        }
        for name in ["--nonsense", "-integrity", "integrity", "-"] {
            assert_eq!(reason(name), None, "{name}");
        }
    }
}
