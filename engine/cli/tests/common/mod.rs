//! Shared by the tests of the program: calls of `feroce`, temporary files, and two network
//! namespaces joined by a veth pair in which `feroce` runs.
#![allow(dead_code)] // Each test uses a part of this module.

pub mod installed;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub fn ip(arguments: &str) -> String {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("the `ip` program");
    assert!(output.status.success(), "ip {arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr))
    })
}

/// Runs `feroce` without a configuration file and with the environment variables `variables`.
pub fn feroce(arguments: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.env("FEROCE_CONFIG", "").envs(variables.iter().copied());
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).output().expect("feroce")
}

/// Copies the program `feroce` to `target`.
///
/// `cp` copies it, because a child that another thread of this process starts meanwhile would
/// inherit a descriptor open for writing, and executing the copy would then fail with ETXTBSY.
pub fn copy_feroce(target: &Path) {
    let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_feroce")).arg(target).status();
    assert!(status.is_ok_and(|status| status.success()), "{}", target.display());
}

/// A temporary file. Dropping this value removes the file.
pub struct TempFile(PathBuf);

impl TempFile {
    pub fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fr-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("a file");
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Two namespaces: 10.9.0.1 on `v0` and 10.9.0.2 on `v1`. Each interface has two queues, one of
/// them in use.
pub struct Pair {
    pub names: [String; 2],
}

pub const DEVICES: [&str; 2] = ["v0", "v1"];

impl Pair {
    /// `None`, with a message, if the tests cannot run.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = Command::new("id").arg("-u").output().expect("the `id` program");
        if text(&id.stdout).trim() != "0" {
            feroce_test_skip::skip("network namespaces and AF_XDP need root");
            return None;
        }
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { names: ["a", "b"].map(|end| format!("fr-cli-{unique}{end}")) };
        let [a, b] = &pair.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        let queues = "numrxqueues 2 numtxqueues 2 type veth";
        let other = "numrxqueues 2 numtxqueues 2";
        ip(&format!(
            "link add v0 netns {a} mtu 4500 {queues} peer name v1 netns {b} mtu 4500 {other}"
        ));
        for (end, name) in pair.names.iter().enumerate() {
            pair.shell(end, &format!("ethtool -L {} rx 1 tx 1 || true", DEVICES[end]));
            ip(&format!("-n {name} address add 10.9.0.{}/24 dev {}", end + 1, DEVICES[end]));
            ip(&format!("-n {name} link set {} up", DEVICES[end]));
        }
        Some(pair)
    }

    /// A command for `program` in the namespace of `end`.
    pub fn run(&self, end: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end], program]).stdin(Stdio::null());
        command
    }

    /// Runs shell commands in the namespace of `end`. They must succeed.
    pub fn shell(&self, end: usize, script: &str) {
        let output = self.run(end, "sh").args(["-ec", script]).output().expect("a shell");
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    }

    pub fn feroce(&self, end: usize, arguments: &str) -> Command {
        let mut command = self.run(end, env!("CARGO_BIN_EXE_feroce"));
        command.args(arguments.split_whitespace()).env("FEROCE_CONFIG", "");
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let removed = Command::new("ip").args(["netns", "delete", name]).status();
            if !removed.is_ok_and(|status| status.success()) {
                eprintln!("could not remove namespace {name}");
            }
        }
    }
}

fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("a pipe");
    bytes
}

/// A program that runs beside the test. It is killed when dropped.
pub struct Server {
    pub child: Child,
    errors: BufReader<ChildStderr>,
}

impl Server {
    /// Starts `command`, a `feroce perf` server, and returns when it waits for a client.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a server");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let (mut line, mut output_text) = (String::new(), String::new());
        while !line.contains("waiting for a client") {
            line.clear();
            let read = lines.read_line(&mut line).expect("text");
            output_text += &line;
            assert!(read > 0, "the server ended before it listened: {output_text}");
        }
        Self { child, errors: lines }
    }

    /// A program whose outputs are pipes.
    #[allow(dead_code)] // Not every test file has clients beside servers.
    pub fn of(mut child: Child) -> Self {
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, errors }
    }

    /// Waits for the end of the program. Returns its output.
    pub fn end(mut self) -> Output {
        let started = Instant::now();
        // Read while the program runs: a pipe holds 64 KiB.
        let stdout = self.child.stdout.take();
        let stdout = std::thread::spawn(|| stdout.map(read_all).unwrap_or_default());
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(started.elapsed() < TIMEOUT, "process {} does not end", self.child.id());
            std::thread::sleep(Duration::from_millis(10));
        };
        let stdout = stdout.join().expect("the reader does not panic");
        Output { status, stdout, stderr: read_all(&mut self.errors) }
    }

    /// Sends SIGTERM and waits for the end of the program.
    pub fn stop(self) -> Output {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        self.end()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Usually it has ended already.
        let _ = self.child.wait();
    }
}
