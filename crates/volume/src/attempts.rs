//! Trying keyslots with a passphrase: in their order, and several at a time if their keys are derived with PBKDF2.
//!
//! PBKDF2 of one keyslot keeps one CPU busy, however many there are. So keyslots that follow each other in the order
//! of trial are tried on as many threads as there are CPUs, when the first keyslot of all has not opened. Argon2 has
//! threads of its own and takes memory, so such a keyslot is tried alone.
//!
//! The result is that of trying one after the other: a keyslot that opens stops only those behind it. A panic stops
//! all.

use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::key_material::KeyMaterial;
use crate::pbkdf::{Kdf, KdfError, KdfKind, KdfLimits, KdfWork};
use crate::secret::Secret;
use inlock_cipher::{VolumeKey, scrub_stack};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Stack of a helper thread that may have copies of keys.
const SCRUB: usize = 256 << 10;

/// The volume key in a keyslot. `None`: the passphrase does not open it.
type Outcome = Result<Option<VolumeKey>, UnlockError>;

/// Tries a keyslot.
type Open<'a> = dyn Fn(u32, &Attempt<'_>) -> Outcome + Sync + 'a;

/// The outcome of trying keyslots one after the other.
///
/// A keyslot that cannot be tried must not hide one that opens. If none opens, its error says more than "wrong
/// passphrase", since the passphrase may be that of the skipped keyslot.
///
/// All derivations together have limits, too ([`KdfLimits`]), so that many keyslots cannot circumvent those of one.
pub(crate) struct Attempts<'a> {
    limits: &'a KdfLimits,
    spent: KdfWork,
    tried: bool,
    first_error: Option<UnlockError>,
    too_costly: Vec<u32>,
}

/// A keyslot that may be tried.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    number: u32,
    /// Work of its derivation and of the digest of its key.
    work: KdfWork,
    takes_memory: bool,
}

impl Candidate {
    /// Returns keyslot `number` with its derivation and that of the digest of its key, each with the length of its
    /// output.
    pub(crate) fn new(number: u32, keyslot: (&Kdf, usize), digest: (&Kdf, usize), limits: &KdfLimits) -> Self {
        let takes_memory = keyslot.0.kind() != KdfKind::Pbkdf2;
        Self { number, work: KdfWork::of_keyslot(keyslot, digest, limits), takes_memory }
    }

    /// Returns keyslot `number`, for which nothing can be derived.
    pub(crate) fn without_derivation(number: u32) -> Self {
        Self { number, work: KdfWork::default(), takes_memory: false }
    }
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(limits: &'a KdfLimits) -> Self {
        Self { limits, spent: KdfWork::default(), tried: false, first_error: None, too_costly: Vec::new() }
    }

    pub(crate) fn limits(&self) -> &'a KdfLimits {
        self.limits
    }

    /// Tries keyslots with `passphrase`, and returns the first one in this order that `open` opens, with its key.
    pub(crate) fn search(
        &mut self,
        passphrase: &Secret,
        mut candidates: Vec<Candidate>,
        open: &Open<'_>,
    ) -> Option<(u32, VolumeKey)> {
        candidates.retain(|candidate| self.affords(*candidate));
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        // The first one opens most often. CPUs that share a core would delay it.
        let (first, others) = candidates.split_at(candidates.len().min(1));
        let runs = others.chunk_by(|one, next| !one.takes_memory && !next.takes_memory);
        for run in first.chunks(1).chain(runs) {
            for (candidate, outcome) in run.iter().zip(self.try_together(passphrase, run, cpus, open)) {
                if let Some(key) = self.record(outcome) {
                    return Some((candidate.number, key));
                }
            }
        }
        None
    }

    /// Whether a keyslot may be tried.
    fn affords(&mut self, candidate: Candidate) -> bool {
        let spent = self.spent.plus(candidate.work);
        let fits = spent.fits(self.limits);
        if fits {
            self.spent = spent;
        } else {
            self.too_costly.push(candidate.number);
        }
        fits
    }

    /// Tries keyslots on up to `threads` threads, this one included. Returns their outcomes in order; those behind the
    /// first that opens mean nothing, and some of them are left out.
    fn try_together(
        &self,
        passphrase: &Secret,
        run: &[Candidate],
        threads: usize,
        open: &Open<'_>,
    ) -> impl Iterator<Item = Outcome> + use<> {
        let (next, over_from, material) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX), Mutex::new(()));
        let work = || {
            let mut outcomes = Vec::new();
            let _stop = StopAllOnPanic(&over_from);
            loop {
                let position = next.fetch_add(1, Ordering::Relaxed);
                let limits = self.limits;
                let attempt = Attempt { passphrase, limits, position, over_from: &over_from, material: &material };
                let Some(candidate) = run.get(position).filter(|_| !attempt.is_over()) else {
                    return outcomes;
                };
                let outcome = open(candidate.number, &attempt);
                if matches!(outcome, Ok(Some(_))) {
                    over_from.fetch_min(position + 1, Ordering::Relaxed);
                }
                outcomes.push((position, outcome));
            }
        };
        let mut outcomes = thread::scope(|scope| {
            let start = |_| thread::Builder::new().name("inlock-keyslot".into()).spawn_scoped(scope, || scrubbed(work));
            // With fewer threads it only takes longer.
            let helpers: Vec<_> = (1..threads.min(run.len())).map_while(|number| start(number).ok()).collect();
            let mut outcomes = work();
            for helper in helpers {
                outcomes.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            outcomes
        });
        outcomes.sort_unstable_by_key(|(position, _)| *position);
        outcomes.into_iter().map(|(_, outcome)| outcome)
    }

    /// Records the outcome of one keyslot, and returns the key if it opened.
    fn record(&mut self, outcome: Outcome) -> Option<VolumeKey> {
        self.tried = true;
        match outcome {
            Ok(key) => key,
            Err(error) => {
                self.first_error.get_or_insert(error);
                None
            }
        }
    }

    pub(crate) fn into_error(self) -> UnlockError {
        if !self.too_costly.is_empty() {
            return UnlockError::TooCostlyTogether(self.too_costly);
        }
        match (self.first_error, self.tried) {
            (Some(error), _) => error,
            (None, true) => UnlockError::WrongPassphrase,
            (None, false) => UnlockError::NoUsableKeyslot,
        }
    }
}

