//! The results as tables, and as JSON with one row per line.

use serde_json::Value;
use std::error::Error;
use std::fmt::Write;

/// Returns a table for each instruction set and cipher: the limit, Inlock's share of it, and the ratio of Inlock's
/// speed to that of each peer.
pub(crate) fn markdown(results: &Value) -> Result<String, Box<dyn Error>> {
    let rows = results["results"].as_array().ok_or("no results")?;
    let mut text = String::new();
    let mut done: Vec<[&Value; 2]> = Vec::new();
    for row in rows {
        let group = [&row["level"], &row["cipher"]];
        if done.contains(&group) {
            continue;
        }
        done.push(group);
        let members: Vec<&Value> = rows.iter().filter(|row| [&row["level"], &row["cipher"]] == group).collect();
        one_table(&mut text, &members)?;
    }
    Ok(text)
}

fn one_table(text: &mut String, rows: &[&Value]) -> Result<(), Box<dyn Error>> {
    let name = |row: &Value| row["implementation"].as_str().unwrap_or_default().to_owned();
    let mut peers: Vec<String> = Vec::new();
    for row in rows {
        if !peers.contains(&name(row)) {
            peers.push(name(row));
        }
    }
    // The limit and Inlock itself have columns of their own.
    let peers = peers.split_off(2);
    let level = rows[0]["level"].as_str().unwrap_or_default();
    writeln!(text, "\n### {}, {level}\n", rows[0]["cipher"].as_str().unwrap_or_default())?;
    writeln!(text, "| AES | request | unit | direction | limit GB/s | Inlock GB/s | share | {} |", peers.join(" | "))?;
    writeln!(text, "|---|---|---|---|---|---|---|{}", "---|".repeat(peers.len()))?;
    let of = |row: &Value| ["key_bits", "request_size", "unit_size", "direction"].map(|key| row[key].clone());
    let figure = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    for limit in rows.iter().filter(|row| row["implementation"] == "limit") {
        let same: Vec<&&Value> = rows.iter().filter(|row| of(row) == of(limit)).collect();
        let inlock = same.get(1).ok_or("no row of Inlock's")?;
        let [bits, request, unit, direction] = of(limit);
        let direction = direction.as_str().unwrap_or_default().to_owned();
        write!(text, "| {bits} | {request} | {unit} | {direction} ")?;
        let (most, own) = (figure(limit, "bytes_per_second") / 1e9, figure(inlock, "bytes_per_second") / 1e9);
        write!(text, "| {most:.2} | {own:.2} | {:.2} |", figure(inlock, "share_of_limit"))?;
        for peer in &peers {
            match same.iter().find(|row| name(row) == *peer) {
                Some(row) => write!(text, " x{:.2} |", figure(row, "inlock_is_faster_by"))?,
                None => write!(text, " |")?,
            }
        }
        writeln!(text)?;
    }
    Ok(())
}

/// Returns JSON with one row per line.
pub(crate) fn json_lines(results: &Value) -> Result<String, Box<dyn Error>> {
    let rows: Vec<String> = results["results"].as_array().ok_or("no results")?.iter().map(Value::to_string).collect();
    Ok(format!("{{\"openssl\":{},\"results\":[\n{}\n]}}\n", results["openssl"], rows.join(",\n")))
}
