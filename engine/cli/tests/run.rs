//! `feroce run` with something missing: the message names it and a remedy. scripts/programs.sh runs
//! real programs. Needs root; skipped with a message without root.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Pair, Server, ip, text};

/// `feroce` installed below a folder of the test.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("fr-run-{}-{name}", std::process::id()));
        let bin = root.join("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::copy(env!("CARGO_BIN_EXE_feroce"), bin.join("feroce")).expect("a copy");
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).expect("mine");
        Self(root)
    }

    /// An empty library: these tests never load it.
    fn with_library(self) -> Self {
        let folder = self.0.join("lib/feroce");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libibverbs.so.1"), "").expect("a file");
        self
    }

    fn feroce(&self) -> PathBuf {
        self.0.join("bin/feroce")
    }

    /// Runs `around feroce run ARGUMENTS` at end 0 of the pair.
    fn run(&self, pair: &Pair, around: &str, arguments: &str) -> Output {
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

#[track_caller]
fn assert_message(output: &Output, code: i32, words: &[&str]) {
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output_text}");
    for word in words {
        assert!(output_text.contains(word), "`{word}` is not in: {output_text}");
    }
}

#[test]
fn messages_name_what_is_missing() {
    let Some(pair) = Pair::new() else { return };
    let bare = Installed::new("bare");
    assert_message(&bare.run(&pair, "env", "-i v0 true"), 1, &["no libibverbs.so.1", "build-libs"]);
    let installed = Installed::new("missing").with_library();
    let run = |arguments: &str| installed.run(&pair, "env", arguments);
    assert_message(&run("-i v0 ib_no_such_bw"), 127, &["not found", "package perftest"]);
    assert_message(&run("-i v0 ./no-such-program"), 127, &["cannot start"]);
    assert_message(&run("-i none0 true"), 1, &["none0"]);
    assert_message(&run("-i lo true"), 1, &["loopback"]);

    // Nothing is missing: there is no message, and the exit code is the program's.
    let clean = run("-i v0 true");
    assert_message(&clean, 0, &[]);
    assert_eq!(text(&clean.stderr), "");
    assert_message(&run("-i v0 false"), 1, &[]);
    assert_message(&run("true"), 0, &["feroce0 is v0, the only usable one"]);

    ip(&format!("-n {} link set v0 down", pair.names[0]));
    assert_message(&run("-i v0 true"), 0, &["v0: the link: set down", "ip link set dev v0 up"]);
    assert_message(&run("true"), 1, &["no Ethernet interface is up", "v0"]);
}

/// A user who may not open a device gets the reason, and can still list the device.
#[test]
fn without_privileges_the_program_starts_with_a_message() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("nobody").with_library();
    let around =
        "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    let output = installed.run(&pair, around, "-i v0 true");
    assert_message(&output, 0, &["CAP_NET_RAW", "sudo feroce run", "will find none"]);
}

#[test]
fn a_second_program_gets_the_name_of_the_owner() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("second").with_library();
    let server = Server::start(&mut pair.feroce(0, "perf -i v0"));
    let owner = format!("process {}", server.child.id());
    let output = installed.run(&pair, "env", "-i v0 true");
    assert_message(
        &output,
        0,
        &[&owner, "a second program cannot open the interface", "docs/programs.md"],
    );
    assert!(server.stop().status.code().is_some());
}

/// The libraries are found relative to the program, also through a symbolic link.
#[test]
fn the_libraries_are_found_relative_to_the_program() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("layout").with_library();
    let link = installed.0.join("elsewhere");
    std::os::unix::fs::symlink(installed.feroce(), &link).expect("a link");
    let run = |program: &Path| {
        let mut command: Command = pair.run(0, program.to_str().expect("text"));
        command.args(["run", "-q", "-i", "v0", "printenv", "LD_LIBRARY_PATH"]);
        text(
            &command
                .env("FEROCE_CONFIG", "")
                .env_remove("LD_LIBRARY_PATH")
                .output()
                .expect("feroce")
                .stdout,
        )
    };
    let folder = run(&installed.feroce());
    assert_eq!(
        std::fs::canonicalize(folder.trim()).ok(),
        Some(installed.0.join("lib/feroce")),
        "{folder}"
    );
    assert_eq!(run(&link), folder);
}
