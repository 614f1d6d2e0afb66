//! The data of one cipher call: in place, or from one buffer into another.

use crate::{CipherError, DataUnitSize};

/// The bytes that one cipher call reads and writes.
#[derive(Debug)]
pub enum InOut<'a> {
    /// Read and written in place.
    InPlace(&'a mut [u8]),
    /// Read from `src`, written to `dst`, which has the same length.
    Copy {
        /// Read, never written.
        src: &'a [u8],
        /// Written, never read.
        dst: &'a mut [u8],
    },
}

impl<'a> InOut<'a> {
    /// Pairs two buffers.
    ///
    /// # Panics
    ///
    /// Panics if their lengths differ.
    pub fn copy(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        assert_eq!(src.len(), dst.len(), "source and destination differ in length");
        Self::Copy { src, dst }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::InPlace(data) => data.len(),
            Self::Copy { src, .. } => src.len(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of data units.
    ///
    /// # Panics
    ///
    /// If the data is not a positive number of whole units, or the lengths of source and destination differ.
    #[inline]
    pub(crate) fn assert_whole_units(&self, unit: DataUnitSize) -> usize {
        let len = self.len();
        assert!(len != 0 && len & (unit.bytes() - 1) == 0, "the data of a cipher call is not whole data units");
        if let InOut::Copy { src, dst } = self {
            // Both variants' fields are public: kernels trust the lengths.
            assert_eq!(src.len(), dst.len(), "source and destination differ in length");
        }
        len >> unit.log2()
    }

    /// Splits off the first `mid` bytes, or all if there are fewer.
    pub(crate) fn split_at(self, mid: usize) -> (Self, Self) {
        let mid = mid.min(self.len());
        match self {
            Self::InPlace(data) => {
                let (front, back) = data.split_at_mut(mid);
                (Self::InPlace(front), Self::InPlace(back))
            }
            Self::Copy { src, dst } => {
                let ((src, src_back), (dst, dst_back)) = (src.split_at(mid), dst.split_at_mut(mid));
                (Self::Copy { src, dst }, Self::Copy { src: src_back, dst: dst_back })
            }
        }
    }

    /// Returns the same bytes for a shorter time.
    pub(crate) fn reborrow(&mut self) -> InOut<'_> {
        match self {
            Self::InPlace(data) => InOut::InPlace(data),
            Self::Copy { src, dst } => InOut::Copy { src, dst },
        }
    }

    /// Returns the bytes to read.
    pub(crate) fn source(&self) -> &[u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Copy { src, .. } => src,
        }
    }

    /// Returns the bytes to write.
    pub(crate) fn destination(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Copy { dst, .. } => dst,
        }
    }

    /// Returns where to read and where to write, for kernels: equal in place. Valid for `'a`, since the references are
    /// consumed.
    #[inline(always)]
    pub(crate) fn into_ptrs(self) -> (*const u8, *mut u8) {
        match self {
            Self::InPlace(data) => {
                let data = data.as_mut_ptr();
                (data.cast_const(), data)
            }
            Self::Copy { src, dst } => (src.as_ptr(), dst.as_mut_ptr()),
        }
    }

    /// Copies source to destination if they differ, and returns the destination: for ciphers that work in place only.
    pub fn into_in_place(self) -> &'a mut [u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Copy { src, dst } => {
                dst.copy_from_slice(src);
                dst
            }
        }
    }
}

/// Checks the length of untrusted data before a call of a cipher, which panics on a wrong length.
pub(crate) fn check_data_len(unit: DataUnitSize, len: usize) -> Result<(), CipherError> {
    if len == 0 || !len.is_multiple_of(unit.bytes()) {
        return Err(CipherError::DataLength { len, unit });
    }
    Ok(())
}
