//! `feroce run` where it may not mount: a library shows the files of the devices. The user has no
//! capability, in a network namespace that root made, and may make no user namespace. Programs of
//! the distribution run on UDP sockets at both ends. Needs root; skipped with a message without
//! root.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::installed::{Installed, assert_message};
use common::{Pair, Server, TIMEOUT, text};

/// Starts a command as a user without capabilities, in a user namespace that can contain no other.
const USER: &str = "#!/bin/sh
exec setpriv --reuid 65534 --regid 65534 --clear-groups \\
    unshare --user --map-user=1000 --map-group=1000 --keep-caps sh -ec '
        echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all --no-new-privs \"$@\"
    ' sh \"$@\"
";

/// Feroce with its libraries, a network, and a user.
struct Scene {
    pair: Pair,
    installed: Installed,
}

impl Scene {
    fn new(name: &str) -> Option<Self> {
        let pair = Pair::new()?;
        let scene = Self { pair, installed: Installed::new(name).with_libraries() };
        let (user, tmp) = (scene.user(), scene.tmp());
        std::fs::write(&user, USER).expect("a file");
        std::fs::set_permissions(&user, PermissionsExt::from_mode(0o755)).expect("mine");
        std::fs::create_dir(&tmp).expect("a folder");
        std::fs::set_permissions(&tmp, PermissionsExt::from_mode(0o777)).expect("mine");
        let output = scene.pair.run(0, &user).arg("true").output().expect("a shell");
        if !output.status.success() {
            feroce_test_skip::skip(&format!(
                "no user namespace for the user: {}",
                text(&output.stderr)
            ));
            return None;
        }
        Some(scene)
    }

    fn user(&self) -> String {
        self.installed.0.join("user").to_str().expect("text").to_owned()
    }

    /// The folder for temporary files.
    fn tmp(&self) -> PathBuf {
        self.installed.0.join("tmp")
    }

    /// A command for `feroce run OPTIONS WORDS` of the user at `end`.
    fn command(&self, end: usize, options: &str, words: &[&str]) -> Command {
        let mut command = self.pair.run(end, &self.user());
        command.arg(self.installed.feroce()).args(["run", "-i", ["v0", "v1"][end]]);
        command.args(options.split_whitespace()).arg("--").args(words);
        command.env("FEROCE_CONFIG", "").env("TMPDIR", self.tmp());
        command
    }

    /// Runs a shell script of the user at end 0.
    fn script(&self, options: &str, script: &str) -> Output {
        self.command(0, options, &["sh", "-ec", script]).output().expect("feroce")
    }

    /// What is left in the folder for temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.tmp()).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        wait("the folder is removed", || self.left().is_empty());
    }
}

#[track_caller]
fn wait(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // Usually it has ended already.
        let _ = self.0.wait();
    }
}

#[test]
fn the_user_can_mount_nothing_and_finds_the_files() {
    let Some(scene) = Scene::new("view-files") else { return };
    let script = "
        ! unshare --user true 2> /dev/null
        ! unshare --mount true 2> /dev/null
        ls /sys/class/infiniband /sys/class/infiniband_verbs /dev/infiniband/
        cat /sys/class/infiniband/feroce0/node_type
        cat //sys/class/./infiniband/feroce0/device/infiniband/feroce0/ports/1/link_layer
        readlink /sys/class/infiniband/feroce0
        readlink -f /sys/class/infiniband/feroce0/device
        cat /sys/bus/pci/devices/f0ce:00:00.0/class
        cat /sys/class/infiniband/feroce0/ports/1/hw_counters/out_of_sequence
        ls /sys/class/infiniband/feroce0/device/net
        test -d /sys/class/infiniband/feroce0/../../../../system/cpu
        test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/rdma_cm
        test ! -e /dev/infiniband/uverbs1
        test -z \"$(ls -la /sys/class/infiniband/ 2>&1 | grep 'No such')\"
        cd /sys/class/infiniband/feroce0/ports/1; cat state; /bin/pwd -P";
    let output = scene.script("", script);
    assert_message(&output, 0, &["a preloaded library shows", "statically linked programs"]);
    let device = "sys/devices/pcif0ce:00/f0ce:00:00.0";
    let expected = format!(
        "/dev/infiniband/:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nferoce0\n\n\
         /sys/class/infiniband_verbs:\nabi_version\nuverbs0\n\
         1: CA\nEthernet\n../../{}/infiniband/feroce0\n/{device}\n0x020000\n0\nv0\n4: ACTIVE\n\
         /{device}/infiniband/feroce0/ports/1\n",
        device.trim_start_matches("sys/")
    );
    assert_eq!(text(&output.stdout), expected);
    scene.assert_nothing_is_left();
    let output = scene.script("--quiet", "true");
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), ("", Some(0)));
}

