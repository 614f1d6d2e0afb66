//! A value in locked memory.

use std::ptr::NonNull;

use crate::locked::LockedBytes;

/// One value in locked memory. The value is dropped in place, then its memory is wiped.
pub(crate) struct LockedBox<T> {
    bytes: LockedBytes,
    value: NonNull<T>,
}

// SAFETY: a `LockedBox` owns its value as a `Box` does.
unsafe impl<T: Send> Send for LockedBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for LockedBox<T> {}

impl<T> LockedBox<T> {
    /// Moves `value`, which has no secret yet, to locked memory; secrets are then written in place.
    pub(crate) fn new(value: T) -> Self {
        const { assert!(align_of::<T>() <= 64) };
        // Rounded up so that the start is aligned as well as the end.
        let bytes = LockedBytes::zeroed(size_of::<T>());
        let place = bytes.start().cast::<T>();
        // SAFETY: `place` is aligned to 64 bytes, owned, and has room for a `T`.
        unsafe { place.write(value) };
        Self { bytes, value: place }
    }
}

impl<T> std::ops::Deref for LockedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` wrote a `T` there, which lives as long as `self`.
        unsafe { self.value.as_ref() }
    }
}

impl<T> std::ops::DerefMut for LockedBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for LockedBox<T> {
    fn drop(&mut self) {
        debug_assert_eq!(self.bytes.as_slice().len(), size_of::<T>());
        // SAFETY: the value was written by `new` and is dropped once, here; `bytes` is wiped and unmapped after it.
        unsafe { self.value.drop_in_place() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locked::tests::releases_of;

    #[test]
    fn locked_box_is_dropped_and_wiped() {
        let shared = std::rc::Rc::new(());
        let boxed = LockedBox::new((shared.clone(), [0x5au8; 300]));
        assert_eq!(boxed.1, [0x5a; 300]);
        assert_eq!(releases_of(|| drop(boxed)), [true]);
        assert_eq!(std::rc::Rc::strong_count(&shared), 1);
    }
}
