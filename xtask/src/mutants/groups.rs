//! Code that is mutated, and the tests that check it.

/// Code of one crate that is mutated together.
pub(super) struct Group {
    pub(super) name: &'static str,
    /// Directory of the crate.
    pub(super) directory: &'static str,
    /// Files below `src`; a name that ends with `/` stands for all files in that directory and below.
    files: &'static [&'static str],
    /// Tests, in the order in which mutants are tried.
    pub(super) tests: &'static [Tests],
}

/// Test programs that one command builds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tests {
    /// Arguments after `cargo test --no-run`.
    pub(super) build: &'static [&'static str],
    /// Directory of the crate, in which the programs run.
    pub(super) directory: &'static str,
    /// Beginnings of the names of tests that take ten seconds or more.
    pub(super) left_out: &'static [&'static str],
}

const VOLUME: Tests = Tests {
    build: &["--package", "inlock-volume", "--lib", "--test", "it"],
    directory: "crates/volume",
    left_out: &[
        "algorithms::every_hash",
        "breakages::every_bit_flip",
        "breakages::luks1::every_bit_flip",
        "conversions::power_cut",
        "cryptsetup::luks_images_of_qemu",
        "edit_states::",
        "header_backups::power_cut",
        "header_verdicts::broken_header_gets_the_noted",
        "sequences::",
        "vectors::argon2_memory",
    ],
};
const VOLUME_EDIT: Tests = Tests {
    left_out: &[
        "algorithms::every_hash",
        "breakages::every_bit_flip",
        "breakages::luks1::every_bit_flip",
        "cryptsetup::luks_images_of_qemu",
        "vectors::argon2_memory",
    ],
    ..VOLUME
};
const ENGINE: Tests = Tests {
    build: &["--package", "inlock-engine", "--lib", "--test", "it"],
    directory: "crates/engine",
    left_out: &["faults::every_operation_"],
};
const FRONTEND: Tests = Tests {
    build: &["--package", "inlock-frontend", "--features", "fuse", "--lib", "--test", "it"],
    directory: "crates/frontend",
    left_out: &[
        "fairness::client_without_memory",
        "load::longest_request",
        "load::two_longest_reads",
        "regressions::mixed_requests",
        "regressions::paused_readers",
    ],
};
const VERITY: Tests = Tests {
    build: &["--package", "inlock-verity", "--lib", "--test", "it"],
    directory: "crates/verity",
    left_out: &[
        "breakages::every_byte_of_a_superblock",
        "fec::bad_blocks_are_rebuilt",
        "fec::parity_is_that_of_veritysetup",
        "tampering::every_flipped_bit",
    ],
};

const NBD_STORE: Tests = Tests {
    build: &["--package", "inlock-nbd-store", "--lib", "--test", "it"],
    directory: "crates/nbd-store",
    left_out: &[
        "restart::hundred_restarts",
        "restart::flushed_writes_survive",
        "restart::replay_makes_lost_writes_again",
    ],
};

const INTEGRITY: Tests = Tests {
    build: &["--package", "inlock-integrity", "--lib", "--test", "it"],
    directory: "crates/integrity",
    left_out: &[],
};
const RBD_STORE: Tests = Tests {
    build: &["--package", "inlock-rbd-store", "--lib", "--test", "it"],
    directory: "crates/rbd-store",
    left_out: &[],
};
const OPEN: Tests =
    Tests { build: &["--package", "inlock-open", "--lib", "--test", "it"], directory: "crates/open", left_out: &[] };
const SERVE: Tests = Tests { build: &["--package", "inlock-serve", "--lib"], directory: "crates/serve", left_out: &[] };
const CLI: Tests = Tests {
    build: &["--package", "inlock-cli", "--bin", "inlock", "--test", "it"],
    directory: "crates/cli",
    left_out: &[],
};