/// Every function that the library replaces, called by its name.
#[test]
fn every_function_finds_the_files() {
    let Some(scene) = Scene::new("view-functions") else { return };
    let program = scene.installed.0.join("functions");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/view_functions.c");
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-O1", "-o"])
        .args([&program, &source])
        .arg("-ldl")
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", text(&built.stderr));
    let program = program.to_str().expect("text");
    let output = scene.command(0, "", &[program]).output().expect("feroce");
    assert_message(&output, 0, &[]);
    assert_eq!(text(&output.stdout), "0 checks failed\n");
    // As root, in the mount namespace of the caller.
    let mut command = scene.pair.run(0, scene.installed.feroce().to_str().expect("text"));
    command.args(["run", "-i", "v0", "--no-mounts", program]).env("FEROCE_CONFIG", "");
    let output = command.env("TMPDIR", scene.tmp()).output().expect("feroce");
    assert_message(&output, 0, &["--no-mounts"]);
    assert_eq!(text(&output.stdout), "0 checks failed\n");
    scene.assert_nothing_is_left();
}

/// Also those of a program in another user namespace.
#[test]
fn counters_are_live() {
    let Some(scene) = Scene::new("view-counters") else { return };
    let perf = |end: usize, words: &str| {
        let mut command = scene.pair.run(end, &scene.user());
        command.arg(scene.installed.feroce()).args(["perf", "--port-kind", "udp"]);
        command.args(words.split(' ')).env("FEROCE_CONFIG", "");
        command
    };
    let server = Server::start(&mut perf(0, "-i v0"));
    let mut client = perf(1, "-i v1 --op write -s 4096 -D 60 10.9.0.1");
    let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let client = Running(client);
    let script = "
        cd /sys/class/infiniband/feroce0/ports/1/hw_counters; first=0
        for n in $(seq 300); do
            now=$(cat rx_write_requests)
            test $first = 0 || test $now -le $first || exit 0
            first=$now; sleep 0.1
        done
        exit 3";
    assert_message(&scene.script("--quiet", script), 0, &[]);
    drop((client, server));
    scene.assert_nothing_is_left();
}

/// As root, both ways are possible.
#[test]
fn the_files_are_those_of_mounts() {
    let Some(scene) = Scene::new("view-same") else { return };
    let script = "
        cd /sys/class/infiniband/feroce0; pwd -P
        find . /sys/class/infiniband_verbs/ -type f | sort | while read -r file; do
            echo $file: $(cat $file); done
        for link in device device/.. /sys/class/infiniband_verbs/uverbs0 \
            /sys/class/pci_bus/f0ce:00 /sys/bus/pci/devices/f0ce:00:00.0/net; do
            readlink -f $link; realpath $link; done
        readlink device /sys/class/infiniband_verbs/uverbs0
        ls device/ device/../ device/net/v0/ /dev/infiniband/
        ls /sys/class/infiniband/none 2>&1; ls -d device/../../cpu 2>&1; true";
    let [mounted, shown] = [None, Some("--no-mounts")].map(|way| {
        let mut command = scene.pair.run(0, scene.installed.feroce().to_str().expect("text"));
        command.args(["run", "--quiet", "-i", "v0"]).args(way).args(["--", "sh", "-c", script]);
        let output = command.env("FEROCE_CONFIG", "").env("TMPDIR", scene.tmp()).output();
        let output = output.expect("feroce");
        assert_message(&output, 0, &[]);
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    });
    assert!(mounted.lines().count() > 50, "{mounted}");
    assert_eq!(mounted, shown);
    scene.assert_nothing_is_left();
}

