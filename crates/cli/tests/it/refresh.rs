//! `refresh`: changing the flags of a volume in use.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, noise};
use inlock_tests::nbd::{Connection, Mode, command};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// NBD's transmission flag.
const SEND_TRIM: u16 = 1 << 5;

fn connect(server: &Named) -> Connection {
    Connection::open(Path::new(&server.socket), Duration::from_secs(60), Mode::Simple).expect("as it should")
}

/// Whether discards are advertised to a new client.
fn offers_trim(server: &Named) -> bool {
    connect(server).flags & SEND_TRIM != 0
}

fn flags(run: &Run) -> Option<String> {
    let text = run.call(&["status", "data"]).works().text().to_owned();
    text.lines().find_map(|line| line.strip_prefix("  flags:   ").map(str::to_owned))
}

#[test]
fn refresh_changes_discards_of_volume_in_use() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Named::start(&run, "data", &["--perf-no_read_workqueue", &image]);
    let mut client = connect(&server);
    client.write(0, &noise(8192)).unwrap();
    let trim = |client: &mut Connection| client.call(0, command::TRIM, 0, 8192, &[]).unwrap().error;
    assert_eq!((offers_trim(&server), trim(&mut client)), (false, 22));
    assert_eq!(flags(&run).as_deref(), Some("no_read_workqueue"));

    run.call(&["refresh", "data", "--allow-discards", "--perf-same_cpu_crypt"]).works();
    assert_eq!((offers_trim(&server), trim(&mut client)), (true, 0));
    assert_eq!(flags(&run).as_deref(), Some("discards same_cpu_crypt"));
    let facts = std::fs::read_to_string(run.path("data.json")).unwrap();
    assert!(facts.contains("same_cpu_crypt") && !facts.contains("no_read_workqueue"), "{facts}");

    run.call(&["refresh", "data"]).works();
    assert_eq!((offers_trim(&server), trim(&mut client)), (false, 22));
    assert_eq!(flags(&run), None);
    assert!(client.read(8192, 512).is_ok());
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn refresh_keeps_flags_of_table() {
    let dir = Dir::new();
    let run = Run::new();
    let key = "00".repeat(64);
    let line = format!("0 2048 crypt aes-xts-plain64 {key} 0 {} 0 1 no_write_workqueue", dir.image("image", 1));
    let table = dir.file("table", line.as_bytes());
    let _server = Named::start(&run, "data", &["--table", &table]);
    run.call(&["refresh", "data", "--perf-high_priority"]).works();
    assert_eq!(flags(&run).as_deref(), Some("high_priority no_write_workqueue"));
    run.call(&["refresh", "data"]).works();
    assert_eq!(flags(&run).as_deref(), Some("no_write_workqueue"));
    // The flags of a new table replace those of the old one.
    let line = line.replace("1 no_write_workqueue", "1 submit_from_crypt_cpus");
    run.call(&["reload", "data", "--table", &dir.file("table", line.as_bytes())]).works();
    run.call(&["refresh", "data"]).works();
    assert_eq!(flags(&run).as_deref(), Some("submit_from_crypt_cpus"));
}

#[test]
fn wrong_refresh_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    run.call(&["refresh", "data"]).fails(4, &["data is not active"]);
    run.call(&["refresh"]).fails(1, &["requires [<source>] <name>"]);
    run.call(&["refresh", "data", "--read-only"]).fails(1, &["--read-only is not allowed with refresh"]);
    let server = Named::start(&run, "data", &["--type", "raw", &dir.image("image", 1)]);
    let mut socket = UnixStream::connect(run.path("data.sock")).unwrap();
    socket.write_all(b"{\"command\":\"refresh\",\"flags\":[\"no_such_flag\"]}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    assert!(answer.contains("does not know these flags") && answer.contains("\"exit\":1"), "{answer}");
    assert!(!offers_trim(&server));
}
