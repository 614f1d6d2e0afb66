//! The layers of open volumes: what their kind decides while they run.
//!
//! The engine's device has the requests. Beside it a [`Layer`] knows where the key is, whether the volume can have
//! another length or another table, and what is to be done before its devices are let go.

use std::sync::Arc;

use inlock_engine::{self as engine, ControlError};
use inlock_integrity::{IntegrityDevice, IntegrityStore, NewBlocks};
use inlock_verity::VerityStore;
use inlock_volume::table::{AnyTable, CryptOptions, IntegrityTable};
use inlock_volume::{AuthenticatedSegment, Table, VolumeKey};

use crate::error::{Error, ErrorKind, Result};
use crate::host::Context;
use crate::integrity::{MaintainedIntegrity, sealing_of};
use crate::integrity_line::RunningLine;
use crate::reencryption::online::Online;

/// A running volume, as far as a layer needs it.
#[derive(Clone, Copy)]
pub struct RunningVolume<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// The engine's device.
    pub device: &'a engine::Device,
}

/// Longest part in sectors that is wiped at a time, within a minute on a slow disk: other commands wait meanwhile.
const WIPE_STEP: u64 = (32 << 20) / 512;

/// Length of a volume that was resized, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// The length now.
    pub len: u64,
    /// The length that it is to have. If it is another one, the volume is to be resized again: new blocks are wiped in
    /// steps.
    pub wanted: u64,
}

impl Resized {
    fn whole(len: u64) -> Self {
        Self { len, wanted: len }
    }
}

/// What replaces the table of a running volume.
pub enum NewTable {
    /// Other lines.
    Lines(Table),
    /// The same table, with its key, which the caller compares with that of the volume, and flags.
    Key(VolumeKey, CryptOptions),
}

/// A kind of open volumes.
pub trait Layer: Send + Sync {
    /// Refuses to suspend a volume that could not be resumed.
    fn check_suspend(&self, _volume: RunningVolume<'_>) -> Result<()> {
        Ok(())
    }

    /// Wipes the key of a suspended volume.
    ///
    /// # Errors
    ///
    /// [`ControlError::InUse`] also if a request that runs on keeps the memory of a wiped key.
    fn wipe_key(&self, device: &engine::Device) -> Result<(), ControlError> {
        device.wipe_key()
    }

    /// Gives a suspended volume its key, which the caller has checked.
    fn set_key(&self, device: &engine::Device, key: &VolumeKey) -> Result<()> {
        Ok(device.set_key(key)?)
    }

