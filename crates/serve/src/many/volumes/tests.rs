//! Tests of volumes without a server.

use super::*;
use inlock_open::engine::EngineOptions;
use inlock_open::host::Silent;
use inlock_open::{Context, Settings};
use inlock_tests::wait::eventually;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Returns the table of a volume without a key.
fn raw(dir: &Path, name: &str, more: &str) -> String {
    let image = dir.join(name);
    if !image.exists() {
        fs::write(&image, [0; 4096]).unwrap();
    }
    format!("[volumes.{name}]\nimage = \"{}\"\ntype = \"raw\"\n{more}\n", image.display())
}

fn rewrite(dir: &Path, config: &str) {
    fs::write(dir.join("volumes.toml"), config).unwrap();
}

fn load(dir: &Path, config: &str) -> Volumes {
    rewrite(dir, config);
    let context = Context::new(Silent, Settings::default());
    Volumes::load(Arc::new(context), &dir.join("volumes.toml"), Trust::Checked).unwrap()
}

/// Returns closed volumes with these names, which have no key.
fn volumes(dir: &Path, names: &[&str]) -> Volumes {
    let mut config = String::new();
    for name in names {
        write!(config, "{}", raw(dir, name, "")).unwrap();
    }
    load(dir, &config)
}

/// A volume that opens when its key comes through a pipe.
struct Slow {
    config: String,
    fifo: PathBuf,
}

impl Slow {
    fn new(dir: &Path, name: &str) -> Self {
        let (image, fifo) = (dir.join(name), dir.join(format!("{name}.fifo")));
        fs::write(&image, [0; 4096]).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let config = format!(
            "[volumes.{name}]\nimage = \"{}\"\ntype = \"plain\"\nkey-timeout = 600\nkey-command = [\"/bin/cat\", \"{}\"]\n",
            image.display(),
            fifo.display()
        );
        Self { config, fifo }
    }

    /// Sends the key; without one the volume does not open.
    fn send(&self, key: &[u8]) {
        use std::os::unix::fs::OpenOptionsExt;
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let open = || File::options().write(true).custom_flags(nonblocking).open(&self.fifo);
        let pipe = eventually("the key is read", open, Result::is_ok);
        pipe.unwrap().write_all(key).unwrap();
    }
}

impl Volumes {
    fn stage(&self, name: &str) -> &'static str {
        lock(&self.entry(name).unwrap().state).stage.name()
    }

    fn waiting(&self, name: &str) -> (usize, usize) {
        (self.waiting.load(Ordering::Acquire), self.entry(name).unwrap().waiting.load(Ordering::Acquire))
    }

    fn opens(&self, name: &str) -> Result<(), Unavailable> {
        Catalog::open(self, name).map(drop)
    }
}

