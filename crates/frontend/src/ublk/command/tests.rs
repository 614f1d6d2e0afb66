//! Commands through a ring whose kernel does what a script says, and that notices when memory is freed under it.

use super::*;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Effect of one call of [`CommandRing::submit_and_wait`]. Commands are named by their `data`.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Nothing is submitted.
    Refuse(Errno),
    /// The queued commands are submitted, and the call fails.
    FailAfterSubmission(Errno),
    /// The queued commands are submitted, and these commands complete, in this order.
    Complete(&'static [u64]),
    /// As `Complete`, and a signal interrupts the call.
    Interrupt(&'static [u64]),
    /// There is a completion that belongs to no command.
    Stray,
}

/// A command that the kernel has taken.
#[derive(Clone, Copy)]
struct Taken {
    ring: usize,
    tag: u64,
    data: u64,
    address: u64,
    completed: bool,
    is_freed: bool,
}

#[derive(Default)]
struct Kernel {
    script: VecDeque<Step>,
    rings: usize,
    /// Rings that cannot be made.
    refused_rings: usize,
    taken: Vec<Taken>,
    freed: usize,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
}

fn kernel<R>(use_it: impl FnOnce(&mut Kernel) -> R) -> R {
    KERNEL.with_borrow_mut(use_it)
}

/// The memory at `address` is freed: that of the last command that was given it.
pub(super) fn freed(address: u64) {
    kernel(|kernel| {
        kernel.freed += 1;
        kernel.taken.iter_mut().rfind(|taken| taken.address == address).into_iter().for_each(|t| t.is_freed = true);
    });
}

/// Returns the kernel's result of the command with this `data`.
fn answer(data: u64) -> i32 {
    if data.is_multiple_of(10) { -Errno::BUSY.raw_os_error() } else { data as i32 }
}

struct ScriptedRing {
    number: usize,
    queued: Vec<Taken>,
    completions: VecDeque<(u64, i32)>,
}

impl ScriptedRing {
    fn open() -> io::Result<Box<dyn CommandRing>> {
        kernel(|kernel| {
            if kernel.refused_rings > 0 {
                kernel.refused_rings -= 1;
                return Err(Errno::MFILE.into());
            }
            kernel.rings += 1;
            Ok(Box::new(Self { number: kernel.rings, queued: Vec::new(), completions: VecDeque::new() }) as _)
        })
    }

    /// Completes a command of any ring: writes its memory, and posts the completion if the ring is still this one.
    fn complete(&mut self, data: u64) {
        let taken = kernel(|kernel| kernel.complete(data));
        if taken.ring == self.number {
            self.completions.push_back((taken.tag, answer(data)));
        }
    }
}

impl Kernel {
    fn complete(&mut self, data: u64) -> Taken {
        let taken = self.taken.iter_mut().find(|taken| taken.data == data).expect("the command was submitted");
        taken.completed = true;
        if taken.address != 0 {
            assert!(!taken.is_freed, "the kernel writes to freed memory for command {data}");
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(taken.address as usize);
            // SAFETY: the memory of a command is not freed before its completion: checked above.
            unsafe { memory.write_bytes(data as u8, MEMORY) };
        }
        *taken
    }
}

impl CommandRing for ScriptedRing {
    unsafe fn push(&mut self, _: &File, _: u32, payload: [u8; PAYLOAD], tag: u64) -> io::Result<()> {
        let number = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
        let (address, data) = (number(8), number(16));
        self.queued.push(Taken { ring: self.number, tag, data, address, completed: false, is_freed: false });
        Ok(())
    }

    fn submit_and_wait(&mut self) -> io::Result<()> {
        let step = kernel(|kernel| kernel.script.pop_front()).expect("the script goes on for as long as it is asked");
        if let Step::Refuse(errno) = step {
            return Err(errno.into());
        }
        kernel(|kernel| kernel.taken.append(&mut self.queued));
        match step {
            Step::Refuse(errno) | Step::FailAfterSubmission(errno) => return Err(errno.into()),
            Step::Complete(all) => all.iter().for_each(|data| self.complete(*data)),
            Step::Interrupt(all) => {
                all.iter().for_each(|data| self.complete(*data));
                return Err(Errno::INTR.into());
            }
            Step::Stray => self.completions.push_back((u64::MAX, 77)),
        }
        Ok(())
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        self.completions.pop_front()
    }
}

fn commands(script: &[Step]) -> Commands {
    kernel(|kernel| *kernel = Kernel { script: script.to_vec().into(), ..Kernel::default() });
    Commands::new(File::open("/dev/null").unwrap(), ScriptedRing::open).unwrap()
}

/// Runs the command with `data`: its result, and the first byte of its memory afterwards.
fn run(commands: &mut Commands, data: u64) -> Result<(i32, u8), Errno> {
    let mut memory = [0; MEMORY];
    let result = commands.run(&Command { number: 7, id: 3, len: 64, data }, &mut memory);
    result.map(|result| (result, memory[0])).map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// The kernel completes all that it has taken, at last: nothing of it may have been freed before.
fn complete_all() {
    let left: Vec<u64> = kernel(|k| k.taken.iter().filter(|taken| !taken.completed).map(|taken| taken.data).collect());
    for data in left {
        kernel(|kernel| kernel.complete(data));
    }
}

#[test]
fn command_returns_its_result_and_memory_and_frees_that() {
    let mut commands = commands(&[Step::Complete(&[1]), Step::Complete(&[10]), Step::Complete(&[2])]);
    assert_eq!(run(&mut commands, 1), Ok((1, 1)));
    assert_eq!(run(&mut commands, 10), Err(Errno::BUSY));
    assert_eq!(run(&mut commands, 2), Ok((2, 2)));
    assert_eq!(kernel(|kernel| (kernel.rings, kernel.freed)), (1, 3));
}

#[test]
fn command_without_memory_has_no_address() {
    let mut commands = commands(&[Step::Complete(&[1])]);
    let none = Command { number: 7, id: 3, len: 0, data: 1 };
    assert_eq!(commands.run(&none, &mut [0; MEMORY]).unwrap(), 1);
    assert_eq!(kernel(|kernel| kernel.taken[0].address), 0);
}

#[test]
fn interrupted_wait_goes_on_until_the_command_completes() {
    let mut commands = commands(&[
        Step::Interrupt(&[]),
        Step::Interrupt(&[]),
        Step::Complete(&[]),
        Step::Complete(&[1]),
        Step::Interrupt(&[2]),
    ]);
    assert_eq!(run(&mut commands, 1), Ok((1, 1)));
    assert_eq!(run(&mut commands, 2), Ok((2, 2)));
    complete_all();
}

#[test]
fn completion_after_a_failed_wait_is_not_taken_for_the_next_command() {
    let mut commands = commands(&[Step::FailAfterSubmission(Errno::NOMEM), Step::Complete(&[1]), Step::Complete(&[2])]);
    assert_eq!(run(&mut commands, 1), Err(Errno::NOMEM));
    let second = run(&mut commands, 2);
    complete_all();
    assert_eq!(second, Ok((2, 2)));
}

#[test]
fn memory_of_a_command_whose_wait_failed_is_never_freed() {
    let mut commands = commands(&[Step::FailAfterSubmission(Errno::IO)]);
    assert_eq!(run(&mut commands, 1), Err(Errno::IO));
    drop(commands);
    complete_all();
    assert_eq!(kernel(|kernel| kernel.freed), 0);
}

#[test]
fn command_that_was_not_submitted_is_not_carried_out_with_the_next() {
    let mut commands = commands(&[Step::Refuse(Errno::AGAIN), Step::Complete(&[2]), Step::Complete(&[3])]);
    assert_eq!(run(&mut commands, 1), Err(Errno::AGAIN));
    assert_eq!(run(&mut commands, 2), Ok((2, 2)));
    assert_eq!(run(&mut commands, 3), Ok((3, 3)));
    complete_all();
    let carried_out: Vec<u64> = kernel(|kernel| kernel.taken.iter().map(|taken| taken.data).collect());
    assert_eq!(carried_out, [2, 3]);
}

#[test]
fn completion_with_another_tag_is_passed_over() {
    let mut commands = commands(&[Step::Stray, Step::Stray, Step::Complete(&[1])]);
    assert_eq!(run(&mut commands, 1), Ok((1, 1)));
    complete_all();
}

#[test]
fn completions_out_of_order_and_twice_are_each_command_s_own() {
    let mut commands = commands(&[Step::Complete(&[1, 1]), Step::Complete(&[1]), Step::Complete(&[1, 2, 1])]);
    // The memory of the first command is not to be written again: it has none.
    let none = Command { number: 7, id: 3, len: 0, data: 1 };
    assert_eq!(commands.run(&none, &mut [0; MEMORY]).unwrap(), 1);
    assert_eq!(run(&mut commands, 2), Ok((2, 2)));
    complete_all();
}

#[test]
fn ring_that_cannot_be_made_again_fails_the_command_and_is_tried_again() {
    let mut commands = commands(&[Step::Refuse(Errno::NOMEM), Step::Complete(&[3])]);
    assert_eq!(run(&mut commands, 1), Err(Errno::NOMEM));
    kernel(|kernel| kernel.refused_rings = 1);
    assert_eq!(run(&mut commands, 2), Err(Errno::MFILE));
    assert_eq!(run(&mut commands, 3), Ok((3, 3)));
    assert_eq!(kernel(|kernel| kernel.rings), 2);
}
