//! Repair of damaged headers: a plan that the user can read, and then its execution.

use crate::error::{CommitError, RepairError};
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderDigest;
use crate::luks1::{self, Luks1Repair};
use crate::luks2::{Luks2, Luks2Repair};
use crate::repair_step::Repair;
use crate::volume::Volume;

/// Repairs that a header needs.
#[derive(Debug)]
pub struct RepairPlan {
    header: Planned,
    repairs: Vec<Repair>,
}

#[derive(Debug)]
enum Planned {
    /// With the digest of the damaged header.
    Luks1(Box<Luks1Repair>, HeaderDigest),
    Luks2(Box<Luks2Repair>),
}

impl RepairPlan {
    /// Finds out which repairs the header on `device` needs. Writes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the device has no header, or one whose damage cannot be repaired.
    pub fn new(device: &dyn HeaderDevice) -> Result<Self, RepairError> {
        if luks1::probe(device)? {
            let (plan, found) = (Luks1Repair::plan(device)?, luks1::digest_of(device)?);
            return Ok(Self { repairs: plan.repairs().to_vec(), header: Planned::Luks1(Box::new(plan), found) });
        }
        let plan = Luks2Repair::plan(Luks2::load(device)?);
        Ok(Self { repairs: plan.repairs().to_vec(), header: Planned::Luks2(Box::new(plan)) })
    }

    /// Returns the version of the header: 1 or 2.
    pub fn version(&self) -> u32 {
        match self.header {
            Planned::Luks1(..) => 1,
            Planned::Luks2(_) => 2,
        }
    }

    /// Returns the repairs in the order of their execution.
    pub fn repairs(&self) -> &[Repair] {
        &self.repairs
    }

    /// Writes the repairs, those that erase keyslots only with `erase`. The caller holds the header's lock since the
    /// plan was made. Returns the volume as it is afterwards.
    ///
    /// # Errors
    ///
    /// Fails if the header is not the one of the plan, or if the device cannot be written. Repairs before the failed
    /// one are durable.
    pub fn execute(self, device: &dyn HeaderDevice, erase: bool) -> Result<Volume, RepairError> {
        match self.header {
            Planned::Luks1(_, found) if luks1::digest_of(device)? != found => {
                return Err(CommitError::HeaderChanged.into());
            }
            Planned::Luks1(plan, _) => plan.execute(device, erase)?,
            Planned::Luks2(plan) => plan.execute(device, erase)?,
        }
        Ok(Volume::load(device)?)
    }
}