#[test]
fn memory_of_a_closed_volume_is_given_back_although_another_one_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a", "b"]);
    let open = |name: &str| drop(volumes.open(name).map_err(|_| ()).unwrap());
    open("a");
    assert!(!volumes.has_freed_memory(), "nothing was closed");
    volumes.close("a", false).unwrap();
    open("b");
    assert!(volumes.has_freed_memory());
    assert!(!volumes.has_freed_memory(), "it looks for nothing every second");
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn volume_has_as_many_waiting_clients_as_its_places() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    let entry = volumes.entry("a").unwrap();
    for (all, own, has_place) in [
        (0, MAX_WAITING - 1, true),
        (0, MAX_WAITING, false),
        (MANY_WAITING - 1, MAX_WAITING - 1, true),
        (MANY_WAITING, OWN_WAITING, false),
        (MANY_WAITING, OWN_WAITING - 1, true),
    ] {
        volumes.waiting.store(all, Ordering::Release);
        entry.waiting.store(own, Ordering::Release);
        assert_eq!(volumes.opens("a").is_ok(), has_place, "{own} of {all}");
        assert_eq!(volumes.waiting("a"), (all, own), "a client that waits no longer has a place");
    }
    entry.waiting.store(0, Ordering::Release);
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn volume_is_due_at_its_timeout_unless_a_client_came_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (raw(dir.path(), "a", "idle-timeout = 5"), raw(dir.path(), "b", ""));
    let volumes = load(dir.path(), &format!("{a}{b}"));
    let begun = Instant::now();
    let timeout = Duration::from_secs(5);
    let is_due = |name: &str, now: Instant| lock(&volumes.entry(name).unwrap().state).is_due(now);
    let idle_since = |since: Option<Option<Instant>>| {
        let entry = volumes.entry("a").unwrap();
        let mut state = lock(&entry.state);
        let Stage::Open(running) = &mut state.stage else { panic!("it is not open") };
        if let Some(since) = since {
            running.idle_since = since;
        }
        running.idle_since
    };
    let note = |now: Instant| {
        let entry = volumes.entry("a").unwrap();
        let mut state = lock(&entry.state);
        let Stage::Open(running) = &mut state.stage else { panic!("it is not open") };
        running.note_clients(now);
    };
    volumes.opens("a").unwrap();
    volumes.opens("b").unwrap();
    assert_eq!(idle_since(None), None);
    note(begun);
    assert!(!is_due("a", begun + timeout - Duration::from_nanos(1)) && is_due("a", begun + timeout));
    note(begun + timeout);
    assert_eq!(idle_since(None), Some(begun), "it has been idle since then");
    volumes.close_idle();
    assert!(!is_due("b", begun + 1000 * timeout), "it has no timeout");

    // A client that came and left between two looks.
    volumes.opens("a").unwrap();
    assert_eq!(idle_since(None), None);
    // One that is there.
    let lease = volumes.open("a").map_err(|_| ()).unwrap();
    idle_since(Some(Some(begun)));
    assert!(!is_due("a", begun + timeout), "it has a client");
    note(begun + timeout);
    assert_eq!(idle_since(None), None);
    drop(lease);
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn idle_volumes_are_closed_by_threads_of_a_limited_number() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a", "b"]);
    let closers = || volumes.idle_closers.load(Ordering::Acquire);
    for name in ["a", "b"] {
        volumes.opens(name).unwrap();
        let entry = volumes.entry(name).unwrap();
        let mut state = lock(&entry.state);
        state.config.idle_timeout = Some(Duration::ZERO);
        let Stage::Open(running) = &mut state.stage else { panic!("it is not open") };
        running.idle_since = Some(Instant::now());
    }
    volumes.idle_closers.store(IDLE_CLOSERS, Ordering::Release);
    {
        // No thread can end before it is seen.
        let entry = volumes.entry("a").unwrap();
        let _state = lock(&entry.state);
        volumes.close_due(vec![volumes.entry("a").unwrap()]);
        assert_eq!(closers(), IDLE_CLOSERS);
    }
    volumes.idle_closers.store(IDLE_CLOSERS - 1, Ordering::Release);
    volumes.close_due(volumes.entries());
    let stages = || [volumes.stage("a"), volumes.stage("b")];
    eventually("both are closed", stages, |stages| *stages == ["closed"; 2]);
    eventually("the threads have ended", closers, |closers| *closers == IDLE_CLOSERS - 1);
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn commands_forget_failures_to_open() {
    let dir = tempfile::tempdir().unwrap();
    let config = raw(dir.path(), "a", "");
    let volumes = load(dir.path(), &config);
    let image = dir.path().join("a");
    for forget in [&|| volumes.close("a", false).unwrap() as _, &|| drop(volumes.reload().unwrap())] as [&dyn Fn(); 2] {
        fs::remove_file(&image).unwrap();
        assert!(matches!(volumes.opens("a"), Err(Unavailable::Refused)));
        fs::write(&image, [0; 4096]).unwrap();
        assert!(matches!(volumes.opens("a"), Err(Unavailable::Refused)), "it is tried again later");
        forget();
        volumes.opens("a").unwrap();
        volumes.close("a", false).unwrap();
    }
}

