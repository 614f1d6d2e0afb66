//! A volume without a server: keys, lengths, flags, tables, and what is told of it.

use super::*;
use crate::control::name::Name;
use inlock_engine::Access;
use inlock_engine::store::memory::MemoryStore;
use inlock_open::layer::Mapped;

struct PanickingHooks;

impl ControlHooks for PanickingHooks {
    fn close(&self, _deferred: bool) -> Result<()> {
        panic!("a defect");
    }
}

#[test]
fn panic_in_command_is_reported() {
    let info = serde_json::from_value(json!({
        "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx", "segments": [],
        "read_only": false, "allow_discards": false, "offload": "none", "via": "nbd", "ring": "sync", "threads": 1
    }));
    let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
    let files = Files::within("/nowhere".into(), &Name::new("data").unwrap());
    let volume = (Arc::new(device), Arc::new(Mapped) as Arc<dyn Layer>);
    let context = Context::new(inlock_open::host::Silent, inlock_open::Settings::default());
    let volume = ServedVolume::new(context, info.unwrap(), volume, Some(files), PanickingHooks);
    let error = volume.change("close", &json!({}), None).unwrap_err();
    assert!(error.to_string().contains("'close' failed"), "{error}");
    volume.change("resize", &json!({}), None).unwrap();
    volume.change("suspend", &json!({}), None).unwrap();
    assert!(volume.status().suspended && !volume.status().key_present, "there is no key to wipe");
    volume.change("resume", &json!({}), None).unwrap();
}

const KEY: [u8; 64] = [7; 64];
const LEN: usize = 1 << 20;

/// How the volume is attached.
#[derive(Default)]
struct Recorded {
    closes: Mutex<Vec<bool>>,
    lens: Mutex<Vec<u64>>,
    fails: AtomicBool,
}

impl Recorded {
    fn outcome(&self) -> Result<()> {
        if self.fails.load(Ordering::Acquire) { Err(Error::other("a test")) } else { Ok(()) }
    }
}

impl ControlHooks for Arc<Recorded> {
    fn close(&self, deferred: bool) -> Result<()> {
        self.closes.lock().unwrap().push(deferred);
        self.outcome()
    }

    fn check_discards(&self) -> Result<()> {
        self.outcome()
    }

    fn resized(&self, len: u64) -> Result<()> {
        self.lens.lock().unwrap().push(len);
        self.outcome()
    }
}

/// A volume that takes its key from a table.
#[derive(Default)]
struct Keyed {
    stays: AtomicBool,
    has_other_key: AtomicBool,
    takes_lines: AtomicBool,
}

impl Layer for Keyed {
    fn check_suspend(&self, volume: RunningVolume<'_>) -> inlock_open::Result<()> {
        match self.stays.load(Ordering::Acquire) {
            // Any error.
            true => Mapped.resize(volume, Some(1 << 40), NewBlocks::Wipe).map(drop),
            false => Ok(()),
        }
    }

    fn resize(
        &self,
        volume: RunningVolume<'_>,
        sectors: Option<u64>,
        blocks: NewBlocks,
    ) -> inlock_open::Result<Resized> {
        Mapped.resize(volume, sectors, blocks)
    }

    fn accept_table(
        &self,
        context: &Context,
        volume: RunningVolume<'_>,
        table: AnyTable,
    ) -> inlock_open::Result<NewTable> {
        if self.takes_lines.load(Ordering::Acquire) {
            return Mapped.accept_table(context, volume, table);
        }
        let key = if self.has_other_key.load(Ordering::Acquire) { [8; 64] } else { KEY };
        let flags = CryptOptions::named(["same_cpu_crypt"]).unwrap();
        Ok(NewTable::Key(VolumeKey::new(&key), flags))
    }
}

/// Messages of a context.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<String>>>);

impl inlock_open::host::Host for Messages {
    fn tell(&self, _level: inlock_open::host::Level, text: &dyn std::fmt::Display) {
        self.0.lock().unwrap().push(text.to_string());
    }
}

