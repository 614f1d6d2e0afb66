//! Repair of a LUKS1 header, which has no second copy.
//!
//! Partition tools overwrite single keyslots: a partition table lies in keyslots 4 to 6. Offset and stripes of a
//! keyslot are known without the header's help, since most programs create the same layout. A keyslot that holds a key
//! may be an exception that works, so it is changed only if a passphrase opens it with the new values.

use super::binary_header::{HEADER_LEN, KEYSLOT_DISABLED, KEYSLOT_ENABLED, KEYSLOTS, RawHeader, RawKeyslot};
use super::{HEADER, Luks1, STRIPES, check_header, layout, reencryption, validate};
use crate::error::{LoadError, RepairError};
use crate::header_device::HeaderDevice;
use crate::key_material::MAX_KEY_LEN;
use crate::luks2::binary_header::LUKS_MAGIC;
use crate::repair_step::Repair;
use crate::signatures::partition_table;
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the signature of a partition table: in the salt of keyslot 6.
const SIGNATURE: std::ops::Range<usize> = 510..512;
const SIGNED_KEYSLOT: usize = 6;
/// Keyslots whose salt a partition table overwrites, a GPT the last one too.
const OVERWRITTEN: [usize; 3] = [5, SIGNED_KEYSLOT, 7];
const SECTOR: usize = 512;

/// Repairs of a header that may be too damaged to be loaded.
#[derive(Debug)]
pub(crate) struct Luks1Repair {
    /// The header with all repairs, and without those that erase a keyslot.
    with_erasing: RawHeader,
    mended: RawHeader,
    /// The header before.
    raw: RawHeader,
    /// Keyslots that a partition table lies over, and that hold nothing then.
    overwritten: &'static [usize],
    /// Keyslots that may hold a key, whose repairs no passphrase has proved.
    unproven: BTreeSet<u32>,
    repairs: Vec<Repair>,
}

impl Luks1Repair {
    /// Plans the repair of a header whose magic is gone, and that complies with all rules otherwise, except for
    /// keyslots that hold nothing.
    pub(crate) fn salvage(device: &dyn HeaderDevice) -> Option<Self> {
        let mut bytes = [0; HEADER_LEN];
        device.read_exact_at(&mut bytes, 0).ok()?;
        if reencryption::marked_uuid(device).ok()?.is_some() {
            // The magic is where it belongs, and the data are not those of this header.
            return None;
        }
        bytes[..LUKS_MAGIC.len()].copy_from_slice(&LUKS_MAGIC);
        let raw = *RawHeader::ref_from_bytes(&bytes).expect("the array has the length of the header");
        if raw.version.get() != 1 {
            return None;
        }
        let mut plan = Self::plan_of(device, raw).ok()?;
        let is_active = |luks1: Luks1| !luks1.active_keyslots().is_empty();
        // No value that may be right is changed in what may be no header.
        if !plan.unproven.is_empty() || !check_header(&plan.with_erasing).is_ok_and(is_active) {
            return None;
        }
        plan.repairs.insert(0, Repair::RestoreMagic);
        Some(plan)
    }

    pub(crate) fn plan(device: &dyn HeaderDevice) -> Result<Self, RepairError> {
        let len = device.len()?;
        if len < HEADER_LEN as u64 {
            return Err(LoadError::Truncated { what: HEADER, needed: HEADER_LEN as u64, len }.into());
        }
        let mut bytes = [0; HEADER_LEN];
        device.read_exact_at(&mut bytes, 0)?;
        let raw = *RawHeader::ref_from_bytes(&bytes).expect("the array has the length of the header");
        Self::plan_of(device, raw)
    }

