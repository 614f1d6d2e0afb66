//! The actions of the command line: one file each, which declares the action; [`copy`], [`wipe`] and others for
//! several of them.

mod bench;
mod benchmark;
mod close;
mod control;
mod copy;
mod doctor;
mod export;
mod fsverity;
mod import;
mod integrity;
mod list;
mod luks;
mod mount;
mod open;
mod persistent;
mod refresh;
mod reload;
mod resize;
mod resume;
mod running_key;
mod serve;
mod status;
mod suspend;
mod table;
mod test_passphrase;
mod top;
mod umount;
mod verity;
mod wipe;
mod zoned;

use crate::args::action::Action;

/// All actions, in the order of the help text.
pub(crate) const ACTIONS: &[&Action] = &[
    &luks::format::ACTION,
    &luks::is_luks::ACTION,
    &luks::uuid::ACTION,
    &luks::dump::ACTION,
    &luks::policy::ACTION,
    &luks::token::ACTION,
    &luks::add_key::ACTION,
    &luks::remove_key::ACTION,
    &luks::change_key::ACTION,
    &luks::convert_key::ACTION,
    &luks::kill_slot::ACTION,
    &luks::erase::ACTION,
    &luks::config::ACTION,
    &luks::header_backup::ACTION,
    &luks::header_restore::ACTION,
    &luks::repair::ACTION,
    &luks::convert::ACTION,
    &luks::reencrypt::ACTION,
    &doctor::ACTION,
    &open::ACTION,
    &mount::ACTION,
    &umount::ACTION,
    &serve::ACTION,
    &status::ACTION,
    &list::ACTION,
    &control::ACTION,
    &top::ACTION,
    &suspend::ACTION,
    &resume::ACTION,
    &reload::ACTION,
    &refresh::ACTION,
    &resize::ACTION,
    &close::ACTION,
    &export::ACTION,
    &import::ACTION,
    &benchmark::ACTION,
    &bench::ACTION,
    &table::ACTION,
    &zoned::ACTION,
    &integrity::ACTION,
    &verity::ACTION,
    &fsverity::ACTION,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::action::GENERAL;
    use crate::args::options::Options;
    use clap::CommandFactory;

    #[test]
    fn action_takes_only_options_that_exist_and_every_option_has_an_action() {
        let command = Options::command();
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        for action in ACTIONS {
            for option in action.options.iter().copied().flatten() {
                assert!(known.contains(option), "{} names --{option}", action.name);
            }
        }
        for option in known {
            let is_taken = GENERAL.contains(&option) || ACTIONS.iter().any(|action| action.has_option(option));
            assert!(is_taken, "no action takes --{option}");
        }
    }

    #[test]
    fn name_or_alias_belongs_to_one_action() {
        for action in ACTIONS {
            for name in std::iter::once(action.name).chain(action.aliases.iter().map(|alias| alias.name)) {
                assert_eq!(ACTIONS.iter().filter(|action| action.is_named(name)).count(), 1, "{name}");
            }
        }
    }
}