struct Full;

impl inlock_engine::CipherEngine for Full {
    fn open_key(&self, _: &inlock_engine::EngineKeySpec<'_>) -> Option<Box<dyn inlock_engine::EngineKey>> {
        None
    }
}

struct Fixture {
    volume: ServedVolume,
    messages: Messages,
    hooks: Arc<Recorded>,
    layer: Arc<Keyed>,
    device: Arc<Device>,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::with(true, false)
    }

    /// A volume whose key is known, or is not, with an engine that has no room for keys.
    fn with(has_check: bool, has_engine: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "").unwrap();
        let found = std::fs::metadata(&image).unwrap();
        let spec = "aes-xts-plain64".parse().unwrap();
        let segment = inlock_volume::Segment::whole(Some(spec), inlock_volume::DataUnitSize::SECTOR);
        let key = VolumeKey::new(&KEY);
        let store = Arc::new(MemoryStore::new(vec![0; LEN]));
        let device = Device::new(&[segment], &key, store, Access::default()).unwrap();
        let device = match has_engine {
            true => device.with_engine(Arc::new(Full), 4096, &[&key]).unwrap(),
            false => device,
        };
        let device = Arc::new(device);
        let info = inlock_open::info::VolumeInfo {
            kind: "PLAIN".to_owned(),
            device: "/dev/sdx".into(),
            header: None,
            header_identity: None,
            uuid: None,
            hash: None,
            segments: vec![inlock_open::info::SegmentInfo::of(&segment, 64)],
            check: has_check.then(|| KeyCheck::new(&[segment], &key).unwrap()),
            own_flags: CryptOptions::default(),
            flags: CryptOptions::default(),
            devices: vec![inlock_open::device::identity(&found)],
        };
        let info = RuntimeInfo::new(&"data", info, &device);
        let (hooks, layer) = (Arc::<Recorded>::default(), Arc::<Keyed>::default());
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        let messages = Messages::default();
        let context = Context::new(messages.clone(), inlock_open::Settings::default());
        let parts = (Arc::clone(&device), Arc::clone(&layer) as Arc<dyn Layer>);
        let volume = ServedVolume::new(context, info, parts, Some(files), Arc::clone(&hooks));
        Self { volume, messages, hooks, layer, device, dir }
    }

    fn change(&self, command: &str, request: &Value) -> Reply {
        self.volume.change(command, request, None)
    }

    fn with_pipe(&self, command: &str, text: &[u8]) -> Reply {
        self.volume.change(command, &json!({}), Some(pipe::filled(text).unwrap()))
    }

    fn refresh(&self, flags: &[&str], persistent: bool) -> Reply {
        self.change("refresh", &json!({"flags": flags, "persistent": persistent}))
    }

    /// Returns whether discards are allowed, by the device and the information, and the other flags.
    fn flags(&self) -> (bool, bool, Vec<String>) {
        let info = self.volume.describe().info;
        (self.device.access().allow_discards, info.allow_discards, info.table_flags)
    }

    /// Returns whether it is suspended, and has its key.
    fn state(&self) -> (bool, bool) {
        let status = self.volume.status();
        (status.suspended, status.key_present)
    }
}

