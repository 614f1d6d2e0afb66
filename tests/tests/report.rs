//! The page that `inlock bench --report` writes, opened in a browser: every plot is drawn, the browser logs no error,
//! and the page fetches nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{inlock, lossy, output, program};
use inlock_tests::report::{count, skipped};
use serde_json::Value;

/// Reports the shape of every plot, and the areas of a line and a bar.
const PROBE: &str = "<script>window.addEventListener('load',()=>{\
const box=e=>{const b=e.getBoundingClientRect();return Math.round(b.width)+'x'+Math.round(b.height)};\
const found=[...document.querySelectorAll('svg.plot')].map(s=>{\
const marks=[...s.querySelectorAll('polyline,rect[class^=f]')];\
return {id:s.id,size:box(s),title:s.querySelector('title').textContent,marks:marks.length,\
drawn:marks.filter(m=>{const b=m.getBBox();return b.width>0||b.height>0}).length,\
inked:marks.filter(m=>{const c=getComputedStyle(m);return c.stroke!=='none'||c.fill!=='rgb(0, 0, 0)'}).length,\
table:s.closest('figure').querySelectorAll('table tr').length,\
beyond:[...s.querySelectorAll('text')].filter(t=>{const a=t.getBoundingClientRect(),b=s.getBoundingClientRect();\
return a.left<b.left-1||a.right>b.right+1||a.top<b.top-1||a.bottom>b.bottom+1}).length}});\
const fetched=performance.getEntriesByType('resource').map(r=>r.name).filter(n=>!n.startsWith('data:'));\
const pre=document.createElement('pre');pre.id='probe';pre.textContent=JSON.stringify({plots:found,fetched});document.body.append(pre)})</script>";

/// Returns the browser, if one is installed that runs here.
fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let runs = |name: &&str| {
        let asked = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        asked.is_ok_and(|output| output.status.success())
    };
    names.into_iter().find(|name| runs(name))
}

/// Opens `page` with a fresh profile, and returns the output of `actions` and the browser's log.
fn open(browser: &str, dir: &Path, page: &Path, actions: &[&str]) -> Result<(String, String)> {
    let profile = tempfile::tempdir_in(dir)?;
    let mut command = program(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    let output = output(command.args(actions).arg(format!("file://{}", page.display())))?;
    ensure!(output.status.success(), "{browser}: {}\n{}", output.status, lossy(&output.stderr));
    Ok((lossy(&output.stdout), lossy(&output.stderr)))
}

/// Returns the probe's findings: the plots by name, and the resources that the page fetched.
fn probed(dom: &str) -> Result<(BTreeMap<String, Value>, Value)> {
    let (_, rest) = dom.split_once("<pre id=\"probe\">").context("the probe did not run")?;
    let (json, _) = rest.split_once("</pre>").context("the probe has no end")?;
    let json = json.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    let mut found: Value = serde_json::from_str(&json)?;
    let plots: Vec<Value> = serde_json::from_value(found["plots"].take())?;
    let named = plots.into_iter().map(|plot| (plot["id"].as_str().unwrap_or_default().to_owned(), plot)).collect();
    Ok((named, found["fetched"].take()))
}

#[test]
fn page_draws_every_plot_and_fetches_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("report.html");
    // Slices of a millisecond give meaningless values, but all of them.
    let mut bench = inlock()?;
    bench.args(["bench", "all", "--quick", "--rounds", "1", "--slice-ms", "5", "--json", "--report"]).arg(&page);
    let ended = output(&mut bench)?;
    ensure!(ended.status.success(), "{}", lossy(&ended.stderr));
    let told: Value = serde_json::from_slice(&ended.stdout)?;
    let text = fs::read_to_string(&page)?;
    ensure!(!text.contains("<script") && !text.contains("http") && !text.contains("src="), "the page needs others");
    let Some(browser) = browser() else {
        skipped("no browser is installed, the page of the benchmarks is not opened");
        return Ok(());
    };
    let probed_page = dir.path().join("probed.html");
    fs::write(&probed_page, text.replace("</body>", &format!("{PROBE}</body>")))?;
    let (dom, log) = open(browser, dir.path(), &probed_page, &["--dump-dom"])?;
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    ensure!(complaints.is_empty(), "the browser complains: {complaints:?}");
    let (plots, fetched) = probed(&dom)?;
    ensure!(fetched.as_array().is_some_and(Vec::is_empty), "the page fetches {fetched}");
    let mut expected = vec!["size-read", "size-write", "depth-read", "depth-write"];
    expected.extend(["latency-read-1", "latency-read-4", "latency-write-1", "latency-write-4"]);
    expected.extend(["cpu-4096", "cpu-65536", "cpu-1048576"]);
    for name in expected {
        ensure!(plots.contains_key(name), "no plot {name} among {:?}", plots.keys());
    }
    let compared =
        plots.keys().filter(|id| id.contains("depth-1") || id.starts_with("t") || id.starts_with("o")).count();
    ensure!(compared >= 8, "{compared} plots of the comparison among {:?}", plots.keys());
    for (id, plot) in &plots {
        let number = |name: &str| plot[name].as_u64().unwrap_or(0);
        ensure!(number("marks") > 0 && number("drawn") == number("marks"), "{id}: marks without a shape: {plot}");
        ensure!(number("inked") == number("marks"), "{id}: marks without a colour: {plot}");
        ensure!(number("table") > 1, "{id}: no table: {plot}");
        ensure!(number("beyond") == 0, "{id}: text beyond the edge: {plot}");
        let size = plot["size"].as_str().unwrap_or_default();
        ensure!(size.split('x').all(|side| side.parse::<u32>().is_ok_and(|side| side > 100)), "{id}: {size}");
    }
    let picture = dir.path().join("page.png");
    let shot = format!("--screenshot={}", picture.display());
    open(browser, dir.path(), &page, &[&shot, "--window-size=1200,6000"])?;
    ensure!(fs::metadata(&picture)?.len() > 20_000, "the picture of the page is empty");
    count("plots_drawn", plots.len());
    count("bars_of_the_benchmarks", told["bars"].as_array().map_or(0, Vec::len));
    Ok(())
}

/// The negative control: the probe detects a plot that is not drawn, and a fetched resource.
#[test]
fn plot_without_shape_is_detected() -> Result<()> {
    let Some(browser) = browser() else {
        skipped("no browser is installed, the page of the benchmarks is not opened");
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("broken.html");
    let plot = "<figure><svg class=plot id=broken width=300 height=200><title>t</title><polyline class=s0 points=''/>\
                <text x=290 y=20>beyond the edge</text></svg></figure><img src='http://127.0.0.1:9/missing.png'><script>nonsense()</script>";
    fs::write(&page, format!("<!doctype html><body>{plot}{PROBE}</body>"))?;
    let (dom, log) = open(browser, dir.path(), &page, &["--dump-dom"])?;
    ensure!(log.lines().any(|line| line.contains("CONSOLE")), "an error of a script is not logged: {log}");
    let (plots, fetched) = probed(&dom)?;
    ensure!(fetched[0].as_str().is_some_and(|name| name.ends_with("missing.png")), "{fetched}");
    let broken = plots.get("broken").context("the plot is not found")?;
    ensure!((&broken["marks"], &broken["drawn"]) == (&Value::from(1), &Value::from(0)), "{broken}");
    ensure!(broken["beyond"] == 1 && broken["table"] == 0, "{broken}");
    Ok(())
}