#[test]
fn the_folder_is_removed_however_the_program_ends() {
    let Some(scene) = Scene::new("view-ends") else { return };
    // A program that cannot be started.
    let output = scene.command(0, "", &["./no-such-program"]).output();
    assert_message(&output.expect("feroce"), 127, &["a preloaded library", "cannot start"]);
    scene.assert_nothing_is_left();

    // A program that is killed.
    let mut command = scene.command(0, "--quiet", &["sleep", "600"]);
    let mut killed = Running(command.spawn().expect("feroce"));
    let name = format!("/proc/{}/comm", killed.0.id());
    let runs = || std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n");
    wait("the program runs", runs);
    assert_eq!(scene.left().len(), 1, "{:?}", scene.left());
    killed.0.kill().and_then(|()| killed.0.wait()).expect("a child");
    scene.assert_nothing_is_left();

    // A process that the program leaves still finds the files.
    let done = scene.installed.0.join("tmp/done");
    let script = format!(
        "(sleep 2; cat /sys/class/infiniband/feroce0/node_type > {}) > /dev/null 2>&1 &",
        done.display()
    );
    let output = scene.script("--quiet", &script);
    assert_message(&output, 0, &[]);
    assert_eq!(scene.left().len(), 1, "{:?}", scene.left());
    let read = || std::fs::read_to_string(&done).unwrap_or_default();
    wait("the process finds the file", || read() == "1: CA\n");
    std::fs::remove_file(&done).expect("the file");
    scene.assert_nothing_is_left();
}

/// Packages, the servers' and the clients' words, and what a line of the client's output begins
/// with.
const PROGRAMS: &[(&str, &str, &str, &str)] = &[
    ("perftest", "ib_write_bw -F -n 500", "ib_write_bw -F -n 500 10.9.0.1", " 65536"),
    ("rdmacm-utils", "rping -s -a 10.9.0.1 -V -C 50", "rping -c -a 10.9.0.1 -V -C 50 -v", "ping "),
    (
        "ucx-utils",
        "env UCX_TLS=rc,self ucx_perftest",
        "env UCX_TLS=rc,self ucx_perftest 10.9.0.1 -t tag_bw -n 200 -s 100000",
        "Final:",
    ),
    (
        "ucx-utils",
        "env UCX_TLS=rc,self ucx_perftest",
        "env UCX_TLS=rc,self ucx_perftest 10.9.0.1 -t ucp_put_bw -n 200 -s 100000",
        "Final:",
    ),
    (
        "ucx-utils",
        "env UCX_TLS=ud,self ucx_perftest",
        "env UCX_TLS=ud,self ucx_perftest 10.9.0.1 -t tag_bw -n 50 -s 100000",
        "Final:",
    ),
];

#[test]
fn programs_run_at_both_ends() {
    let Some(scene) = Scene::new("view-programs") else { return };
    for (package, server, client, line) in PROGRAMS {
        let program = server.split(' ').find(|word| !word.contains('=') && *word != "env");
        let program = program.expect("a program");
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|found| found.status.success()) {
            feroce_test_skip::skip(&format!("{program} is not installed (package {package})"));
            continue;
        }
        let words = |words: &'static str| words.split(' ').collect::<Vec<_>>();
        let mut command = scene.command(0, "--quiet", &words(server));
        let command =
            command.env("FEROCE_PORT_KIND", "udp").stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Running(command.spawn().expect("a server"));
        // The ends of rping meet at the device, those of the others at a TCP socket.
        let listens = "{ ss -ltnH; grep feroce/stat /proc/net/unix; } | grep -q .";
        let listens = || scene.pair.run(0, "sh").args(["-c", listens]).status();
        wait("the server listens", || listens().is_ok_and(|status| status.success()));
        std::thread::sleep(Duration::from_millis(600));
        let mut command = scene.command(1, "--quiet", &words(client));
        let output = command.env("FEROCE_PORT_KIND", "udp").output().expect("a client");
        assert_message(&output, 0, &[]);
        let out = text(&output.stdout);
        assert!(out.lines().any(|found| found.starts_with(line)), "{client}: {out}");
        wait("the server ends", || server.0.try_wait().expect("a child").is_some());
        let status = server.0.wait().expect("a server");
        assert!(status.success(), "{program}: {status}");
    }
    scene.assert_nothing_is_left();
}
