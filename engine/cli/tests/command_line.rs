//! The command line as a whole: exit codes, completion scripts and manual pages.

mod common;

use std::process::{Command, Output, Stdio};

use common::{TempFile, text};

fn feroce(arguments: &str) -> Output {
    common::feroce(arguments, &[])
}

/// Exit codes that can be provoked without privileges, by command line. docs/exit-codes.md lists
/// all codes; a unit test compares that page with the table in the program. fabric_scenarios.rs
/// provokes 3 of `fabric`, run.rs 126 and 127, perf.rs 130.
const EXITS: &[(&str, i32)] = &[
    ("--version", 0),
    ("config", 0),
    ("fabric list", 0),
    ("conform rules", 0),
    ("man fabric-run", 0),
    ("devinfo -i none0", 1),
    ("perf -i none0", 1),
    ("run -i none0 true", 1),
    ("stat -i none0", 1),
    ("top", 1),
    ("metrics --listen unix:/nowhere/socket", 1),
    ("set none0 ai_rate=8Mb/s", 1),
    ("fabric run no-such-scenario", 1),
    ("fabric live live --port h1=none0", 1),
    ("conform check CAPTURES/rxe/ops_rnr_exhaust.pcap.zst", 3),
    ("", 2),
    ("no-such-subcommand", 2),
    ("perf --op nonsense", 2),
    ("perf", 2),
    ("top -n 1", 2),
    ("top --sort nonsense", 2),
    ("metrics --listen 0.0.0.0:4791", 2),
    ("metrics --listen nonsense", 2),
    ("set none0 nonsense", 2),
    ("man no-such-page", 2),
    ("completions tcsh", 2),
    ("fabric run", 2),
    ("pfc", 2),
    ("pfc decode no-such-file.pcap", 2),
    ("pfc watch none0", 2),
    ("conform", 2),
    ("conform check no-such-file.pcap", 2),
    ("pfc deadlock deadlock-ring", 2),
    ("pfc plan --rate 100G --buffer 1MB", 3),
    ("doctor -i none0", 3),
];

#[test]
fn exit_codes_are_those_of_the_table() {
    let captures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/captures");
    for (arguments, code) in EXITS {
        let output = feroce(&arguments.replace("CAPTURES", captures));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "feroce {arguments}: {error}");
    }
}

