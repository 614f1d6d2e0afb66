//! `inlock_frontend::fuse`, left out.

/// Loop devices on FUSE files.
pub(crate) mod loop_device {
    use std::path::Path;

    #[derive(Debug, thiserror::Error)]
    #[error("inlock was built without the feature 'fuse'")]
    pub(crate) struct LoopError;

    pub(crate) enum LoopDevice {}

    /// Used only by builds with the feature.
    #[derive(Default)]
    pub(crate) struct LoopOptions {
        pub block: usize,
        pub read_only: bool,
    }

    pub(crate) fn is_available() -> bool {
        false
    }

    impl LoopDevice {
        pub(crate) fn attach(_file: &Path, _: &LoopOptions) -> Result<Self, LoopError> {
            Err(LoopError)
        }

        /// Finds no device: only a build with the feature can take over or remove one.
        pub(crate) fn all_on(_file: &Path) -> Vec<Self> {
            Vec::new()
        }

        pub(crate) fn node(&self) -> &Path {
            match *self {}
        }

        pub(crate) fn is_attached(&self) -> bool {
            match *self {}
        }

        pub(crate) fn detach(&mut self) -> Result<bool, LoopError> {
            match *self {}
        }

        pub(crate) fn update_len(&self) -> Result<(), LoopError> {
            match *self {}
        }
    }
}

/// FUSE files.
pub(crate) mod mount {
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use inlock_engine::Device;

    /// Used only by builds with the feature.
    #[derive(Default)]
    pub(crate) struct FuseOptions {
        pub name: String,
        pub threads: usize,
    }

    #[derive(Debug, thiserror::Error)]
    #[expect(dead_code, reason = "only a mount fails in the other ways")]
    pub(crate) enum FuseError {
        #[error("inlock was built without the feature 'fuse'")]
        NoFuse,
        #[error("{0}")]
        NotPermitted(io::Error),
        #[error("{} is in use", .0.display())]
        Busy(PathBuf),
    }

    pub(crate) enum FuseMount {}

    #[derive(PartialEq, Eq)]
    #[expect(dead_code, reason = "only a build with the feature tells whether a server answers")]
    pub(crate) enum FileState {
        Unmounted,
        Served,
        Dead,
    }

    /// Fails for a file that a build with the feature mounted. A file whose server is gone has no metadata.
    pub(crate) fn state_of(path: &Path) -> Result<FileState, FuseError> {
        let directory = path.parent().and_then(|directory| directory.metadata().ok()).map(|found| found.dev());
        match path.metadata() {
            Ok(found) if Some(found.dev()) == directory => Ok(FileState::Unmounted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileState::Unmounted),
            _ => Err(FuseError::NoFuse),
        }
    }

    pub(crate) fn unmount(_path: &Path) -> Result<(), FuseError> {
        Err(FuseError::NoFuse)
    }

    pub(crate) fn unmount_lazily(_path: &Path) -> Result<(), FuseError> {
        Err(FuseError::NoFuse)
    }

    impl FuseMount {
        pub(crate) fn start(_: &Arc<Device>, _path: &Path, _: &FuseOptions) -> Result<Self, FuseError> {
            Err(FuseError::NoFuse)
        }

        pub(crate) fn path(&self) -> &Path {
            match *self {}
        }

        pub(crate) fn is_mounted(&self) -> bool {
            match *self {}
        }

        pub(crate) fn stop(&mut self) -> Result<(), FuseError> {
            match *self {}
        }
    }
}
