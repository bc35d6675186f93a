//! Every capture of the tree, played again.
use feroce_tests::conform::replay::{self, Role};
use std::path::Path;

#[test]
fn look() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let mut files = Vec::new();
    for folder in ["hardware", "softroce-public", "rxe"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            files.push(entry.unwrap().path());
        }
    }
    files.sort();
    for file in files {
        let name = file.to_string_lossy().into_owned();
        if !name.contains(&only) || !name.contains("pcap") {
            continue;
        }
        let start = std::time::Instant::now();
        match replay::options::read(file) {
            Err(error) => println!("## {name}: {error}"),
            Ok(frames) => {
                for role in [Role::Responder, Role::Requester] {
                    let frames = frames.clone();
                    let done = std::panic::catch_unwind(move || replay::replay(frames, &[role]));
                    match done {
                        Err(_) => println!("## {name} {role:?} PANIC"),
                        Ok(result) => {
                            println!("## {name} {role:?} {:?}\n{result}", start.elapsed())
                        }
                    }
                }
            }
        }
    }
}
