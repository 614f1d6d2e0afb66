//! The control thread with an object of the tests: the order of replies, limits, and ends.

use super::*;
use crate::control::claim::Purpose;
use crate::control::files::Files;
use crate::control::name::Name;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, Device};
use inlock_open::host::Silent;
use inlock_open::layer::{Layer, Mapped};
use inlock_open::{Context, Settings};
use inlock_tests::wait::eventually;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Commands of the tests: `query` is answered at once, `slow` and `close` when they are let go.
struct Fake {
    running: AtomicUsize,
    /// Each value lets one command go.
    go: Mutex<Receiver<()>>,
}

impl Controlled for Fake {
    fn max_changes(&self, command: &str) -> usize {
        if command == "slow" { 1 } else { 2 }
    }

    fn query(&self, command: &str, request: &Value) -> Option<Reply> {
        (command == "query").then(|| Ok(Map::from_iter([("number".to_owned(), request["number"].clone())])))
    }

    fn change(&self, command: &str, _request: &Value, pipe: Option<OwnedFd>) -> Reply {
        self.running.fetch_add(1, Ordering::AcqRel);
        let _ = self.go.lock().unwrap().recv();
        self.running.fetch_sub(1, Ordering::AcqRel);
        match command {
            "fail" => Err(Error::other("as asked")),
            _ => Ok(Map::from_iter([("pipe".to_owned(), pipe.is_some().into())])),
        }
    }

    fn is_closing(&self, command: &str, _request: &Value) -> bool {
        command == "close" || command == "fail"
    }

    fn metrics(&self) -> String {
        "body".to_owned()
    }
}

struct Fixture {
    thread: ControlThread,
    fake: Arc<Fake>,
    go: Sender<()>,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (go, released) = mpsc::channel();
        let fake = Arc::new(Fake { running: AtomicUsize::new(0), go: Mutex::new(released) });
        let commands = vec![Listener::bind_unix(&dir.path().join("commands")).unwrap()];
        let metrics = Listener::bind_unix(&dir.path().join("metrics")).unwrap();
        let program = Arc::new(Context::new(Silent, Settings::default()));
        let thread = ControlThread::start(program, commands, Some(metrics), Arc::clone(&fake) as _).unwrap();
        Self { thread, fake, go, dir }
    }

    fn client(&self) -> Asking {
        Asking(BufReader::new(UnixStream::connect(self.dir.path().join("commands")).unwrap()))
    }

    /// Blocks until so many commands run that change something.
    fn wait_for(&self, count: usize) {
        let running = || self.fake.running.load(Ordering::Acquire);
        eventually("commands run", running, |running| *running == count);
    }
}

struct Asking(BufReader<UnixStream>);

impl Asking {
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn command(&mut self, command: &str) {
        self.send(&format!("{{\"command\":\"{command}\"}}\n"));
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the reply to a query.
    fn ask(&mut self, number: u64) -> Value {
        self.send(&format!("{{\"command\":\"query\",\"number\":{number}}}\n"));
        self.reply()["number"].clone()
    }

    /// Whether the connection ends with nothing more.
    fn has_ended(&mut self) -> bool {
        self.0.read(&mut [0]).is_ok_and(|len| len == 0)
    }
}

#[test]
fn lines_are_answered_in_their_order_however_they_arrive() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    one.send("{\"command\":\"query\",\"number\":1}\n{\"command\":\"query\",\"number\":2}\n{\"command\":\"qu");
    assert_eq!([one.reply()["number"].clone(), one.reply()["number"].clone()], [1, 2]);
    assert_eq!(other.ask(7), 7);
    one.send("ery\",\"number\":3}\n");
    assert_eq!(one.reply()["number"], 3);
    one.send("text\n");
    assert_eq!(one.reply()["ok"], false);
    assert_eq!(one.ask(4), 4);
    // One that has left is not in the way.
    drop(other);
    assert_eq!(one.ask(5), 5);
}

#[test]
fn line_that_is_too_long_ends_its_client_only() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    one.send(&"x".repeat(LINE_MAX + 1));
    assert!(one.reply()["error"].as_str().unwrap().contains("4096 bytes"));
    assert!(one.has_ended());
    assert_eq!(other.ask(1), 1);
}

#[test]
fn command_that_lasts_keeps_its_client_waiting_and_no_other() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    // The next line has arrived before, and waits.
    one.send("{\"command\":\"slow\"}\n{\"command\":\"query\",\"number\":9}\n");
    fixture.wait_for(1);
    assert_eq!(other.ask(1), 1);
    other.command("slow");
    assert!(other.reply()["error"].as_str().unwrap().contains("in progress"));
    // Another command may run at the same time, but no third one.
    let mut third = fixture.client();
    third.command("fail");
    fixture.wait_for(2);
    other.command("any");
    assert_eq!(other.reply()["ok"], false);
    (0..2).for_each(|_| fixture.go.send(()).unwrap());
    assert_eq!((one.reply()["pipe"].clone(), one.reply()["number"].clone()), (false.into(), 9.into()));
    assert!(third.reply()["error"].as_str().unwrap().contains("as asked"));
    // The next one may.
    fixture.go.send(()).unwrap();
    other.command("slow");
    assert_eq!(other.reply()["ok"], true);
    assert_eq!([one.ask(2), other.ask(3), third.ask(4)], [2, 3, 4]);
}

