//! `feroce up`: many programs share an interface; they end, and the daemon ends, in every way.
//! Needs root; skipped with a message without root.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{DEVICES, Pair, Server, TIMEOUT, TempFile, ip, text};
use serde_json::Value;

/// Tests share two cores, so they run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a command as a user without any capability.
const NOBODY: [&str; 8] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "env",
];

/// A daemon in the foreground. It is killed when dropped.
struct Daemon {
    child: Child,
    /// The daemon's output after the first line.
    _output: BufReader<std::process::ChildStdout>,
    socket: PathBuf,
}

impl Daemon {
    /// Starts the daemon of an end and waits until programs can attach.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a daemon");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        let (_, socket) = line.trim().split_once("socket ").unwrap_or_else(|| panic!("{line}"));
        let daemon = Self { child, _output: output, socket: socket.into() };
        eventually("the daemon listens", || {
            std::os::unix::net::UnixStream::connect(&daemon.socket)
                .is_err_and(|error| error.raw_os_error() == Some(libc::EPROTOTYPE))
        });
        daemon
    }

    fn signal(&self, signal: &str) {
        kill(self.child.id(), signal);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Usually it has ended already.
        let _ = self.child.wait();
    }
}

fn kill(pid: u32, signal: &str) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill");
    assert!(sent.success(), "kill {signal} {pid}");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Pair {
    /// A daemon at each end, which any user may use.
    fn daemons(&self, options: &str) -> [Daemon; 2] {
        [0, 1].map(|end| {
            let up = format!("up {} --mode 666 {options}", DEVICES[end]);
            Daemon::start(&mut self.feroce(end, &up))
        })
    }

    /// A command of a user without any capability, which must use the daemon.
    fn as_nobody(&self, end: usize, arguments: &str) -> Command {
        let mut command = self.run(end, NOBODY[0]);
        command.args(&NOBODY[1..]).args(["FEROCE_SHARING=daemon", env!("CARGO_BIN_EXE_feroce")]);
        command.args(arguments.split_whitespace()).env("FEROCE_CONFIG", "");
        command
    }

    /// A server and a client of a test on TCP port `port`.
    fn start_pair(&self, port: u16, test: &str) -> [Server; 2] {
        let server = Server::start(
            self.as_nobody(1, &format!("perf -i v1 -p {port} --json")).stderr(Stdio::piped()),
        );
        let client = self.as_nobody(0, &format!("perf -i v0 -p {port} --json {test} 10.9.0.2"));
        [server, Server::spawn(client)]
    }
}

impl Server {
    /// Starts a client. Does not wait for output.
    fn spawn(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self::of(child.expect("a client"))
    }
}

fn rows(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["rows"][0].clone()
}

/// Programs of an ordinary user run at the same time through one daemon per host, on each kind of
/// port, with their data checked.
#[test]
fn programs_share_an_interface() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for kind in ["packet", "udp", "af_xdp"] {
        let daemons = pair.daemons(&format!("--port-kind {kind}"));
        let tests = ["write -s 20000", "read -s 9000", "send -s 70000 -q 3", "atomic-fadd"];
        let running: Vec<_> = (7400..)
            .zip(tests)
            .map(|(port, test)| pair.start_pair(port, &format!("--op {test} -n 500 --check")))
            .collect();
        for ([server, client], test) in running.into_iter().zip(tests) {
            let (client, server) = (client.end(), server.end());
            let row = rows(&client);
            assert!(row["checked_bytes"].as_f64() > Some(0.0), "{kind} {test}: {row}");
            assert_eq!(row, rows(&server), "{kind} {test}");
        }
        let sockets = daemons.each_ref().map(|daemon| daemon.socket.clone());
        for daemon in daemons {
            daemon.signal("-TERM");
            let mut child = daemon;
            assert!(child.child.wait().expect("a child of ours").success());
        }
        assert!(sockets.iter().all(|socket| !socket.exists()), "{kind}: {sockets:?}");
    }
}

