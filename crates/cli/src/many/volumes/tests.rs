//! Tests of volumes without a server.

use super::*;
use std::fmt::Write;

/// Returns closed volumes with these names, which have no key.
fn volumes(dir: &Path, names: &[&str]) -> Volumes {
    let mut config = String::new();
    for name in names {
        let image = dir.join(name);
        std::fs::write(&image, [0; 4096]).unwrap();
        writeln!(config, "[volumes.{name}]\nimage = \"{}\"\ntype = \"raw\"", image.display()).unwrap();
    }
    let file = dir.join("volumes.toml");
    std::fs::write(&file, config).unwrap();
    Volumes::load(&file).unwrap()
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