#[test]
fn changed_options_close_a_volume_and_changed_limits_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = load(dir.path(), &raw(dir.path(), "a", ""));
    for (more, outcome, stage) in [
        ("", "0 volumes added, 0 removed, 0 changed", "open"),
        ("max-operations = 1", "0 volumes added, 0 removed, 1 changed", "open"),
        ("max-clients = 3", "0 volumes added, 0 removed, 1 changed", "closed"),
        ("max-clients = 3\nread-only = true", "0 volumes added, 0 removed, 1 changed", "closed"),
    ] {
        volumes.opens("a").unwrap();
        rewrite(dir.path(), &raw(dir.path(), "a", more));
        assert_eq!((volumes.reload().unwrap().as_str(), volumes.stage("a")), (outcome, stage), "{more}");
    }
    let clients: Vec<_> = (0..3).map(|_| volumes.open("a").map_err(|_| ()).unwrap()).collect();
    assert!(volumes.opens("a").is_err(), "a fourth client");
    let refused = volumes.close("a", false).unwrap_err().to_string();
    assert_eq!(refused, "Volume a is in use by 3 clients.");
    assert_eq!(volumes.stage("a"), "open");
    drop(clients);
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn added_volume_stays_until_the_file_has_had_it() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (raw(dir.path(), "a", ""), raw(dir.path(), "b", ""));
    let volumes = load(dir.path(), &a);
    let keys = b.split_once('\n').unwrap().1;
    volumes.add("b", keys).unwrap();
    assert_eq!(volumes.reload().unwrap(), "0 volumes added, 0 removed, 0 changed");
    rewrite(dir.path(), &format!("{a}{b}"));
    assert_eq!(volumes.reload().unwrap(), "0 volumes added, 0 removed, 0 changed");
    rewrite(dir.path(), &a);
    assert_eq!(volumes.reload().unwrap(), "0 volumes added, 1 removed, 0 changed");
    assert_eq!(volumes.names(), ["a"]);
}

#[test]
fn clients_wait_for_a_volume_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Slow::new(dir.path(), "slow");
    let volumes = load(dir.path(), &slow.config);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(|| volumes.opens("slow"))).collect();
        eventually("both wait", || volumes.waiting("slow"), |waiting| *waiting == (2, 2));
        eventually("it opens", || volumes.stage("slow"), |stage| *stage == "opening");
        let refused = volumes.close("slow", false).unwrap_err().to_string();
        assert_eq!(refused, "Volume slow is in use by 2 clients.");
        slow.send(&[1; 32]);
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    });
    assert!(volumes.has_stopped_without_loss());
}

/// A volume that fails with options that the file no longer has is tried with the new ones.
#[test]
fn options_that_change_while_a_volume_opens_hold_for_its_client() {
    for key in [&[][..], &[1; 32]] {
        let dir = tempfile::tempdir().unwrap();
        let slow = Slow::new(dir.path(), "a");
        let volumes = load(dir.path(), &slow.config);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| volumes.opens("a"));
            eventually("it opens", || volumes.stage("a"), |stage| *stage == "opening");
            rewrite(dir.path(), &raw(dir.path(), "a", ""));
            assert_eq!(volumes.reload().unwrap(), "0 volumes added, 0 removed, 1 changed");
            slow.send(key);
            client.join().unwrap().unwrap();
        });
        let entry = volumes.entry("a").unwrap();
        let kind = lock(&entry.state).stage.running().map(|running| running.volume.describe().info.kind);
        assert_eq!(kind.as_deref(), Some("RAW"), "{} bytes of a key", key.len());
        assert!(volumes.has_stopped_without_loss());
    }
}

