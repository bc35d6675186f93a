//! C programs on the shared library, in a network namespace of the test. Without root, the test
//! prints a message and passes.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::library;

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().expect("a word")).args(words).status();
    assert!(status.is_ok_and(|status| status.success()), "{command}");
}

/// Removes the namespace when the test ends.
struct Namespace(String);

impl Namespace {
    /// A namespace with the interface v0 at 10.77.0.1, and its peer.
    fn new() -> Option<Self> {
        // SAFETY: the function takes no arguments.
        if unsafe { libc::geteuid() } != 0 {
            feroce_test_skip::skip("a network namespace needs root");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fr-cm-{}-{count}", std::process::id());
        run(&format!("ip netns add {name}"));
        let namespace = Self(name.clone());
        run(&format!("ip -n {name} link add v0 type veth peer name v1"));
        run(&format!("ip -n {name} address add 10.77.0.1/24 dev v0"));
        for interface in ["lo", "v0", "v1"] {
            run(&format!("ip -n {name} link set {interface} up"));
        }
        Some(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// Compiles and runs `tests/programs/NAME.c`.
fn program(namespace: &Namespace, name: &str) {
    let folder = library().parent().expect("a folder").to_owned();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/programs/{name}.c"));
    let built = std::env::temp_dir().join(format!("{}-{name}", namespace.0));
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&built).arg(&source).arg("-L").arg(&folder);
    compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]);
    assert!(compiler.status().expect("a C compiler").success());
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0]).arg(&built).arg("10.77.0.1");
    command.env("LD_LIBRARY_PATH", &folder).env("FEROCE_INTERFACES", "v0").env("FEROCE_CONFIG", "");
    let output = command.output().expect("the program");
    std::fs::remove_file(&built).expect("just built");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("0 checks failed"),
        "{name}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn loopback_addresses_resolve_to_the_device_and_a_busy_interface_is_busy() {
    let Some(namespace) = Namespace::new() else { return };
    program(&namespace, "loopback");
}

#[test]
fn a_signal_handler_may_end_a_program_that_polls() {
    let Some(namespace) = Namespace::new() else { return };
    program(&namespace, "exits");
}
