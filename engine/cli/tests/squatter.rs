//! An unprivileged user takes the names by which a process claims an interface. Whoever has the
//! right to use the interface opens it all the same, and owners still exclude each other. Needs
//! root; skipped with a message without root.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use common::{Pair, Server, text};

/// Takes every name that could belong to the claim of an interface. Arguments: the interface, and
/// the inode of a socket of root.
const SQUATTER: &str = r#"
import os, socket, sys
interface, inode = sys.argv[1:]
kept = []
def bind(kind, name):
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(b"\0" + name.encode())
    kept.append(one)
    return one
claim = f"feroce/owner/{interface}"
bind(socket.SOCK_DGRAM, claim)
for kind in socket.SOCK_STREAM, socket.SOCK_SEQPACKET:
    bind(kind, claim).listen(0)
    # No process can connect any more.
    for _ in range(3):
        one = socket.socket(socket.AF_UNIX, kind)
        one.setblocking(False)
        kept.append(one)
        try: one.connect(b"\0" + claim.encode())
        except BlockingIOError: pass
for pid in 1, os.getpid(), os.getppid():
    bind(socket.SOCK_DGRAM, f"feroce/owner-of/{interface}/{pid}")
# A row of /proc/net/unix that says that a socket of root has the name.
bind(socket.SOCK_DGRAM, f"x\n0: 00000002 00000000 00000000 0002 01 {inode} @{claim}")
print("ready", flush=True)
sys.stdin.read()
"#;

/// A socket of root, whose inode is printed.
const OF_ROOT: &str = r#"
import os, socket, sys
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
one.bind(b"\0something else")
print(os.fstat(one.fileno()).st_ino, flush=True)
sys.stdin.read()
"#;

/// A Python process that ends when its standard input does, at the latest when dropped.
struct Script {
    child: Child,
    stdin: Option<ChildStdin>,
    first_line: String,
}

impl Script {
    fn start(command: &mut Command, script: &str, arguments: &[&str]) -> Self {
        let command = command.args(["python3", "-c", script]).args(arguments);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().expect("a command");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut first_line = String::new();
        output.read_line(&mut first_line).expect("text");
        let stdin = child.stdin.take();
        Self { child, stdin, first_line: first_line.trim().to_owned() }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait(); // The script ends with its input.
    }
}

/// The user who squats.
const SQUATTING: u32 = 65_533;
/// A user who opens interfaces.
const OPENING: u32 = 65_534;

/// A command of `user` in the first namespace, with the capabilities `kept` (`-all`, or such as
/// `+net_raw`).
fn as_user(pair: &Pair, user: u32, kept: &str) -> Command {
    let mut command = pair.run(0, "setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--clear-groups", "--no-new-privs"]);
    match kept {
        "-all" => command.args(["--inh-caps=-all", "--bounding-set=-all"]),
        kept => command.args([format!("--inh-caps={kept}"), format!("--ambient-caps={kept}")]),
    };
    // Python may be installed where only root may look.
    command.args(["env", "PATH=/usr/bin:/bin", "FEROCE_CONFIG="]);
    command
}

fn squat(pair: &Pair) -> [Script; 2] {
    let mut root = pair.run(0, "env");
    let of_root = Script::start(&mut root, OF_ROOT, &[]);
    let mut user = as_user(pair, SQUATTING, "-all");
    let squatter = Script::start(&mut user, SQUATTER, &["v0", &of_root.first_line]);
    assert_eq!(squatter.first_line, "ready");
    [squatter, of_root]
}

/// Starts `feroce perf` on v0 in a process of its own.
fn own(command: &mut Command, kind: &str) -> Server {
    own_at(18515, command, kind)
}

/// As [`own`], with its TCP port: two servers at a time have two.
fn own_at(port: u16, command: &mut Command, kind: &str) -> Server {
    let command = command.args(["perf", "-i", "v0", "-p", &port.to_string()]);
    Server::start(command.args(["--sharing", "embedded", "--port-kind", kind]))
}

