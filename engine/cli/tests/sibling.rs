//! `feroce fabric` becomes the program `feroce-fabric`, `feroce pfc` `feroce-pfc`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file cannot be run while a process that another test just began still has it open for writing: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A folder with the program in it, which goes with the test.
struct Folder(PathBuf, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Folder {
    fn new(name: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = std::env::temp_dir().join(format!("fr-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_feroce"), path.join("feroce")).expect("a copy");
        Self(path, alone)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    }

    fn feroce(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.0.join("feroce"));
        command.env("FEROCE_CONFIG", "").env("PATH", "/nowhere");
        command.args(arguments).output().expect("it runs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_program_beside_it_gets_all_arguments_and_gives_the_exit_code() {
    let folder = Folder::new("beside");
    folder.script("feroce-fabric", "echo \"$@\"; exit 3");
    let output = folder.feroce(&["fabric", "run", "x.toml", "--seed", "7", "--help"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "run x.toml --seed 7 --help\n");
    assert_eq!(output.status.code(), Some(3));
    folder.script("feroce-pfc", "echo \"$@\"");
    let output = folder.feroce(&["pfc", "decode", "x.pcap", "--json"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "decode x.pcap --json\n");
}

#[test]
fn that_there_is_none_is_told() {
    let output = Folder::new("none").feroce(&["fabric", "list"]);
    assert_eq!(output.status.code(), Some(127));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.starts_with("feroce: cannot start feroce-fabric: "), "{told}");
}
