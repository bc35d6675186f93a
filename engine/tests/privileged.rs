//! A program with more privileges than its caller (set-user-ID) ignores the environment variables
//! of Feroce, which the caller chose. Needs root.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use feroce_engine::device::PortKind;
use feroce_engine::device::settings::Settings;
use feroce_engine::environment;

/// A user without privileges.
const NOBODY: u32 = 65534;

/// Runs in a process of its own: see below.
#[test]
#[ignore = "the program of the test below, which starts it"]
fn program() {
    let settings = Settings::load().expect("no setting is wrong");
    let port = settings.device_config().port;
    println!("port {port}, capture {:?}", environment::var_os("FEROCE_PCAP"));
    assert_eq!(port == PortKind::Udp, environment::var_os("FEROCE_PCAP").is_some());
}

#[test]
fn variables_are_ignored_by_programs_with_more_privileges_than_their_caller() {
    // SAFETY: the call has no arguments and no effects.
    if unsafe { libc::geteuid() } != 0 {
        feroce_test_skip::skip("a set-user-ID program needs root");
        return;
    }
    let own = std::env::current_exe().expect("this program");
    // Beside this program: /tmp may be mounted without set-user-ID.
    let copy = std::env::temp_dir().join(format!("fr-setuid-{}", std::process::id()));
    std::fs::copy(&own, &copy).expect("room");
    for (mode, is_trusted) in [(0o755, true), (0o4755, false)] {
        std::fs::set_permissions(&copy, Permissions::from_mode(mode)).expect("own file");
        let mut command = Command::new(&copy);
        command.args(["--exact", "program", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("FEROCE_PORT_KIND", "udp").env("FEROCE_PCAP", "/tmp/capture");
        command.env("FEROCE_CONFIG", "").current_dir("/").uid(NOBODY).gid(NOBODY);
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let udp = text.contains("port udp, capture Some");
        let ignored = text.contains("port auto, capture None");
        assert!(output.status.success() && (udp, ignored) == (is_trusted, !is_trusted), "{text}");
    }
    std::fs::remove_file(&copy).expect("just made");
}
