//! Memory available for a key derivation, on the machine and within the cgroups of this process.
//!
//! The limit of a cgroup applies to all below it, so every one up to the root counts. The kernel kills a process that
//! exceeds it, which a derivation must avoid.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory in KiB, of the machine or of the smallest cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemMemory {
    pub(super) total_kib: u64,
    /// Memory available without swapping.
    pub(super) available_kib: u64,
    pub(super) swap_kib: u64,
}

impl SystemMemory {
    /// Reads the memory of the system; 2 GiB if it is unknown.
    pub(super) fn read() -> Self {
        Self::read_from(Path::new("/proc"))
    }

    fn read_from(proc: &Path) -> Self {
        let mut memory = Self::parse(&text(&proc.join("meminfo")));
        let groups = text(&proc.join("self/cgroup"));
        let mounts = text(&proc.join("self/mountinfo"));
        for version in [&VERSION_2, &VERSION_1] {
            for dir in version.dirs(&groups, &mounts) {
                let Some((limit_kib, free_kib)) = version.limit_of(&dir) else { continue };
                memory.total_kib = memory.total_kib.min(limit_kib);
                memory.available_kib = memory.available_kib.min(free_kib);
            }
        }
        memory
    }

    fn parse(meminfo: &str) -> Self {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
        };
        let total_kib = field("MemTotal").unwrap_or(2 << 20);
        Self {
            total_kib,
            available_kib: field("MemAvailable").unwrap_or(total_kib),
            swap_kib: field("SwapTotal").unwrap_or(0),
        }
    }
}

/// Names in one version of cgroups.
struct Version {
    /// Type of its file systems.
    fstype: &'static str,
    /// Controller in a line of `/proc/self/cgroup`, and in the options of the mount.
    controller: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Reclaimable memory, in lines of `memory.stat`.
    reclaimable: &'static [&'static str],
}

const VERSION_2: Version = Version {
    fstype: "cgroup2",
    controller: "",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};
const VERSION_1: Version = Version {
    fstype: "cgroup",
    controller: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

impl Version {
    /// Returns the directories of the process's cgroup and of those above it, as far as they are mounted.
    fn dirs(&self, groups: &str, mounts: &str) -> Vec<PathBuf> {
        let of_line = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            let path = fields.next()?;
            controllers.split(',').any(|name| name == self.controller).then(|| path.to_owned())
        };
        let Some(path) = groups.lines().find_map(of_line) else { return Vec::new() };
        let Some((root, mount)) = mounts.lines().find_map(|line| self.mount_of(line)) else { return Vec::new() };
        // A path that does not start with the root of the mount is not mounted here.
        let below = Path::new(&path).strip_prefix(&root).ok();
        let below = below.filter(|below| below.is_relative() && !below.starts_with(".."));
        let dir = below.map_or_else(|| mount.clone(), |below| mount.join(below));
        dir.ancestors().take_while(|dir| dir.starts_with(&mount)).map(Path::to_owned).collect()
    }

    /// Returns root and mount point in a line of `mountinfo`, if it mounts this version with its controller.
    fn mount_of(&self, line: &str) -> Option<(String, PathBuf)> {
        let (fields, behind) = line.split_once(" - ")?;
        let mut behind = behind.split(' ');
        let is_type = behind.next() == Some(self.fstype);
        let has_controller = |options: &str| options.split(',').any(|name| name == self.controller);
        let is_one = is_type && (self.controller.is_empty() || behind.nth(1).is_some_and(has_controller));
        let mut fields = fields.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        is_one.then(|| (unescaped(root), PathBuf::from(unescaped(place))))
    }

    /// Returns the limit of a cgroup and the rest of it, in KiB; `None` without a limit.
    fn limit_of(&self, dir: &Path) -> Option<(u64, u64)> {
        let number = |file: &str| text(&dir.join(file)).trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let stat = text(&dir.join("memory.stat"));
        let reclaimable = stat.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            if self.reclaimable.contains(&name) { value.parse::<u64>().ok() } else { None }
        });
        let used = number(self.usage).unwrap_or(0).saturating_sub(reclaimable.fold(0, u64::saturating_add));
        Some((limit / 1024, limit.saturating_sub(used) / 1024))
    }
}

/// Decodes `\040` and the like in a field of `mountinfo`.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (escape, letter)| text.replace(escape, letter))
}

