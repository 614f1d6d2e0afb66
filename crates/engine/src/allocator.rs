//! Settings of the system's allocator, for processes whose memory use goes up and down.
#![allow(unsafe_code)]

/// Settings of glibc: allocations of at least 16 KiB become mappings of their own, the end of a heap is given back from
/// 128 KiB on, and threads share four heaps. With two, small allocations of open volumes lie further apart.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SETTINGS: [(i32, i32); 3] =
    [(libc::M_MMAP_THRESHOLD, 16 << 10), (libc::M_TRIM_THRESHOLD, 128 << 10), (libc::M_ARENA_MAX, 4)];

/// Has the allocator keep little of what is freed in all environments: large allocations are unmapped, and
/// heaps are few. With glibc's own settings, buffers and tables of workers that have ended stay resident: threads have
/// up to eight heaps a CPU, which shrink only from their end, and the length of what is unmapped grows. Does nothing
/// with other allocators. Call it before other threads start.
pub fn keep_little_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in SETTINGS {
        // SAFETY: the function stores a number, which later allocations read. It takes no pointer, and a call that it
        // does not accept changes nothing.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}

/// Gives pages of freed memory back to the system. glibc keeps them where a small allocation lies behind them, in the
/// heap of each thread. Does nothing with other allocators. Takes some milliseconds if there is much.
pub fn release_freed_pages() {
    // SAFETY: the function takes no pointer and locks the heaps that it looks at; memory in use stays as it is.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}
