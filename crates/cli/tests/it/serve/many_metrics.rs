//! `serve --config`: metrics and status of the volumes.

use super::many::{Many, volume};
use crate::harness::{Dir, call, noise};
use inlock_tests::nbd::command;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Returns the samples by their names and labels. Checks that families are whole.
fn scrape(many: &Many) -> BTreeMap<String, f64> {
    let mut stream = UnixStream::connect(many.dir.path("metrics")).expect("a server");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("headers");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/openmetrics-text"), "{head}");
    let body = body.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let (mut samples, mut families, mut family) = (BTreeMap::new(), Vec::new(), "");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().expect("a name");
            assert!(!families.contains(&family), "{family} comes in pieces");
            families.push(family);
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(name.starts_with(family), "{line} in {family}");
            assert!(samples.insert(name.to_owned(), value.parse().expect("a number")).is_none(), "twice: {line}");
        }
    }
    samples
}

fn start(dir: Dir, config: &str) -> Many {
    let at = format!("unix:{}", dir.name("metrics"));
    Many::start_with(dir, config, &["--metrics", &at])
}

#[test]
fn scraper_gets_metrics_of_each_volume() {
    let dir = Dir::new();
    let (a, b, key) = (dir.image("a", 1), dir.image("b", 1), dir.file("key", &noise(32)));
    let plain = |name: &str, image: &str, rest: &str| {
        volume(name, image, &format!("type = \"plain\"\nkey-file = \"{key}\"\n{rest}"))
    };
    let quoted = volume("\"q\\\"x\"", &dir.image("c", 1), "type = \"raw\"");
    let config = format!("{}{}{quoted}", plain("a", &a, ""), plain("b", &b, "max-operations = 10"));
    let many = start(dir, &config);
    let closed = scrape(&many);
    assert_eq!(closed.len(), 3 * 4, "a closed volume has more than its state: {closed:?}");
    let state = |samples: &BTreeMap<String, f64>, volume: &str, state: &str| {
        samples[&format!("inlock_volume_state{{volume=\"{volume}\",inlock_volume_state=\"{state}\"}}")]
    };
    assert_eq!((state(&closed, "q\\\"x", "closed"), state(&closed, "a", "open")), (1.0, 0.0));
    let (mut first, mut second) = (many.client("a").unwrap(), many.client("b").unwrap());
    for _ in 0..3 {
        first.write(0, &noise(8192)).unwrap();
    }
    for _ in 0..5 {
        second.read(0, 4096).unwrap();
    }
    // A client may have a reply before its server has noticed that it has left.
    let is_at_rest = |samples: &BTreeMap<String, f64>| {
        let in_flight = |volume: &str| samples[&format!("inlock_in_flight_bytes{{volume=\"{volume}\"}}")];
        in_flight("a") + in_flight("b") == 0.0
    };
    let open = eventually("nothing is in flight", || scrape(&many), is_at_rest);
    let of = |name: &str, volume: &str, rest: &str| {
        let name = format!("{name}{{volume=\"{volume}\"{rest}}}");
        *open.get(&name).unwrap_or_else(|| panic!("no {name} in {open:?}"))
    };
    assert_eq!((state(&open, "a", "open"), state(&open, "a", "closed")), (1.0, 0.0));
    for (volume, writes, reads) in [("a", 3.0, 0.0), ("b", 0.0, 5.0)] {
        assert_eq!(of("inlock_io_operations_total", volume, ",op=\"write\""), writes);
        assert_eq!(of("inlock_io_operations_total", volume, ",op=\"read\""), reads);
        assert_eq!(of("inlock_io_bytes_total", volume, ",op=\"write\""), writes * 8192.0);
        assert_eq!(of("inlock_io_bytes_total", volume, ",op=\"read\""), reads * 4096.0);
        // Some short requests stand for all.
        assert!(of("inlock_io_latency_seconds_count", volume, ",phase=\"total\"") > 0.0);
        assert_eq!(of("inlock_clients", volume, ""), 1.0);
        assert_eq!(of("inlock_size_bytes", volume, ""), f64::from(1 << 20));
    }
    // Five requests at ten a second, of which one is saved up.
    assert_eq!(of("inlock_throttled_seconds_total", "a", ""), 0.0);
    assert!(of("inlock_throttled_seconds_total", "b", "") > 0.0, "{open:?}");
    assert_eq!(open.keys().filter(|name| name.contains("q\\\"x")).count(), 4);
    many.control(&["close", "a", "--force"]);
    assert_eq!(scrape(&many).keys().filter(|name| name.contains("volume=\"a\"")).count(), 4);
    count("many_samples_of_open_volumes", open.len());
    drop((first, second));
    many.stop();
}

