//! Sharing of one buffer by several threads: disjoint parts of it are lent and taken back.
//!
//! A request's buffer has one owner. While the pool works on it, that owner is a [`Lender`], which takes the memory out
//! of the box and lends parts of it that do not overlap. It returns the buffer after every part was taken back. If it
//! is dropped earlier it leaks the memory, because a thread may still write to it.
#![allow(unsafe_code)]

use crate::buffer::Buffer;
use std::ops::Range;

/// Owner of a buffer while parts of its data are lent.
pub(super) struct Lender {
    /// Box of the buffer as a raw pointer: moving a box would assert exclusive access to all of its bytes.
    memory: *mut [u8],
    base: usize,
    capacity: usize,
    /// Start of the data in the memory.
    data: usize,
    /// Bytes of data that may be lent.
    len: usize,
    /// Bytes of data that have been lent.
    given: usize,
    /// Number of loans not yet taken back.
    out: usize,
}

/// Part of a buffer's data, exclusive to its holder until it is taken back.
pub(super) struct Loan {
    start: *mut u8,
    /// Range of the data.
    range: Range<usize>,
    /// Memory of the lender, to identify it.
    memory: *mut u8,
}

// SAFETY: a lender owns its memory as the box did, and reads or writes none of it while loans are out.
unsafe impl Send for Lender {}
// SAFETY: a loan is the only way to its bytes: `Lender::lend` gives each byte once.
unsafe impl Send for Loan {}

impl Lender {
    /// Takes `buffer` to lend the first `len` bytes of its data.
    pub(super) fn new(buffer: Buffer, len: usize) -> Self {
        assert!(len <= buffer.capacity(), "no more can be lent than there is");
        let data = buffer.data_start();
        let (memory, base, capacity) = buffer.into_parts();
        // The pointers of loans are derived from these numbers, which other modules of the crate can set.
        assert!(data.checked_add(len).is_some_and(|end| end <= memory.len()), "a buffer's data lies in its memory");
        Self { memory: Box::into_raw(memory), base, capacity, data, len, given: 0, out: 0 }
    }

    /// Lends the next `len` bytes, or the remaining ones if they are fewer. `None`: everything is lent.
    pub(super) fn lend(&mut self, len: usize) -> Option<Loan> {
        let range = self.given..self.len.min(self.given.saturating_add(len));
        if range.is_empty() {
            return None;
        }
        self.given = range.end;
        self.out += 1;
        // SAFETY: `data + len` lies within the memory: the assertions in `new`.
        let start = unsafe { self.memory.cast::<u8>().add(self.data + range.start) };
        Some(Loan { start, range, memory: self.memory.cast() })
    }

    /// Returns whether everything was lent.
    pub(super) fn is_exhausted(&self) -> bool {
        self.given == self.len
    }

    /// Takes a loan back. Returns whether it was the last one out.
    pub(super) fn take_back(&mut self, loan: Loan) -> bool {
        assert!(std::ptr::eq(loan.memory, self.memory.cast()), "a loan goes back to its lender");
        self.out -= 1;
        self.out == 0
    }

    /// Returns the buffer if all loans were taken back; otherwise `None`, and the memory is leaked.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        if self.out > 0 {
            return None;
        }
        // SAFETY: the pointer is that of the box in `new`, it is turned into a box once since `self` is consumed, and
        // no loan is out that could reach the memory.
        let memory = unsafe { Box::from_raw(self.memory) };
        Some(Buffer::from_parts(memory, self.base, self.capacity))
    }
}

impl Loan {
    /// Returns the range of the data.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the bytes.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the part lies within memory that its lender keeps until this loan is taken back, which consumes it;
        // no other loan has any of these bytes, and the lender does not access them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loans_cover_the_data_once_and_end_up_in_the_buffer() {
        let mut buffer = Buffer::new(10_000);
        buffer.data_mut().fill(7);
        let mut lender = Lender::new(buffer, 9000);
        let mut loans: Vec<Loan> = std::iter::from_fn(|| lender.lend(4096)).collect();
        assert!(lender.is_exhausted());
        assert_eq!(loans.iter().map(Loan::range).collect::<Vec<_>>(), [0..4096, 4096..8192, 8192..9000]);
        std::thread::scope(|scope| {
            for (number, loan) in loans.iter_mut().enumerate() {
                scope.spawn(move || loan.bytes().fill(number as u8));
            }
        });
        let back: Vec<bool> = loans.into_iter().map(|loan| lender.take_back(loan)).collect();
        assert_eq!(back, [false, false, true]);
        let buffer = lender.into_buffer().unwrap();
        assert_eq!(buffer.capacity(), 10_000);
        for (at, expected) in [(0, 0), (4095, 0), (4096, 1), (8192, 2), (8999, 2), (9000, 7), (9999, 7)] {
            assert_eq!(buffer.data()[at], expected, "byte {at}");
        }
    }

    #[test]
    fn memory_that_is_lent_is_not_given_back() {
        let mut lender = Lender::new(Buffer::new(4096), 4096);
        let mut loan = lender.lend(100).unwrap();
        assert!(lender.into_buffer().is_none());
        loan.bytes().fill(1);
    }

    #[test]
    #[should_panic(expected = "lies in its memory")]
    fn data_outside_of_the_buffer_s_memory_is_not_lent() {
        let (memory, base, _) = Buffer::new(4096).into_parts();
        Lender::new(Buffer::from_parts(memory, base, 1 << 20), 1 << 20);
    }

    #[test]
    #[should_panic(expected = "goes back to its lender")]
    fn loan_of_another_lender_is_not_taken_back() {
        let mut one = Lender::new(Buffer::new(4096), 4096);
        let mut other = Lender::new(Buffer::new(4096), 4096);
        other.lend(1).unwrap();
        other.take_back(one.lend(1).unwrap());
    }
}
