//! Large memory for one computation on secrets: a mapping of its own, on huge pages where the system allows them, kept
//! out of core dumps and forked processes, and wiped by several threads before it is unmapped.
//!
//! It is not locked: a limit for locked memory is far below its size.

#[cfg(target_os = "linux")]
use rustix::mm::Advice;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Zero words, wiped when dropped.
pub struct ScratchMemory {
    map: NonNull<u8>,
    map_len: usize,
    /// Bytes between the start of the mapping and that of the words.
    skipped: usize,
    words: usize,
    /// Number of threads that wipe it.
    threads: usize,
}

// SAFETY: the words are owned by the value and reached only through its borrows, as a box's are.
unsafe impl Send for ScratchMemory {}
// SAFETY: as above; shared borrows only read.
unsafe impl Sync for ScratchMemory {}

impl ScratchMemory {
    /// The size of a huge page, to which large memory is aligned.
    const HUGE_PAGE: usize = 2 << 20;
    /// The time of getting a huge page above which small ones take less.
    const SLOW_HUGE_PAGE: Duration = Duration::from_micros(700);
    /// One of this many huge pages is sampled.
    const SAMPLED: usize = 8;
    /// Number of slow samples that are enough to use small pages.
    const TOO_MANY_SLOW: usize = 4;
    /// A thread wipes at least this many bytes.
    const WIPED_BY_A_THREAD: usize = 32 << 20;

    /// Returns `words` zero words; up to `threads` threads will wipe them. Memory is used from the first write on.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the memory.
    pub fn zeroed(words: usize, threads: usize) -> io::Result<Self> {
        let map_len = Self::taken(words).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let map = unsafe {
            mm::mmap_anonymous(std::ptr::null_mut(), map_len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        // SAFETY: the pages are those of the mapping just made. Each advice may be unknown to the kernel; the memory
        // then is slower, in a dump that an administrator requests, or copied to a forked process.
        #[cfg(target_os = "linux")]
        unsafe {
            let _ = mm::madvise(map, map_len, Advice::LinuxHugepage);
            let _ = mm::madvise(map, map_len, Advice::LinuxDontDump);
            let _ = mm::madvise(map, map_len, Advice::LinuxWipeOnFork);
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skipped = map.as_ptr().align_offset(Self::align(words));
        let mut memory = Self { map, map_len, skipped, words, threads: threads.max(1) };
        memory.avoid_slow_huge_pages();
        Ok(memory)
    }

    /// Goes back to small pages if huge ones are slow to get. The kernel zeroes one in some 100 µs, but takes
    /// milliseconds if it has to move other pages first, or if the host of a virtual machine has taken its memory away.
    /// The first ones may be quick nevertheless, so pages of all parts are sampled.
    fn avoid_slow_huge_pages(&mut self) {
        let samples = self.as_mut_slice().chunks_mut(Self::HUGE_PAGE / 8).step_by(Self::SAMPLED);
        let slow = samples.filter_map(|page| {
            let start = Instant::now();
            page[0] = std::hint::black_box(0);
            std::hint::black_box(page);
            (start.elapsed() > Self::SLOW_HUGE_PAGE).then_some(())
        });
        if slow.take(Self::TOO_MANY_SLOW).count() == Self::TOO_MANY_SLOW {
            // SAFETY: the pages are those of the mapping; the advice changes none of their bytes.
            #[cfg(target_os = "linux")]
            let _ = unsafe { mm::madvise(self.map.as_ptr().cast(), self.map_len, Advice::LinuxNoHugepage) };
        }
    }

    /// Returns the number of bytes that memory of `words` words takes, if they can be counted.
    pub fn taken(words: usize) -> Option<usize> {
        let (page, align) = (rustix::param::page_size(), Self::align(words));
        words.max(1).checked_mul(8)?.checked_next_multiple_of(align)?.checked_add(align - page)
    }

    fn align(words: usize) -> usize {
        if words >= Self::HUGE_PAGE / 8 { Self::HUGE_PAGE } else { rustix::param::page_size() }
    }

    /// Returns the words, whose start is aligned to a page.
    pub fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: `zeroed` mapped the words and up to `align` bytes before and behind them; they start at a multiple of
        // the page size, are initialised (by the kernel, to zero), owned by `self`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(self.skipped).cast().as_ptr(), self.words) }
    }

    fn wipe(&mut self) {
        let threads = self.threads.min(self.words * 8 / Self::WIPED_BY_A_THREAD).max(1);
        let each = self.words.div_ceil(threads).max(1);
        let words = self.as_mut_slice();
        if threads == 1 {
            return zero(words);
        }
        let all = std::thread::scope(|scope| {
            let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || zero(part)).is_ok();
            words.chunks_mut(each).all(start)
        });
        if !all {
            zero(words);
        }
    }
}

/// Writes zeroes, also where the compiler sees that they are never read.
fn zero(words: &mut [u64]) {
    words.fill(0);
    std::hint::black_box(words);
}

impl Drop for ScratchMemory {
    fn drop(&mut self) {
        self.wipe();
        // SAFETY: the whole mapping is given back; nothing refers to it after this value is gone.
        let _ = unsafe { mm::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_memory_is_zeroed_aligned_and_as_long_as_said() {
        for (words, align) in [(0, 4096), (1, 4096), (5000, 4096), (1 << 18, 2 << 20), (13_000_001, 2 << 20)] {
            let mut memory = ScratchMemory::zeroed(words, 3).unwrap();
            assert_eq!(ScratchMemory::taken(words), Some(memory.map_len));
            assert!(memory.map_len >= 8 * words && memory.map_len <= 8 * words + 2 * align);
            let slice = memory.as_mut_slice();
            assert!(slice.len() == words && slice.as_ptr().align_offset(align) == 0);
            assert!(slice.iter().all(|word| *word == 0));
            slice.fill(0x0123_4567_89ab_cdef);
            memory.wipe();
            assert!(memory.as_mut_slice().iter().all(|word| *word == 0), "{words} words are wiped");
        }
        assert!(ScratchMemory::taken(usize::MAX / 8).is_none() && ScratchMemory::zeroed(usize::MAX / 8, 1).is_err());
    }

    /// Flags in `smaps`: huge pages chosen, not dumped, wiped on fork.
    #[test]
    fn scratch_memory_is_kept_out_of_dumps_and_forks() {
        let memory = ScratchMemory::zeroed(1 << 20, 1).unwrap();
        let start = memory.map.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // The kernel may have merged it with a neighbour that another thread has mapped alike.
        let has_start = |line: &str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            range
                .and_then(|(from, to)| number(from).zip(number(to)))
                .is_some_and(|(from, to)| (from..to).contains(&start))
        };
        let mut lines = maps.lines().skip_while(|line| !has_start(line));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        assert!(has("dd") && has("wf"), "{flags}");
        let has_huge_pages = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        // Small pages are wanted again where huge ones are slow to get.
        assert!(has("hg") || has("nh") || !has_huge_pages, "{flags}");
    }
}
