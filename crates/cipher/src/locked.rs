//! Memory for keys: on pages of its own that are kept out of swap, core dumps and forked processes, between two guard
//! pages, and wiped before it is unmapped.
//!
//! Locking can fail if the process's limit is low. The key is then kept nevertheless, and [`memory_lock_failed`]
//! returns true, for the caller to print a warning.

#[cfg(target_os = "linux")]
use rustix::mm::Advice;
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use zeroize::Zeroize;

static LOCK_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether any key of this process may have been written to swap, because its memory could not be locked.
pub fn memory_lock_failed() -> bool {
    LOCK_FAILED.load(Ordering::Relaxed)
}

/// Zero bytes on pages of their own, wiped when dropped. They end at the guard page behind them, except for up to 63
/// bytes of alignment.
pub(crate) struct LockedBytes {
    /// Start of the mapping, which is the guard page in front.
    map: NonNull<u8>,
    /// Length of the pages between the guards.
    inner_len: usize,
    len: usize,
}

// SAFETY: the bytes are owned by the value and reached only through its borrows, as a box's are.
unsafe impl Send for LockedBytes {}
// SAFETY: as above; shared borrows only read.
unsafe impl Sync for LockedBytes {}

impl LockedBytes {
    /// Returns `len` zero bytes. Panics if the system has no memory left, like every allocation.
    pub(crate) fn zeroed(len: usize) -> Self {
        let page = rustix::param::page_size();
        let inner_len = len.max(1).next_multiple_of(page);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let map = unsafe {
            mm::mmap_anonymous(std::ptr::null_mut(), inner_len + 2 * page, ProtFlags::empty(), flags)
                .expect("out of memory while allocating a key")
        };
        let inner = map.wrapping_byte_add(page);
        // SAFETY: `inner` and `inner_len` are pages inside the mapping just made, to which nothing refers yet.
        unsafe {
            mm::mprotect(inner, inner_len, MprotectFlags::READ | MprotectFlags::WRITE)
                .expect("out of memory while allocating a key");
            #[cfg(target_os = "linux")]
            {
                // Kernels without the advice still keep the key; it only is in a dump that an administrator requests.
                let _ = mm::madvise(inner, inner_len, Advice::LinuxDontDump);
                // A forked process finds zeroes. Linux before 4.14 does not know the advice, and copies the pages.
                let _ = mm::madvise(inner, inner_len, Advice::LinuxWipeOnFork);
            }
            if mm::mlock(inner, inner_len).is_err() {
                LOCK_FAILED.store(true, Ordering::Relaxed);
            }
        }
        let map = NonNull::new(map.cast()).expect("the kernel maps nothing at address zero");
        Self { map, inner_len, len }
    }

    /// Returns the place of the bytes, aligned to 64 of them.
    pub(crate) fn start(&self) -> NonNull<u8> {
        let page = rustix::param::page_size();
        // SAFETY: the offset is inside the mapping: one guard page, then `inner_len` bytes of which `len` rounded up
        // to 64 fit, because `inner_len` is at least `len` and a multiple of the page size.
        unsafe { self.map.add(page + self.inner_len - self.len.next_multiple_of(64)) }
    }

    /// Returns the bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` begins `len` bytes that are mapped, initialised (by the kernel, to zero) and owned by `self`.
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
        let page = rustix::param::page_size();
        // SAFETY: the pages between the guards are mapped, initialised and owned by `self`.
        let inner = unsafe { std::slice::from_raw_parts_mut(self.map.as_ptr().add(page), self.inner_len) };
        inner.zeroize();
        #[cfg(test)]
        tests::ON_RELEASE.with(|hook| hook.borrow_mut().iter_mut().for_each(|seen| seen(inner)));
        // SAFETY: the whole mapping is given back; nothing refers to it after this value is gone. The lock goes with
        // it.
        let _ = unsafe { mm::munmap(self.map.as_ptr().cast(), self.inner_len + 2 * page) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut(&[u8])>;

    thread_local! {
        /// Called with the pages of every allocation that this thread unmaps, after the wipe.
        pub(crate) static ON_RELEASE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Runs `work`, and returns for every locked allocation it released whether all bytes were zero by then.
    pub(crate) fn releases_of(work: impl FnOnce()) -> Vec<bool> {
        let seen = std::rc::Rc::new(RefCell::new(Vec::new()));
        let sink = seen.clone();
        let hook: Hook = Box::new(move |pages| sink.borrow_mut().push(pages.iter().all(|byte| *byte == 0)));
        ON_RELEASE.with(|place| *place.borrow_mut() = Some(hook));
        work();
        ON_RELEASE.with(|place| *place.borrow_mut() = None);
        let seen = seen.borrow();
        seen.clone()
    }

    #[test]
    fn locked_bytes_are_zeroed_and_wiped() {
        for len in [0, 1, 63, 64, 65, 4096, 4097] {
            let mut bytes = LockedBytes::zeroed(len);
            assert_eq!(bytes.as_slice(), vec![0; len]);
            bytes.as_mut_slice().fill(0xa5);
            assert_eq!(bytes.as_slice(), vec![0xa5; len]);
            assert_eq!(releases_of(|| drop(bytes)), [true]);
        }
    }

    /// The process's map has guard pages on both sides, without access.
    #[test]
    fn locked_bytes_lie_between_guard_pages() {
        let bytes = LockedBytes::zeroed(5000);
        let page = rustix::param::page_size();
        let start = bytes.map.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let access_at = |address: usize| {
            let found = maps.lines().find(|line| {
                let (range, _) = line.split_once(' ').unwrap();
                let (from, to) = range.split_once('-').unwrap();
                (usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap()).contains(&address)
            });
            found.unwrap().split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(access_at(start), "---p");
        assert_eq!(access_at(start + page), "rw-p");
        assert_eq!(access_at(start + page + bytes.inner_len), "---p");
    }

    /// Flags in `smaps`: not dumped, wiped on fork, and locked unless that failed.
    #[test]
    fn locked_bytes_are_kept_out_of_dumps_forks_and_swap() {
        let bytes = LockedBytes::zeroed(5000);
        let inner = bytes.map.as_ptr() as usize + rustix::param::page_size();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{inner:x}-")));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        assert!(has("dd") && has("wf"), "{flags}");
        assert!(has("lo") || memory_lock_failed(), "{flags}");
    }
}