/// Commands and the end of a server find a volume that is opening; its client gets none.
#[test]
fn client_of_a_volume_that_is_removed_while_it_opens_gets_none() {
    type Removal = fn(&Volumes, &Path);
    let removals: [Removal; 3] = [
        |volumes, dir| {
            rewrite(dir, "");
            assert_eq!(volumes.reload().unwrap(), "0 volumes added, 1 removed, 0 changed");
        },
        |volumes, _| volumes.remove("slow", true).unwrap(),
        |volumes, _| assert!(volumes.has_stopped_without_loss()),
    ];
    for remove in removals {
        let dir = tempfile::tempdir().unwrap();
        let slow = Slow::new(dir.path(), "slow");
        let volumes = load(dir.path(), &slow.config);
        let entry = volumes.entry("slow").unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| volumes.opens("slow"));
            eventually("it opens", || volumes.stage("slow"), |stage| *stage == "opening");
            let removal = scope.spawn(|| remove(&volumes, dir.path()));
            eventually("it is removed", || lock(&entry.state).is_removed, |is_removed| *is_removed);
            slow.send(&[1; 32]);
            assert!(matches!(client.join().unwrap(), Err(Unavailable::Unknown)));
            removal.join().unwrap();
        });
        assert!(matches!(lock(&entry.state).stage, Stage::Closed));
    }
}

#[test]
fn options_of_the_server_are_those_of_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (raw(dir.path(), "a", "threads = 2\nio = \"sync\""), raw(dir.path(), "b", ""));
    let volumes = load(dir.path(), &format!("{a}{b}"));
    let threads_and_ring = |name: &str| {
        volumes.opens(name).unwrap();
        let entry = volumes.entry(name).unwrap();
        let state = lock(&entry.state);
        let Stage::Open(running) = &state.stage else { panic!("it is not open") };
        {
            let info = running.volume.describe().info;
            (info.threads, info.ring)
        }
    };
    assert_eq!(threads_and_ring("a"), (2, "sync".to_owned()));
    assert_eq!(threads_and_ring("b").0, 1);
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn volume_with_clients_is_removed_by_force_only() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    let client = volumes.open("a").map_err(|_| ()).unwrap();
    let refused = volumes.remove("a", false).unwrap_err().to_string();
    assert_eq!(refused, "Volume a is in use by 1 clients.");
    assert_eq!((volumes.names(), volumes.stage("a")), (vec!["a".to_owned()], "open"));
    volumes.remove("a", true).unwrap();
    assert_eq!(volumes.count(), 0);
    drop(client);
}

#[test]
fn table_of_contents_has_volumes_that_are_listed_and_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = [("a", ""), ("b", "listed = false"), ("c", "")].map(|(name, more)| raw(dir.path(), name, more));
    let volumes = load(dir.path(), &config.concat());
    lock(&volumes.entry("c").unwrap().state).is_removed = true;
    assert_eq!(volumes.names(), ["a"]);
}

#[test]
fn look_at_idle_volumes_notes_them_and_forgets_removed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a", "b"]);
    volumes.opens("a").unwrap();
    volumes.close_idle();
    let entry = volumes.entry("a").unwrap();
    assert!(lock(&entry.state).stage.running().is_some_and(|running| running.idle_since.is_some()));
    assert_eq!(volumes.count(), 2);
    lock(&volumes.entry("b").unwrap().state).is_removed = true;
    volumes.close_idle();
    assert_eq!(volumes.count(), 1);
}

#[test]
fn file_that_is_loaded_again_adds_volumes_and_cannot_change_tls() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| raw(dir.path(), name, ""));
    let volumes = load(dir.path(), &a);
    rewrite(dir.path(), &format!("{a}{b}"));
    assert_eq!(volumes.reload().unwrap(), "1 volumes added, 0 removed, 0 changed");
    rewrite(dir.path(), "tls = \"on\"\ntls-certificates = \"/none\"\n");
    assert!(matches!(volumes.reload(), Err(Error::TlsStays)));
    assert_eq!(volumes.names(), ["a", "b"], "an invalid file changes nothing");
}