#[test]
fn status_shows_one_volume() {
    let dir = Dir::new();
    let image = dir.luks2("a");
    let secret = dir.file("secret", b"secret");
    let config = volume("a", &image, &format!("key-file = \"{secret}\"\nmax-operations = 1000"));
    let many = Many::start(dir, &config);
    let json = || -> Value { serde_json::from_str(&many.control(&["status", "a", "--json"])).unwrap() };
    let closed = json();
    assert_eq!((&closed["state"], &closed["max_operations"]), (&"closed".into(), &1000.into()), "{closed}");
    assert!(closed["counters"].is_null());
    let text = many.control(&["status", "a"]);
    let limits = "  limits:  1000 requests/s, any number of bytes/s, 67108864 bytes in flight\n";
    assert!(text.starts_with("a is closed.\n") && text.contains(limits), "{text}");
    let mut client = many.client("a").unwrap();
    client.write(0, &noise(8192)).unwrap();
    let open = json();
    assert_eq!((&open["name"], &open["state"], &open["clients"]), (&"a".into(), &"open".into(), &1.into()));
    assert_eq!((&open["type"], &open["counters"]["writes"]), (&"LUKS2".into(), &1.into()), "{open}");
    assert_eq!(open["segments"][0]["iv_large_sectors"], false, "{open}");
    assert!(open["endpoint"].is_string(), "{open}");
    assert_eq!((&open["key_present"], &open["threads"]), (&true.into(), &1.into()));
    assert!(open["latency_ns"]["total"]["count"].as_u64().unwrap() > 0, "{open}");
    let text = many.control(&["status", "a"]);
    for words in [
        "a is active.\n  type:    LUKS2\n",
        "  served:  nbd nbd+unix:///a?socket=",
        " 1 writes (8192 bytes)",
        "clients: 1 of 16\n",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    // The rates of open volumes.
    let top: Vec<Value> = serde_json::from_str(&many.control(&["top", "--once", "--json"])).unwrap();
    assert_eq!((top.len(), &top[0]["name"], &top[0]["writes_per_s"]), (1, &"a".into(), &0.0.into()));
    let text = many.control(&["top", "--once"]);
    assert!(text.starts_with("NAME  STATE") && text.contains("\na     active"), "{text}");
    call(["control", &many.control, "status", "x"])
        .fails(4, &["Volume x does not exist.", "inlock control SOCKET list"]);
    call(["control", &many.control, "reload", "--json"]).fails(1, &["--json is allowed only with"]);
    many.stop();
}

#[test]
fn scrape_of_two_thousand_closed_volumes_is_short() {
    let dir = Dir::new();
    let mut config = String::new();
    for number in 0..2000 {
        let image = dir.path(&format!("i{number}"));
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let _ = writeln!(config, "[volumes.v{number}]\nimage = \"{}\"\ntype = \"raw\"", image.display());
    }
    let many = start(dir, &config);
    let mut client = many.client("v7").unwrap();
    client.read(0, 512).unwrap();
    let samples = scrape(&many);
    let open = samples.keys().filter(|name| name.contains("volume=\"v7\"")).count();
    assert_eq!(samples.len(), 1999 * 4 + open);
    assert!(open < 200, "{open} samples of one volume");
    many.stop();
}

#[test]
fn refused_requests_are_counted() {
    let dir = Dir::new();
    let image = dir.image("a", 1);
    let many = start(dir, &volume("a", &image, "type = \"raw\""));
    let mut client = many.client("a").unwrap();
    client.read(0, 512).unwrap();
    for (kind, offset, len) in [(command::READ, 1 << 20, 512), (99, 0, 512), (command::TRIM, 0, 512)] {
        client.request(0, kind, offset, len).unwrap();
        assert_ne!(client.reply(0).unwrap().error, 0);
    }
    let text = many.control(&["status", "a"]);
    assert!(text.contains(" 0 failed, 3 refused\n"), "{text}");
    let status: Value = serde_json::from_str(&many.control(&["status", "a", "--json"])).unwrap();
    assert_eq!((&status["counters"]["refused"], &status["counters"]["errors"]), (&3.into(), &0.into()), "{status}");
    assert_eq!(scrape(&many)["inlock_refused_requests_total{volume=\"a\"}"], 3.0);
    many.stop();
}
