//! Metrics of a running volume: status, scrapers, and `top`.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, have, inlock, noise};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// 3 writes of 8 KiB, 5 reads of 4 KiB, a flush, and a read that fails.
fn some_work(server: &Named) {
    let mut client = server.connect();
    for place in 0..3 {
        client.write(place * 8192, &noise(8192)).expect("as it should");
    }
    for place in 0..5 {
        client.read(place * 4096, 4096).expect("as it should");
    }
    client.flush().expect("as it should");
    assert!(client.read(client.size, 512).is_err(), "bytes behind the end were read");
}

#[test]
fn status_counts_requests() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &[&dir.luks2("image")]);
    some_work(&server);
    let status = run.json(&["status", "data", "--json"]);
    let counters = &status["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    assert_eq!(["reads", "writes", "flushes", "discards", "write_zeroes"].map(count), [5, 3, 1, 0, 0], "{counters}");
    assert_eq!(["bytes_read", "bytes_written"].map(count), [5 * 4096, 3 * 8192]);
    assert_eq!(["inline", "offloaded", "cipher_calls", "cipher_units"].map(count), [8, 0, 8, 3 * 2 + 5]);
    assert_eq!(status["engine"], serde_json::json!({ "name": "software" }));
    assert!(status["engine_counters"].is_null(), "{status}");
    for phase in ["total", "queue", "store", "cipher"] {
        let spread = &status["latency_ns"][phase];
        let value = |name: &str| spread[name].as_u64().unwrap_or_else(|| panic!("no {name} in {spread}"));
        assert!(value("count") > 0);
        let values = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(value);
        assert!(values.is_sorted(), "{phase}: {spread}");
    }
    assert!(status["latency_ns"]["total"]["p50"].as_u64().unwrap() > 0);
    let text = run.call(&["status", "data"]).works().text().to_owned();
    for words in [
        "  offload: none (dm-crypt: reads queued, writes queued)\n",
        "  cipher work: 8 requests inline, 0 offloaded, 8 calls of 1.4 units\n",
        "  engine:  software\n",
        "  requests: 5 reads (20480 bytes), 3 writes (24576 bytes), 0 write-zeroes, 1 flushes, 0 discards, ",
        "\n  total   p50 ",
        ", p99.99 ",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let offloaded = Named::start(&run, "pool", &["--offload", "both", "--offload-threads", "1", &dir.luks2("other")]);
    some_work(&offloaded);
    let status = run.json(&["status", "pool", "--json"]);
    assert_eq!(status["offload"], "both");
    assert!(status["counters"]["offloaded"].as_u64().unwrap() > 0, "{status}");
}

/// A metric family: type, and samples by name and labels.
struct Family {
    kind: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Parses OpenMetrics 1.0 text strictly.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut current, mut seen, mut described) = (String::new(), BTreeSet::new(), BTreeSet::new());
    for line in body.lines() {
        assert!(!line.is_empty() && line.trim() == line, "blanks: {line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').expect("a name");
            let (name, value) = rest.split_once(' ').expect("a value");
            if what == "TYPE" {
                assert!(!families.contains_key(name), "{name} comes twice, or in pieces");
                families.insert(name.to_owned(), Family { kind: value.to_owned(), samples: Vec::new() });
                current = name.to_owned();
            }
            assert_eq!(name, current, "metadata apart from its family");
            assert!(families[name].samples.is_empty(), "metadata behind samples: {line}");
            assert!(described.insert((what.to_owned(), name.to_owned())), "twice: {line}");
            match what {
                "TYPE" => assert!(["counter", "gauge", "histogram", "info"].contains(&value), "{line}"),
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                "HELP" => assert!(!value.contains('\\')),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').expect("labels");
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        let labels: BTreeMap<String, String> = labels
            .split("\",")
            .map(|label| {
                let (name, value) = label.split_once("=\"").expect("a quoted value");
                (name.to_owned(), value.trim_end_matches('"').to_owned())
            })
            .collect();
        let family = families.get_mut(&current).expect("a type before the sample");
        let suffixes: &[&str] = match &*family.kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            _ => &[""],
        };
        let suffix = name.strip_prefix(&*current).expect("a sample of its family");
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(seen.insert((name.to_owned(), labels.clone())), "twice: {line}");
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0);
        family.samples.push((suffix.to_owned(), labels, value));
    }
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        check_histogram(name, family);
    }
    families
}

