//! Cipher engine of a running volume.

use std::fmt;

use inlock_engine::EngineStats;
use serde::{Deserialize, Serialize};

use inlock_open::engine::EngineOptions;

/// The engine, as `--engine` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// `software`, or the word of another engine.
    pub name: String,
    /// Length in bytes of the shortest request for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<usize>,
}

impl EngineInfo {
    /// Returns the engine of these options, which `None` leaves to software.
    pub fn of(args: Option<EngineOptions>) -> Self {
        args.map_or_else(Self::default, |args| Self { name: args.name().to_owned(), threshold: Some(args.threshold) })
    }
}

impl Default for EngineInfo {
    fn default() -> Self {
        Self { name: "software".to_owned(), threshold: None }
    }
}

impl fmt::Display for EngineInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.threshold {
            Some(threshold) => write!(f, ", for requests of at least {threshold} bytes"),
            None => Ok(()),
        }
    }
}

/// Counters of an engine since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Targets whose key it has now.
    pub keys: u64,
    /// Requests that it accepted.
    pub accepted: u64,
    /// Requests that it refused; the worker did the work.
    pub refused: u64,
    /// Accepted requests that it finished in software.
    pub fell_back: u64,
    /// Accepted requests that failed.
    pub failed: u64,
}

impl EngineCounters {
    pub(crate) fn of(stats: EngineStats) -> Self {
        let EngineStats { accepted, refused, failed, fell_back, keys, .. } = stats;
        Self { keys, accepted, refused, fell_back, failed }
    }
}

impl fmt::Display for EngineCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, accepted, refused, fell_back, failed } = self;
        write!(
            f,
            "{accepted} requests accepted, {refused} refused, {fell_back} finished in software, {failed} failed"
        )?;
        write!(f, ", {keys} keys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_is_shown_with_its_threshold_and_counters() {
        assert_eq!(EngineInfo::of(None).to_string(), "software");
        let info = EngineInfo::of(Some(EngineOptions { threshold: 8192 }));
        assert_eq!(info.to_string(), "afalg, for requests of at least 8192 bytes");
        let counters = EngineCounters { keys: 1, accepted: 9, refused: 2, fell_back: 3, failed: 4 };
        let text = "9 requests accepted, 2 refused, 3 finished in software, 4 failed, 1 keys";
        assert_eq!(counters.to_string(), text);
        assert_eq!(serde_json::to_value(info).unwrap(), serde_json::json!({ "name": "afalg", "threshold": 8192 }));
    }
}
