//! Real servers: nbdkit with its filters, qemu-nbd, and the server of this project.

use crate::fake::quick;
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BackingStore, BlockingDevice, Device};
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};
use inlock_nbd_store::{NbdStore, NbdUri, StoreOptions};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;

/// A server process, killed when dropped.
pub(crate) struct Process {
    /// `None`: it was killed.
    child: Option<Child>,
    socket: PathBuf,
}

impl Process {
    pub(crate) fn start(command: &mut Command, socket: &Path) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        // It binds the socket before it listens.
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child: Some(child), socket: socket.to_owned() }
    }

    fn uri(&self) -> NbdUri {
        NbdUri::parse(&format!("nbd+unix:///?socket={}", self.socket.display())).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        // Another process may listen there by now.
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn encrypted(store: Arc<dyn BackingStore>) -> BlockingDevice {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).unwrap());
    let key = VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8));
    BlockingDevice::new(Arc::new(Device::new(&[segment], &key, store, Access::default()).unwrap()))
}

/// Writes and reads at random through encryption, on the store and on a model in memory: the same plaintext, and in the
/// end the same ciphertext.
pub(crate) fn compare(name: &str, store: NbdStore, operations: usize) {
    let size = store.geometry().len;
    let mut image = vec![0; size as usize];
    inlock_engine::store::read_all(&store, &mut image, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (model, store) = (Arc::new(MemoryStore::new(image)), Arc::new(store));
    let (expected, found) = (encrypted(Arc::clone(&model) as _), encrypted(Arc::clone(&store) as _));
    let mut random = Random::new(3);
    for step in 0..operations {
        let offset = random.below(size);
        let len = 1 + random.below((size - offset).min(if step % 8 == 0 { 1 << 20 } else { 20_000 })) as usize;
        if random.below(2) == 0 {
            let data = random.bytes(len);
            expected.write_at(&data, offset).unwrap();
            found.write_at(&data, offset).unwrap_or_else(|error| panic!("{name}: write of {len}: {error}"));
        } else {
            let (mut one, mut other) = (vec![0; len], vec![0; len]);
            expected.read_at(&mut one, offset).unwrap();
            found.read_at(&mut other, offset).unwrap_or_else(|error| panic!("{name}: read of {len}: {error}"));
            assert!(one == other, "{name}: {len} bytes at {offset}");
        }
        if step % 20 == 0 {
            found.flush().unwrap();
        }
    }
    found.flush().unwrap();
    let mut image = vec![0; size as usize];
    inlock_engine::store::read_all(&*store, &mut image, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(image == model.contents(), "{name}: the ciphertext differs");
}

pub(crate) fn nbdkit(socket: &Path, filters: &[&str], plugin: &[&str]) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["-f", "-U"]).arg(socket);
    command.args(filters.iter().map(|filter| format!("--filter={filter}"))).args(plugin);
    command
}

