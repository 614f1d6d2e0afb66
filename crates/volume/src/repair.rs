//! Repair of damaged headers: a plan that the user can read, and then its execution.

use crate::error::{CommitError, LoadError, ProofError, RepairError, UnlockError};
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderDigest;
use crate::luks1::{self, Luks1Repair};
use crate::luks2::{Luks2, Luks2Repair};
use crate::repair_step::Repair;
use crate::secret::Secret;
use crate::signatures::{Signature, find_signatures, partition_table};
use crate::unlock::UnlockOptions;
use crate::volume::Volume;
use std::collections::BTreeSet;

/// Repairs that a header needs.
#[derive(Debug)]
pub struct RepairPlan {
    header: Planned,
    repairs: Vec<Repair>,
    foreign: Option<Signature>,
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
            // The table of the PC lies within keyslots, and its repair is one of their repairs.
            let foreign = partition_table(device)?.filter(|table| table.name != "dos" && !plan.repairs().is_empty());
            return Ok(Self {
                repairs: plan.repairs().to_vec(),
                header: Planned::Luks1(Box::new(plan), found),
                foreign,
            });
        }
        if let Some(uuid) = luks1::reencryption::marked_uuid(device).map_err(LoadError::from)? {
            return Err(LoadError::Luks1Reencrypted { uuid }.into());
        }
        let (luks2, foreign) = match Luks2::load(device) {
            Err(LoadError::NotLuks) => return Self::salvage(device),
            // Without a table, both copies have more damage than one program does.
            Err(LoadError::Damaged(fault)) if partition_table(device)?.is_some() => {
                return Self::salvage(device).map_err(|error| match error {
                    RepairError::Load(LoadError::NotLuks) => LoadError::Damaged(fault).into(),
                    other => other,
                });
            }
            Err(LoadError::Ambiguous(signature)) => (Luks2::load_despite_signatures(device)?, Some(signature)),
            loaded => (loaded?, None),
        };
        let plan = Luks2Repair::plan(luks2);
        Ok(Self { repairs: plan.repairs().to_vec(), header: Planned::Luks2(Box::new(plan)), foreign })
    }

    /// Plans the repair of a header that cannot be loaded, from what is left of it.
    fn salvage(device: &dyn HeaderDevice) -> Result<Self, RepairError> {
        let header = match (Luks2Repair::salvage(device), Luks1Repair::salvage(device)) {
            (Some(plan), _) => Planned::Luks2(Box::new(plan)),
            (None, Some(plan)) => Planned::Luks1(Box::new(plan), luks1::digest_of(device)?),
            (None, None) => return Err(LoadError::NotLuks.into()),
        };
        let repairs = match &header {
            Planned::Luks1(plan, _) => plan.repairs().to_vec(),
            Planned::Luks2(plan) => plan.repairs().to_vec(),
        };
        Ok(Self { header, repairs, foreign: find_signatures(device)?.first().copied() })
    }

    /// Whether the device has no header that can be loaded, and only parts of one were found.
    pub fn is_salvage(&self) -> bool {
        self.repairs.iter().any(Repair::is_salvage)
    }

    /// Returns the volume as all repairs would leave it.
    ///
    /// # Errors
    ///
    /// Fails if the header is then still not valid.
    pub fn mended(&self) -> Result<Volume, LoadError> {
        Ok(match &self.header {
            Planned::Luks1(plan, _) => plan.mended()?.into(),
            Planned::Luks2(plan) => plan.mended()?.into(),
        })
    }

    /// Returns the version of the header: 1 or 2.
    pub fn version(&self) -> u32 {
        match self.header {
            Planned::Luks1(..) => 1,
            Planned::Luks2(_) => 2,
        }
    }

    /// Returns the signature of another format. The header is then what an older volume has left, or the signature is
    /// what damaged it: only the user knows, and the repair destroys what the signature belongs to.
    pub fn foreign(&self) -> Option<Signature> {
        self.foreign
    }

    /// Returns the keyslots that hold a key, or may hold one, and whose repairs no passphrase has proved yet. They stay
    /// as they are: their values may be right.
    pub fn unproven(&self) -> &BTreeSet<u32> {
        match &self.header {
            Planned::Luks1(plan, _) => plan.unproven(),
            Planned::Luks2(plan) => plan.unproven(),
        }
    }

    /// Proves the repair of a keyslot: `passphrase` opens it with the new values. Returns the keyslot's number. Call it
    /// with several passphrases to prove several.
    ///
    /// # Errors
    ///
    /// Fails if the passphrase opens none, or as unlocking does.
    pub fn prove(
        &mut self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<u32, ProofError> {
        let volume = self.mended()?;
        for &keyslot in self.unproven() {
            let options = UnlockOptions { keyslot: Some(keyslot), ..options.clone() };
            match volume.unlock_key(device, passphrase, &options) {
                Err(UnlockError::WrongPassphrase) => continue,
                opened => opened?,
            };
            match &mut self.header {
                Planned::Luks1(plan, _) => plan.set_proven(keyslot),
                Planned::Luks2(plan) => plan.set_proven(keyslot),
            }
            return Ok(keyslot);
        }
        Err(UnlockError::WrongPassphrase.into())
    }

    /// Returns the repairs in the order of their execution.
    pub fn repairs(&self) -> &[Repair] {
        &self.repairs
    }

    /// Writes the repairs, those that erase keyslots only with `erase`, and those of keyslots
    /// with keys only if they are proven ([`RepairPlan::prove`]). The caller holds the header's lock since the
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