#[test]
fn commands_find_a_removed_volume_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    volumes.opens("a").unwrap();
    let old = volumes.entry("a").unwrap();
    let config = lock(&old.state).config.clone();
    let new = Entry::new("a".to_owned(), config, false, &volumes.shared);
    let mut state = lock(&volumes.state);
    let replaced = state.entries.insert("a".to_owned(), Arc::clone(&new));
    state.replaced.extend(replaced);
    drop(state);
    assert!(Arc::ptr_eq(&volumes.known("a").unwrap(), &old));
    let replaced = || lock(&volumes.state).replaced.len();
    lock(&old.state).is_removed = true;
    volumes.forget_closed();
    assert_eq!(replaced(), 1, "it is not closed");
    old.close(IfOpening::Wait).unwrap();
    assert!(Arc::ptr_eq(&volumes.known("a").unwrap(), &new));
    volumes.forget_closed();
    assert_eq!((replaced(), volumes.count()), (0, 1));
}

#[test]
fn writes_that_the_last_closing_lost_are_told_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a", "b"]);
    lock(&volumes.entry("a").unwrap().state).close_failure = Some("lost".to_owned());
    assert!(!volumes.has_stopped_without_loss());
}

#[test]
fn volume_is_added_once() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = load(dir.path(), "");
    for round in 0..50 {
        let name = format!("v{round}");
        let table = raw(dir.path(), &name, "");
        let keys = table.split_once('\n').unwrap().1;
        let added = std::thread::scope(|scope| {
            let attempts: Vec<_> = (0..4).map(|_| scope.spawn(|| volumes.add(&name, keys).is_ok())).collect();
            attempts.into_iter().map(|attempt| attempt.join().unwrap()).filter(|added| *added).count()
        });
        assert_eq!(added, 1, "{name}");
    }
}

/// A program that keeps what it is to log.
struct Logging(Context, Mutex<Vec<String>>);

impl Program for Logging {
    fn context(&self) -> &Context {
        &self.0
    }

    fn log(&self, subject: &dyn std::fmt::Display, text: &dyn std::fmt::Display) {
        lock(&self.1).push(format!("{subject}: {text}"));
    }
}

#[test]
fn failure_to_open_is_logged_with_the_time_of_the_next_attempt() {
    let dir = tempfile::tempdir().unwrap();
    rewrite(dir.path(), &raw(dir.path(), "a", ""));
    fs::remove_file(dir.path().join("a")).unwrap();
    let program = Arc::new(Logging(Context::new(Silent, Settings::default()), Mutex::default()));
    let volumes = Volumes::load(Arc::clone(&program) as _, &dir.path().join("volumes.toml"), Trust::Checked).unwrap();
    assert!(matches!(volumes.opens("a"), Err(Unavailable::Refused)));
    let lines = lock(&program.1).clone();
    assert!(lines.len() == 1 && lines[0].starts_with("volume a: "), "{lines:?}");
    assert!(lines[0].ends_with(" (tried again after 1 s)"), "{lines:?}");
}

#[test]
fn volume_that_the_file_no_longer_has_is_closed_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    volumes.opens("a").unwrap();
    let entry = volumes.entry("a").unwrap();
    rewrite(dir.path(), "");
    assert_eq!(volumes.reload().unwrap(), "0 volumes added, 1 removed, 0 changed");
    assert!(matches!(lock(&entry.state).stage, Stage::Closed));
    assert_eq!(volumes.count(), 0);
}

#[test]
fn server_that_stops_takes_no_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    assert!(volumes.has_stopped_without_loss());
    let table = raw(dir.path(), "b", "");
    assert!(matches!(volumes.add("b", table.split_once('\n').unwrap().1), Err(Error::Closing)));
    assert!(matches!(volumes.reload(), Err(Error::Closing)));
}

