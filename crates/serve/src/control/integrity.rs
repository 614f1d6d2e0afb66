//! State and counters of a running dm-integrity volume.

use std::fmt;

use inlock_integrity::{IntegrityDevice, Mode};
use serde::{Deserialize, Serialize};

use inlock_open::layer::Layer;

/// Positions of mismatches that the text of `status` shows.
const MAX_SHOWN: usize = 8;

/// State of a dm-integrity volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegrityStatus {
    /// Hash of the tags, under the name of integritysetup; with LUKS2 the type of the integrity in the header.
    pub integrity: String,
    /// Length of the MAC's key of an AEAD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_bits: Option<usize>,
    /// Length of a tag in bytes.
    pub tag_size: usize,
    /// Length of a block in bytes.
    pub sector_size: usize,
    /// 0 with a metadata device.
    pub interleave_sectors: u64,
    /// `journal`, `bitmap`, `direct`, `recovery`.
    pub mode: String,
    /// Length of the journal in bytes.
    pub journal_size: u64,
    /// First sector whose tag is still to be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recalc_sector: Option<u64>,
    /// Counters since it was opened.
    #[serde(flatten)]
    pub counters: IntegrityCounters,
    /// First sector of the first block without a matching tag in each MiB, of at most 64.
    #[serde(default)]
    pub mismatched_sectors: Vec<u64>,
}

/// Counters of a dm-integrity volume since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegrityCounters {
    /// Bytes that clients wrote.
    pub client_bytes: u64,
    /// Bytes that were written to the devices for them.
    pub stored_bytes: u64,
    /// Blocks that did not match their tags.
    pub mismatches: u64,
    /// Sections of the journal with blocks that are not in their places yet.
    pub journal_sections_used: u64,
    /// Commits of the journal.
    pub commits: u64,
}

impl IntegrityCounters {
    pub(crate) fn of(device: &IntegrityDevice) -> Self {
        let metrics = device.metrics();
        Self {
            client_bytes: metrics.client_bytes,
            stored_bytes: metrics.stored_bytes,
            mismatches: metrics.mismatches,
            journal_sections_used: metrics.journal_sections_used,
            commits: metrics.commits,
        }
    }

    /// Returns the bytes written to the devices for each byte that clients wrote, if they wrote any.
    pub fn write_amplification(&self) -> Option<f64> {
        (self.client_bytes > 0).then(|| self.stored_bytes as f64 / self.client_bytes as f64)
    }

    /// Returns the difference to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let diff = |get: fn(&Self) -> u64| get(self).saturating_sub(get(earlier));
        Self {
            client_bytes: diff(|c| c.client_bytes),
            stored_bytes: diff(|c| c.stored_bytes),
            mismatches: diff(|c| c.mismatches),
            journal_sections_used: self.journal_sections_used,
            commits: diff(|c| c.commits),
        }
    }
}

impl IntegrityStatus {
    /// Returns the status of the volume of a layer, if it has one.
    pub fn of(layer: &dyn Layer) -> Option<Self> {
        let (device, spec) = (layer.integrity()?, layer.sealed().map(|(_, segment)| segment.spec));
        let internal_hash = || device.options().internal_hash.as_ref().map(|hash| hash.algorithm().name());
        let integrity = match spec {
            Some(spec) => spec.luks2_names().1,
            None => internal_hash().unwrap_or("none").to_owned(),
        };
        let (layout, options, superblock) = (device.layout(), device.options(), device.superblock());
        let mode = match options.mode {
            Mode::Journal => "journal",
            Mode::Bitmap => "bitmap",
            Mode::Direct => "direct",
            Mode::Recovery => "recovery",
        };
        Some(Self {
            integrity,
            key_bits: spec.and_then(|spec| key_bits(spec.mac_key_len())),
            tag_size: layout.journal.tag_size,
            sector_size: layout.block_len(),
            interleave_sectors: layout.log2_interleave_sectors.map_or(0, |log2| 1 << log2),
            mode: mode.to_owned(),
            journal_size: layout.journal.sectors() * 512,
            recalc_sector: Some(superblock.recalc_sector).filter(|_| superblock.is_recalculating()),
            counters: IntegrityCounters::of(device),
            mismatched_sectors: device.mismatched_sectors(),
        })
    }

