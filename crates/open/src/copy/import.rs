//! Copying a raw image into a volume.
//!
//! An input of known length that is longer than the volume is refused before anything is written. Holes of the input
//! become encrypted zeroes in the volume, since a hole there would decrypt to noise. Zones are written in order.

use std::path::PathBuf;

use inlock_engine::{BlockingDevice, Buffer};

use super::input::Input;
use super::zone_writer::ZoneWriter;
use super::{CHUNK, within};
use crate::error::{Result, ResultExt as _};
use crate::range::Range;
use crate::source::OpenOptions;
use crate::unlocked::LockedStores;

/// A copy into a volume.
pub struct Import<'a> {
    /// Keeps the locks.
    stores: &'a LockedStores,
    image: PathBuf,
    input: Input,
    start: u64,
    room: u64,
    done: u64,
}

impl<'a> Import<'a> {
    /// Returns a copy to a range of a volume, which was opened with `source`. `None`: to its start. Fails for an input
    /// that does not fit.
    pub fn new(stores: &'a LockedStores, source: &OpenOptions, range: Option<Range>, input: Input) -> Result<Self> {
        let (start, room) = within(range, stores.device.len())?;
        input.check_len(room, range.is_some_and(|range| range.len.is_some()))?;
        Ok(Self { stores, image: source.image.clone(), input, start, room, done: 0 })
    }

    /// Returns the number of bytes to copy, `None` if it is not known before the end.
    pub fn total(&self) -> Option<u64> {
        self.input.known_len()
    }

    /// Copies as much as there is room for, and makes it durable. `progress` takes the number of bytes that were copied
    /// since its last call.
    pub fn copy(&mut self, mut progress: impl FnMut(u64)) -> Result<()> {
        let Self { stores, image, input, start, room, done } = self;
        let device = &BlockingDevice::new(stores.device.clone());
        let image = image.display();
        let cannot_write = || format!("cannot write {image}");
        let sure = input.known_len().unwrap_or(0).min(*room);
        let mut zones = ZoneWriter::new(device, *start, *room, sure).with_context(cannot_write)?;
        // Direct I/O on the underlying device needs aligned memory.
        let mut buffer = Buffer::new(CHUNK);
        loop {
            let at = *start + *done;
            let want = (*room - *done).min(CHUNK as u64);
            let step = match &mut zones {
                Some(zones) if want > 0 => {
                    let want = want.min(zones.room(at)?);
                    let filled = input.fill(&mut buffer.data_mut()[..want as usize])?;
                    zones.write(buffer.data_mut(), filled, at).with_context(cannot_write)?;
                    filled as u64
                }
                _ => input.copy_to(device, &mut buffer.data_mut()[..want as usize], at, &image)?,
            };
            if step == 0 {
                break;
            }
            *done += step;
            progress(step);
        }
        device.flush().with_context(|| format!("cannot make {image} durable"))
    }

    /// Fails if the input goes on behind what was copied.
    pub fn check_end(&mut self) -> Result<()> {
        self.input.check_end(self.done)
    }
}
