//! Settings of the system's allocator, for processes whose memory use goes up and down.
#![allow(unsafe_code)]

/// Allocations of at least this many bytes become mappings of their own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: i32 = 16 << 10;

/// Has the allocator map each allocation of at least 16 KiB, and unmap it when it is freed. With glibc's own threshold,
/// buffers and tables of workers that have ended stay resident: it grows, and threads have heaps of their own, which
/// shrink only from their end. Does nothing with other allocators. Call it before other threads start.
pub fn map_large_allocations() {
    // SAFETY: the function stores a number, which later allocations read. It takes no pointer, and a call that it does
    // not accept changes nothing.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}

/// Gives pages of freed memory back to the system. glibc keeps them wherever a small allocation lies behind them, in
/// the heap of each thread. Does nothing with other allocators. Takes some milliseconds if there is much.
pub fn release_freed_pages() {
    // SAFETY: the function takes no pointer and locks the heaps that it looks at; memory in use stays as it is.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}
