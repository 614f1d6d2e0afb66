//! Memory for secrets where the system has no pages that a program can lock: on the heap, wiped when dropped.
//!
//! It may be written to swap and to core dumps, so [`memory_lock_failed`] returns true.

use std::io;
use std::ptr::NonNull;

use zeroize::Zeroize;

/// Whether any key of this process may have been written to swap, because its memory could not be locked.
pub fn memory_lock_failed() -> bool {
    true
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Zero bytes, wiped when dropped.
pub(crate) struct LockedBytes {
    /// Start of the lines, from `Box::into_raw`: a box that moves would end the use of other pointers to them.
    lines: NonNull<Line>,
    count: usize,
    len: usize,
}

// SAFETY: the bytes are owned by the value and reached only through its borrows, as a box's are.
unsafe impl Send for LockedBytes {}
// SAFETY: as above; shared borrows only read.
unsafe impl Sync for LockedBytes {}

impl LockedBytes {
    /// Returns `len` zero bytes. Panics if the system has no memory left, like every allocation.
    pub(crate) fn zeroed(len: usize) -> Self {
        let count = len.div_ceil(64);
        let lines = Box::into_raw(vec![Line([0; 64]); count].into_boxed_slice());
        let lines = NonNull::new(lines.cast()).expect("a box is nowhere at address zero");
        Self { lines, count, len }
    }

    /// Returns the place of the bytes, aligned to 64 of them.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.lines.cast()
    }

    /// Returns the bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the lines are arrays of bytes without padding, initialised, owned by `self` and borrowed; they have
        // at least `len` bytes.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }

    /// Returns the bytes, to be filled.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl Drop for LockedBytes {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a box of `count` lines, which nothing refers to after this value is gone.
        let mut lines = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.lines.as_ptr(), self.count)) };
        lines.iter_mut().for_each(|line| line.0.zeroize());
    }
}

/// Zero words, wiped when dropped.
pub struct ScratchMemory(Vec<u64>);

impl ScratchMemory {
    /// Returns `words` zero words. One thread wipes them.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the memory.
    pub fn zeroed(words: usize, _threads: usize) -> io::Result<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(words).map_err(|_| io::ErrorKind::OutOfMemory)?;
        memory.resize(words, 0);
        Ok(Self(memory))
    }

    /// Returns the number of bytes that memory of `words` words takes, if they can be counted.
    pub fn taken(words: usize) -> Option<usize> {
        words.checked_mul(8)
    }

    /// Returns the words.
    pub fn as_mut_slice(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

impl Drop for ScratchMemory {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_has_aligned_zeroes_of_the_length() {
        for len in [0, 1, 63, 64, 65, 4097] {
            let mut bytes = LockedBytes::zeroed(len);
            assert_eq!(bytes.as_slice(), vec![0; len]);
            assert_eq!(bytes.start().as_ptr().align_offset(64), 0);
            bytes.as_mut_slice().fill(0xa5);
            assert_eq!(bytes.as_slice(), vec![0xa5; len]);
        }
        let mut words = ScratchMemory::zeroed(5, 2).unwrap();
        assert_eq!(words.as_mut_slice(), [0; 5]);
        assert_eq!((ScratchMemory::taken(5), ScratchMemory::taken(usize::MAX)), (Some(40), None));
        assert!(ScratchMemory::zeroed(usize::MAX / 8, 1).is_err() && memory_lock_failed());
    }
}