/// An ordinary user runs the daemon as well.
#[test]
fn an_ordinary_user_owns_the_interface() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let runtime = std::env::temp_dir().join(format!("feroce-runtime-{}", std::process::id()));
    std::fs::create_dir(&runtime).expect("a directory");
    std::os::unix::fs::chown(&runtime, Some(65534), Some(65534)).expect("root");
    let variable = format!("XDG_RUNTIME_DIR={}", runtime.display());
    let command = |end: usize, arguments: &str| {
        let mut command = pair.run(end, NOBODY[0]);
        command.args(&NOBODY[1..]).args([&variable, env!("CARGO_BIN_EXE_feroce")]);
        command.args(arguments.split_whitespace()).env("FEROCE_CONFIG", "");
        command
    };
    let daemons =
        [0, 1].map(|end| Daemon::start(&mut command(end, &format!("up {}", DEVICES[end]))));
    let server = Server::start(&mut command(1, "perf -i v1 --json --sharing daemon"));
    let client =
        command(0, "perf -i v0 --sharing daemon --op write -n 200 --check --json 10.9.0.2");
    rows(&Server::spawn(client).end());
    rows(&server.end());
    assert!(daemons.iter().all(|daemon| daemon.socket.starts_with(&runtime)));
    let down = command(0, "down").output().expect("feroce");
    assert!(down.status.success(), "{}", text(&down.stderr));
    drop(daemons);
    eventually("nothing is left", || {
        std::fs::read_dir(runtime.join("feroce")).is_ok_and(|mut left| left.next().is_none())
    });
    std::fs::remove_dir_all(&runtime).expect("our directory");
}

/// Two of four programs are killed, one is stopped: the others transfer all their data,
/// and the peers of the killed programs get an error at once.
#[test]
fn a_program_that_dies_concerns_its_peer_only() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let _daemons = pair.daemons("--port-kind packet");
    let survivors =
        [7410, 7411].map(|port| pair.start_pair(port, "--op write -s 8192 -D 3 --check"));
    let dying = [7412, 7413].map(|port| pair.start_pair(port, "--op write -s 8192 -D 20"));
    let [stopped_server, stopped] = pair.start_pair(7414, "--op write -s 8192 -D 20");
    std::thread::sleep(Duration::from_secs(1));
    kill(stopped.child.id(), "-STOP");
    for [server, client] in dying {
        kill(server.child.id(), "-KILL");
        let killed = Instant::now();
        let output = client.end();
        let after = killed.elapsed();
        assert!(!output.status.success(), "its server is gone");
        assert!(after < Duration::from_secs(1), "the client heard of it after {after:?}");
        drop(server);
    }
    for [server, client] in survivors {
        assert_eq!(rows(&client.end()), rows(&server.end()));
    }
    kill(stopped.child.id(), "-KILL");
    drop((stopped_server, stopped));
}

/// An interface gets another Ethernet address during a transfer. The daemon of the other end finds
/// it: its kernel has forgotten the neighbour and would not ask for it.
#[test]
fn a_peer_with_a_new_ethernet_address_is_found() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for (kind, number) in [("packet", 1), ("af_xdp", 2)] {
        let daemons = pair.daemons(&format!("--port-kind {kind}"));
        let [server, client] = pair.start_pair(7420 + number, "--op write -s 8192 -D 4 --check");
        std::thread::sleep(Duration::from_millis(1500));
        ip(&format!("-n {} link set v1 address 02:00:00:00:22:0{number}", pair.names[1]));
        ip(&format!("-n {} neighbour del 10.9.0.2 dev v0", pair.names[0]));
        assert_eq!(rows(&client.end()), rows(&server.end()), "{kind}");
        drop(daemons);
    }
}