/// A wrong usage: the command line, the exit code, and words of the message that name the cause and
/// the remedy.
type Wrong = (&'static str, i32, &'static [&'static str]);

/// Wrong usages that strangers have tried.
const WRONG: &[Wrong] = &[
    ("check x.pcap", 2, &["`check`|'check'", "feroce conform check"]),
    (
        "conform inject drop-writ-first",
        2,
        &["neither a script of the catalogue nor a file", "drop-write-first", "--list"],
    ),
    ("replay x.pcap", 2, &["'replay'", "feroce conform replay"]),
    ("watch eth0", 2, &["'watch'", "feroce pfc watch"]),
    ("perf -s 10X", 2, &["10X", "--size", "is not a size in bytes, such as"]),
    ("perf -p 99999", 2, &["--port", "0..=65535"]),
    ("perf -n 0 10.0.0.1", 2, &["--iters", "0 is not in 1.."]),
    ("perf 10.0.0.1", 2, &["no interface given", "-i IFACE", "feroce devinfo"]),
    ("perf -i none0 10.0.0.1", 1, &["no interface none0", "ip link"]),
    ("perf -i lo --port-kind udp 10.0.0.1", 1, &["'lo' is not Ethernet", "feroce devinfo"]),
    ("perf --latency -D 1 -n 5 10.0.0.1", 2, &["--duration", "cannot be used with '--iters"]),
    ("perf --transport tcp 127.0.0.1 -p 1", 1, &["no server at 127.0.0.1 port 1", "feroce perf"]),
    ("perf --transport tcp no-host.invalid", 1, &["no address of no-host", "resolv.conf"]),
    ("run", 2, &["<PROGRAM>", "Usage: feroce run"]),
    ("run -i none0 -- true", 1, &["no interface none0", "ip link"]),
    ("up", 2, &["no interface given", "feroce up IFACE"]),
    ("up lo --port-kind xdp", 2, &["--port-kind", "expected auto, af_xdp, packet"]),
    ("down none0", 1, &["no daemon owns none0", "there is"]),
    ("doctor --peer 10.0.0.1", 2, &["--interface <IFACE>"]),
    ("doctor -i lo --peer no-host.invalid", 2, &["no-host.invalid", "resolv.conf"]),
    ("fabric run fig99", 1, &["no scenario `fig99`", "feroce fabric list"]),
    ("fabric run no/such.toml", 1, &["no/such.toml", "No such file"]),
    ("fabric run fig12 --case none", 1, &["no case `none`", "its cases are"]),
    ("fabric run fig12 --set none=1", 1, &["unknown key `none`", "known keys"]),
    ("fabric run fig12 --html x.html", 2, &["unexpected argument '--html'", "--help"]),
    ("fabric sweep fig12", 2, &["--out <FOLDER>", "--over"]),
    ("conform check no-such.pcap", 2, &["cannot read no-such.pcap", "No such file"]),
    ("conform check /etc/passwd", 2, &["/etc/passwd is neither pcap nor pcapng"]),
    ("conform check CAPTURES --qpn x", 2, &["--qpn", "such as 17 or 0x11"]),
    ("conform check CAPTURES/rxe/ops_rnr_exhaust.pcap.zst --flow 9", 2, &["no flow 9", "flows"]),
    ("pfc plan", 2, &["--rate <RATE>"]),
    ("pfc plan --rate 100", 2, &["at least 1M", "such as 100G"]),
    ("pfc plan --rate 100G --cable x", 2, &["metres", "such as 100"]),
    ("pfc watch none0", 2, &["no interface 'none0'", "ip link"]),
    ("metrics --listen 80", 2, &["expected an address with a port", "unix:PATH"]),
    ("stat -i none0", 1, &["no interface none0", "ip link"]),
    ("set none0", 1, &["no interface none0", "ip link"]),
    ("stat -i lo", 1, &["serves statistics of lo", "feroce perf -i lo"]),
    ("pfc plan --mtu 4k", 2, &["expected 64 to 16384 bytes, such as 4200"]),
    ("top --interval 0", 2, &["0.1 to 86400 seconds"]),
    ("man perff", 2, &["no manual page feroce-perff", "the pages are"]),
    ("completions", 2, &["<SHELL>"]),
];

#[test]
fn wrong_usages_name_the_cause_and_the_remedy() {
    let captures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/captures");
    for (arguments, code, words) in WRONG {
        let output = feroce(&arguments.replace("CAPTURES", captures));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "feroce {arguments}: {error}");
        for word in *words {
            let is_said = word.split('|').any(|word| error.contains(word));
            assert!(is_said, "feroce {arguments}: `{word}` is not in {error}");
        }
        assert!(!error.contains("as a value"), "feroce {arguments}: {error}");
        assert!(!error.contains("panicked") && output.stdout.is_empty(), "{arguments}: {error}");
    }
}

/// Another program listens on the port: the message says which.
#[test]
fn a_port_in_use_names_its_holder() {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let output = feroce(&format!("perf --transport tcp -p {port}"));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let holder = format!("by process {} (", std::process::id());
    assert!(error.contains(&holder) && error.contains("-p at both ends"), "{error}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let line = format!("{} man | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_feroce"));
    let status = Command::new("bash").args(["-c", &line]).status().expect("bash");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn every_help_lists_its_exit_codes() {
    let help = |command: &str| text(&feroce(&format!("{command} --help")).stdout);
    for subcommand in ["", "perf", "fabric run", "pfc send storm", "conform check", "doctor"] {
        assert!(help(subcommand).contains("Exit codes:"), "{subcommand}");
    }
    assert!(help("doctor").contains("  3  findings: there is an error"));
    assert!(help("pfc send storm").contains("  3  findings:"));
}

#[test]
fn completions_are_scripts_of_their_shells() {
    for (shell, checker) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        let output = feroce(&format!("completions {shell}"));
        assert!(output.status.success());
        let script = TempFile::new(shell, &text(&output.stdout));
        for word in ["doctor", "source-port", "watchdog", "scorecard", "_feroce_interfaces"] {
            assert!(text(&output.stdout).contains(word), "{shell}: {word}");
        }
        assert!(!text(&output.stdout).contains("@INTERFACES@"), "{shell}: a placeholder is left");
        match Command::new(checker).args(["-n", script.path()]).output() {
            Ok(checked) => assert!(checked.status.success(), "{shell}: {}", text(&checked.stderr)),
            Err(_) => {
                feroce_test_skip::skip(&format!("the script for {checker}, which is not installed"))
            }
        }
    }
    assert_eq!(feroce("completions tcsh").status.code(), Some(2));
}

/// What TAB offers at the end of a line.
#[derive(Clone, Copy)]
struct Line {
    words: &'static str,
    offers: &'static [&'static str],
}

const LINES: &[Line] = &[
    Line { words: "feroce run -i ", offers: &["lo"] },
    Line { words: "feroce perf --interface ", offers: &["lo"] },
    Line { words: "feroce top -i ", offers: &["lo"] },
    Line { words: "feroce top --sort ", offers: &["traffic", "quota"] },
    Line { words: "feroce metrics -i ", offers: &["lo"] },
    Line { words: "feroce set l", offers: &["lo"] },
    Line { words: "feroce pfc watch l", offers: &["lo"] },
    Line { words: "feroce pfc send storm l", offers: &["lo"] },
    Line { words: "feroce conform ", offers: &["check", "replay"] },
    Line { words: "feroce fabric ", offers: &["run", "live"] },
    Line { words: "feroce man fabric", offers: &["fabric-run"] },
];

#[test]
fn bash_completes_subcommands_and_interfaces() {
    let script = TempFile::new("complete.bash", &text(&feroce("completions bash").stdout));
    for Line { words, offers } in LINES {
        let commands = format!(
            "source {}; line='{words}'; read -ra COMP_WORDS <<< \"$line\"; \
             case $line in *' ') COMP_WORDS+=('') ;; esac; \
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _feroce feroce \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.path()
        );
        let output = Command::new("bash").args(["--norc", "-c", &commands]).output();
        check_offers(words, offers, &output.expect("bash"));
    }
}

#[test]
fn fish_completes_subcommands_and_interfaces() {
    let script = TempFile::new("complete.fish", &text(&feroce("completions fish").stdout));
    for Line { words, offers } in LINES {
        let commands = format!("source {}; complete -C '{words}'", script.path());
        match Command::new("fish").args(["--no-config", "-c", &commands]).output() {
            Ok(output) => check_offers(words, offers, &output),
            Err(_) => return feroce_test_skip::skip("fish is not installed"),
        }
    }
}

fn check_offers(words: &str, offers: &[&str], output: &Output) {
    let offered = text(&output.stdout);
    for offer in offers {
        let is_offered = offered.lines().any(|line| line.split('\t').next() == Some(*offer));
        assert!(is_offered, "`{words}`: {offer} is not in {offered} {}", text(&output.stderr));
    }
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let folder = std::env::temp_dir().join(format!("fr-{}-man", std::process::id()));
    let output = feroce(&format!("man --out {}", folder.display()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!folder.join("feroce-help.1").exists());
    let source = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a page");
    for command in ["", "-devinfo", "-perf", "-stat", "-doctor", "-config", "-completions", "-man"]
    {
        let source = source(&format!("feroce{command}.1"));
        assert!(
            source.contains("/etc/feroce.toml") && source.contains("FEROCE_WINDOW"),
            "{source}"
        );
    }
    for name in [
        "fabric-run",
        "fabric-live",
        "pfc-watchdog",
        "pfc-send-storm",
        "conform-check",
        "top",
        "metrics",
    ] {
        assert!(source(&format!("feroce-{name}.1")).contains(".SH \"EXIT STATUS\""), "{name}");
    }
    for page in std::fs::read_dir(&folder).expect("the folder") {
        let page = page.expect("an entry").path();
        let source = std::fs::read_to_string(&page).expect("a page");
        assert!(source.contains(".SH NAME") && source.contains(".TH"), "{source}");
        // Every message of groff is about a mistake in the page.
        match Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output() {
            Ok(checked) => assert_eq!(text(&checked.stderr), "", "{}", page.display()),
            Err(_) => feroce_test_skip::skip("groff is not installed"),
        }
    }
    std::fs::remove_dir_all(&folder).expect("our folder");
    assert!(text(&feroce("man").stdout).contains(".TH feroce 1"));
}

#[test]
fn a_man_page_has_several_names_and_unknown_names_are_refused() {
    let page = |name: &str| text(&feroce(&format!("man {name}")).stdout);
    assert!(page("fabric-run").contains(".TH feroce-fabric-run 1"));
    for name in ["fabric run", "feroce-fabric-run"] {
        assert_eq!(page(name), page("fabric-run"), "{name}");
    }
    let refused = feroce("man fabric-walk");
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("feroce-fabric-walk") && error.contains("fabric-run"), "{error}");
}

/// `script` runs a command on a terminal of its own, and prints what appears there.
#[test]
fn long_work_shows_progress_on_a_terminal_and_none_in_a_pipe() {
    let command = format!("{} fabric run swift > /dev/null", env!("CARGO_BIN_EXE_feroce"));
    let run = |words: &[&str]| {
        let mut process = Command::new(words[0]);
        process.args(&words[1..]).env("TERM", "xterm").stdin(Stdio::null());
        let output = process.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        text(&[output.stdout, output.stderr].concat())
    };
    let shown = run(&["script", "--quiet", "--return", "--command", &command, "/dev/null"]);
    assert!(shown.contains("% of virtual time"), "{shown:?}");
    let piped = run(&["sh", "-c", &command]);
    assert!(!piped.contains('%') && !piped.contains('\r'), "{piped:?}");
}
