//! Benchmarks of Inlock: `inlock bench`.
//!
//! [`run`] measures one [`Subject`] on this machine and prints the results as tables or JSON. `cipher` measures the
//! kernels, `engine` a cipher engine, `path`, `cpu` and `latency` the I/O path of one worker, `compare` NBD servers.
//! All but the first two share one form, `results`: measurements and thresholds, which become text, JSON or a page.

#![forbid(unsafe_code)]

mod cipher;
mod compare;
mod cpu;
mod engine;
mod environment;
mod fio;
mod hashes;
pub mod kernels;
mod latency;
mod options;
mod page;
mod path;
mod placement;
pub mod plot;
mod progress;
mod results;
mod scripted;
mod servers;
mod statistics;
mod tables;
mod wire;

pub use options::{Options, Print, Subject, default_dir};
use results::Results;
pub use results::Verdict;

/// Measures what `options` name and passes the results to `print`, in pieces, and as an HTML page to `report`.
///
/// Returns the verdict on the thresholds; [`Subject::Cipher`] and [`Subject::Engine`] have neither
/// that nor a page.
///
/// # Errors
///
/// Fails if a file cannot be made in the directory of the options, a server or fio fails, or `print` or `report` does.
pub fn run(
    options: &Options,
    print: &mut Print<'_>,
    report: Option<&mut Print<'_>>,
) -> anyhow::Result<Option<Verdict>> {
    if options.subject == Subject::Cipher {
        return cipher::run(options.json, print).map(|()| None);
    }
    if options.subject == Subject::Engine {
        return engine::run(options, print).map(|()| None);
    }
    let mut results = Results::default();
    let wanted = |subject| options.subject == subject || options.subject == Subject::All;
    if wanted(Subject::Path) {
        path::run(options, &mut results)?;
        cpu::run(options, &mut results)?;
    }
    if wanted(Subject::Latency) {
        latency::run(options, &mut results)?;
    }
    let mut programs = Vec::new();
    if wanted(Subject::Compare) {
        compare::run(options, &mut results)?;
        programs = vec!["fio", "nbdkit", "qemu-nbd"];
    }
    let environment = environment::describe(&options.dir, &programs);
    if options.json {
        print(&format_args!("{:#}\n", results.json(&environment)))?;
    } else {
        for (name, value) in &environment {
            print(&format_args!("# {}: {value}\n", tables::heading(name)))?;
        }
        print(&format_args!("\n{}", tables::text(&results)))?;
    }
    if let Some(report) = report {
        report(&page::html(&results, &environment))?;
    }
    Ok(Some(results.verdict()))
}