/// A killed daemon leaves no files, its programs get an error, and the next daemon works at once.
#[test]
fn a_daemon_that_is_killed_leaves_nothing() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for kind in ["af_xdp", "packet"] {
        let options = format!("--port-kind {kind}");
        let [daemon, other] = pair.daemons(&options);
        let [server, client] = pair.start_pair(7420, "--op write -s 8192 -D 30");
        std::thread::sleep(Duration::from_millis(700));
        daemon.signal("-KILL");
        let killed = Instant::now();
        assert!(!client.end().status.success() && !server.end().status.success(), "{kind}");
        assert!(killed.elapsed() < Duration::from_secs(15), "{kind}: {:?}", killed.elapsed());
        let socket = daemon.socket.clone();
        drop(daemon);
        eventually("the socket is removed", || !socket.exists());
        let shown = common::ip(&format!("-n {} -d link show v0", pair.names[0]));
        assert!(!shown.contains("xdp"), "{kind}: {shown}");
        let again = Daemon::start(&mut pair.feroce(0, &format!("up v0 --mode 666 {options}")));
        let [server, client] = pair.start_pair(7421, "--op write -n 200 --check");
        assert_eq!(rows(&client.end()), rows(&server.end()), "{kind}");
        drop((again, other));
    }
}

/// A hostile client of a daemon, in Python. Arguments: the socket, and a seed.
const HOSTILE: &str = r#"
import socket, sys, random, json, os
path, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5)
    s.connect(path)
    return s
def call(s, request, id=1):
    s.send(json.dumps({"id": id, "request": request}).encode())
    while True:
        answer = json.loads(s.recv(1 << 20))
        if "Answer" in answer: return answer
attach = {"Attach": {"version": 1, "program": "evil\u001b[31m"}}
# Nonsense before and after attaching.
for first in (None, attach):
    for n in range(200):
        s = connect()
        try:
            if first: call(s, first)
            junk = random.choice([os.urandom(random.randrange(1, 3000)), b"{}", b"[" * 5000,
                b'{"id":1,"request":"QpnSlice"}' * 3,
                json.dumps({"id": -1, "request": attach}).encode()])
            s.send(junk)
        except OSError: pass
        s.close()
# Descriptors, whose last close could wait in the daemon, are refused or closed.
s = connect()
try: socket.send_fds(s, [b"{}"], [os.open("/dev/null", os.O_RDONLY)] * 3)
except OSError: pass
s.close()
# As many programs as it may have, and not one more.
kept = []
for n in range(300):
    s = connect(); kept.append(s)
    answer = call(s, attach)
    if "Err" in answer["Answer"]["result"]: break
refused = answer["Answer"]["result"]["Err"]
assert "Quota" in refused, refused
# Requests with forged values, none of which may succeed.
s = kept[0]
slice = call(s, "QpnSlice")["Answer"]["result"]["Ok"]["Slice"]
forged = [{"Connect": {"qpn": 1, "remote": "10.9.0.2", "remote_qpn": 77}},
    {"Connect": {"qpn": slice - 1, "remote": "10.9.0.2", "remote_qpn": 77}},
    {"Connect": {"qpn": slice, "remote": "224.0.0.1", "remote_qpn": 77}},
    {"Connect": {"qpn": slice, "remote": "10.9.0.2", "remote_qpn": 1}},
    {"Connect": {"qpn": slice, "remote": "10.9.0.2", "remote_qpn": 1 << 30}},
    {"Join": {"group": "10.9.0.2"}},
    {"Claim": {"space": 7, "port": 1, "ip": "0.0.0.0", "reuse": False, "v6_only": False}},
    {"Resolve": {"destination": [1] * 16, "timeout_ms": 1 << 60,
        "source": {"gid": [9] * 16, "vlan": None, "interface": 0, "interface_name": "x"}}}]
for request in forged:
    answer = call(s, request)["Answer"]["result"]
    assert "Err" in answer, (request, answer)
# More QPs than its user may have: other programs of the user have some.
slices = 0
while "Ok" in call(s, "QpnSlice")["Answer"]["result"]: slices += 1
assert slices < 8, slices
# A million requests are too slow here; a flood without reading answers ends the conversation.
s.settimeout(None); s.setblocking(False)
try:
    for n in range(100000): s.send(b'{"id":1,"request":"QpnSlice"}')
