//! CPUs of client and server.
//!
//! At queue depth 1 the latency depends on where the scheduler puts the two: on one CPU a reply costs a context switch,
//! on two a wake-up of an idle CPU. So it is measured in both placements.

use std::fs;

use anyhow::{Context as _, ensure};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// CPUs of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The scheduler decides.
    Any,
    /// Both on one CPU.
    OneCpu,
    /// Each on a CPU of its own.
    TwoCpus,
}

impl Placement {
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::OneCpu => Some("one CPU"),
            Self::TwoCpus => Some("two CPUs"),
        }
    }
}

/// CPUs that a run uses for placements.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    all: CpuSet,
    client: usize,
    /// `None`: this process may use one CPU only.
    server: Option<usize>,
}

impl Cpus {
    /// Selects two CPUs that this process may use, of two cores if possible.
    pub(crate) fn select() -> anyhow::Result<Self> {
        let all = sched_getaffinity(None).context("cannot read the CPUs of this process")?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let (client, others) = usable.split_first().context("this process may use no CPU")?;
        let core = |cpu: usize| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus")).ok();
        let other_core = others.iter().find(|cpu| core(**cpu) != core(*client));
        Ok(Self { all, client: *client, server: other_core.or(others.first()).copied() })
    }

    /// Whether a placement is possible.
    pub(crate) fn can_place(&self, placement: Placement) -> bool {
        placement != Placement::TwoCpus || self.server.is_some()
    }

    /// Places the threads of a server.
    ///
    /// # Errors
    ///
    /// There is none, or one cannot be placed.
    pub(crate) fn place_server(&self, placement: Placement, threads: &[Pid]) -> anyhow::Result<()> {
        ensure!(!threads.is_empty(), "the server has no thread to place");
        let cpus = match placement {
            Placement::Any => self.all,
            Placement::OneCpu => only(self.client),
            Placement::TwoCpus => self.server.map_or(self.all, only),
        };
        for thread in threads {
            match sched_setaffinity(Some(*thread), &cpus) {
                // The thread has ended.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("cannot place the server"),
            }
        }
        Ok(())
    }

    /// Runs a client on this thread; a program that it starts inherits the CPU.
    pub(crate) fn run_client<T>(&self, placement: Placement, client: impl FnOnce() -> T) -> anyhow::Result<T> {
        if placement == Placement::Any {
            return Ok(client());
        }
        sched_setaffinity(None, &only(self.client)).context("cannot place the client")?;
        let result = client();
        sched_setaffinity(None, &self.all).context("cannot give the client its CPUs back")?;
        Ok(result)
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    cpus
}

/// Start of the names of the workers' threads.
pub(crate) const WORKER_THREADS: &str = "inlock-w";

/// Returns the threads of a process whose name `is_wanted` accepts, including io_uring workers of the kernel.
pub(crate) fn threads(process: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let wanted = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        is_wanted(name.trim())
    };
    let number = |task: fs::DirEntry| Pid::from_raw(task.file_name().to_str()?.parse().ok()?);
    tasks.filter(wanted).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_runs_on_one_cpu_and_gets_its_cpus_back() {
        let cpus = Cpus::select().unwrap();
        let count = || sched_getaffinity(None).unwrap().count();
        let before = count();
        assert_eq!(cpus.run_client(Placement::OneCpu, count).unwrap(), 1);
        assert_eq!(cpus.run_client(Placement::Any, count).unwrap(), before);
        assert_eq!(count(), before);
    }

    #[test]
    fn server_threads_are_found_by_name_and_placed() {
        let cpus = Cpus::select().unwrap();
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let server =
            std::thread::Builder::new().name("placed-thread".into()).spawn(move || wait.recv().is_ok()).unwrap();
        let found = loop {
            // A thread sets its name after it has started.
            let found = threads("self", |name| name == "placed-thread");
            if !found.is_empty() {
                break found;
            }
        };
        assert_eq!(found.len(), 1);
        let count = || sched_getaffinity(Some(found[0])).unwrap().count();
        cpus.place_server(Placement::OneCpu, &found).unwrap();
        assert_eq!(count(), 1);
        cpus.place_server(Placement::Any, &found).unwrap();
        assert!(cpus.place_server(Placement::Any, &[]).is_err());
        assert_eq!(count(), cpus.all.count());
        stop.send(()).unwrap();
        assert!(server.join().unwrap());
    }
}