/// Checks that buckets are cumulative, and that the last is +Inf with the count.
fn check_histogram(name: &str, family: &Family) {
    let phases: BTreeSet<&String> = family.samples.iter().map(|(_, labels, _)| &labels["phase"]).collect();
    for phase in phases {
        let of = |suffix: &str| {
            let found = family.samples.iter().filter(|(found, labels, _)| found == suffix && &labels["phase"] == phase);
            found.map(|(_, labels, value)| (labels.get("le").cloned(), *value)).collect::<Vec<_>>()
        };
        let buckets = of("_bucket");
        let bound = |le: &Option<String>| match le.as_deref().expect("a bound") {
            "+Inf" => f64::INFINITY,
            le => {
                assert!(le.contains('.'), "a bound has a point: {le}");
                le.parse().expect("a number")
            }
        };
        assert!(buckets.iter().map(|(le, _)| bound(le)).is_sorted_by(|a, b| a < b), "{name} {phase}");
        assert!(buckets.iter().map(|(_, count)| *count).is_sorted(), "{name} {phase}");
        let last = buckets.last().expect("a bucket");
        assert_eq!(bound(&last.0), f64::INFINITY);
        assert_eq!(of("_count"), [(None, last.1)]);
        assert_eq!(of("_sum").len(), 1);
    }
}

fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("as it should");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("as it should");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    (head.to_owned(), body.to_owned())
}