/// Returns the content of a file; an empty one if it cannot be read.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pbkdf::KdfLimits;

    const MEMINFO: &str =
        "MemTotal:    16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\nSwapTotal:     4 kB\n";

    /// A `/proc` and cgroup file systems, whose files are named with their content.
    struct System(tempfile::TempDir);

    impl System {
        fn new(cgroup: &str, mounts: &[(&str, &str, &str)]) -> Self {
            let system = Self(tempfile::tempdir().unwrap());
            system.write("proc/meminfo", MEMINFO);
            system.write("proc/self/cgroup", cgroup);
            let line = |(root, place, behind): &(&str, &str, &str)| {
                format!("31 23 0:28 {root} {}/{place} rw,relatime shared:9 - {behind}\n", system.0.path().display())
            };
            system.write("proc/self/mountinfo", &mounts.iter().map(line).collect::<String>());
            system
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn memory_mib(&self) -> (u64, u64) {
            let memory = SystemMemory::read_from(&self.0.path().join("proc"));
            (memory.total_kib >> 10, memory.available_kib >> 10)
        }
    }

    fn mib(mib: u64) -> String {
        format!("{}\n", mib << 20)
    }

    #[test]
    fn meminfo_is_read_and_its_absence_is_bounded() {
        let memory = SystemMemory::parse(MEMINFO);
        assert_eq!((memory.total_kib, memory.available_kib, memory.swap_kib), (16 << 20, 8 << 20, 4));
        assert_eq!(SystemMemory::parse("").available_kib, 2 << 20);
        assert_eq!(SystemMemory::parse("MemTotal: 99999999999999999999999 kB").total_kib, 2 << 20);
        assert_eq!(KdfLimits::default().memory_kib, KdfLimits::MAX_MEMORY_KIB);
        assert_eq!(System::new("0::/\n", &[]).memory_mib(), (16384, 8192), "no cgroup is mounted");
    }

    #[test]
    fn every_cgroup_above_limits_the_memory_of_version_2() {
        let system = System::new("0::/a/b/c\n", &[("/", "cg", "cgroup2 cgroup2 rw")]);
        system.write("cg/a/b/c/memory.max", "max\n");
        system.write("cg/a/b/memory.max", &mib(2048));
        system.write("cg/a/memory.max", &mib(4096));
        assert_eq!(system.memory_mib(), (2048, 2048));
        system.write("cg/a/b/memory.current", &mib(1500));
        assert_eq!(system.memory_mib(), (2048, 548));
        let stat = format!("anon 1\nactive_file {}inactive_file {}slab_reclaimable 0\nfile 7\n", mib(300), mib(200));
        system.write("cg/a/b/memory.stat", &stat);
        assert_eq!(system.memory_mib(), (2048, 1048), "the cache of files is given back");
        system.write("cg/a/memory.current", &mib(4000));
        assert_eq!(system.memory_mib(), (2048, 96), "the one above has less left");
        system.write("cg/memory.max", &mib(64));
        assert_eq!(system.memory_mib(), (64, 64));
        system.write("cg/a/memory.current", &mib(5000));
        assert_eq!(system.memory_mib(), (64, 0));
    }

    #[test]
    fn cgroup_of_version_1_is_that_of_its_controller() {
        let mounts = [
            ("/", "cg/cpu", "cgroup cgroup rw,cpu"),
            ("/", "cg/memory\\040here", "cgroup cgroup rw,memory"),
            ("/", "cg/unified", "cgroup2 cgroup2 rw"),
        ];
        let system = System::new("5:cpu,cpuacct:/wrong\n4:memory:/a/b\n0::/\n", &mounts);
        system.write("cg/memory here/a/b/memory.limit_in_bytes", &mib(1024));
        system.write("cg/memory here/a/b/memory.usage_in_bytes", &mib(600));
        system.write("cg/memory here/a/b/memory.stat", &format!("inactive_file 0\ntotal_inactive_file {}", mib(100)));
        system.write("cg/memory here/a/memory.limit_in_bytes", "9223372036854771712\n");
        system.write("cg/memory here/wrong/memory.limit_in_bytes", &mib(1));
        assert_eq!(system.memory_mib(), (1024, 524));
        system.write("cg/memory here/a/memory.limit_in_bytes", &mib(512));
        assert_eq!(system.memory_mib(), (512, 512));
    }

    /// A container may see its own cgroup as the root, under its name outside.
    #[test]
    fn cgroup_of_a_container_is_found_behind_the_root_of_its_mount() {
        for (path, root) in [("/pod/x", "/pod/x"), ("/", "/"), ("/../other", "/"), ("/elsewhere", "/pod/x")] {
            let system = System::new(&format!("0::{path}\n"), &[(root, "cg", "cgroup2 cgroup2 rw")]);
            system.write("cg/memory.max", &mib(256));
            assert_eq!(system.memory_mib(), (256, 256), "{path} {root}");
        }
        let system = System::new("0::/pod/x/y\n", &[("/pod/x", "cg", "cgroup2 cgroup2 rw")]);
        system.write("cg/y/memory.max", &mib(128));
        assert_eq!(system.memory_mib(), (128, 128));
    }
}