#[test]
fn suspended_volume_has_no_key_until_it_gets_the_same_one() {
    let fixture = Fixture::new();
    let none = json!({});
    assert!(matches!(fixture.change("resume", &none), Err(Error::NotSuspended { .. })));
    fixture.layer.stays.store(true, Ordering::Release);
    fixture.change("suspend", &none).unwrap_err();
    assert_eq!(fixture.state(), (false, true));
    fixture.layer.stays.store(false, Ordering::Release);
    fixture.change("suspend", &none).unwrap();
    assert_eq!(fixture.state(), (true, false));
    assert!(matches!(fixture.change("suspend", &none), Err(Error::Suspended { .. })));
    assert!(matches!(fixture.change("resize", &none), Err(Error::SuspendedResize { .. })));
    assert!(matches!(fixture.change("resume", &none), Err(Error::KeyMissing { .. })));
    fixture.with_pipe("resume", &[8; 64]).unwrap_err();
    assert_eq!(fixture.state(), (true, false));
    fixture.with_pipe("resume", &KEY).unwrap();
    assert_eq!(fixture.state(), (false, true));
    // From a table.
    fixture.change("suspend", &none).unwrap();
    let table = format!("0 8 crypt aes-xts-plain64 {} 0 /dev/sdx 0", "aa".repeat(64));
    fixture.layer.has_other_key.store(true, Ordering::Release);
    fixture.with_pipe("reload", table.as_bytes()).unwrap_err();
    assert_eq!((fixture.state(), fixture.flags().2.len()), ((true, false), 0));
    fixture.layer.has_other_key.store(false, Ordering::Release);
    fixture.with_pipe("reload", table.as_bytes()).unwrap();
    assert_eq!((fixture.state(), fixture.flags().2), ((true, true), vec!["same_cpu_crypt".to_owned()]));
    fixture.change("resume", &none).unwrap();
    assert_eq!(fixture.state(), (false, true));
    assert!(fixture.messages.0.lock().unwrap().is_empty(), "no engine refuses the key");
    let mut byte = [0];
    inlock_engine::BlockingDevice::new(Arc::clone(&fixture.device)).read_at(&mut byte, 0).unwrap();
}

#[test]
fn volume_whose_key_is_not_known_takes_none() {
    let fixture = Fixture::with(false, false);
    fixture.change("suspend", &json!({})).unwrap();
    fixture.with_pipe("resume", &KEY).unwrap_err();
    let table = format!("0 8 crypt aes-xts-plain64 {} 0 /dev/sdx 0", "aa".repeat(64));
    fixture.with_pipe("reload", table.as_bytes()).unwrap_err();
    assert_eq!(fixture.state(), (true, false));
}

#[test]
fn engine_that_has_no_room_for_the_key_is_told_of() {
    let fixture = Fixture::with(true, true);
    fixture.change("suspend", &json!({})).unwrap();
    fixture.with_pipe("resume", &KEY).unwrap();
    let messages = fixture.messages.0.lock().unwrap().clone();
    assert!(messages.len() == 1 && messages[0].contains("the cipher engine refuses the key"), "{messages:?}");
}

#[test]
fn table_that_is_refused_is_not_in_the_state_file() {
    let fixture = Fixture::new();
    fixture.layer.takes_lines.store(true, Ordering::Release);
    fixture.change("suspend", &json!({})).unwrap();
    let reload = |sectors: usize| {
        let image = fixture.dir.path().join("image");
        let key = "0123456789abcdef".repeat(8);
        let table = format!("0 {sectors} crypt aes-xts-plain64 {key} 0 {} 0", image.display());
        fixture.with_pipe("reload", table.as_bytes())
    };
    let kind = || {
        let state = std::fs::read_to_string(fixture.dir.path().join("data.json")).unwrap();
        serde_json::from_str::<Value>(&state).unwrap()["type"].clone()
    };
    let refused = reload(8).unwrap_err();
    assert!(matches!(refused, Error::Table { .. }), "{refused}");
    assert_eq!((kind(), fixture.state()), ("PLAIN".into(), (true, false)));
    reload(LEN / 512).unwrap();
    assert_eq!((kind(), fixture.state()), ("TABLE".into(), (true, true)));
    assert!(fixture.hooks.lens.lock().unwrap().is_empty(), "it has not grown");
    assert_eq!(fixture.volume.describe().info.kind, "TABLE");
}

#[test]
fn length_is_announced_and_what_is_not_announced_is_told() {
    let fixture = Fixture::new();
    let reply = fixture.change("resize", &json!({"sectors": 8})).unwrap();
    assert_eq!((&reply["sectors"], &reply["wanted"]), (&json!(8), &json!(8)));
    fixture.hooks.fails.store(true, Ordering::Release);
    fixture.change("resize", &json!({})).unwrap_err();
    assert_eq!(*fixture.hooks.lens.lock().unwrap(), [4096, LEN as u64]);
}