    /// Writes the tags as integritysetup does.
    pub fn write_hash(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  tag size: {} [bytes]", self.tag_size)?;
        // With its name in the kernel, as integritysetup shows it.
        match self.integrity.strip_prefix("hmac-") {
            Some(hash) => writeln!(f, "  integrity: hmac({hash})"),
            None => writeln!(f, "  integrity: {}", self.integrity),
        }
    }

    /// Whether blocks are read without looking at their tags.
    pub fn is_in_recovery(&self) -> bool {
        self.mode == "recovery"
    }

    /// Writes the integrity of a LUKS2 volume as cryptsetup does.
    pub fn write_type(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  integrity: {}", self.integrity)?;
        if let Some(bits) = self.key_bits {
            writeln!(f, "  integrity keysize: {bits} [bits]")?;
        }
        writeln!(f, "  integrity tag size: {} [bytes]", self.tag_size)
    }

    /// Writes the lines that integritysetup has, and the mode. `sector_size`: unless the lines of a cipher have it.
    pub fn write_layout(&self, f: &mut fmt::Formatter<'_>, sector_size: bool) -> fmt::Result {
        if sector_size {
            writeln!(f, "  sector size:  {} [bytes]", self.sector_size)?;
        }
        writeln!(f, "  interleave sectors: {}", self.interleave_sectors)?;
        // Scripts search integritysetup's output for `mode` and `journal`, which have one line each there.
        writeln!(f, "  crash protection: {}", self.mode)?;
        if self.mode == "journal" {
            writeln!(f, "  journal size: {} [bytes]", self.journal_size)
        } else {
            writeln!(f, "  journal: not active")
        }
    }

    /// Writes the counters.
    pub fn write_counters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IntegrityCounters { client_bytes: client, stored_bytes: stored, .. } = self.counters;
        write!(f, "  tags:    {} mismatches", self.counters.mismatches)?;
        if self.mode == "journal" {
            let IntegrityCounters { commits, journal_sections_used: used, .. } = self.counters;
            write!(f, ", {commits} commits, {used} journal sections in use")?;
        }
        writeln!(f)?;
        if !self.mismatched_sectors.is_empty() {
            let sectors: Vec<String> = self.mismatched_sectors.iter().take(MAX_SHOWN).map(u64::to_string).collect();
            let more = if self.mismatched_sectors.len() > MAX_SHOWN { ", ..." } else { "" };
            writeln!(f, "  mismatches at sectors: {}{more} (the first of each MiB)", sectors.join(", "))?;
        }
        let factor = self.counters.write_amplification().unwrap_or(0.0);
        writeln!(f, "  written: {client} bytes by clients, {stored} bytes to the devices ({factor:.2} times)")?;
        match self.recalc_sector {
            Some(sector) => writeln!(f, "  recalculating: from sector {sector}"),
            None => Ok(()),
        }
    }
}

/// Returns the length of a key of so many bytes, unless there is none.
fn key_bits(len: usize) -> Option<usize> {
    (len > 0).then_some(len * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_has_the_length_of_a_key_if_there_is_one() {
        assert_eq!([0, 32].map(key_bits), [None, Some(256)]);
    }

    #[test]
    fn counters_are_compared_with_earlier_ones() {
        let of = |client_bytes, stored_bytes, mismatches, journal_sections_used, commits| IntegrityCounters {
            client_bytes,
            stored_bytes,
            mismatches,
            journal_sections_used,
            commits,
        };
        let (earlier, later) = (of(1, 2, 3, 9, 4), of(11, 22, 33, 8, 44));
        assert_eq!(later.since(&earlier), of(10, 20, 30, 8, 40));
        assert_eq!((later.write_amplification(), of(0, 8, 0, 0, 0).write_amplification()), (Some(2.0), None));
    }
}
