//! An export of a server in this process, whose store a test scripts.

use inlock_cipher::{DataUnitSize, Segment, VolumeKey};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, Device};
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};
use inlock_testing::{Call, ScriptedStore, Verdict};
use std::path::PathBuf;
use std::sync::Arc;

/// An NBD server of one export.
pub(crate) struct Export {
    server: Option<Server>,
    dir: tempfile::TempDir,
}

impl Export {
    /// Serves these bytes; the script sees each call of their store.
    pub(crate) fn new(bytes: Vec<u8>, script: impl Fn(Call<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        let store = Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(bytes)), script));
        let whole = Segment::whole(None, DataUnitSize::SECTOR);
        let access = Access { read_only: false, allow_discards: false };
        let device = Device::new(&[whole], &VolumeKey::zeroed(0), store, access).expect("a device");
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = ServerOptions::default();
        (options.threads, options.io) = (1, IoMode::Sync);
        let listen = Listen::Unix(dir.path().join("s"));
        let server = Server::start(Arc::new(device), &listen, &options).expect("a server");
        Self { server: Some(server), dir }
    }

    /// Returns the name of the device.
    pub(crate) fn uri(&self) -> PathBuf {
        format!("nbd+unix:///?socket={}", self.dir.path().join("s").display()).into()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.stop();
        }
    }
}
