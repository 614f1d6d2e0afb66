//! Runs every target on its saved inputs with a stable compiler, and checks that the corpus has not shrunk.

use std::fs;
use std::path::Path;

#[test]
fn saved_corpus_keeps_the_promises() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in inlock_fuzz::TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("no corpus for {name}: {e}")) {
            let path = entry.expect("the directory can be listed").path();
            println!("{}", path.display());
            target(&fs::read(&path).expect("the input can be read"));
            inputs += 1;
        }
        println!("COUNT corpus_{name} {inputs}");
        assert!(inputs >= 10, "{name} has only {inputs} inputs");
    }
}

/// A short run of each target on damaged copies of its corpus.
#[test]
fn damaged_corpus_keeps_the_promises() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut number = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for (name, target) in inlock_fuzz::TARGETS {
        let mut paths: Vec<_> = fs::read_dir(corpus.join(name))
            .unwrap_or_else(|e| panic!("no corpus for {name}: {e}"))
            .map(|entry| entry.expect("the directory can be listed").path())
            .collect();
        paths.sort();
        for round in 0..300 {
            let mut bytes = fs::read(&paths[round % paths.len()]).expect("the input can be read");
            for _ in 0..1 + number() % 4 {
                let at = (number() % bytes.len().max(1) as u64) as usize;
                match number() % 3 {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at.min(bytes.len()), number() as u8),
                    _ if at < bytes.len() => bytes[at] ^= 1 << (number() % 8),
                    _ => {}
                }
            }
            target(&bytes);
        }
        println!("COUNT damaged_{name} 300");
    }
}
