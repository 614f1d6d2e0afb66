//! The program around running volumes.

use std::fmt::Display;

use inlock_open::Context;

use crate::error::{Error, Told};

/// The program around running volumes. Each method but the first has a default for a program without users.
pub trait Program: Send + Sync {
    /// Returns the context in which volumes are opened.
    fn context(&self) -> &Context;

    /// Returns what the client of a control command is told about an error.
    fn tell(&self, error: Error) -> Told {
        Told::of(&error)
    }

    /// Logs a line about a volume or another subject. Called by threads that must not block.
    fn log(&self, subject: &dyn Display, text: &dyn Display) {
        let _ = (subject, text);
    }
}

/// A context alone is a program without users.
impl Program for Context {
    fn context(&self) -> &Context {
        self
    }
}
