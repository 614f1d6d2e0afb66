//! Zones of a re-encryption: the bytes that become new next, locked against all clients.

use super::Device;
use crate::freeze::UsageGuard;
use crate::locks::LockId;
use crate::request::RequestError;
use std::ops::Range;
use std::sync::Arc;

/// Lock of a zone of a device that is re-encrypted while it is used. Requests that touch the zone wait until it is
/// dropped, or can be read ([`ZoneLock::serve_reads`]), and so does [`Device::suspend`]; other requests go on. The
/// holder must not use the device otherwise than through its stores and [`Device::sync_blocking`].
#[must_use]
pub struct ZoneLock<'a> {
    device: &'a Device,
    lock: LockId,
    /// In bytes of the device.
    zone: Range<u64>,
    /// The device is not suspended, and keeps its table.
    in_use: UsageGuard<'a>,
}

impl Device {
    /// Returns the boundary between new and old bytes, in bytes of the device; `None` if it is not re-encrypted.
    pub fn boundary(&self) -> Option<u64> {
        self.mapping().boundary()
    }

    /// Locks the bytes `zone` of the device, which are to be re-encrypted next: from the boundary on, or up to it if
    /// the re-encryption goes backward. Blocks while requests that came first use the zone, and while the device is
    /// suspended.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`] if the device is not re-encrypted. [`RequestError::OutOfRange`] if the zone is
    /// empty, is not at the boundary, or does not begin and end at data units of both sides. `ESHUTDOWN` if the device
    /// was closed while it was suspended.
    pub fn lock_zone(&self, zone: Range<u64>) -> Result<ZoneLock<'_>, RequestError> {
        let in_use = self.enter()?;
        let (store, place) = in_use.old_place(&zone)?;
        let lock = self.locks.lock_range_blocking(store, place);
        let locked = ZoneLock { device: self, lock, zone, in_use };
        // Another zone may have come first.
        locked.in_use.old_place(&locked.zone)?;
        Ok(locked)
    }
}

impl ZoneLock<'_> {
    /// Serves requests that read from `plaintext`, which is that of the whole zone, until the lock is dropped: those
    /// that are within the zone no longer wait for it.
    pub fn serve_reads(&self, plaintext: Arc<Vec<u8>>) {
        if let Some(boundary) = self.in_use.boundary.as_deref() {
            boundary.set_readable(self.zone.clone(), Some(plaintext));
            self.device.locks.admit_reads(self.lock);
        }
    }

    /// Moves the boundary behind the zone: its bytes are read and written on the new side from now on, also by requests
    /// that wait for them. The store has them there. A lock that is dropped without this call leaves the zone old, so
    /// what was rewritten has to be restored before.
    pub fn move_boundary(self) {
        self.in_use.boundary.iter().for_each(|boundary| boundary.pass(&self.zone));
    }

    /// Makes all requests fail with `EIO` from now on, those that wait for the zone too: its bytes are neither old nor
    /// new.
    pub fn fail(self) {
        if let Some(boundary) = self.in_use.boundary.as_deref() {
            boundary.fail();
        }
    }
}

impl Drop for ZoneLock<'_> {
    fn drop(&mut self) {
        // After the boundary has moved: a request that finds no plaintext sees that it has.
        self.in_use.boundary.iter().for_each(|boundary| boundary.set_readable(0..0, None));
        self.device.locks.unlock(self.lock);
    }
}

impl std::fmt::Debug for ZoneLock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZoneLock({:?} of {:?})", self.zone, self.device)
    }
}