#[test]
fn real_servers_hold_the_ciphertext_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image");
    std::fs::write(&file, vec![0; SIZE as usize]).unwrap();
    let image = file.to_str().unwrap();
    let socket = |number: usize| dir.path().join(format!("s{number}"));
    let memory = ["memory", "8M"];
    let delayed = ["memory", "8M", "rdelay=2ms", "wdelay=2ms"];
    let policy = ["memory", "8M", "blocksize-minimum=512", "blocksize-maximum=64k", "blocksize-error-policy=error"];
    let policy_4096 = [
        "memory",
        "8M",
        "blocksize-minimum=4k",
        "blocksize-preferred=4k",
        "blocksize-maximum=4k",
        "blocksize-error-policy=error",
    ];
    let emulated = ["memory", "8M", "fuamode=emulate"];
    let nbdkits: [(&str, &[&str], &[&str], usize); 8] = [
        ("memory", &[], &memory, 300),
        ("file", &[], &["file", image], 300),
        ("delay", &["delay"], &delayed, 40),
        ("blocksize-policy", &["blocksize-policy"], &policy, 150),
        ("blocksize-policy 4096", &["blocksize-policy"], &policy_4096, 60),
        ("noextents", &["noextents", "noparallel"], &memory, 100),
        ("fua", &["fua"], &emulated, 100),
        ("multi-conn", &["multi-conn"], &memory, 150),
    ];
    let mut servers = 0;
    for (number, (name, filters, plugin, operations)) in nbdkits.into_iter().enumerate() {
        let server = Process::start(&mut nbdkit(&socket(number), filters, plugin), &socket(number));
        let store = NbdStore::open(&server.uri(), &quick(), false).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, store, operations);
        servers += 1;
    }
    let mut command = Command::new("qemu-nbd");
    command.args(["-f", "raw", "--persistent", "--shared=8", "-k"]).arg(socket(90)).arg(image);
    let server = Process::start(&mut command, &socket(90));
    compare("qemu-nbd", NbdStore::open(&server.uri(), &quick(), false).unwrap(), 300);
    let ours = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; SIZE as usize])), Access::default()));
    let server = Server::start(ours, &Listen::Unix(socket(91)), &ServerOptions::default()).unwrap();
    let uri = NbdUri::parse(&format!("nbd+unix:///?socket={}", socket(91).display())).unwrap();
    compare("our server", NbdStore::open(&uri, &quick(), false).unwrap(), 300);
    server.stop().unwrap();
    count("nbd_store_real_servers", servers + 2);
}

/// Errors of the server are the caller's, and leave the rest as it is.
#[test]
fn errors_of_nbdkit_fail_their_requests_alone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let plugin = ["memory", "8M", "error=EIO", "error-rate=30%"];
    let server = Process::start(&mut nbdkit(&socket, &["error"], &plugin), &socket);
    let store = NbdStore::open(&server.uri(), &quick(), false).unwrap();
    let (mut good, mut bad) = (0, 0);
    for step in 0..200u64 {
        match store.write_at(&[step as u8; 4096], step * 4096) {
            Ok(4096) => good += 1,
            Ok(other) => panic!("{other} bytes"),
            Err(error) => {
                assert_eq!(error, inlock_engine::Errno::IO);
                bad += 1;
            }
        }
    }
    assert!(good > 50 && bad > 10, "{good} {bad}");
}

/// A server that is killed again and again under load, on a file: the writes that were acknowledged are there.
#[test]
fn killed_qemu_nbd_comes_back_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("image"), dir.path().join("s"));
    std::fs::write(&file, vec![0; SIZE as usize]).unwrap();
    let start = || {
        let mut command = Command::new("qemu-nbd");
        command.args(["-f", "raw", "--persistent", "--shared=8", "-k"]).arg(&socket).arg(&file);
        Process::start(&mut command, &socket)
    };
    let mut server = start();
    let mut options: StoreOptions = quick();
    options.replay = Some(StoreOptions::MIN_REPLAY);
    let store = Arc::new(NbdStore::open(&server.uri(), &options, false).unwrap());
    let device = encrypted(Arc::clone(&store) as _);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut random = Random::new(9);
            let mut model = vec![0u8; SIZE as usize];
            device.write_at(&model, 0).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let offset = random.below(SIZE - 40_000);
                let len = 1 + random.below(40_000) as usize;
                let data = random.bytes(len);
                device.write_at(&data, offset).unwrap();
                model[offset as usize..][..data.len()].copy_from_slice(&data);
                if random.below(4) == 0 {
                    device.flush().unwrap();
                }
            }
            model
        });
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(150));
            server.kill();
            server = start();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    device.flush().unwrap();
    let mut found = vec![0; SIZE as usize];
    device.read_at(&mut found, 0).unwrap();
    assert!(found == written);
    drop(device);
    drop(store);
    server.kill();
    // What is in the file is the ciphertext of the model.
    let model = Arc::new(MemoryStore::new(vec![0; SIZE as usize]));
    encrypted(Arc::clone(&model) as _).write_at(&written, 0).unwrap();
    assert!(std::fs::read(&file).unwrap() == model.contents());
}
