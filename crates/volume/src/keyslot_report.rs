//! Reports on keyslots without a passphrase: which can work, and why the others cannot.

use crate::header_device::HeaderDevice;
use crate::keyslot_state::KeyslotState;
use crate::pbkdf::KdfLimits;
use crate::volume::Volume;
use std::io;
use std::ops::Range;

/// State of a keyslot that holds a key, or is damaged.
#[derive(Debug)]
#[non_exhaustive]
pub struct KeyslotReport {
    /// Its number.
    pub number: u32,
    /// Its state.
    pub state: KeyslotState,
}

impl Volume {
    /// Reports on every keyslot that holds a key or is damaged. Derives nothing, and needs no memory for it.
    ///
    /// # Errors
    ///
    /// Fails if the length of the device is unknown. A keyslot that cannot be read is reported.
    pub fn report_keyslots(
        &self,
        device: &dyn HeaderDevice,
        limits: &KdfLimits,
    ) -> Result<Vec<KeyslotReport>, io::Error> {
        let checked = match self {
            Self::Luks1(luks1) => luks1.check_keyslots(limits),
            Self::Luks2(luks2) => luks2.check_keyslots(limits),
        };
        let mut reports = Vec::new();
        for (number, area, checked) in checked {
            let state = match checked {
                Err(error) => KeyslotState::Unusable(error),
                Ok(state) => state_of_material(device, area, state)?,
            };
            reports.push(KeyslotReport { number, state });
        }
        Ok(reports)
    }
}

/// Returns `state`, unless the key material shows that the keyslot cannot work.
fn state_of_material(
    device: &dyn HeaderDevice,
    area: Range<u64>,
    state: KeyslotState,
) -> Result<KeyslotState, io::Error> {
    if area.end > device.len()? {
        return Ok(KeyslotState::Truncated);
    }
    // The checks of loading bound its length.
    let mut material = vec![0; (area.end - area.start) as usize];
    if let Err(error) = device.read_exact_at(&mut material, area.start) {
        return Ok(KeyslotState::Unreadable(error));
    }
    // Encrypted, random bytes never are all the same in a sector.
    let (sectors, _) = material.as_chunks::<512>();
    let constant = sectors.iter().filter(|sector| sector.iter().all(|byte| *byte == sector[0])).count();
    Ok(match constant {
        0 => state,
        _ => KeyslotState::Overwritten { sectors: constant, of: sectors.len() },
    })
}