#[test]
fn scraper_gets_openmetrics() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &[&dir.luks2("image"), "--metrics", "tcp:127.0.0.1:0"]);
    some_work(&server);
    let address = run.json(&["status", "data", "--json"])["metrics"].as_str().unwrap().to_owned();
    let address = address.strip_prefix("tcp:").unwrap();
    let (head, body) = ask(TcpStream::connect(address).unwrap(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines[0], "HTTP/1.1 200 OK");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(lines.contains(&kind) && lines.contains(&&*format!("Content-Length: {}", body.len())), "{head}");
    let families = parse(&body);
    let value = |family: &str, label: &str, wanted: &str| {
        let found = families[family].samples.iter().find(|(suffix, labels, _)| {
            assert_eq!(labels["volume"], "data");
            !suffix.ends_with("bucket") && labels.get(label).is_none_or(|value| value == wanted)
        });
        found.unwrap_or_else(|| panic!("no {family} {wanted} in {body}")).2
    };
    assert_eq!(value("inlock_io_operations", "op", "read"), 5.0);
    assert_eq!(value("inlock_io_operations", "op", "write"), 3.0);
    assert_eq!(value("inlock_io_bytes", "op", "write"), 3.0 * 8192.0);
    assert_eq!(value("inlock_crypt_requests", "place", "inline"), 8.0);
    assert_eq!(value("inlock_suspended", "", ""), 0.0);
    assert_eq!(value("inlock_size_bytes", "", ""), (8 << 20) as f64);
    assert!(value("inlock_io_latency_seconds", "phase", "total") > 0.0);

    // It works in every state, also with silent clients.
    run.call(&["suspend", "data"]).works();
    let silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (_, body) = ask(TcpStream::connect(address).unwrap(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(body.contains("\ninlock_suspended{volume=\"data\"} 1\n"), "{body}");
    let (head, _) = ask(TcpStream::connect(address).unwrap(), "GET / HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (head, _) = ask(TcpStream::connect(address).unwrap(), &"x".repeat(8192));
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    drop(silent);
    run.call(&["close", "data"]).works();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn scraper_connects_over_unix_socket() {
    let dir = Dir::new();
    let run = Run::new();
    let path = dir.path("metrics");
    let at = format!("unix:{}", path.display());
    let image = dir.image("image", 1);
    let words = ["--type", "raw", &image, "--metrics", &at];
    let mut server = Named::start(&run, "data", &words);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let get = || ask(UnixStream::connect(&path).unwrap(), "GET /metrics HTTP/1.0\r\n\r\n").1;
    assert!(parse(&get()).contains_key("inlock_volume"));
    // A second server is refused, and does not remove the first one's socket.
    let other = dir.image("other", 1);
    let second = ["serve", "--name", "other", "--type", "raw", &other, "--metrics", &at, "--run", "true"];
    run.call(&second).fails(5, &["Address ", "is in use"]);
    parse(&get());
    // The socket of a killed server is replaced.
    server.kill();
    run.call(&second).works();
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    run.call(&second).fails(5, &["is in use"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}

#[test]
fn bad_address_for_scrapers_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp:{}", taken.local_addr().unwrap());
    let start = |words: &[&str]| {
        run.call(&[&["serve", "--type", "raw", &image, "--run", "true", "--metrics"][..], words].concat())
    };
    start(&[&taken, "--name", "data"]).fails(5, &["is in use", taken.strip_prefix("tcp:").unwrap()]);
    start(&["tcp:0.0.0.0:0", "--name", "data"]).fails(1, &["is not loopback", "--insecure"]);
    start(&["tcp:localhost", "--name", "data"]).fails(1, &["the port is missing"]);
    start(&["unix:/nonexistent/socket", "--name", "data"]).fails(1, &["cannot listen on /nonexistent/socket"]);
    start(&["tcp:127.0.0.1:0"]).fails(1, &["--metrics needs --name"]);
    start(&["tcp:127.0.0.1:0", "--name", "data"]).works();
}

#[test]
fn top_shows_rates() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "busy", &[&dir.luks2("image")]);
    let _idle = Named::start(&run, "idle", &["--type", "raw", &dir.image("raw", 1)]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.connect();
            while !stop.load(Ordering::Relaxed) {
                client.write(0, &noise(65536)).unwrap();
                client.read(0, 4096).unwrap();
            }
        });
        let rows = run.json(&["top", "--once", "--json"]);
        let text = run.call(&["top", "--once"]).works().text().to_owned();
        let one = run.json(&["top", "busy", "--once", "--json"]);
        stop.store(true, Ordering::Relaxed);
        let row = |name: &str| rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        let rate = |name: &str, what: &str| row(name)[what].as_f64().unwrap();
        assert!(rate("busy", "reads_per_s") > 0.0 && rate("busy", "writes_per_s") > 0.0, "{rows}");
        let size = rate("busy", "write_bytes_per_s") / rate("busy", "writes_per_s");
        assert!((size - 65536.0).abs() < 1.0, "{rows}");
        assert_eq!((rate("busy", "inline_share"), rate("idle", "reads_per_s")), (1.0, 0.0));
        assert_eq!(row("idle")["inline_share"], Value::Null);
        let total = &row("busy")["latency_ns"]["total"];
        assert!(total["p50"].as_u64().unwrap() > 0 && total["p50"].as_u64() <= total["p99.9"].as_u64(), "{total}");
        assert_eq!(one.as_array().unwrap().len(), 1);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("NAME  STATE") && lines[0].contains("p99.9"), "{text}");
        assert!(lines[1].starts_with("busy  active") && lines[1].contains(" 100 %"), "{text}");
        assert!(lines[2].starts_with("idle  active"), "{text}");
    });
    run.call(&["top", "--once", "missing"]).fails(4, &["missing is not active"]);
    run.call(&["top", "--once", "a/b"]).fails(1, &["cannot be used"]);
    // It exits silently when its output is closed.
    let mut command = inlock();
    command.env("INLOCK_RUN_DIR", run.path("")).args(["top", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert!(!child.wait().unwrap().success());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(err, "");
}

#[test]
fn top_on_terminal_is_live_and_restores_it() {
    if !have("python3") {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let _server = Named::start(&run, "data", &["--type", "raw", &dir.image("raw", 1)]);
    // Output to wait for, and what is typed then.
    let steps = r#"[["data  active", ""], ["(q: quit)", "q"]]"#;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal.py");
    let mut command = Command::new("python3");
    command.env("INLOCK_RUN_DIR", run.path("")).args([script, steps, env!("CARGO_BIN_EXE_inlock"), "top"]);
    let ended = crate::harness::run(&mut command, b"");
    assert_eq!(ended.code, 0, "{ended:?}");
    let said: Value = serde_json::from_str(ended.text()).unwrap();
    assert_eq!((&said["status"], &said["left"], &said["echo_after"]), (&0.into(), &0.into(), &true.into()), "{said}");
    let text = said["text"].as_str().unwrap();
    assert!(text.starts_with("\u{1b}[?1049h\u{1b}[?25l") && text.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{text:?}");
}
