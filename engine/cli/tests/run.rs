//! `feroce run` where something is missing: it says what, and what helps. What it runs where nothing is missing is for
//! scripts/programs.sh. Needs root; says so and passes without.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Pair, Server, ip, text};

/// `feroce` as it is installed, below a folder of the test's own.
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

    /// Nobody loads it in these tests.
    fn with_library(self) -> Self {
        let folder = self.0.join("lib/feroce");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libibverbs.so.1"), "").expect("a file");
        self
    }

    fn feroce(&self) -> PathBuf {
        self.0.join("bin/feroce")
    }

    /// `feroce run ARGUMENTS` at the pair's end 0, started by `around`.
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
fn tells(output: &Output, code: i32, words: &[&str]) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    for word in words {
        assert!(told.contains(word), "`{word}` is not in: {told}");
    }
}

#[test]
fn what_is_missing_is_told() {
    let Some(pair) = Pair::new() else { return };
    let bare = Installed::new("bare");
    tells(&bare.run(&pair, "env", "-i v0 true"), 1, &["no libibverbs.so.1", "build-libs"]);
    let installed = Installed::new("missing").with_library();
    let run = |arguments: &str| installed.run(&pair, "env", arguments);
    tells(&run("-i v0 ib_no_such_bw"), 127, &["not found", "package perftest"]);
    tells(&run("-i v0 ./no-such-program"), 127, &["cannot start"]);
    tells(&run("-i none0 true"), 1, &["none0"]);
    tells(&run("-i lo true"), 1, &["loopback"]);

    // All there: nothing is said, and the exit code is the program's.
    let clean = run("-i v0 true");
    tells(&clean, 0, &[]);
    assert_eq!(text(&clean.stderr), "");
    tells(&run("-i v0 false"), 1, &[]);
    tells(&run("true"), 0, &["feroce0 is v0, the only usable one"]);

    ip(&format!("-n {} link set v0 down", pair.names[0]));
    tells(&run("-i v0 true"), 0, &["v0: the link: set down", "ip link set dev v0 up"]);
    tells(&run("true"), 1, &["no Ethernet interface is up", "v0"]);
}

/// Who may not open a device is told so, and may list it.
#[test]
fn without_privileges_the_program_starts_and_the_reason_is_told() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("nobody").with_library();
    let around =
        "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    let output = installed.run(&pair, around, "-i v0 true");
    tells(&output, 0, &["CAP_NET_RAW", "sudo feroce run", "will find none"]);
}

#[test]
fn a_second_program_is_told_whose_the_interface_is() {
    let Some(pair) = Pair::new() else { return };
    let installed = Installed::new("second").with_library();
    let server = Server::start(&mut pair.feroce(0, "perf -i v0"));
    let owner = format!("process {}", server.child.id());
    let output = installed.run(&pair, "env", "-i v0 true");
    tells(&output, 0, &[&owner, "a second one will be refused", "docs/programs.md"]);
    assert!(server.stop().status.code().is_some());
}

/// The libraries are found from where the program is, links to it or not.
#[test]
fn the_libraries_are_found_from_where_the_program_is() {
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
