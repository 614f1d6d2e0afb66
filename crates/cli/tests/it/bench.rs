//! `bench`: JSON of the results, and the variable that limits the instruction sets.

use crate::harness::{inlock, run};
use serde_json::Value;

/// One kernel shows the form, and takes a quarter of the time.
#[test]
fn json_is_a_list_of_results() {
    let ended = run(inlock().args(["bench", "cipher", "--json"]).env("INLOCK_CPU", "portable"), b"");
    let told: Value = serde_json::from_slice(&ended.works().out).expect("JSON");
    let results = told["results"].as_array().expect("a list");
    let mut seen = Vec::new();
    for row in results {
        let names: Vec<&String> = row.as_object().expect("an object").keys().collect();
        let expected = ["kernel", "cipher", "key_bits", "direction", "unit_size", "request_size"];
        assert_eq!(names[..6], expected);
        assert_eq!(names[6..], ["bytes_per_second", "limit_bytes_per_second", "share_of_limit"]);
        assert_eq!((&row["kernel"], &row["cipher"]), (&"portable".into(), &"aes-xts-plain64".into()));
        for figure in ["bytes_per_second", "limit_bytes_per_second", "share_of_limit"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{row}");
        }
        let numbers = ["key_bits", "unit_size", "request_size"].map(|name| row[name].as_u64().expect("a number"));
        seen.push((numbers, row["direction"].as_str().expect("text").to_owned()));
    }
    let mut expected = Vec::new();
    for key_bits in [128, 256] {
        for unit in [512, 4096, 65536] {
            for request in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
                for direction in ["encrypt", "decrypt"] {
                    if unit <= request {
                        expected.push(([key_bits, unit, request], direction.to_owned()));
                    }
                }
            }
        }
    }
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn unknown_instruction_set_is_refused() {
    for arguments in [&["bench", "cipher", "--json"][..], &["benchmark", "--cipher", "aes-xts-plain64"]] {
        let ended = run(inlock().args(arguments).env("INLOCK_CPU", "vaes1024"), b"");
        ended.fails(1, &["INLOCK_CPU is 'vaes1024', not one of portable, aesni, vaes256, vaes512"]);
    }
}

/// The keys of every row, in their order.
const ROW: [&str; 10] =
    ["bench", "case", "operation", "block_size", "queue_depth", "measure", "figure", "unit", "compared_with", "ratio"];

fn shortest(arguments: &[&str]) -> Value {
    let ended = run(inlock().args(["bench"]).args(arguments).args(["--rounds", "1", "--slice-ms", "1", "--json"]), b"");
    serde_json::from_slice(&ended.works().out).expect("JSON")
}

fn check_rows(told: &Value) {
    for row in told["results"].as_array().expect("a list") {
        let names: Vec<&String> = row.as_object().expect("an object").keys().collect();
        assert_eq!(names, ROW);
        // A time below the resolution of the clock is 0.
        let least = if row["measure"] == "processor time" || row["unit"] == "ns" { 0.0 } else { f64::MIN_POSITIVE };
        assert!(row["figure"].as_f64().is_some_and(|figure| figure >= least), "{row}");
        assert_eq!(row["compared_with"].is_null(), row["ratio"].is_null(), "{row}");
    }
    assert!(told["environment"]["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{told}");
}

fn rows<'a>(told: &'a Value, measure: &'a str) -> impl Iterator<Item = &'a Value> {
    told["results"].as_array().expect("a list").iter().filter(move |row| row["measure"] == measure)
}

#[test]
fn path_has_every_size_depth_and_direction() {
    let told = shortest(&["path"]);
    check_rows(&told);
    for case in ["raw", "null inline", "null offloaded", "aes-xts inline", "aes-xts offloaded", "cipher alone"] {
        let of_case = rows(&told, "operations").filter(|row| row["case"] == case);
        assert_eq!(of_case.count(), 3 * 3 * 2, "{case}");
    }
    let compared = rows(&told, "operations").filter(|row| row["compared_with"] == "raw").count();
    assert!(compared >= 4 * 18, "{compared}");
    let bars = told["bars"].as_array().expect("a list");
    assert!(bars.len() == 8 && bars.iter().all(|bar| bar["figure"].is_number() && bar["met"].is_boolean()), "{bars:?}");
}

#[test]
fn latency_has_percentiles_for_idle_and_busy_cpus() {
    let told = shortest(&["latency"]);
    check_rows(&told);
    for percentile in ["p50", "p99", "p99.9"] {
        for case in ["inline, idle", "inline, busy", "offloaded, idle", "offloaded, busy"] {
            let case = format!("aes-xts {case}");
            assert_eq!(rows(&told, percentile).filter(|row| row["case"] == case).count(), 4, "{percentile} {case}");
        }
    }
}

#[test]
fn engine_has_every_size_depth_and_direction() {
    let told = shortest(&["engine", "--quick"]);
    assert_eq!(told["engine"], "afalg");
    let has_engine = told["missing"].is_null();
    assert!(has_engine || told["missing"].as_str().is_some_and(|why| why.starts_with("the kernel ")), "{told}");
    let rows = told["results"].as_array().expect("a list");
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in rows {
        assert!(row["software_bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        for figure in ["engine_bytes_per_second", "ratio_to_software"] {
            assert_eq!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), has_engine, "{row}");
        }
    }
    assert!(has_engine || told["crossover"].is_null(), "{told}");
}

#[test]
fn unwritable_report_is_refused_before_measuring() {
    let ended = run(inlock().args(["bench", "path", "--report", "/nowhere/report.html"]), b"");
    ended.fails(1, &["cannot write /nowhere/report.html"]);
    assert!(ended.out.is_empty());
}

#[test]
fn invalid_bench_options_are_refused() {
    for (arguments, words) in [
        (&["speed"][..], "'speed' is none of cipher, engine, path, latency, compare, all"),
        (&["cipher", "--quick"], "--quick is not allowed with bench cipher"),
        (&["engine", "--report", "x.html"], "--report is not allowed with bench engine"),
        (&["engine", "--check"], "--check is not allowed with bench engine"),
        (&["path", "--rounds", "0"], "above zero"),
        (&["path", "--bars", "--allow-missing", "--rounds", "0"], "above zero"),
        (&["path", "--allow-missing"], "--allow-missing needs --check"),
        (&["latency", "--slice-ms", "0"], "above zero"),
        (&["path", "--dir", "/nowhere"], "cannot make a file in /nowhere"),
    ] {
        run(inlock().arg("bench").args(arguments), b"").fails(1, &[words]);
    }
}
