//! Slots whose worker cannot start, and their retries, without the thread that looks at them.

use super::*;
use crate::nbd::server::describe;
use inlock_engine::Access;
use inlock_engine::store::memory::MemoryStore;

fn lot() -> Arc<Lot> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let (is_stopping, slots, retries) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
    Arc::new(Lot { epoll, wakeup, is_stopping, slots, retries })
}

#[test]
fn slot_is_tried_again_once_when_its_pause_is_over() {
    let (lot, now) = (lot(), Instant::now());
    lock(&lot.retries).extend([(3, now), (7, now + Duration::from_secs(3600)), (8, now)]);
    let mut keys = vec![1];
    for _ in 0..2 {
        lot.take_retries(&mut keys);
        assert_eq!(keys, [1, 3, 8]);
    }
    assert_eq!(lock(&lot.retries).keys().copied().collect::<Vec<u64>>(), [7]);
}

#[test]
fn slot_tells_why_its_worker_cannot_start() {
    let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default()));
    let (lot, options) = (lot(), ServerOptions::default());
    let team = Arc::new(Team {
        export: Arc::new(describe(&device, &options)),
        device,
        options,
        pool: None,
        lot: Arc::clone(&lot),
        live: Arc::default(),
        throttles: Vec::new(),
        ring_name: OnceLock::new(),
    });
    for failure in [Some("no more threads".to_owned()), None] {
        let parked = Parked { failure: failure.clone(), ..Parked::default() };
        let active = Active { team: Arc::clone(&team), worker: WorkerState::Parked(parked) };
        let slot = Slot { lot: Arc::clone(&lot), number: 0, key: 0, state: Mutex::new(Some(active)) };
        assert_eq!(slot.start_failure(), failure);
        assert!(slot.is_healthy() && !slot.is_running());
        slot.stop()().unwrap();
        assert_eq!(slot.start_failure(), None);
    }
}
