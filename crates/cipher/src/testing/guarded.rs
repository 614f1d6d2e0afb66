//! Buffers between two guard pages, with canaries around the bytes that a call may access.

use crate::locked::LockedBytes;

/// Position of a buffer in its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its first byte follows a guard page.
    Front,
    /// Its last byte is followed by a guard page.
    Back,
    /// This many bytes behind the guard page in front.
    Offset(usize),
}

const CANARY: u8 = 0xc7;

/// Pages with a buffer somewhere in them.
pub(crate) struct Guarded {
    pages: LockedBytes,
}

impl Guarded {
    /// Returns memory for buffers of up to `len` bytes in any position.
    pub(crate) fn new(len: usize) -> Self {
        let page = rustix::param::page_size();
        let mut pages = LockedBytes::zeroed((len + 64).next_multiple_of(page));
        pages.as_mut_slice().fill(CANARY);
        Self { pages }
    }

    /// Returns the buffer of `len` bytes at `place`.
    pub(crate) fn at(&mut self, place: Place, len: usize) -> &mut [u8] {
        let range = self.range(place, len);
        &mut self.pages.as_mut_slice()[range]
    }

    /// Panics if a byte outside of the buffer at `place` has changed; restores the canaries in the buffer itself.
    pub(crate) fn check(&mut self, place: Place, len: usize) {
        let range = self.range(place, len);
        let pages = self.pages.as_mut_slice();
        pages[range.clone()].fill(CANARY);
        let near = range.start.saturating_sub(4096)..(range.end + 4096).min(pages.len());
        assert!(
            pages[near].iter().all(|byte| *byte == CANARY),
            "wrote outside of the buffer at {place:?}, {len} bytes"
        );
    }

    fn range(&self, place: Place, len: usize) -> std::ops::Range<usize> {
        let start = match place {
            Place::Front => 0,
            Place::Back => self.pages.as_slice().len() - len,
            Place::Offset(offset) => offset,
        };
        start..start + len
    }
}

#[test]
#[should_panic(expected = "wrote outside")]
fn byte_written_outside_of_buffer_is_detected() {
    let mut buffer = Guarded::new(512);
    buffer.at(Place::Offset(7), 513)[512] = 1;
    buffer.check(Place::Offset(7), 512);
}