except OSError: pass
print("done")
"#;

/// A program sends nonsense to the socket, or attaches many times: the daemon serves the others.
#[test]
fn a_hostile_client_changes_nothing_for_its_neighbours() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let daemons = pair.daemons("--port-kind packet --max-programs 20 --max-qps 2048");
    let [server, client] = pair.start_pair(7430, "--op send -s 8192 -D 4 --check");
    let mut python = pair.run(0, "python3");
    let socket = daemons[0].socket.to_str().expect("text");
    let output = python.args(["-c", HOSTILE, socket, "7"]).output().expect("python3");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(rows(&client.end()), rows(&server.end()));
    let [server, client] = pair.start_pair(7431, "--op write -n 200 --check");
    assert_eq!(rows(&client.end()), rows(&server.end()), "new programs attach");
}

/// A container: the daemon's socket is mounted, and the interface is another one. A device has the
/// node GUID of the daemon's port, which the daemon demands in messages of RDMA CM.
#[test]
fn a_program_in_another_namespace_has_the_guid_of_the_daemon() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let daemon = Daemon::start(&mut pair.feroce(0, "up v0 --port-kind packet --mode 666"));
    let guid = |end: usize| {
        let mut command = pair.as_nobody(end, &format!("devinfo -i {} -v --json", DEVICES[end]));
        let output = command.env("FEROCE_DAEMON_SOCKET", &daemon.socket).output().expect("feroce");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let infos: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        infos[0]["node_guid"].as_str().expect("text").to_owned()
    };
    assert_eq!(guid(1), guid(0));
}

#[test]
fn errors_name_the_culprit() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let fails = |arguments: &str, words: &[&str]| {
        let output = pair.feroce(0, arguments).output().expect("feroce");
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{arguments}");
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
    };
    fails("up", &["no interface given"]);
    fails("up none0", &["none0"]);
    fails("up v0 --group no-such-group", &["no-such-group", "--group"]);
    fails("up v0 --cores 2", &["one core"]);
    fails("down v0", &["no daemon owns v0"]);
    fails("perf -i v0 --sharing daemon", &["no daemon", "feroce up"]);
    let _daemon = Daemon::start(&mut pair.feroce(0, "up v0 --port-kind packet"));
    fails("up v0 --port-kind packet", &["in use by process", "feroce"]);
    fails("perf -i v0 --sharing embedded", &["in use by process", "feroce up v0"]);
    fails("perf -i v0 --cores 2", &["one core"]);
    let mut nobody = pair.as_nobody(0, "perf -i v0");
    let message = text(&nobody.output().expect("feroce").stderr);
    assert!(message.contains("cannot be used") && message.contains("ermission"), "{message}");
}

#[test]
fn the_daemon_runs_in_the_background() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let up = pair.feroce(0, "up v0 --detach --port-kind packet").output().expect("feroce");
    assert!(up.status.success(), "{}", text(&up.stderr));
    let said = text(&up.stdout);
    assert!(said.starts_with("v0: process "), "{said}");
    let inode = std::fs::metadata(format!("/run/netns/{}", pair.names[0])).expect("ours").ino();
    let socket = PathBuf::from(format!("/run/feroce/{inode}/v0"));
    assert!(socket.exists());
    let down = pair.feroce(0, "down v0").output().expect("feroce");
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert!(!socket.exists() && !socket.parent().is_some_and(|folder| folder.exists()));
}

/// A daemon in the background keeps no descriptor of its caller: the reader of a pipe that the
/// caller passed on comes to its end.
#[test]
fn a_daemon_in_the_background_leaves_its_callers_pipes() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let feroce = env!("CARGO_BIN_EXE_feroce");
    let line = format!(
        "set -o pipefail; {feroce} up v0 --detach --port-kind packet 3>&1 >&2 | timeout 10 cat"
    );
    let up = pair.run(0, "bash").args(["-c", &line]).env("FEROCE_CONFIG", "").output();
    let up = up.expect("bash");
    let down = pair.feroce(0, "down v0").output().expect("feroce");
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(up.status.code(), Some(0), "124: the pipe stays open: {}", text(&up.stderr));
}

