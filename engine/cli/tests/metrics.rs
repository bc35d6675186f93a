//! `feroce metrics` and `feroce top` beside running programs, with a daemon and without. Needs
//! root; skipped with a message without root.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{Pair, Server, TIMEOUT, copy_feroce, json, text};
use serde_json::Value;

/// `feroce metrics` at a Unix socket, which is reached from any network namespace. It is ended when
/// dropped.
struct Exporter {
    child: Child,
    socket: PathBuf,
}

impl Exporter {
    /// Starts `command`, which runs `feroce metrics`, with a socket of its own.
    fn start(name: &str, mut command: Command) -> Self {
        let socket = std::env::temp_dir().join(format!("fr-{}-{name}", std::process::id()));
        command.args(["--listen", &format!("unix:{}", socket.display())]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("feroce");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        assert_eq!(line, format!("serving unix:{}\n", socket.display()));
        Self { child, socket }
    }

    fn get(&self) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("a server");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("a server");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        body.to_owned()
    }

    /// Ends the exporter by SIGTERM. Its socket is removed.
    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().expect("kill").success());
        assert!(self.child.wait().expect("a child of ours").success());
        assert!(!self.socket.exists());
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Usually it has ended already.
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The values of a metric, by the value of `label`.
fn values(body: &str, metric: &str, label: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let lines = body.lines().filter_map(|line| line.strip_prefix(&format!("{metric}{{")));
    for (labels, value) in lines.filter_map(|line| line.rsplit_once("} ")) {
        let (_, rest) = labels.split_once(&format!("{label}=\"")).expect("the label");
        let (name, _) = rest.split_once('"').expect("a quote");
        *values.entry(name.to_owned()).or_default() += value.parse::<f64>().expect("a number");
    }
    values
}

/// promtool, of Debian's package prometheus, accepts the text.
fn check_with_promtool(body: &str) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = child else {
        feroce_test_skip::skip("promtool is not installed");
        return;
    };
    promtool.stdin.take().expect("piped").write_all(body.as_bytes()).expect("promtool reads");
    let checked = promtool.wait_with_output().expect("its end");
    let complaints = text(&checked.stdout) + &text(&checked.stderr);
    assert!(checked.status.success() && complaints.is_empty(), "{complaints}");
}