pub(super) const GROUPS: [Group; 10] = [
    Group {
        name: "volume",
        directory: "crates/volume",
        files: &[
            "unlock.rs",
            "luks1/unlock.rs",
            "luks1/validate.rs",
            "luks2/unlock.rs",
            "luks2/token/unlock.rs",
            "luks2/validate.rs",
            "luks2/commit.rs",
        ],
        tests: &[VOLUME],
    },
    Group {
        name: "volume-edit",
        directory: "crates/volume",
        files: &[
            "edit.rs",
            "header_backup.rs",
            "repair.rs",
            "convert/",
            "luks1/edit.rs",
            "luks1/repair.rs",
            "luks2/edit/",
        ],
        tests: &[VOLUME_EDIT],
    },
    Group {
        name: "engine",
        directory: "crates/engine",
        files: &["worker.rs", "worker/", "ring/", "locks.rs", "rmw.rs", "device.rs", "freeze.rs", "zone_queue/"],
        tests: &[ENGINE],
    },
    Group {
        name: "frontend",
        directory: "crates/frontend",
        files: &["connect.rs", "fuse/", "nbd/"],
        tests: &[FRONTEND],
    },
    Group {
        name: "nbd-store",
        directory: "crates/nbd-store",
        files: &[
            "dial.rs",
            "driver.rs",
            "error.rs",
            "job.rs",
            "line.rs",
            "options.rs",
            "replay.rs",
            "shared.rs",
            "store.rs",
            "tls.rs",
            "uri.rs",
        ],
        tests: &[NBD_STORE],
    },
    Group {
        name: "verity",
        directory: "crates/verity",
        files: &[
            "cache.rs",
            "fec.rs",
            "fsverity.rs",
            "hasher.rs",
            "layout.rs",
            "reed_solomon.rs",
            "store.rs",
            "superblock.rs",
            "tree.rs",
        ],
        tests: &[VERITY],
    },
    Group {
        name: "integrity",
        directory: "crates/integrity",
        files: &[
            "device/",
            "digest.rs",
            "format.rs",
            "freshness.rs",
            "journal_cipher.rs",
            "journal_codec.rs",
            "layout.rs",
            "load.rs",
            "marks.rs",
            "options.rs",
            "resize.rs",
            "scratch.rs",
            "store.rs",
            "stores.rs",
            "superblock.rs",
            "tags.rs",
            "verify.rs",
        ],
        tests: &[INTEGRITY],
    },
    Group {
        name: "rbd-store",
        directory: "crates/rbd-store",
        files: &["ffi.rs", "name.rs", "open.rs", "options.rs", "store.rs"],
        tests: &[RBD_STORE],
    },
    Group {
        name: "open",
        directory: "crates/open",
        files: &[
            "backing.rs",
            "device.rs",
            "edit.rs",
            "freshness.rs",
            "header.rs",
            "integrity.rs",
            "integrity_line.rs",
            "integrity_table.rs",
            "key_check.rs",
            "lock.rs",
            "lock/",
            "open.rs",
            "policy_file.rs",
            "reload.rs",
            "remote.rs",
            "removed_integrity.rs",
            "secret.rs",
            "table.rs",
            "token/",
            "trusted.rs",
            "unlocked.rs",
            "verity.rs",
            "verity_table.rs",
            "zones.rs",
        ],
        tests: &[OPEN, CLI],
    },
    Group {
        name: "serve",
        directory: "crates/serve",
        files: &["attached.rs", "control/", "log.rs", "many/"],
        tests: &[SERVE, CLI],
    },
];

impl Group {
    /// Returns whether a file of the tree is mutated.
    pub(super) fn has_file(&self, path: &str) -> bool {
        let Some(name) = path.strip_prefix(self.directory).and_then(|path| path.strip_prefix("/src/")) else {
            return false;
        };
        // Modules of tests have files of their own.
        let is_for_tests = name.ends_with("/tests.rs") || name.contains("/tests/");
        let is_named = |file: &&str| name == *file || file.ends_with('/') && name.starts_with(*file);
        name.ends_with(".rs") && !is_for_tests && self.files.iter().any(is_named)
    }

    /// Returns whether a file of the tree is the root of this crate.
    pub(super) fn has_root(&self, path: &str) -> bool {
        let name = path.strip_prefix(self.directory);
        matches!(name, Some("/src/lib.rs" | "/src/main.rs"))
    }

    /// Returns whether a mutant is of this group.
    pub(super) fn has_mutant(&self, name: &str) -> bool {
        name.split_once(':').is_some_and(|(file, _)| self.has_file(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_files_without_tests() {
        let group = |name: &str| GROUPS.iter().find(|group| group.name == name).unwrap();
        let engine = group("engine");
        assert!(engine.has_file("crates/engine/src/worker.rs"));
        assert!(engine.has_file("crates/engine/src/ring/uring.rs"));
        assert!(!engine.has_file("crates/engine/src/ring/tests.rs"));
        assert!(!engine.has_file("crates/engine/src/worker/transfer/tests.rs"));
        assert!(!engine.has_file("crates/engine/src/buffer.rs"));
        assert!(
            !engine.has_file("crates/frontend/src/nbd/mux.rs")
                && group("frontend").has_file("crates/frontend/src/nbd/mux.rs")
        );
        assert!(group("volume").has_mutant("crates/volume/src/luks2/commit.rs: replace < with > in f"));
        let root = crate::workspace_root().unwrap();
        for group in &GROUPS {
            for file in group.files {
                assert!(root.join(group.directory).join("src").join(file).exists(), "{file}");
            }
        }
    }
}