    /// Gives the volume a length of `sectors`, or that of its devices.
    ///
    /// # Errors
    ///
    /// Names the reason why a volume of this kind is not resized; [`ErrorKind::Length`] if the length does not fit.
    fn resize(&self, volume: RunningVolume<'_>, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<Resized>;

    /// Judges a table that is to replace that of the volume. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherTable`] if the kind of volume does not accept it.
    fn accept_table(&self, context: &Context, volume: RunningVolume<'_>, table: AnyTable) -> Result<NewTable>;

    /// Ends the threads of the layer, and writes what they have not written yet.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Ends the threads of the layer, if [`Layer::close`] has not: nothing is written after it returns.
    fn end(&self) {}

    /// Returns the re-encryption of a volume that can have one while it is open.
    fn reencryption(&self) -> Option<&Online> {
        None
    }

    /// Returns the dm-integrity volume below the engine's device.
    fn integrity(&self) -> Option<&Arc<IntegrityDevice>> {
        None
    }

    /// Returns the store and the data of a LUKS2 volume with integrity protection.
    fn sealed(&self) -> Option<(&Arc<IntegrityStore>, &AuthenticatedSegment)> {
        None
    }

    /// Returns the dm-verity device below the engine's device.
    fn verity(&self) -> Option<&Arc<VerityStore>> {
        None
    }
}

/// Plaintext or ciphertext in the mappings of the engine's device: plain, LUKS, raw, lines of a table.
pub struct Mapped;

impl Layer for Mapped {
    fn resize(&self, volume: RunningVolume<'_>, sectors: Option<u64>, _: NewBlocks) -> Result<Resized> {
        match sectors {
            None => Ok(Resized::whole(volume.device.grow()?)),
            Some(_) if volume.device.zone_limits().is_some() => {
                let text = format!("Volume {} has zones, and cannot end within them.", volume.name);
                Err(Error::new(ErrorKind::ZonesResize, text))
            }
            Some(sectors) => volume.device.set_len(bytes_of(sectors)?).map(Resized::whole).map_err(cannot_resize),
        }
    }

    fn accept_table(&self, _: &Context, _: RunningVolume<'_>, table: AnyTable) -> Result<NewTable> {
        match table {
            AnyTable::Lines(table) => Ok(NewTable::Lines(table)),
            AnyTable::Integrity(_) => Err(not_its_table()),
            AnyTable::Verity(_) => Err(needs_no_tree()),
        }
    }
}

/// A LUKS2 volume, which may be re-encrypted while it is open.
pub(crate) struct Reencryptable(pub(crate) Online);

impl Reencryptable {
    /// Refuses what a volume with two keys cannot do.
    fn check(&self, volume: RunningVolume<'_>, verb: &str) -> Result<()> {
        if !self.0.is_active() {
            return Ok(());
        }
        let text = format!("Volume {} is being re-encrypted, and cannot be {verb} meanwhile.", volume.name);
        Err(Error::new(ErrorKind::BeingReencrypted, text))
    }
}

impl Layer for Reencryptable {
    fn check_suspend(&self, volume: RunningVolume<'_>) -> Result<()> {
        self.check(volume, "suspended")
    }

    fn resize(&self, volume: RunningVolume<'_>, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<Resized> {
        self.check(volume, "resized")?;
        Mapped.resize(volume, sectors, new_blocks)
    }

    fn accept_table(&self, context: &Context, volume: RunningVolume<'_>, table: AnyTable) -> Result<NewTable> {
        self.check(volume, "given another table")?;
        Mapped.accept_table(context, volume, table)
    }

    fn close(&self) -> Result<()> {
        self.0.end();
        Ok(())
    }

    fn end(&self) {
        self.0.end();
    }

    fn reencryption(&self) -> Option<&Online> {
        Some(&self.0)
    }
}

/// A dm-integrity volume.
pub(crate) struct Tagged {
    pub(crate) integrity: MaintainedIntegrity,
    /// Whether a table says how long it is.
    pub(crate) is_of_table: bool,
}

impl Layer for Tagged {
    fn resize(&self, volume: RunningVolume<'_>, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<Resized> {
        if self.is_of_table {
            let text = format!("Volume {} has the length of its table.", volume.name);
            return Err(Error::new(ErrorKind::TableResize, text));
        }
        let wanted = self.integrity.planned_len(sectors, new_blocks)?;
        let sectors = match new_blocks {
            NewBlocks::Wipe => wanted.min(self.integrity.device.layout().provided_data_sectors + WIPE_STEP),
            _ => wanted,
        };
        let len = bytes_of(sectors)?;
        if len < volume.device.len() {
            // Before the volume: no request may run beyond its new end.
            volume.device.set_len(len)?;
        }
        self.integrity.resize(sectors, new_blocks)?;
        Ok(Resized { len: volume.device.set_len(len)?, wanted: bytes_of(wanted)? })
    }

    fn accept_table(&self, _: &Context, volume: RunningVolume<'_>, table: AnyTable) -> Result<NewTable> {
        Err(match table {
            AnyTable::Lines(_) => has_integrity(volume),
            AnyTable::Integrity(_) => not_its_table(),
            AnyTable::Verity(_) => needs_no_tree(),
        })
    }

    fn close(&self) -> Result<()> {
        self.integrity.close()
    }

    fn end(&self) {
        self.integrity.end();
    }

    fn integrity(&self) -> Option<&Arc<IntegrityDevice>> {
        Some(&self.integrity.device)
    }
}

/// A dm-integrity volume whose blocks an AEAD seals: LUKS2 with integrity protection. The store has the key.
pub(crate) struct Sealed {
    pub(crate) integrity: MaintainedIntegrity,
    pub(crate) store: Arc<IntegrityStore>,
    pub(crate) segment: AuthenticatedSegment,
    /// The line of its table, or of its header.
    pub(crate) line: RunningLine,
}

impl Sealed {
    /// Checks that a table is the volume's, and returns its key and flags.
    fn key_of(&self, context: &Context, volume: RunningVolume<'_>, mut table: IntegrityTable) -> Result<NewTable> {
        let Some(line) = table.sealed.take() else { return Err(not_its_table()) };
        self.line.check_unchanged(context, &table, self.store.device())?;
        if line.segment != self.segment {
            let text = "The table changes the cipher, the data units or the IVs of the volume.";
            return Err(Error::new(ErrorKind::OtherTable, text));
        }
        if line.options.allow_discards && !volume.device.access().allow_discards {
            let text = "The table allows discards, which a volume with integrity protection has not.";
            return Err(Error::new(ErrorKind::SealedDiscards, text));
        }
        Ok(NewTable::Key(line.key, line.options))
    }
}

impl Layer for Sealed {
    fn wipe_key(&self, _: &engine::Device) -> Result<(), ControlError> {
        self.store.wipe_key();
        Ok(())
    }

    fn set_key(&self, _: &engine::Device, key: &VolumeKey) -> Result<()> {
        let sealing = sealing_of(&self.segment, key, self.store.device())?;
        Ok(self.store.set_sealing(sealing).map_err(std::io::Error::from)?)
    }

    fn resize(&self, _: RunningVolume<'_>, _: Option<u64>, _: NewBlocks) -> Result<Resized> {
        let text = "Resize of LUKS2 device with integrity protection is not supported.";
        Err(Error::new(ErrorKind::SealedResize, text))
    }

    fn accept_table(&self, context: &Context, volume: RunningVolume<'_>, table: AnyTable) -> Result<NewTable> {
        match table {
            AnyTable::Lines(_) => Err(has_integrity(volume)),
            AnyTable::Integrity(table) => self.key_of(context, volume, *table),
            AnyTable::Verity(_) => Err(needs_no_tree()),
        }
    }

    fn close(&self) -> Result<()> {
        self.integrity.close()
    }

    fn end(&self) {
        self.integrity.end();
    }

    fn integrity(&self) -> Option<&Arc<IntegrityDevice>> {
        Some(&self.integrity.device)
    }

    fn sealed(&self) -> Option<(&Arc<IntegrityStore>, &AuthenticatedSegment)> {
        Some((&self.store, &self.segment))
    }
}

/// A dm-verity device, perhaps with the lines of a table above it.
pub(crate) struct Verified {
    pub(crate) store: Arc<VerityStore>,
    /// Whether it is one of the devices of a table.
    pub(crate) is_of_table: bool,
}

impl Layer for Verified {
    fn check_suspend(&self, volume: RunningVolume<'_>) -> Result<()> {
        if !self.is_of_table {
            return Ok(());
        }
        // Its keys are not those of one device.
        let text = format!("Volume {} has a table with a hash tree and cannot be suspended.", volume.name);
        Err(Error::new(ErrorKind::StackSuspend, text))
    }

    fn resize(&self, volume: RunningVolume<'_>, _: Option<u64>, _: NewBlocks) -> Result<Resized> {
        let text = format!("Volume {} has a hash tree, which fixes its length.", volume.name);
        Err(Error::new(ErrorKind::TreeResize, text))
    }

    fn accept_table(&self, _: &Context, volume: RunningVolume<'_>, _: AnyTable) -> Result<NewTable> {
        let text = format!("Volume {} has a hash tree and accepts no other table.", volume.name);
        Err(Error::new(ErrorKind::OtherTable, text))
    }

    fn verity(&self) -> Option<&Arc<VerityStore>> {
        Some(&self.store)
    }
}

fn bytes_of(sectors: u64) -> Result<u64> {
    sectors.checked_mul(512).ok_or_else(|| Error::new(ErrorKind::SizeOverflow, "The size exceeds 2^64 bytes."))
}

fn cannot_resize(error: ControlError) -> Error {
    Error::with_source(ErrorKind::Length, "The volume cannot be resized", error)
}

fn has_integrity(volume: RunningVolume<'_>) -> Error {
    let text = format!("Volume {} has integrity protection and accepts no other table.", volume.name);
    Error::new(ErrorKind::OtherTable, text)
}

fn not_its_table() -> Error {
    Error::new(ErrorKind::OtherTable, "The table is not that of the volume.")
}

fn needs_no_tree() -> Error {
    Error::new(ErrorKind::OtherTable, "A table with a hash tree cannot replace another one.")
}
