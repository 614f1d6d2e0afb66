//! Changes to a header that one process makes, and another one, which has the device, writes.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use inlock_volume::HeaderDevice;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// Length in bytes of the start of a LUKS2 header, which has its sequence number and its checksum.
const START: usize = 512;

/// Writes to a header and syncs, in their order. They suit one header, and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedHeader {
    /// The start of that header, in base64.
    start: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Write {
        offset: u64,
        /// In base64.
        data: String,
    },
    Sync,
}

impl StagedHeader {
    /// Carries out the writes. The caller holds the lock of the header.
    ///
    /// # Errors
    ///
    /// Fails before the first write if the header is another one by now, or a write is beyond `end`.
    pub(crate) fn write(&self, header: &dyn HeaderDevice, end: u64) -> Result<()> {
        let mut start = [0; START];
        header.read_exact_at(&mut start, 0).context("cannot read the header")?;
        if self.start != STANDARD.encode(start) {
            let text = "The header was changed by another program.";
            return Err(Error::new(ErrorKind::HeaderChanged, text));
        }
        let steps = self.steps.iter().map(|step| match step {
            Step::Sync => Ok(None),
            Step::Write { offset, data } => {
                let data = STANDARD.decode(data).map_err(io::Error::other)?;
                match offset.checked_add(data.len() as u64) {
                    Some(last) if last <= end => Ok(Some((*offset, data))),
                    _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
                }
            }
        });
        let steps: Vec<Change> = steps.collect::<io::Result<_>>().context("cannot use the writes")?;
        for step in steps {
            let written = match step {
                None => header.sync(),
                Some((offset, data)) => header.write_all_at(&data, offset),
            };
            written.context("cannot write the header")?;
        }
        Ok(())
    }
}

/// Offset and data of a write; `None`: a sync.
type Change = Option<(u64, Vec<u8>)>;

/// A header whose changes are kept: only reads see them.
pub struct Staging {
    below: Box<dyn HeaderDevice + Send>,
    /// Its start before anything else was read.
    start: [u8; START],
    steps: Mutex<Vec<Change>>,
}

impl Staging {
    pub(crate) fn new(below: impl HeaderDevice + Send + 'static) -> io::Result<Self> {
        let mut start = [0; START];
        below.read_exact_at(&mut start, 0)?;
        Ok(Self { below: Box::new(below), start, steps: Mutex::default() })
    }

    fn steps(&self) -> MutexGuard<'_, Vec<Change>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the changes; `None`: there are none.
    pub(crate) fn staged(&self) -> Option<StagedHeader> {
        let steps = self.steps();
        let steps = steps.iter().map(|step| match step {
            None => Step::Sync,
            Some((offset, data)) => Step::Write { offset: *offset, data: STANDARD.encode(data) },
        });
        let steps: Vec<Step> = steps.collect();
        (!steps.is_empty()).then(|| StagedHeader { start: STANDARD.encode(self.start), steps })
    }
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staging").field("steps", &self.steps().len()).finish_non_exhaustive()
    }
}

impl HeaderDevice for Staging {
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.below.read_exact_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for (at, data) in self.steps().iter().flatten() {
            let (from, to) = (offset.max(*at), end.min(at + data.len() as u64));
            if from < to {
                let source = &data[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| self.below.len().is_ok_and(|len| end > len)) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.steps().push(Some((offset, data.to_vec())));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.steps().push(None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use inlock_volume::FileDevice;

    use super::*;

    const LEN: usize = 8192;

    fn opened(path: &Path) -> FileDevice {
        FileDevice::new(File::options().read(true).write(true).open(path).unwrap())
    }

    fn read(device: &dyn HeaderDevice, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, from as u64).unwrap();
        bytes
    }

    /// Returns a file, and a header on it with changes that are kept.
    fn staged(dir: &Path, writes: &[(usize, usize)]) -> (PathBuf, Staging) {
        let path = dir.join("header");
        fs::write(&path, vec![0; LEN]).unwrap();
        let header = Staging::new(FileDevice::new(File::open(&path).unwrap())).unwrap();
        for (number, (offset, len)) in writes.iter().enumerate() {
            header.write_all_at(&vec![number as u8 + 1; *len], *offset as u64).unwrap();
            header.sync().unwrap();
        }
        (path, header)
    }

    #[test]
    fn kept_writes_are_read_and_written_by_another_handle() {
        let dir = tempfile::tempdir().unwrap();
        let (path, staging) = staged(dir.path(), &[(0, 1024), (1000, 100), (4096, 4096), (5000, 1)]);
        let mut expected = vec![0; LEN];
        expected[..1024].fill(1);
        expected[1000..1100].fill(2);
        expected[4096..].fill(3);
        expected[5000] = 4;
        for (from, len) in [(0, LEN), (1023, 1), (1024, 1), (1099, 2), (4095, 2), (4999, 3), (LEN - 1, 1), (0, 0)] {
            assert_eq!(read(&staging, from, len), expected[from..from + len], "{from} {len}");
        }
        assert!(staging.write_all_at(&[0; 2], LEN as u64 - 1).is_err());
        assert_eq!(fs::read(&path).unwrap(), vec![0; LEN]);
        let text = serde_json::to_vec(&staging.staged().unwrap()).unwrap();
        let header: StagedHeader = serde_json::from_slice(&text).unwrap();
        header.write(&opened(&path), LEN as u64).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        // The start is another one now.
        let again = header.write(&opened(&path), LEN as u64).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::HeaderChanged);
        assert_eq!(Staging::new(opened(&path)).unwrap().staged(), None);
    }

    #[test]
    fn nothing_is_written_to_another_header_or_beyond_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (path, staging) = staged(dir.path(), &[(4096, 1), (6000, 100)]);
        let header = staging.staged().unwrap();
        let target = opened(&path);
        assert!(header.write(&target, 6099).is_err());
        for at in [0, START - 1] {
            let mut other = vec![0; LEN];
            other[at] = 1;
            fs::write(&path, &other).unwrap();
            assert_eq!(header.write(&target, 6100).unwrap_err().kind(), ErrorKind::HeaderChanged);
            assert_eq!(fs::read(&path).unwrap(), other);
        }
        fs::write(&path, vec![0; LEN]).unwrap();
        header.write(&target, 6100).unwrap();
        assert_eq!((read(&target, 4096, 1), read(&target, 6099, 2)), (vec![1], vec![2, 0]));
    }
}
