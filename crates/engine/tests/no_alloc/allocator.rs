//! An allocator that counts, or refuses, what threads of the data path ask for.
//!
//! It watches the threads whose names begin as in [`NAMES`] when [`watch`] is called. All others go on undisturbed: a
//! test may allocate what it likes.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

/// Reaction to an allocation of a watched thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is counted.
    Count = 1,
    /// It is counted, and gets no memory; a program that does not expect this ends.
    Refuse = 2,
}

/// Workers, and those who work for them.
const NAMES: [&str; 3] = ["inlock-w", "inlock-crypt", "inlock-copy"];
const MOST: usize = 64;
static WATCHED: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
static MODE: AtomicU8 = AtomicU8::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

/// Watches the threads that there are from now on, as soon as they are `least` and all wait for something to do: one
/// that has only just started still allocates on its own behalf.
pub(crate) fn watch(mode: Mode, least: usize) {
    for _ in 0..10_000 {
        let threads = threads();
        if threads.len() >= least && threads.iter().all(|(_, asleep)| *asleep) {
            for (place, (thread, _)) in WATCHED.iter().zip(threads) {
                place.store(thread, Ordering::Relaxed);
            }
            COUNT.store(0, Ordering::Relaxed);
            return MODE.store(mode as u8, Ordering::SeqCst);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("no {least} threads that wait: {:?}", threads());
}

/// The numbers of the threads that are watched, and whether they sleep. One that ends meanwhile is not among them.
fn threads() -> Vec<(i32, bool)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let stats = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let thread = |stat: String| {
        // The number, the name in brackets, the state.
        let (number, rest) = stat.split_once(" (")?;
        let (name, state) = rest.rsplit_once(") ")?;
        let watched = NAMES.iter().any(|n| name.starts_with(n));
        watched.then(|| (number.parse().expect("a thread's number"), state.starts_with('S')))
    };
    stats.filter_map(thread).collect()
}

/// Stops watching. Returns the number of allocations.
pub(crate) fn unwatch() -> u64 {
    MODE.store(0, Ordering::SeqCst);
    WATCHED.iter().for_each(|thread| thread.store(0, Ordering::Relaxed));
    COUNT.load(Ordering::SeqCst)
}

fn is_refused() -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    if mode == 0 {
        return false;
    }
    let thread = THREAD.get();
    let thread = if thread != 0 { thread } else { rustix::thread::gettid().as_raw_nonzero().get() };
    THREAD.set(thread);
    if WATCHED.iter().all(|watched| watched.load(Ordering::Relaxed) != thread) {
        return false;
    }
    COUNT.fetch_add(1, Ordering::SeqCst);
    mode == Mode::Refuse as u8
}

struct Watching;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

// SAFETY: all calls go to the system allocator, except those that return a null pointer, which means that there is no
// memory.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: as above; the memory is the system allocator's.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.realloc(memory, layout, len) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