/// The figures of a program, once it has sent packets.
fn stat(pair: &Pair) -> Value {
    let started = Instant::now();
    loop {
        let output = pair.feroce(0, "stat --json").output().expect("feroce");
        if output.status.success() {
            let figures = json(&output);
            let sent = figures[0]["counters"]["port_xmit_packets"].as_u64();
            if sent > Some(100) {
                return figures[0].clone();
            }
        }
        assert!(started.elapsed() < TIMEOUT, "{output:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn values_are_those_of_stat() {
    let Some(pair) = Pair::new() else { return };
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let mut client = pair.feroce(0, "perf -i v0 --op write -q 2 -D 30 10.9.0.2");
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let exporter = Exporter::start("values", pair.feroce(0, "metrics"));
    let before = stat(&pair);
    let body = exporter.get();
    let after = stat(&pair);
    check_with_promtool(&body);
    let pid = client.id().to_string();
    let value = |metric: &str| values(&body, metric, "pid")[&pid];
    for (metric, path, factor) in [
        ("node_infiniband_port_packets_transmitted_total", "/counters/port_xmit_packets", 1.0),
        ("node_infiniband_port_data_transmitted_bytes_total", "/counters/port_xmit_data", 4.0),
        ("node_infiniband_port_packets_received_total", "/counters/port_rcv_packets", 1.0),
        ("feroce_retransmitted_packets_total", "/counters/retransmitted_packets", 1.0),
        ("feroce_queue_pairs", "/qps", 1.0),
        ("feroce_open_seconds", "/nanos", 1e-9),
        ("feroce_arena_limit_bytes", "/arena_limit", 1.0),
    ] {
        let [least, most] = [&before, &after].map(|figures| {
            factor * figures.pointer(path).and_then(Value::as_f64).expect("a figure")
        });
        let shown = value(metric);
        assert!(least <= shown && shown <= most, "{metric}: {least} <= {shown} <= {most}");
    }
    let frames = |figures: &Value| -> f64 {
        let cores = figures["cores"].as_array().expect("cores");
        cores.iter().map(|core| core["tx_frames"].as_f64().expect("a figure")).sum()
    };
    let shown = value("feroce_core_transmitted_frames_total");
    assert!(frames(&before) <= shown && shown <= frames(&after));
    assert_eq!(values(&body, "feroce_queue_pairs", "user").keys().collect::<Vec<_>>(), ["0"]);

    // The same figures for another user, who may not read them.
    let folder = std::env::temp_dir().join(format!("{}-metrics", pair.names[0]));
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("feroce"); // Where others may run it.
    copy_feroce(&program);
    let mut other = pair.run(0, "setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let other = other.args(["metrics", "--once"]).output().expect("feroce");
    std::fs::remove_dir_all(&folder).expect("our folder");
    assert!(other.status.success(), "{other:?}");
    let body = text(&other.stdout);
    assert!(body.contains("\nferoce_exporter_failures 1\n"), "{body}");
    assert!(!body.contains("feroce_queue_pairs"), "{body}");
    assert!(text(&other.stderr).contains("only root and user 0"), "{}", text(&other.stderr));

    client.kill().expect("a running client");
    client.wait().expect("its end");
    server.end();
    exporter.stop();
}

/// Ends the daemon of an end when dropped.
struct Up<'a>(&'a Pair, usize);

impl<'a> Up<'a> {
    fn start(pair: &'a Pair, end: usize, options: &str) -> Self {
        let up = format!("up {} --detach --mode 666 {options}", common::DEVICES[end]);
        let output = pair.feroce(end, &up).output().expect("feroce");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Self(pair, end)
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let _ = self.0.feroce(self.1, "down").output(); // Nothing can be done about a failure.
    }
}

#[test]
fn programs_at_a_daemon_are_shown_with_their_quotas() {
    let Some(pair) = Pair::new() else { return };
    let limits = "--port-kind packet --max-programs 4 --max-bytes 1000000000000";
    let _daemons = [0, 1].map(|end| Up::start(&pair, end, limits));
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let mut client = pair.feroce(0, "perf -i v0 --op write -D 30 10.9.0.2");
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let own = stat(&pair);
    let pid = client.id().to_string();
    assert_eq!(own["interface"], format!("v0@{pid}"));

    let output = pair.feroce(0, "metrics --once").output().expect("feroce");
    let body = text(&output.stdout);
    check_with_promtool(&body);
    for metric in ["feroce_client_transmitted_frames_total", "feroce_queue_pairs"] {
        assert!(values(&body, metric, "pid")[&pid] > 0.0, "{metric}: {body}");
    }
    assert_eq!(values(&body, "feroce_user_programs", "user"), [("0".to_owned(), 1.0)].into());
    assert_eq!(values(&body, "feroce_limit_programs", "device"), [("v0".to_owned(), 4.0)].into());
    assert_eq!(values(&body, "feroce_daemon_programs", "device"), [("v0".to_owned(), 1.0)].into());

    let shown = pair.feroce(0, "stat --daemon").output().expect("feroce");
    let shown = text(&shown.stdout);
    for words in ["1 of 4", "256 of 65536", "1000000000000 bytes/s per user"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let shown = pair.feroce(0, "stat --daemon --json").output().expect("feroce");
    assert_eq!(json(&shown)[0]["users"][0]["qp_numbers"], 256);
    assert_eq!(json(&shown)[0]["limits"]["clients"], 4);

    let top = pair.feroce(0, "top --batch -n 2 -d 0.3 -i v0").output().expect("feroce");
    let top_text = text(&top.stdout);
    assert!(top.status.success(), "{}", text(&top.stderr));
    let rows: Vec<_> = top_text.lines().filter(|line| line.contains(&*pid)).collect();
    assert_eq!(rows.len(), 2, "{top_text}");
    let words: Vec<_> = rows[1].split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2], words[3]), (&*pid, "root", "v0", "1"), "{top_text}");
    assert!(words[5].ends_with(['M', 'G', 'k']), "sends: {top_text}");
    assert!(rows[1].contains("25% programs") && rows[1].ends_with("feroce"), "{top_text}");
    assert!(top_text.contains("v0: daemon "), "{top_text}");

    client.kill().expect("a running client");
    client.wait().expect("its end");
    server.end();
}

/// A process that is ended when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The queries of the dashboard, with values for its variables.
fn queries_of_the_dashboard() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/feroce.json");
    let dashboard = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let query = |target: &Value| target["expr"].as_str().expect("a query").to_owned();
    let variables = [("$device", ".*"), ("$program", ".*"), ("$__rate_interval", "5s")];
    targets
        .map(|target| {
            let replace = |query: String, (name, value): &(&str, &str)| query.replace(name, value);
            variables.iter().fold(query(target), replace)
        })
        .collect()
}

