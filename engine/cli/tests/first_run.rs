//! What a newcomer meets before anything runs: `scripts/demo.sh` without a recent Rust, and
//! `need_packages` of `scripts/lib.sh` on a host that cannot install. Programs of these names in a
//! folder of the test replace the host's.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::installed::assert_message;
use common::text;

/// A folder of programs, all of them shell scripts. `calls` of them are written to a file in it.
struct Programs(PathBuf);

impl Programs {
    fn new(name: &str, programs: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("fr-first-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (program, script) in programs {
            let path = folder.join(program);
            let call = format!("echo \"{program} $*\" >> {}/calls", folder.display());
            fs::write(&path, format!("#!/bin/sh\n{call}\n{script}\n")).expect("a script");
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("mine");
        }
        Self(folder)
    }

    /// Runs a command of bash in the repository. These programs come first in PATH.
    fn bash(&self, command: &str) -> Output {
        let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", command]).current_dir(repository);
        bash.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.0.display()));
        bash.env("CARGO_HOME", self.0.join("none")).env_remove("SUDO_USER");
        bash.output().expect("bash")
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.0.join("calls")).unwrap_or_default()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The packages of these tests are missing, whatever the host has; the user is root.
const MISSING: (&str, &str) = ("dpkg-query", "exit 1");
const ROOT: (&str, &str) = ("id", "echo 0");

#[test]
fn the_demo_ends_at_once_with_an_old_rust_and_installs_nothing() {
    let programs = Programs::new(
        "old",
        &[("cargo", ""), ("rustc", "echo rustc 1.63.0"), ("apt-get", ""), MISSING, ROOT],
    );
    let start = Instant::now();
    let output = programs.bash("scripts/demo.sh");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_message(&output, 1, &["Rust 1.88 or newer", "is of Rust 1.63.0", "rustup"]);
    let calls = programs.calls();
    assert!(calls.contains("rustc --version") && !calls.contains("apt-get"), "{calls}");
}

#[test]
fn a_cargo_without_a_compiler_is_no_recent_rust() {
    let programs = Programs::new("broken", &[("cargo", ""), ("rustc", "exit 1"), ("apt-get", "")]);
    let output = programs.bash(". scripts/lib.sh; find_cargo");
    assert_message(&output, 1, &["its rustc does not run", "rustup default stable"]);
}

#[test]
fn a_recent_rust_is_found_behind_an_old_one() {
    let programs = Programs::new("two", &[("cargo", ""), ("rustc", "echo rustc 1.63.0")]);
    let newer = programs.0.join("none/bin");
    fs::create_dir_all(&newer).expect("a folder");
    for (program, script) in [("cargo", ""), ("rustc", "echo 'rustc 1.100.0 (abc 2027-01-01)'")] {
        fs::write(newer.join(program), format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(newer.join(program), PermissionsExt::from_mode(0o755)).expect("mine");
    }
    let output = programs.bash(". scripts/lib.sh; find_cargo; echo $cargo");
    assert_eq!(text(&output.stdout).trim(), newer.join("cargo").to_str().expect("UTF-8"));
}

/// Says what is installed and what for, and waits while another program holds the lock.
#[test]
fn packages_are_named_with_their_purpose_and_a_held_lock_is_waited_for() {
    const APT: &str = "case \"$*\" in \
        *--assume-no*) \
            echo 'After this operation, 526 MB of additional disk space will be used.';; \
        *update*) [ -e $0.second ] && exit; touch $0.second; \
            echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7'; \
            exit 100;; esac";
    let programs = Programs::new("lock", &[("apt-get", APT), MISSING, ROOT, ("sleep", "")]);
    let wanted = ". scripts/lib.sh; need_packages --for 'the build' clang m4 --for packets tshark";
    let output = programs.bash(wanted);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("installing packages (526 MB): for the build: clang m4; for"), "{said}");
    assert!(said.contains("for packets: tshark"), "{said}");
    assert!(said.contains("waiting: Could not get lock") && said.contains("process 7"), "{said}");
    let calls = programs.calls();
    assert!(calls.contains("install -y --no-install-recommends clang m4 tshark"), "{calls}");
    assert!(calls.contains("DPkg::Lock::Timeout=300"), "{calls}");
}

#[test]
fn a_failed_installation_names_its_cause() {
    for (said, cause) in [
        ("Temporary failure resolving 'deb.debian.org'", "DNS does not answer"),
        ("connect (101: Network is unreachable)", "there is no route"),
        ("Could not connect to proxy:3128", "does not answer"),
        ("Unable to locate package clang", "no such package"),
    ] {
        let apt = format!("echo \"E: {said}\"; exit 100");
        let programs = Programs::new("cause", &[("apt-get", &apt), MISSING, ROOT]);
        let output = programs.bash(". scripts/lib.sh; need_packages clang");
        assert_message(&output, 1, &[said, cause]);
    }
}

#[test]
fn others_than_root_get_the_command_for_root() {
    let programs = Programs::new("user", &[("apt-get", ""), MISSING, ("id", "echo 1000")]);
    let output = programs.bash(". scripts/lib.sh; need_packages --for 'the build' clang m4");
    let words = ["for the build: clang m4", "apt-get install --no-install-recommends clang m4"];
    assert_message(&output, 1, &words);
    assert_eq!(programs.calls().matches("apt-get").count(), 0);
}