    fn plan_of(device: &dyn HeaderDevice, raw: RawHeader) -> Result<Self, RepairError> {
        let key_len = u64::from(raw.key_bytes.get());
        let checked = check_header(&raw);
        let is_readable = checked.is_ok();
        if key_len == 0 || key_len > MAX_KEY_LEN as u64 {
            checked.map_err(LoadError::from)?;
        }
        let overwritten = match partition_table(device)?.map(|table| table.name) {
            Some("dos") => &OVERWRITTEN[..2],
            Some("gpt") => &OVERWRITTEN,
            _ => &[],
        };
        let mut plan =
            Self { with_erasing: raw, mended: raw, raw, overwritten, unproven: BTreeSet::new(), repairs: Vec::new() };
        plan.lower_hash();
        for number in 0..KEYSLOTS {
            if !is_readable {
                plan.mend_layout(number, &raw);
            }
            plan.mend_flag(number);
        }
        if !is_readable {
            plan.wipe_signature(&raw);
        }
        plan.with_erasing = plan.mended;
        plan.erase_useless();
        let luks1 = check_header(&plan.with_erasing).map_err(LoadError::from)?;
        validate::check_inside(&luks1, device.len()?)?;
        Ok(plan)
    }

    pub(crate) fn repairs(&self) -> &[Repair] {
        &self.repairs
    }

    pub(crate) fn unproven(&self) -> &BTreeSet<u32> {
        &self.unproven
    }

    /// Returns the header with all repairs, to prove them with a passphrase.
    pub(crate) fn mended(&self) -> Result<Luks1, LoadError> {
        Ok(check_header(&self.mended)?)
    }

    pub(crate) fn set_proven(&mut self, keyslot: u32) {
        self.unproven.remove(&keyslot);
    }

    /// Writes the header. A power cut between its two sectors leaves some of the repairs.
    pub(crate) fn execute(&self, device: &dyn HeaderDevice, erase: bool) -> Result<(), RepairError> {
        let mut header = if erase { self.with_erasing } else { self.mended };
        for &keyslot in &self.unproven {
            header.keyslots[keyslot as usize] = self.raw.keyslots[keyslot as usize];
        }
        // Nothing is written to a header that cannot be used afterwards.
        check_header(&header).map_err(LoadError::from)?;
        let mut bytes = [0; 2 * SECTOR];
        device.read_exact_at(&mut bytes, 0)?;
        let before = bytes;
        bytes[..HEADER_LEN].copy_from_slice(header.as_bytes());
        for start in [SECTOR, 0] {
            let sector = start..start + SECTOR;
            if bytes[sector.clone()] != before[sector.clone()] {
                device.write_all_at(&bytes[sector], start as u64)?;
                device.sync()?;
            }
        }
        Ok(())
    }

    fn lower_hash(&mut self) {
        let name = self.mended.hash_spec;
        let lower = name.map(|byte| byte.to_ascii_lowercase());
        if lower != name {
            self.mended.hash_spec = lower;
            let end = lower.iter().position(|&byte| byte == 0).unwrap_or(lower.len());
            self.repairs.push(Repair::LowerHash { to: String::from_utf8_lossy(&lower[..end]).into_owned() });
        }
    }

    /// Sets stripes and offset of a keyslot that breaks a rule. `raw`: the header before any repair.
    fn mend_layout(&mut self, number: usize, raw: &RawHeader) {
        let key_len = u64::from(raw.key_bytes.get());
        let may_hold_key = self.may_hold_key(number);
        let wanted = (layout::area_offset(key_len, number as u32) / 512) as u32;
        let slot = &mut self.mended.keyslots[number];
        let mut is_mended = false;
        let mut set = |field, value: &mut zerocopy::byteorder::big_endian::U32, to: u32| {
            let from = value.get().to_string();
            let repair = Repair::MendKeyslot { keyslot: number as u32, field, from, to: to.to_string() };
            self.repairs.push(repair);
            *value = to.into();
            is_mended = true;
        };
        if slot.stripes.get() != STRIPES {
            set("stripes", &mut slot.stripes, STRIPES);
        }
        if slot.offset.get() != wanted && is_misplaced(raw, number) {
            set("offset", &mut slot.offset, wanted);
        }
        if is_mended && may_hold_key {
            self.unproven.insert(number as u32);
        } else if is_mended {
            *slot = RawKeyslot { offset: slot.offset, stripes: slot.stripes, ..unused() };
        }
    }