/// A real Prometheus, of Debian's package prometheus, scrapes `feroce metrics` and answers all
/// queries of the dashboard.
#[test]
fn prometheus_answers_the_queries_of_the_dashboard() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        feroce_test_skip::skip("prometheus is not installed");
        return;
    }
    let Some(pair) = Pair::new() else { return };
    let _daemons = [0, 1].map(|end| Up::start(&pair, end, "--port-kind packet"));
    let folder = std::env::temp_dir().join(format!("{}-prometheus", pair.names[0]));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = folder.join("prometheus.yml");
    let scrapes = "scrape_configs: [{job_name: feroce, scrape_interval: 1s, \
                   static_configs: [{targets: ['127.0.0.1:4791']}]}]";
    std::fs::write(&config, scrapes).expect("a file");
    pair.shell(0, "ip link set lo up");
    let server = Server::start(&mut pair.feroce(1, "perf -i v1"));
    let mut client = pair.feroce(0, "perf -i v0 --op write -D 60 10.9.0.2");
    let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
    let exporter = pair.feroce(0, "metrics").stdout(Stdio::null()).spawn().expect("feroce");
    let mut prometheus = pair.run(0, "prometheus");
    prometheus.arg(format!("--config.file={}", config.display()));
    prometheus.arg(format!("--storage.tsdb.path={}", folder.display()));
    prometheus.args(["--web.listen-address=127.0.0.1:9090", "--log.level=error"]);
    let prometheus = prometheus.stdout(Stdio::null()).spawn().expect("prometheus");
    let _ended = [client, exporter, prometheus].map(Ended);

    let ask = |query: &str| {
        let mut promtool = pair.run(0, "promtool");
        // `--`: a query may begin with a minus.
        promtool.args(["query", "instant", "--", "http://127.0.0.1:9090", query]);
        promtool.output().expect("promtool")
    };
    let started = Instant::now();
    // A rate needs two samples.
    let rate = "rate(node_infiniband_port_packets_transmitted_total[5s]) > 0";
    let has_values = |answer: &std::process::Output| !answer.stdout.trim_ascii().is_empty();
    while !has_values(&ask(rate)) {
        assert!(started.elapsed() < TIMEOUT, "{:?}", ask("up"));
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let mut answered = 0;
    for query in queries_of_the_dashboard() {
        let answer = ask(&query);
        assert!(answer.status.success(), "{query}: {}", text(&answer.stderr));
        answered += usize::from(has_values(&answer));
    }
    // Without limits of rates and without pauses, these have no values.
    assert!(answered > 40, "{answered} queries have values");
    let up = ask("up");
    assert!(text(&up.stdout).contains("=> 1 @"), "{up:?}");
    drop(server);
    std::fs::remove_dir_all(&folder).expect("our folder");
}

/// A stopped daemon or program does not answer: the others are shown.
#[test]
fn a_stopped_daemon_is_a_failure() {
    let Some(pair) = Pair::new() else { return };
    let daemon = Up::start(&pair, 0, "--port-kind packet");
    let running = pair.feroce(0, "stat --daemon --json").output().expect("feroce");
    let pid = json(&running)[0]["pid"].to_string();
    let kill = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    };
    kill("-STOP");
    let output = pair.feroce(0, "metrics --once").output().expect("feroce");
    let stat = pair.feroce(0, "stat --daemon").output().expect("feroce");
    kill("-CONT");
    assert!(text(&output.stdout).contains("\nferoce_exporter_failures 1\n"), "{output:?}");
    assert!(text(&output.stderr).contains("the daemon of v0: timed out"), "{output:?}");
    assert_eq!(stat.status.code(), Some(1));
    drop(daemon);
}

/// The screen: script(1) gives the program a terminal.
#[test]
fn the_screen_quits_and_restores_the_terminal() {
    let mut script = Command::new("script");
    let line = format!("stty rows 24 columns 140; {} top -d 0.2", env!("CARGO_BIN_EXE_feroce"));
    script.args(["-qefc", &line, "/dev/null"]).env("FEROCE_CONFIG", "").env("TERM", "xterm");
    let mut script =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script(1)");
    let (mut output, mut shown) = (script.stdout.take().expect("piped"), String::new());
    let mut buffer = [0; 4096];
    while !shown.contains("sorted by traffic") {
        let count = output.read(&mut buffer).expect("a pipe");
        assert!(count > 0, "it ended: {shown}");
        let _ = write!(shown, "{}", String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(shown.contains("\x1b[?1049h") && shown.contains("PROGRAM"), "{shown}");
    let mut keys = script.stdin.take().expect("piped");
    keys.write_all(b">q").expect("a pipe");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert!(rest.contains("\x1b[?1049l"), "the terminal is restored: {rest}");
    assert!(script.wait().expect("its end").success());
}
