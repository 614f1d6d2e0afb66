//! Exports that are short, stop to answer, or have to make writes durable.

use crate::export::Export;
use crate::{Image, PASSPHRASE, kind, opened, silent};
use inlock_engine::{BlockingDevice, Errno};
use inlock_open::device::{Device, OpenMode};
use inlock_open::header::Header;
use inlock_open::open::has_zones;
use inlock_open::source::{HeaderOptions, Luks, VolumeType};
use inlock_open::{ErrorKind, KeySource, OpenOptions, removed_integrity};
use inlock_testing::{Call, Gate, Verdict};
use inlock_volume::{HeaderDevice, HeaderPolicy};
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn export_shorter_than_a_header_has_none() {
    let export = Export::new(vec![0; 1024], |_| Verdict::Pass);
    let options = OpenOptions::luks(export.uri(), KeySource::bytes(PASSPHRASE));
    assert_eq!(kind(opened(&silent(), &options, false)), ErrorKind::NotLuks { found: None, may_be_plain: true });
    let device = Device::open(&silent(), &export.uri(), OpenMode::Read).expect("the export");
    let header = device.header().expect("access");
    for (offset, len, expected) in [(0, 1024, Ok(())), (1, 1024, Err(io::ErrorKind::UnexpectedEof)), (1024, 0, Ok(()))]
    {
        let read = header.read_exact_at(&mut vec![0; len], offset);
        assert_eq!(read.map_err(|error| error.kind()), expected, "{len} bytes at {offset}");
    }
}

#[test]
fn changed_header_of_an_export_is_made_durable_by_its_server() {
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let export = Export::new(std::fs::read(Image::new().path()).expect("an image"), {
        let calls = Arc::clone(&calls);
        move |call| {
            match call {
                Call::Write { .. } => calls.lock().expect("no panic").push("write"),
                Call::Sync => calls.lock().expect("no panic").push("sync"),
                _ => {}
            }
            Verdict::Pass
        }
    });
    let options = HeaderOptions { image: export.uri(), header: None, luks: Luks::Any, policy: HeaderPolicy::default() };
    let mut header = Header::load_to_edit(&silent(), &options).expect("a header");
    header.edit(&[], |volume, device| volume.set_uuid(device, None)).expect("it is changed");
    let mut calls = calls.lock().expect("no panic").clone();
    calls.dedup();
    // Both copies, one after the other.
    assert_eq!(calls, ["write", "sync", "write", "sync"]);
}

#[test]
fn superblock_of_removed_integrity_is_cleared_for_good_or_an_error() {
    const AT: usize = 4096;
    let mut bytes = vec![1; AT + 512];
    bytes[AT..AT + 8].copy_from_slice(b"integrt\0");
    for (fails, wanted) in [(None, vec!["write", "sync"]), (Some("write"), vec!["write"]), (Some("sync"), vec![])] {
        let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
        let export = Export::new(bytes.clone(), {
            let calls = Arc::clone(&calls);
            move |call| {
                let name = match call {
                    Call::Write { .. } => "write",
                    Call::Sync => "sync",
                    _ => return Verdict::Pass,
                };
                calls.lock().expect("no panic").push(name);
                if fails == Some(name) { Verdict::Fail(Errno::IO) } else { Verdict::Pass }
            }
        });
        let device = Device::open(&silent(), &export.uri(), OpenMode::Header).expect("the export");
        // At the end of the device there is one; none is behind it.
        let cleared = removed_integrity::clear(&device, AT as u64);
        assert_eq!(cleared.is_ok(), fails.is_none(), "{fails:?}: {cleared:?}");
        let seen = std::mem::take(&mut *calls.lock().expect("no panic"));
        assert!(wanted.is_empty() || seen == wanted, "{fails:?}: {seen:?}");
        for offset in [0, AT as u64 + 1, u64::MAX] {
            removed_integrity::clear(&device, offset).expect("there is none");
        }
        let seen = calls.lock().expect("no panic").clone();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

#[test]
fn abort_of_a_context_fails_what_waits_for_an_export() {
    let (gate, reads) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let export = Export::new(vec![0; 1 << 20], {
        let (gate, reads) = (Arc::clone(&gate), Arc::clone(&reads));
        move |call| {
            if let Call::Read { .. } = call {
                reads.fetch_add(1, Ordering::SeqCst);
                gate.pass();
            }
            Verdict::Pass
        }
    });
    let context = silent();
    let raw = OpenOptions::new(export.uri(), VolumeType::Raw, KeySource::bytes(""));
    let volume = opened(&context, &raw, false).expect("it opens");
    gate.close();
    reads.store(0, Ordering::SeqCst);
    let (told, heard) = std::sync::mpsc::channel();
    let device = BlockingDevice::new(Arc::clone(&volume.device));
    std::thread::spawn(move || told.send(device.read_at(&mut [0; 512], 0).is_ok()));
    inlock_tests::wait::eventually("the server is asked", || reads.load(Ordering::SeqCst), |reads| *reads > 0);
    context.abort();
    let ended = heard.recv_timeout(Duration::from_secs(60));
    gate.open();
    assert_eq!(ended, Ok(false), "the read fails, and does not wait for the server");
}

#[test]
fn place_behind_the_last_byte_of_all_fits_no_export() {
    let export = Export::new(vec![0; 1 << 20], |_| Verdict::Pass);
    let device = Device::open(&silent(), &export.uri(), OpenMode::Read).expect("the export");
    assert!(!device.is_block() && device.metadata().is_none());
    let remote = device.remote().expect("an export");
    let block = remote.min_block();
    for (unit, offset, fits) in [
        (block, Some(0), true),
        (2 * block, Some(block), true),
        (2 * block, Some(u64::MAX / block * block), true),
        // What is in sectors has more bytes than a number.
        (block, None, false),
    ] {
        assert_eq!(remote.is_fitting(unit, offset), fits, "{unit} {offset:?}");
    }
}

/// It has none, and a server may take a single connection.
#[test]
fn server_is_not_asked_for_zones() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    listener.set_nonblocking(true).expect("a socket");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    assert!(!has_zones(&silent(), &OpenOptions::luks(uri, KeySource::bytes(PASSPHRASE))));
    assert_eq!(listener.accept().expect_err("nobody connects").kind(), io::ErrorKind::WouldBlock);
}
