//! User interface: results, errors, tables, progress, prompts.

pub(crate) mod columns;
pub(crate) mod log_file;
pub(crate) mod print;
pub(crate) mod progress;
pub(crate) mod terminal;