#[test]
fn client_sees_what_the_server_says_of_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a", "b"]);
    volumes.set_uri(|name| format!("nbd+unix:///{name}?socket=/s"));
    volumes.opens("a").unwrap();
    let described = volumes.open_volumes();
    let addresses: Vec<_> =
        described.iter().map(|volume| (&*volume.info.name, volume.info.address.as_deref())).collect();
    assert_eq!(addresses, [("a", Some("nbd+unix:///a?socket=/s"))]);
    let metrics = volumes.metrics();
    assert!(metrics.contains("inlock_throttled_seconds_total{volume=\"a\"} 0"), "{metrics}");
}

#[test]
fn one_command_at_a_time_changes_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), &["a"]);
    let change = |command, pipe| volumes.change("a", command, &serde_json::json!({}), pipe);
    assert!(matches!(change("suspend", None), Err(Error::NotOpen { .. })));
    volumes.opens("a").unwrap();
    let entry = volumes.entry("a").unwrap();
    let (table, writer) = rustix::pipe::pipe().unwrap();
    std::thread::scope(|scope| {
        // It waits for the table.
        let reload = scope.spawn(|| change("reload", Some(table)));
        eventually("it changes", || lock(&entry.state).is_changing, |is_changing| *is_changing);
        assert!(matches!(change("suspend", None), Err(Error::InProgress)));
        assert!(matches!(volumes.close("a", true), Err(Error::InProgress)));
        drop(writer);
        reload.join().unwrap().unwrap_err();
    });
    change("suspend", None).unwrap();
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn clients_are_told_who_serves_the_volume() {
    /// NBD_OPT_INFO and NBD_INFO_DESCRIPTION
    const INFO: u32 = 6;
    const DESCRIPTION: u16 = 2;
    let dir = tempfile::tempdir().unwrap();
    let volumes = Arc::new(volumes(dir.path(), &["a"]));
    let socket = dir.path().join("socket");
    let listen = inlock_frontend::nbd::server::Listen::Unix(socket.clone());
    let limits = inlock_frontend::nbd::server::Limits::default();
    let catalog = Arc::clone(&volumes) as Arc<dyn Catalog>;
    let listener = inlock_frontend::nbd::listener::ExportListener::start(&listen, catalog, limits, None).unwrap();
    let mut client = inlock_tests::nbd::Connection::haggle(&socket, Duration::from_secs(600)).unwrap();
    let asked = inlock_tests::nbd::go_data(b"a", &[DESCRIPTION]);
    client.send(&inlock_tests::nbd::option_bytes(INFO, &asked)).unwrap();
    let replies = client.option_replies().unwrap();
    let description = [&DESCRIPTION.to_be_bytes()[..], b"served by Inlock"].concat();
    assert!(replies.iter().any(|reply| reply.data == description), "{replies:?}");
    drop((client, listener));
    assert!(volumes.has_stopped_without_loss());
}

#[test]
fn volume_has_the_engine_of_its_options() {
    let dir = tempfile::tempdir().unwrap();
    let key = "key-command = [\"/usr/bin/head\", \"-c\", \"32\", \"/dev/zero\"]\nengine = \"afalg\"";
    let volumes = load(dir.path(), &raw(dir.path(), "a", key).replace("\"raw\"", "\"plain\""));
    let opened = volumes.opens("a");
    if let Err(error) = (EngineOptions { threshold: 0 }).start() {
        // The volume is refused rather than served by another engine.
        assert_eq!((error.kind(), opened), (inlock_open::ErrorKind::NoEngine, Err(Unavailable::Refused)));
        return assert_eq!(volumes.stage("a"), "closed");
    }
    opened.unwrap();
    let entry = volumes.entry("a").unwrap();
    let status = lock(&entry.state).stage.running().map(|running| running.volume.status()).unwrap();
    assert_eq!((status.info.engine.name.as_str(), status.engine_counters.is_some()), ("afalg", true));
    assert!(volumes.has_stopped_without_loss());
}