#[test]
fn descriptor_belongs_to_the_line_that_it_came_with() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let pipe = crate::pipe::filled(b"key").unwrap();
    let line = b"{\"command\":\"slow\"}\n";
    // It comes with the beginning of the line.
    socket::send(client.0.get_ref(), &line[..5], Some(&pipe)).unwrap();
    socket::send(client.0.get_ref(), &line[5..], None).unwrap();
    fixture.go.send(()).unwrap();
    assert_eq!(client.reply()["pipe"], true);
    fixture.go.send(()).unwrap();
    client.command("slow");
    assert_eq!(client.reply()["pipe"], false);
}

#[test]
fn thread_ends_when_its_commands_have_and_returns_clients_that_close() {
    let mut fixture = Fixture::new();
    let (mut closing, mut failing, mut other) = (fixture.client(), fixture.client(), fixture.client());
    closing.command("close");
    failing.command("fail");
    fixture.wait_for(2);
    let Fixture { thread, go, fake, dir } = &mut fixture;
    std::thread::scope(|scope| {
        thread.events.post(Event::Stop);
        // The thread has taken note of it.
        let mut code = || {
            other.command("slow");
            other.reply()["code"].clone()
        };
        eventually("it refuses commands", &mut code, |code| *code == "closing");
        let stopped = scope.spawn(|| thread.stop());
        assert_eq!((fake.running.load(Ordering::Acquire), stopped.is_finished()), (2, false));
        (0..2).for_each(|_| go.send(()).unwrap());
        let closers = stopped.join().unwrap();
        assert_eq!(closers.len(), 1);
        rustix::io::write(&closers[0], b"{\"closed\":1}\n").unwrap();
    });
    assert_eq!((closing.reply()["closed"].clone(), failing.reply()["ok"].clone()), (1.into(), false.into()));
    assert!(closing.has_ended() && other.has_ended());
    assert!(UnixStream::connect(dir.path().join("commands")).is_err());
}

#[test]
fn thread_ends_with_its_owner() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    assert_eq!(client.ask(1), 1);
    let Fixture { thread, dir, .. } = fixture;
    drop(thread);
    assert!(client.has_ended());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a socket is left");
}

#[test]
fn scraper_gets_one_answer() {
    let fixture = Fixture::new();
    let mut scraper = UnixStream::connect(fixture.dir.path().join("metrics")).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").unwrap();
    assert_eq!(fixture.client().ask(1), 1);
    scraper.write_all(b"\r\nGET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nbody"), "{answer}");
}

#[test]
fn client_that_has_been_silent_for_longest_makes_room() {
    let fixture = Fixture::new();
    let mut waiting = fixture.client();
    waiting.command("slow");
    fixture.wait_for(1);
    let mut clients: Vec<Asking> = (1..CLIENTS_MAX).map(|_| fixture.client()).collect();
    // When the last one has its answer all have come.
    assert_eq!(clients[CLIENTS_MAX - 2].ask(0), 0);
    // In the order in which they came, with the first one last.
    clients.rotate_left(1);
    for client in &mut clients {
        assert_eq!(client.ask(1), 1);
    }
    let mut new = fixture.client();
    assert_eq!(new.ask(2), 2);
    assert!(clients[0].has_ended());
    for client in &mut clients[1..] {
        assert_eq!(client.ask(3), 3);
    }
    fixture.go.send(()).unwrap();
    assert_eq!(waiting.reply()["ok"], true);
}

#[test]
fn volume_that_is_not_published_is_not_controlled() {
    let dir = tempfile::tempdir().unwrap();
    let context = Context::new(Silent, Settings::default());
    let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
    let start = || {
        let info = serde_json::from_value(serde_json::json!({
            "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx", "segments": [],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "nbd", "ring": "sync", "threads": 1
        }));
        let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
        let parts = (Arc::new(device), Arc::new(Mapped) as Arc<dyn Layer>);
        let volume = ServedVolume::new(context.clone(), info.unwrap(), parts, Some(files.clone()), Closes);
        let claim = Claim::take_files(&context, files.clone(), Purpose::Serve).unwrap();
        // Nothing can have its name.
        let is_blocked = dir.path().join("blocked").exists();
        if is_blocked {
            std::fs::create_dir(files.path("json")).unwrap();
        }
        let metrics = Listener::bind_unix(&dir.path().join("metrics")).unwrap();
        Control::start(Arc::new(context.clone()), claim, volume, Some(metrics))
    };
    let control = start().unwrap();
    let state = std::fs::read_to_string(files.path("json")).unwrap();
    let expected = format!("unix:{}", dir.path().join("metrics").display());
    assert_eq!(serde_json::from_str::<Value>(&state).unwrap()["metrics"], expected);
    drop(control);
    assert!(!files.path("json").exists() && !files.socket().exists());
    std::fs::write(dir.path().join("blocked"), "").unwrap();
    assert!(start().is_err());
}

struct Closes;

impl served::ControlHooks for Closes {
    fn close(&self, _deferred: bool) -> Result<()> {
        Ok(())
    }
}