/// Runs a thread's work, and wipes its stack: the C library keeps the stacks of threads that have ended.
fn scrubbed<T>(work: impl FnOnce() -> T) -> T {
    let result = on_own_frame(work);
    scrub_stack::<SCRUB>();
    result
}

#[inline(never)]
fn on_own_frame<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Ends the attempts of all threads if this one panics: the panic is passed on when the last thread has ended, and
/// derivations may take minutes.
struct StopAllOnPanic<'a>(&'a AtomicUsize);

impl Drop for StopAllOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// One of several attempts at a time.
pub(crate) struct Attempt<'a> {
    passphrase: &'a Secret,
    limits: &'a KdfLimits,
    /// Its place in the order of trial.
    position: usize,
    /// The first place whose attempt is over: that behind a keyslot that has opened.
    over_from: &'a AtomicUsize,
    material: &'a Mutex<()>,
}

impl Attempt<'_> {
    /// Whether a keyslot before this one has opened or any attempt has panicked, so that the outcome no longer matters.
    pub(crate) fn is_over(&self) -> bool {
        self.over_from.load(Ordering::Relaxed) <= self.position
    }

    /// Derives the key of a keyslot's area. Fails if the attempt is over.
    pub(crate) fn derive(&self, kdf: &Kdf, salt: &[u8], area_key: &mut [u8]) -> Result<(), KdfError> {
        kdf.derive_until(&|| self.is_over(), self.passphrase.as_bytes(), salt, area_key, self.limits)
    }

    /// Opens key material, one at a time: attempts together take no more memory than one.
    pub(crate) fn open(
        &self,
        material: &KeyMaterial,
        device: &dyn HeaderDevice,
        area_key: &[u8],
    ) -> Result<VolumeKey, UnlockError> {
        let _alone = self.material.lock().unwrap_or_else(PoisonError::into_inner);
        material.open(device, area_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pbkdf::{Argon2Cost, Hash};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    const PBKDF2: Kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000 };
    const ARGON2: Kdf = Kdf::Argon2id(Argon2Cost { time: 4, memory_kib: 32, lanes: 1 });

    fn candidate(number: u32, kdf: Kdf) -> Candidate {
        Candidate::new(number, (&kdf, 32), (&PBKDF2, 32), &KdfLimits::default())
    }

    fn key(number: u32) -> Outcome {
        Ok(Some(VolumeKey::new(&number.to_be_bytes())))
    }

    /// Tries `count` keyslots on as many threads, and returns the first that opens.
    fn first_opened(count: u32, threads: usize, open: &Open<'_>) -> Option<Vec<u8>> {
        let limits = KdfLimits::default();
        let mut attempts = Attempts::new(&limits);
        let run: Vec<_> = (0..count).map(|number| candidate(number, PBKDF2)).collect();
        let outcomes = attempts.try_together(&Secret::new(Vec::new()), &run, threads, open);
        let first = outcomes.into_iter().find_map(|outcome| attempts.record(outcome));
        first.map(|key| key.as_bytes().to_vec())
    }

    #[test]
    fn keyslots_are_tried_at_the_same_time() {
        let all = Barrier::new(4);
        let opened = first_opened(4, 4, &|number, _| {
            all.wait();
            if number == 3 { key(3) } else { Ok(None) }
        });
        assert_eq!(opened.as_deref(), Some(&3_u32.to_be_bytes()[..]));
    }

    /// The keyslot with the lower number opens when the other one has opened long ago.
    #[test]
    fn first_keyslot_in_order_wins_though_a_later_one_opens_sooner() {
        let later = AtomicBool::new(false);
        let opened = first_opened(3, 3, &|number, attempt| {
            if number == 2 {
                later.store(true, Ordering::SeqCst);
                return key(2);
            }
            while !later.load(Ordering::SeqCst) || attempt.over_from.load(Ordering::SeqCst) == usize::MAX {
                thread::yield_now();
            }
            assert!(!attempt.is_over(), "keyslot {number} is before the one that opened");
            if number == 1 { key(1) } else { Ok(None) }
        });
        assert_eq!(opened.as_deref(), Some(&1_u32.to_be_bytes()[..]));
    }

    #[test]
    fn keyslot_that_opens_ends_the_attempts_behind_it() {
        let tried = AtomicUsize::new(0);
        let begun = Barrier::new(2);
        let opened = first_opened(32, 2, &|number, attempt| {
            tried.fetch_add(1, Ordering::SeqCst);
            if number < 2 {
                begun.wait();
            }
            if number == 0 {
                return key(0);
            }
            while !attempt.is_over() {
                thread::yield_now();
            }
            Err(KdfError::Stopped.into())
        });
        assert_eq!(opened.as_deref(), Some(&0_u32.to_be_bytes()[..]));
        assert_eq!(tried.into_inner(), 2, "those at the same time, and no other");
    }

    #[test]
    fn panic_ends_all_attempts_and_is_passed_on() {
        for panicking in 0..4 {
            let (all, stopped) = (Barrier::new(4), AtomicUsize::new(0));
            let open = |number: u32, attempt: &Attempt<'_>| {
                if number < 4 {
                    all.wait();
                }
                if number == panicking {
                    panic!("keyslot {number}");
                }
                let begun = Instant::now();
                while !attempt.is_over() && begun.elapsed() < Duration::from_secs(10) {
                    thread::yield_now();
                }
                stopped.fetch_add(usize::from(attempt.is_over()), Ordering::SeqCst);
                Err(KdfError::Stopped.into())
            };
            let panic = catch_unwind(AssertUnwindSafe(|| first_opened(6, 4, &open))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&format!("keyslot {panicking}")));
            assert_eq!(stopped.into_inner(), 3, "keyslot {panicking}: the others ended at once");
        }
    }

    #[test]
    fn derivation_of_an_attempt_that_is_over_fails() {
        let (over_from, material) = (AtomicUsize::new(2), Mutex::new(()));
        let derive = |position, kdf: Kdf| {
            let (passphrase, limits) = (&Secret::new(b"x".to_vec()), &KdfLimits::default());
            let attempt = Attempt { passphrase, limits, position, over_from: &over_from, material: &material };
            attempt.derive(&kdf, b"saltsalt", &mut [0; 32])
        };
        assert_eq!(derive(1, PBKDF2), Ok(()));
        assert_eq!(derive(2, PBKDF2), Err(KdfError::Stopped));
    }

    /// The first keyslot and those with Argon2 are tried when all before have ended, and before any behind begins.
    #[test]
    fn first_keyslot_and_those_that_take_memory_are_tried_alone() {
        let kdfs = [PBKDF2, PBKDF2, ARGON2, ARGON2, PBKDF2, PBKDF2, ARGON2];
        let candidates = (0..).zip(kdfs).map(|(number, kdf)| candidate(number, kdf)).collect();
        let (running, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let open = |number: u32, _: &Attempt<'_>| {
            let before = running.fetch_add(1, Ordering::SeqCst);
            thread::sleep(std::time::Duration::from_millis(10));
            let first_of_run = [0, 1, 2, 3, 4, 4, 6][number as usize];
            assert!(ended.load(Ordering::SeqCst) >= first_of_run, "keyslot {number} overtook another");
            let is_alone = before == 0 && running.load(Ordering::SeqCst) == 1;
            assert!(is_alone || (number > 0 && kdfs[number as usize] == PBKDF2), "keyslot {number} was not alone");
            running.fetch_sub(1, Ordering::SeqCst);
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(None)
        };
        let limits = KdfLimits::default();
        let mut attempts = Attempts::new(&limits);
        assert!(attempts.search(&Secret::new(Vec::new()), candidates, &open).is_none());
        assert_eq!(ended.into_inner(), kdfs.len());
        assert!(matches!(attempts.into_error(), UnlockError::WrongPassphrase));
    }

    #[test]
    fn first_error_in_order_is_reported() {
        let limits = KdfLimits::default();
        let mut attempts = Attempts::new(&limits);
        let candidates = (0..4).map(|number| candidate(number, PBKDF2)).collect();
        let second = AtomicBool::new(false);
        let open = |number: u32, _: &Attempt<'_>| match number {
            1 => {
                // With one CPU there is no other thread to wait for.
                while !second.load(Ordering::SeqCst) && thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
                    thread::yield_now();
                }
                Err(UnlockError::KeyslotInactive(1))
            }
            2 => {
                second.store(true, Ordering::SeqCst);
                Err(UnlockError::KeyslotInactive(2))
            }
            _ => Ok(None),
        };
        assert!(attempts.search(&Secret::new(Vec::new()), candidates, &open).is_none());
        assert!(matches!(attempts.into_error(), UnlockError::KeyslotInactive(1)));
    }
}
