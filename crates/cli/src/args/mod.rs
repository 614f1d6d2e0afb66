//! The command line: options, actions, and conversion to typed arguments. Nothing here touches a device.
//!
//! Each file in [`commands`](crate::commands) declares its [`action`]; [`parse`] checks the command line against the
//! declaration, and [`source`] converts the options that actions share.

pub(crate) mod action;
pub(crate) mod help;
pub(crate) mod integrity;
pub(crate) mod keyslot;
mod left_out;
pub(crate) mod options;
pub(crate) mod parse;
pub(crate) mod source;
mod suggest;
pub(crate) mod verity;