/// Opens v0, which must fail. Returns the message.
fn refused(command: &mut Command, kind: &str) -> String {
    // Another TCP port than that of the owner.
    let arguments = ["perf", "-i", "v0", "-p", "18516", "--sharing", "embedded", "--port-kind"];
    let command = command.args(arguments).arg(kind);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("feroce");
    let mut message = String::new();
    let mut lines = BufReader::new(child.stderr.take().expect("piped"));
    while !message.contains("waiting for a client") {
        if lines.read_line(&mut message).expect("text") == 0 {
            assert!(!child.wait().expect("a child of ours").success());
            return message;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("two processes own the interface");
}

fn root(pair: &Pair) -> Command {
    pair.feroce(0, "")
}

fn user(pair: &Pair, kept: &str) -> Command {
    let mut command = as_user(pair, OPENING, kept);
    command.arg(env!("CARGO_BIN_EXE_feroce"));
    command
}

/// Returns true if `message` says that `owner` has the interface. `ip netns exec` and `setpriv`
/// execute the program in their own process.
fn names(message: &str, owner: &Server) -> bool {
    message.contains(&format!("in use by process {} (feroce", owner.child.id()))
}

#[test]
fn a_squatter_keeps_nobody_out() {
    let Some(pair) = Pair::new() else { return };
    let squatter = squat(&pair);
    for kind in ["af_xdp", "packet"] {
        let owner = own(&mut root(&pair), kind);
        let message = refused(&mut root(&pair), kind);
        assert!(names(&message, &owner), "{kind}: {message}");
        // An ordinary user, whom the squatter could keep from port udp anyway.
        let message = refused(&mut user(&pair, "-all"), "udp");
        assert!(names(&message, &owner), "{kind}: {message}");
        let killed = Command::new("kill").args(["-KILL", &owner.child.id().to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        owner.end();
    }
    // The owner stays the owner when the names are free again.
    let owner = own(&mut root(&pair), "packet");
    drop(squatter);
    for kind in ["packet", "udp"] {
        let message = refused(&mut root(&pair), kind);
        assert!(names(&message, &owner), "{kind}: {message}");
    }
    let message = refused(&mut user(&pair, "-all"), "udp");
    assert!(names(&message, &owner), "{message}");
}

#[test]
fn a_daemon_starts_in_spite_of_a_squatter() {
    let Some(pair) = Pair::new() else { return };
    let _squatter = squat(&pair);
    let up = pair.feroce(0, "up v0 --detach").output().expect("feroce");
    assert!(up.status.success(), "{}", text(&up.stderr));
    let message = text(&up.stderr);
    assert!(message.contains(&format!("of user {SQUATTING} claims v0")), "{message}");
    let down = pair.feroce(0, "down v0").output().expect("feroce");
    assert!(down.status.success(), "{}", text(&down.stderr));
}

/// A user who may open packet sockets, and root.
#[test]
fn root_and_a_user_with_a_capability_exclude_each_other() {
    let Some(pair) = Pair::new() else { return };
    for is_squatted in [false, true] {
        let _squatter = is_squatted.then(|| squat(&pair));
        let owner = own(&mut user(&pair, "+net_raw"), "packet");
        for kind in ["packet", "af_xdp", "udp"] {
            let message = refused(&mut root(&pair), kind);
            assert!(names(&message, &owner), "{is_squatted} {kind}: {message}");
        }
        owner.stop();
        let owner = own(&mut root(&pair), "packet");
        for kind in ["packet", "udp"] {
            let message = refused(&mut user(&pair, "+net_raw"), kind);
            assert!(names(&message, &owner), "{is_squatted} {kind}: {message}");
        }
    }
}

/// Programs on port udp: of one user they exclude each other, also if one of them has more
/// privileges. Root does not wait for those of other users.
#[test]
fn owners_without_privileges_exclude_those_of_the_same_user() {
    let Some(pair) = Pair::new() else { return };
    let owner = own(&mut user(&pair, "-all"), "udp");
    for (kept, kind) in [("-all", "udp"), ("+net_raw", "packet")] {
        let message = refused(&mut user(&pair, kept), kind);
        assert!(names(&message, &owner), "{kept} {kind}: {message}");
    }
    let of_root = own_at(18517, &mut root(&pair), "af_xdp");
    of_root.stop();
    drop(owner);
    let owner = own(&mut user(&pair, "+net_raw"), "packet");
    let message = refused(&mut user(&pair, "-all"), "udp");
    assert!(names(&message, &owner), "{message}");
}
