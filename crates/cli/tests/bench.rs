//! `bench cipher`: the figures that scripts read, and the variable that limits the processor.

mod harness;

use harness::{inlock, run};
use serde_json::Value;

/// One kernel on this processor is enough to see the form, and takes a quarter of the time.
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
fn an_instruction_set_that_nobody_knows_is_an_error() {
    for arguments in [&["bench", "cipher", "--json"][..], &["benchmark", "--cipher", "aes-xts-plain64"]] {
        let ended = run(inlock().args(arguments).env("INLOCK_CPU", "vaes1024"), b"");
        ended.fails(1, &["INLOCK_CPU is 'vaes1024', not one of portable, aesni, vaes256, vaes512"]);
    }
}
