//! Key derivations that end before they have a key.

/// Iterations of PBKDF2 between two questions whether to stop: some milliseconds with the slowest hash.
pub(crate) const STEP: u32 = 1024;

/// A key derivation was stopped by its caller. The buffer for the key has parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key derivation was stopped")]
pub struct Stopped;

/// Calls `iterate` with parts of `iterations`, and asks before each of them whether to stop.
pub(crate) fn in_steps(
    iterations: u32,
    is_stopped: &dyn Fn() -> bool,
    mut iterate: impl FnMut(u32),
) -> Result<(), Stopped> {
    let mut left = iterations;
    while left > 0 {
        if is_stopped() {
            return Err(Stopped);
        }
        let step = left.min(STEP);
        iterate(step);
        left -= step;
    }
    Ok(())
}