/// Its log can be a descriptor of the caller, as `--log >(logger)` makes it. A log that cannot be
/// opened is told before programs can attach.
#[test]
fn a_daemon_in_the_background_has_a_log() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let log = TempFile::new("log", "");
    let feroce = env!("CARGO_BIN_EXE_feroce");
    let line = format!(
        "exec {feroce} up v0 --detach --port-kind packet --log /dev/fd/3 3>> {}",
        log.path()
    );
    let up = pair.run(0, "bash").args(["-c", &line]).env("FEROCE_CONFIG", "").output();
    let up = up.expect("bash");
    assert!(up.status.success(), "{}", text(&up.stderr));
    let down = pair.feroce(0, "down v0").output().expect("feroce");
    assert!(down.status.success(), "{}", text(&down.stderr));
    let bad = pair.feroce(0, "up v0 --detach --port-kind packet --log /nowhere/log").output();
    let bad = bad.expect("feroce");
    let said = text(&bad.stderr);
    assert!(!bad.status.success() && said.contains("/nowhere/log"), "{said}");
}

/// The value of `name` in the status of each thread.
fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let statuses = tasks.filter_map(|task| {
        // The thread may have ended since.
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        Some(line.trim().to_owned())
    });
    statuses.collect()
}

/// The system calls of every thread are restricted, unless `--no-seccomp` says otherwise.
#[test]
fn system_calls_are_restricted() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for kind in ["af_xdp", "packet", "udp"] {
        for (option, seccomp) in [("", "2"), ("--no-seccomp", "0")] {
            let up = format!("up v0 --port-kind {kind} {option}");
            let daemon = Daemon::start(&mut pair.feroce(0, &up));
            // Main, switch, control, addresses.
            eventually("all threads run, restricted or not", || {
                let values = of_threads(daemon.child.id(), "Seccomp:");
                values.len() >= 4 && values.iter().all(|value| value == seccomp)
            });
            daemon.signal("-TERM");
            let mut daemon = daemon;
            assert!(daemon.child.wait().expect("a child of ours").success());
        }
    }
}

/// The messages to a service manager.
#[test]
fn the_service_manager_is_notified() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    let path = std::env::temp_dir().join(format!("fr-notify-{}", std::process::id()));
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a socket of ours");
    let receive = || {
        let mut message = [0; 4096];
        let length = manager.recv(&mut message).expect("a message");
        text(&message[..length])
    };
    let mut up = pair.feroce(0, "up v0 --port-kind packet");
    let mut daemon = up.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).spawn().expect("feroce");
    assert_eq!(receive(), "READY=1\nSTATUS=programs can attach: v0\n");
    // A program attaches at once.
    let mut program = pair.feroce(0, "devinfo -v -i v0");
    let program = program.env("FEROCE_SHARING", "daemon").output().expect("feroce");
    assert!(program.status.success(), "{}", text(&program.stderr));
    kill(daemon.id(), "-TERM");
    assert_eq!(receive(), "STOPPING=1\nSTATUS=ends the connections of programs\n");
    assert!(daemon.wait().expect("a child of ours").success());
    std::fs::remove_file(path).expect("our socket");
}

#[test]
fn the_interface_is_free_once_down_has_returned() {
    let _turn = ONE_AT_A_TIME.lock();
    let Some(pair) = Pair::new() else { return };
    for round in 0..10 {
        let up = pair.feroce(0, "up v0 --detach").output().expect("feroce");
        assert!(up.status.success(), "round {round}: {}", text(&up.stderr));
        let pid = text(&up.stdout).trim().rsplit(' ').next().map(str::to_owned).expect("a pid");
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        assert_eq!(name, "feroce\n");
        let down = pair.feroce(0, "down v0").output().expect("feroce");
        assert!(down.status.success(), "round {round}: {}", text(&down.stderr));
    }
}
