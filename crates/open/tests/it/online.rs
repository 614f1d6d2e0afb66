//! Re-encryption of an open volume with direct I/O, as block devices are attached.

use std::sync::{Arc, mpsc};

use inlock_engine::store::file::IoMode;
use inlock_engine::{Access, BlockingDevice};
use inlock_open::reencryption::online::{OnlineOptions, OnlineState};
use inlock_open::reencryption::{NewParameters, Offline, ZoneProtection};
use inlock_open::secret::Ask;
use inlock_open::source::{HeaderOptions, KeyOptions, Luks};
use inlock_open::{KeySource, OpenOptions, open};
use inlock_volume::luks2::reencryption::ReencryptionMode;
use inlock_volume::{Hash, HeaderPolicy, KdfKind, NewKeyslot};

use super::locks::loop_over;
use super::{Image, PASSPHRASE, opened, silent};

fn parameters() -> NewParameters {
    let mut keyslot = NewKeyslot::new(KdfKind::Pbkdf2);
    keyslot.kdf.forced_iterations = Some(1000);
    NewParameters {
        mode: ReencryptionMode::Reencrypt,
        cipher: None,
        key_len: None,
        unit: None,
        keeps_key: false,
        key: None,
        keyslot,
        other_keyslots: Vec::new(),
        hash: Hash::Sha256,
        protection: ZoneProtection::Checksum("sha256".to_owned()),
        data_len: None,
        longest_moved: None,
    }
}

#[test]
fn volume_with_direct_io_is_re_encrypted_while_it_is_open() {
    let image = Image::new();
    let Some(node) = loop_over(&image.path()) else { return };
    let options = OpenOptions::luks(&node.0, KeySource::bytes(PASSPHRASE));
    let mut unlocked = open(&silent(), &options, true, None).expect("it opens");
    unlocked.use_direct_io();
    let volume = unlocked.into_device(IoMode::Sync, Access::default()).expect("a device");
    assert!(volume.device.stores()[0].profile().memory_alignment > 1, "it has direct I/O");
    let device = BlockingDevice::new(Arc::clone(&volume.device));
    let model: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    device.write_at(&model, 0).expect("it writes");

    let at = HeaderOptions { image: node.0.clone(), header: None, luks: Luks::Two, policy: HeaderPolicy::default() };
    let context = silent();
    let ask = Ask { device: &node.0, prompt: None, verify: false, context: &context };
    let mut offline = Offline::open_header(&context, &at).expect("it opens");
    let key = KeyOptions::new(KeySource::bytes(PASSPHRASE));
    let keyslot = offline.header().open_keyslot(&key, ask).expect("the passphrase");
    offline.begin(&parameters(), &[keyslot]).expect("it begins");
    let (staged, joined) = (offline.staged().expect("changes"), offline.joined_key().expect("both keys"));
    drop(offline);
    let online = volume.layer.reencryption().expect("a LUKS2 volume");
    online.begin(&staged).expect("it is written");
    let (told, finished) = mpsc::channel();
    let options = OnlineOptions {
        longest_zone: Some(64 << 10),
        rate: None,
        keeps_holes: false,
        is_paused: false,
        begun: Box::new(|_| ()),
        finished: Box::new(move |_| told.send(()).expect("the test waits")),
    };
    online.go_on(&volume.device, (&joined, None), options).expect("it goes on");
    finished.recv().unwrap_or_else(|_| panic!("{:?}", online.status(&volume.device)));
    let status = online.status(&volume.device).expect("a status");
    assert!(status.error.is_none() && status.state != OnlineState::Failed, "{status:?}");
    let mut read = vec![0; model.len()];
    device.read_at(&mut read, 0).expect("it reads");
    assert!(read == model);
    drop((device, volume));
    let options = OpenOptions::luks(&node.0, KeySource::bytes(PASSPHRASE));
    let volume = opened(&silent(), &options, false).expect("it opens");
    BlockingDevice::new(Arc::clone(&volume.device)).read_at(&mut read, 0).expect("it reads");
    assert!(read == model);
}
