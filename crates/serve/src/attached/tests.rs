//! An attached volume without a driver: when it is detached, and when it stays.

use super::*;
use inlock_engine::Access;
use inlock_engine::store::memory::MemoryStore;
use std::sync::atomic::AtomicUsize;

/// State of a device in the kernel.
#[derive(Default)]
struct Kernel {
    is_detached: AtomicBool,
    is_held: AtomicBool,
    needs_recovery: AtomicBool,
    /// Attempts to detach it, each with `deferred`.
    attempts: Mutex<Vec<bool>>,
    /// Last length that was announced.
    len: AtomicUsize,
}

impl Kernel {
    fn attempts(&self) -> Vec<bool> {
        self.attempts.lock().unwrap().clone()
    }
}

struct Fake(Arc<Kernel>);

impl Attachment for Fake {
    fn node(&self) -> &Path {
        Path::new("/dev/fake")
    }

    fn is_attached(&self) -> bool {
        !self.0.is_detached.load(Ordering::Acquire)
    }

    fn needs_recovery(&self) -> bool {
        self.0.needs_recovery.load(Ordering::Acquire)
    }

    fn detach(&mut self, deferred: bool) -> Result<()> {
        self.0.attempts.lock().unwrap().push(deferred);
        match self.0.is_held.load(Ordering::Acquire) {
            true => Err(Error::Held { node: self.node().to_owned(), by: "a test".to_owned() }),
            false => Ok(()),
        }
    }

    fn update_len(&self, len: u64) -> Result<()> {
        self.0.len.store(len as usize, Ordering::Release);
        Ok(())
    }
}

/// A program that asks to shut down at its second look, and lets the device go when that was postponed.
#[derive(Default)]
struct Asks {
    kernel: Arc<Kernel>,
    looks: AtomicUsize,
    postponed: AtomicUsize,
}

impl Shutdown for Asks {
    fn wait(&self, _limit: Duration) -> Result<bool> {
        if self.looks.load(Ordering::Acquire) == 0 {
            assert!(self.kernel.attempts().is_empty(), "no request has come");
        }
        Ok(self.looks.fetch_add(1, Ordering::AcqRel) == 1)
    }

    fn postponed(&self, held: Error) {
        assert!(matches!(held, Error::Held { .. }), "{held}");
        self.postponed.fetch_add(1, Ordering::AcqRel);
        self.kernel.is_held.store(false, Ordering::Release);
    }
}

/// Attaches a volume. Returns it with the number of calls of its `on_detached`.
fn attached(kernel: &Arc<Kernel>, method: AttachMethod, allow_discards: bool) -> (Arc<Open>, Arc<AtomicUsize>) {
    let access = Access { read_only: false, allow_discards };
    let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), access);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let on_detached = move || {
        counted.fetch_add(1, Ordering::AcqRel);
    };
    (Arc::new(Open::new(Box::new(Fake(Arc::clone(kernel))), method, &device, on_detached)), calls)
}

#[test]
fn volume_in_use_is_detached_after_a_request_when_it_is_used_no_longer() {
    for (is_held, attempts, postponed) in [(false, vec![false], 0), (true, vec![false, true], 1)] {
        let kernel = Arc::new(Kernel { is_held: is_held.into(), ..Kernel::default() });
        let (open, calls) = attached(&kernel, AttachMethod::Nbd, false);
        let asks = Asks { kernel: Arc::clone(&kernel), ..Asks::default() };
        open.wait(&asks).unwrap();
        assert_eq!(asks.postponed.load(Ordering::Acquire), postponed);
        assert_eq!((asks.looks.load(Ordering::Acquire), open.is_close_deferred()), (2, is_held));
        drop(open);
        assert_eq!((kernel.attempts(), calls.load(Ordering::Acquire)), (attempts, 0));
    }
}

#[test]
fn volume_that_others_have_detached_has_ended() {
    let kernel = Arc::new(Kernel { is_detached: true.into(), ..Kernel::default() });
    let (open, _) = attached(&kernel, AttachMethod::Nbd, false);
    open.wait(&Asks::default()).unwrap();
    assert_eq!(kernel.attempts(), [false]);
    let kernel = Arc::new(Kernel {
        is_detached: true.into(),
        is_held: true.into(),
        needs_recovery: true.into(),
        ..Kernel::default()
    });
    let (open, _) = attached(&kernel, AttachMethod::Ublk, false);
    assert!(matches!(open.wait(&Asks::default()), Err(Error::WorkerFailed { .. })));
}

#[test]
fn close_detaches_once_and_refuses_what_is_in_use() {
    let kernel = Arc::new(Kernel { is_held: true.into(), ..Kernel::default() });
    let (open, calls) = attached(&kernel, AttachMethod::Nbd, false);
    assert!(matches!(open.close(false), Err(Error::Held { .. })));
    assert!(!open.is_close_deferred());
    open.close(true).unwrap();
    assert_eq!((open.is_close_deferred(), calls.load(Ordering::Acquire)), (true, 0));
    open.cancel_deferred().unwrap();
    assert!(!open.is_close_deferred());
    kernel.is_held.store(false, Ordering::Release);
    (0..2).for_each(|_| open.close(false).unwrap());
    assert_eq!((kernel.attempts(), calls.load(Ordering::Acquire)), (vec![false, true, false], 1));
    open.wait(&Asks::default()).unwrap();
    drop(open);
    assert_eq!(kernel.attempts().len(), 3);
}

#[test]
fn volume_that_is_dropped_is_detached() {
    let kernel = Arc::new(Kernel::default());
    drop(attached(&kernel, AttachMethod::Nbd, false));
    assert_eq!(kernel.attempts(), [false]);
}

#[test]
fn discards_need_a_method_and_a_device_that_have_them() {
    let kernel = Arc::new(Kernel::default());
    let check = |method, discards| attached(&kernel, method, discards).0.check_discards();
    assert!(matches!(check(AttachMethod::Fuse, true), Err(Error::MethodWithoutDiscards { .. })));
    assert!(matches!(check(AttachMethod::Nbd, false), Err(Error::DeviceWithoutDiscards { .. })));
    check(AttachMethod::Nbd, true).unwrap();
    let (open, _) = attached(&kernel, AttachMethod::Nbd, true);
    open.resized(8192).unwrap();
    assert_eq!(kernel.len.load(Ordering::Acquire), 8192);
}