    /// Sets a damaged active flag: a keyslot with iterations and salt may hold a key.
    fn mend_flag(&mut self, number: usize) {
        let has_key = self.may_hold_key(number);
        let slot = &mut self.mended.keyslots[number];
        let from = slot.active.get();
        if [KEYSLOT_ENABLED, KEYSLOT_DISABLED].contains(&from) {
            return;
        }
        if has_key {
            self.unproven.insert(number as u32);
        }
        slot.active = if has_key { KEYSLOT_ENABLED } else { KEYSLOT_DISABLED }.into();
        self.repairs.push(Repair::MendKeyslot {
            keyslot: number as u32,
            field: "active flag",
            from: format!("{from:#010x}"),
            to: if has_key { "enabled" } else { "disabled" }.to_owned(),
        });
    }

    /// Whether a passphrase may open the keyslot, in spite of its damage.
    fn may_hold_key(&self, number: usize) -> bool {
        let slot = &self.raw.keyslots[number];
        // Random bytes have hardly ever so many zeroes.
        let is_salt = slot.salt.iter().filter(|byte| **byte == 0).count() <= 8;
        match slot.active.get() {
            KEYSLOT_ENABLED => true,
            KEYSLOT_DISABLED => false,
            _ => {
                // Between a stray flag, at its start, and a stray offset and stripes, at its end, no salt has survived.
                let is_overwritten = slot.stripes.get() != STRIPES && is_misplaced(&self.raw, number);
                let is_table = self.overwritten.contains(&number);
                slot.iterations.get() != 0 && is_salt && !is_overwritten && !is_table
            }
        }
    }

    fn wipe_signature(&mut self, raw: &RawHeader) {
        let slot = &mut self.mended.keyslots[SIGNED_KEYSLOT];
        if raw.as_bytes()[SIGNATURE] == [0x55, 0xaa] && slot.active.get() == KEYSLOT_DISABLED {
            slot.salt = [0; 32];
            self.repairs.push(Repair::WipePartitionTable { keyslot: SIGNED_KEYSLOT as u32 });
        }
    }

    /// Disables keyslots that no passphrase can open.
    fn erase_useless(&mut self) {
        for (number, slot) in (0..).zip(&mut self.with_erasing.keyslots) {
            if slot.active.get() == KEYSLOT_ENABLED && slot.iterations.get() == 0 {
                *slot = RawKeyslot { offset: slot.offset, stripes: slot.stripes, ..unused() };
                self.repairs.push(Repair::EraseKeyslot { keyslot: number, reason: "iterations is 0".to_owned() });
            }
        }
    }
}

fn unused() -> RawKeyslot {
    RawKeyslot {
        active: KEYSLOT_DISABLED.into(),
        iterations: 0.into(),
        salt: [0; 32],
        offset: 0.into(),
        stripes: STRIPES.into(),
    }
}

/// Whether the area of a keyslot overlaps the header, the payload, or another keyslot.
fn is_misplaced(raw: &RawHeader, number: usize) -> bool {
    let key_len = u64::from(raw.key_bytes.get());
    let len = layout::area_len(key_len);
    let range = |slot: &RawKeyslot| (u64::from(slot.offset.get()) * 512, u64::from(slot.offset.get()) * 512 + len);
    let (start, end) = range(&raw.keyslots[number]);
    let payload = u64::from(raw.payload_offset.get()) * 512;
    let overlaps = |(other, slot): (usize, &RawKeyslot)| {
        let (other_start, other_end) = range(slot);
        other != number && start < other_end && other_start < end
    };
    start < HEADER_LEN as u64 || payload != 0 && end > payload || raw.keyslots.iter().enumerate().any(overlaps)
}
