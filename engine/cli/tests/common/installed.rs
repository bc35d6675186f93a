//! `feroce` as it is installed: the program, and its libraries beside it.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::{Pair, copy_feroce, text};

/// `feroce` installed below a folder of the test.
pub struct Installed(pub PathBuf);

impl Installed {
    pub fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("fr-run-{}-{name}", std::process::id()));
        let bin = root.join("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        copy_feroce(&bin.join("feroce"));
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).expect("mine");
        Self(root)
    }

    /// An empty library: these tests never load it.
    pub fn with_library(self) -> Self {
        let folder = self.0.join("lib/feroce");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libibverbs.so.1"), "").expect("a file");
        self
    }

    /// The built libraries, for tests that load them.
    pub fn with_libraries(self) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/build-libs.sh");
        let built = Command::new(script).env("BUILD_PROFILE", "test").output().expect("a shell");
        assert!(built.status.success(), "{}", text(&built.stderr));
        let built = text(&built.stdout);
        let folder = self.0.join("lib");
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(built.lines().last().expect("the folder"));
        assert!(copy.arg(folder.join("feroce")).status().is_ok_and(|status| status.success()));
        self
    }

    pub fn feroce(&self) -> PathBuf {
        self.0.join("bin/feroce")
    }

    /// Runs `around feroce run ARGUMENTS` at end 0 of the pair.
    pub fn run(&self, pair: &Pair, around: &str, arguments: &str) -> Output {
        let words = format!("{around} {} run {arguments}", self.feroce().display());
        let mut words = words.split_whitespace();
        let mut command = pair.run(0, words.next().expect("a word"));
        command.args(words).env("FEROCE_CONFIG", "").output().expect("feroce")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Checks the exit code, and that the messages contain `words`.
#[track_caller]
pub fn assert_message(output: &Output, code: i32, words: &[&str]) {
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output_text}");
    for word in words {
        assert!(output_text.contains(word), "`{word}` is not in: {output_text}");
    }
}