#[test]
fn flags_are_those_of_the_request_and_of_the_header() {
    let fixture = Fixture::new();
    let flags = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>();
    fixture.hooks.fails.store(true, Ordering::Release);
    fixture.refresh(&["allow_discards"], false).unwrap_err();
    assert_eq!(fixture.flags(), (false, false, Vec::new()));
    fixture.refresh(&["high_priority"], false).unwrap();
    assert_eq!(fixture.flags(), (false, false, flags(&["high_priority"])));
    fixture.hooks.fails.store(false, Ordering::Release);
    fixture.refresh(&["allow_discards"], false).unwrap();
    assert_eq!(fixture.flags(), (true, true, Vec::new()));
    let state = std::fs::read_to_string(fixture.dir.path().join("data.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&state).unwrap()["allow_discards"], true);
    // They are allowed already.
    fixture.hooks.fails.store(true, Ordering::Release);
    fixture.refresh(&["allow_discards", "same_cpu_crypt"], false).unwrap();
    assert_eq!(fixture.flags(), (true, true, flags(&["same_cpu_crypt"])));
    fixture.refresh(&["high_priority"], true).unwrap();
    assert_eq!(fixture.flags(), (false, false, flags(&["high_priority"])));
    fixture.refresh(&["same_cpu_crypt"], false).unwrap();
    assert_eq!(fixture.flags().2, flags(&["same_cpu_crypt", "high_priority"]));
    // What the next process could not know does not happen.
    std::fs::remove_dir_all(fixture.dir.path()).unwrap();
    fixture.refresh(&[], true).unwrap_err();
    assert_eq!(fixture.flags().2.len(), 2);
    assert!(matches!(fixture.refresh(&["none"], false), Err(Error::Request(_))));
}

#[test]
fn close_is_that_of_the_method_and_unknown_commands_are_refused() {
    let fixture = Fixture::new();
    for deferred in [false, true] {
        fixture.change("close", &json!({"deferred": deferred})).unwrap();
    }
    assert_eq!(*fixture.hooks.closes.lock().unwrap(), [false, true]);
    assert!(matches!(fixture.change("cancel_deferred", &json!({})), Err(Error::NotDeferred)));
    for command in ["none", "reencrypt", "reload"] {
        assert!(matches!(fixture.change(command, &json!({})), Err(Error::Request(_))), "{command}");
    }
    let unknown = fixture.change("none", &json!({})).unwrap_err().to_string();
    let reencrypt = fixture.change("reencrypt", &json!({})).unwrap_err().to_string();
    assert!(unknown.contains("'none'") && reencrypt.contains("LUKS2"), "{unknown}; {reencrypt}");
}

#[test]
fn metrics_address_is_a_part_of_the_information() {
    let fixture = Fixture::new();
    let info = fixture.volume.with_metrics(Some("unix:/socket".to_owned()));
    assert_eq!(info.metrics.as_deref(), Some("unix:/socket"));
    assert_eq!(fixture.volume.describe().info.metrics, info.metrics);
    let mut text = Text::default();
    fixture.volume.write_metrics(&mut text);
    assert!(text.finish().contains("inlock_volume_info{volume=\"data\""));
}

#[test]
fn reply_is_a_line_with_the_code_of_an_error() {
    let told = |code| Told { message: "m".into(), hint: None, exit: 1, code };
    assert_eq!(line(Ok(Map::new())), b"{\"ok\":true}\n");
    let text = |told| String::from_utf8(line(Err(told))).unwrap();
    assert_eq!(text(told(None)), "{\"ok\":false,\"error\":\"m\",\"hint\":null,\"exit\":1}\n");
    assert!(text(told(Some("c".into()))).contains("\"code\":\"c\""));
}
