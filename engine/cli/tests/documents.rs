//! The commands of README.md, the tutorial and the how-to pages, run as a reader would run them;
//! and the subcommands and options that any page names exist. Needs root; what is skipped is named.
//!
//! A comment before a block of shell commands says how the block is run:
//!
//! | comment | |
//! |---|---|
//! | none | on the host `client`, by root; the exit code must be 0 |
//! | `test: on=server` | on the host `server` |
//! | `test: as=user` | by a user without any capability |
//! | `test: background` | it serves the following blocks; it is stopped at the end of the page |
//! | `test: exit=NAME` | the exit code must be that of NAME in the help of the last command |
//! | `test: timeouts=long` | with ACK timeouts of at least 4 s, which no busy machine exceeds |
//! | `test: on=machine` | outside of the hosts, to make namespaces |
//! | `test: by PATH` | PATH, a script of this repository, has each of its commands |
//! | `test: skip REASON` | no machine of the tests can run it |
//!
//! A block in an HTML comment, which begins with the line `<!--`, is for the tests only.
//!
//! Both hosts are network namespaces, joined by a veth pair: `eth0` is 10.0.0.1 on `server` and
//! 10.0.0.2 on `client`.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::installed::Installed;
use common::{feroce, ip, text};

/// Pages share two cores, so they run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Time limit of a block on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Programs that are not part of Debian's minimal system.
const PROGRAMS: [&str; 11] = [
    "ib_write_bw",
    "ib_read_lat",
    "ibv_rc_pingpong",
    "ibv_devinfo",
    "ucmatose",
    "ucx_perftest",
    "tshark",
    "cc",
    "curl",
    "nft",
    "jq",
];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).expect(page)
}

#[derive(Debug, PartialEq)]
enum How {
    Run {
        host: Option<usize>,
        as_user: bool,
        background: bool,
        has_long_timeouts: bool,
        exit: Option<String>,
    },
    By(String),
    Skip(String),
}

impl How {
    /// Reads the comment of a block; an empty one is that of a block without a comment.
    fn parse(comment: &str) -> Result<Self, String> {
        if let Some(reason) = comment.strip_prefix("skip ") {
            return Ok(Self::Skip(reason.to_owned()));
        }
        if let Some(path) = comment.strip_prefix("by ") {
            return Ok(Self::By(path.to_owned()));
        }
        let (mut host, mut as_user, mut background, mut exit) = (Some(CLIENT), false, false, None);
        let mut has_long_timeouts = false;
        for word in comment.split_whitespace() {
            match word {
                "on=server" => host = Some(SERVER),
                "on=client" => host = Some(CLIENT),
                "on=machine" => host = None,
                "as=user" => as_user = true,
                "background" => background = true,
                "timeouts=long" => has_long_timeouts = true,
                _ => {
                    let name = word.strip_prefix("exit=");
                    exit = Some(name.ok_or_else(|| format!("unknown word {word}"))?.to_owned());
                }
            }
        }
        Ok(Self::Run { host, as_user, background, has_long_timeouts, exit })
    }
}

/// A block of shell commands of a page.
struct Block {
    place: String,
    code: String,
    how: How,
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut comment = None;
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let place = format!("{page}:{number}");
        if let Some(rest) = line.strip_prefix("<!-- test: ") {
            comment = Some(rest.strip_suffix(" -->").expect(&place).to_owned());
            continue;
        }
        if line == "<!--" {
            continue;
        }
        if line == "```sh" {
            let code: Vec<_> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let how = How::parse(&comment.take().unwrap_or_default());
            let how = how.unwrap_or_else(|error| panic!("{place}: {error}"));
            blocks.push(Block { place, code: code.join("\n"), how });
        }
        assert_eq!(comment, None, "{page}:{number}: a comment for the tests precedes its block");
    }
    blocks
}

/// Runs a command as a user without any capability.
const USER: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

const SERVER: usize = 0;
const CLIENT: usize = 1;

/// Two hosts with Feroce installed, and a folder that looks like a clone of this repository.
struct Hosts {
    names: [String; 2],
    /// Namespaces that blocks have made.
    made: Vec<String>,
    installed: Installed,
    background: Vec<(String, Child, PathBuf)>,
}

impl Hosts {
    fn new() -> Option<Self> {
        let id = Command::new("id").arg("-u").output().expect("the `id` program");
        if text(&id.stdout).trim() != "0" {
            return None;
        }
        let installed = Installed::new("documents").with_libraries();
        let names =
            ["server", "client"].map(|host| format!("fr-doc-{}-{host}", std::process::id()));
        for name in &names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        let [server, client] = &names;
        ip(&format!(
            "link add eth0 netns {server} mtu 4500 type veth peer name eth0 netns {client} mtu 4500"
        ));
        for (host, name) in (1..).zip(&names) {
            ip(&format!("-n {name} address add 10.0.0.{host}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
        }
        let hosts = Self { names, made: Vec::new(), installed, background: Vec::new() };
        hosts.make_clone();
        Some(hosts)
    }

    fn clone(&self) -> PathBuf {
        self.installed.0.join("clone")
    }

    /// Links to the files of this repository, and the program where a build would have put it.
    fn make_clone(&self) {
        let built = self.clone().join("target/release");
        fs::create_dir_all(&built).expect("a folder");
        symlink(self.installed.feroce(), built.join("feroce")).expect("a link");
        for entry in fs::read_dir(repository()).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                let source = fs::canonicalize(entry.path()).expect("a path");
                symlink(source, self.clone().join(entry.file_name())).expect("a link");
            }
        }
        fs::set_permissions(self.clone(), fs::Permissions::from_mode(0o777)).expect("mine");
        // Blocks that need root are run by root.
        let sudo = self.installed.0.join("bin/sudo");
        fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n").expect("a file");
        fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755)).expect("mine");
    }

    fn start(&self, block: &Block, output: &Path) -> Child {
        let How::Run { host, as_user, has_long_timeouts, .. } = &block.how else {
            unreachable!("it is run")
        };
        let mut words = Vec::new();
        if let Some(host) = *host {
            words.extend(["ip", "netns", "exec", &self.names[host]]);
        }
        if *as_user {
            words.extend(USER);
        }
        words.push("bash");
        let path = format!("{}/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.installed.0.display());
        let log = File::create(output).expect("a file");
        Command::new(words[0])
            .args(&words[1..])
            .args(["-euo", "pipefail", "-c", &block.code])
            .current_dir(self.clone())
            .env_remove("XDG_RUNTIME_DIR")
            .envs([("PATH", path.as_str()), ("FEROCE_CONFIG", "")])
            .env("HOME", self.clone())
            .envs(has_long_timeouts.then_some(("FEROCE_MIN_ACK_TIMEOUT", "20")))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("a shell")
    }

    fn run(&mut self, number: usize, block: &Block) {
        let How::Run { background, exit, host, .. } = &block.how else { unreachable!("it is run") };
        let output = self.installed.0.join(format!("output-{number}"));
        let mut words = block.code.split_whitespace();
        while let Some(word) = words.next() {
            if word == "netns" && words.next() == Some("add") {
                self.made.extend(words.next().map(str::to_owned));
            }
        }
        let mut child = self.start(block, &output);
        if *background {
            self.wait_for_a_listener(host.expect("a host"));
            self.background.push((block.place.clone(), child, output));
            return;
        }
        let code = wait(&mut child, LIMIT);
        let _ = child.kill(); // It may have taken too long.
        let said = fs::read_to_string(&output).unwrap_or_default();
        let expected = exit.as_ref().map_or(0, |name| exit_code(&block.code, name));
        assert_eq!(code, Some(expected), "{}:\n{}\n{said}", block.place, block.code);
    }

    /// Waits until a process listens on TCP, as servers of examples do, or 3 s.
    fn wait_for_a_listener(&self, host: usize) {
        for _ in 0..30 {
            std::thread::sleep(Duration::from_millis(100));
            let sockets = Command::new("ip")
                .args(["netns", "exec", &self.names[host], "ss", "-ltnH"])
                .output()
                .expect("ss");
            if !sockets.stdout.is_empty() {
                return;
            }
        }
    }

    /// Waits for blocks in the background. One that does not end is stopped; one that has failed
    /// fails the test.
    fn end(&mut self) {
        for (place, mut child, output) in std::mem::take(&mut self.background) {
            let code = wait(&mut child, Duration::from_secs(5));
            let said = fs::read_to_string(&output).unwrap_or_default();
            if code.is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
            assert!(code.is_none_or(|code| code == 0), "{place}: {code:?}\n{said}");
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (_, child, _) in &mut self.background {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in self.names.iter().chain(&self.made) {
            // Namespaces of a page are gone already, unless a block has failed.
            let end = "[ ! -e /run/netns/$0 ] || {
                ip netns pids $0 | xargs -r kill -9; ip netns delete $0; }";
            let _ = Command::new("sh").args(["-c", end, name]).status();
        }
        // The folder of sockets of the user's daemons.
        let _ = Command::new("sh").args(["-c", "rmdir /tmp/feroce-65534 2> /dev/null"]).status();
    }
}

/// The code called `name` in the help of the last command of a block.
fn exit_code(code: &str, name: &str) -> i32 {
    let calls: Vec<_> = code.lines().flat_map(calls).collect();
    let call = calls.last().expect("a command of feroce");
    let is_name = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase());
    let path: Vec<&str> = call.iter().take_while(is_name).take(2).copied().collect();
    let help = text(&feroce(&format!("{} --help", path.join(" ")), &[]).stdout);
    let found = help.lines().find_map(|line| {
        let (code, rest) = line.trim().split_once("  ")?;
        rest.starts_with(&format!("{name}:")).then(|| code.parse().ok())?
    });
    found.unwrap_or_else(|| panic!("`feroce {}` has no exit code {name}: {help}", path.join(" ")))
}

/// The exit code, or `None` if the process has not ended within `limit`.
fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status.code().unwrap_or(-1));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// The program of [`PROGRAMS`] that the block needs and this machine lacks.
fn missing(code: &str) -> Option<&'static str> {
    let is_word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let needed = PROGRAMS.into_iter().filter(|name| code.split(is_word).any(|word| word == *name));
    needed.into_iter().find(|name| {
        !["/usr/bin", "/bin", "/usr/sbin"]
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    })
}

/// The commands of a block of shell code, without their comments and `sudo`.
fn commands(code: &str) -> impl Iterator<Item = &str> {
    let lines = code.lines().map(|line| line.split_once(" #").map_or(line, |(code, _)| code));
    let commands = lines.flat_map(|line| line.split(" && ")).map(str::trim);
    commands.map(|command| command.strip_prefix("sudo ").unwrap_or(command))
}

/// Runs the blocks of a page in order, on the same two hosts.
fn run(page: &str) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut hosts = Hosts::new();
    let blocks = blocks(page, &read(page));
    assert!(!blocks.is_empty(), "{page} has commands");
    for (number, block) in blocks.iter().enumerate() {
        let place = &block.place;
        match (&block.how, &mut hosts, missing(&block.code)) {
            (How::Skip(reason), ..) => feroce_test_skip::skip(&format!("{place}: {reason}")),
            (How::By(path), ..) => {
                let script = read(path);
                for command in commands(&block.code) {
                    assert!(script.contains(command), "{place}: {path} does not run {command}");
                }
            }
            (How::Run { .. }, _, Some(program)) => {
                feroce_test_skip::skip(&format!("{place}: no {program}"));
            }
            (How::Run { .. }, None, _) => {
                feroce_test_skip::skip(&format!("{place}: network namespaces need root"));
            }
            (How::Run { .. }, Some(hosts), None) => hosts.run(number, block),
        }
    }
    if let Some(hosts) = &mut hosts {
        hosts.end();
    }
}

#[test]
fn readme() {
    run("README.md");
}

#[test]
fn tutorial() {
    run("docs/tutorial.md");
}

/// The page about CI, and every how-to page.
#[test]
fn guides() {
    let pages = fs::read_dir(repository().join("docs")).expect("a folder");
    let names = pages.map(|page| page.expect("a page").file_name().into_string().expect("text"));
    let mut guides: Vec<_> =
        names.filter(|name| name.starts_with("howto-") || name == "ci.md").collect();
    guides.sort();
    assert!(guides.len() > 5, "{guides:?}");
    for guide in guides {
        run(&format!("docs/{guide}"));
    }
}

/// The help of a subcommand, and the names of its own subcommands.
struct Help {
    text: String,
    commands: Vec<String>,
}

fn help<'a>(known: &'a mut BTreeMap<String, Help>, path: &str) -> &'a Help {
    known.entry(path.to_owned()).or_insert_with(|| {
        let help = text(&feroce(&format!("{path} --help"), &[]).stdout);
        let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let listed = listed.split_once("\n\n").map_or(listed, |(list, _)| list);
        let names = listed.lines().filter(|line| !line.starts_with("   "));
        let commands = names.filter_map(|line| line.split_whitespace().next());
        let commands = commands.map(str::to_owned).collect();
        Help { text: help, commands }
    })
}

/// The words after each `feroce` of a line, up to the end of the command.
fn calls(line: &str) -> Vec<Vec<&str>> {
    let mut calls = Vec::new();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches(['(', '"', '$', '\'']);
        if name != "feroce" && !name.ends_with("/feroce") {
            continue;
        }
        let ends = |word: &&str| {
            ["|", "&&", "||", ";", "#", "--", "&", "feroce"].contains(word) || word.starts_with('>')
        };
        let mut call = Vec::new();
        while let Some(word) = words.next_if(|word| !ends(word)) {
            call.push(word.trim_end_matches([';', ')', '"', ',', ':', '\'']));
        }
        calls.push(call);
    }
    calls
}

/// Returns what is wrong with a call.
fn fault(known: &mut BTreeMap<String, Help>, call: &[&str]) -> Option<String> {
    let mut path = String::new();
    let mut words = call.iter().peekable();
    while let Some(word) = words.next_if(|word| {
        let commands = &help(known, &path).commands;
        commands.iter().any(|name| name == **word)
    }) {
        path = format!("{path} {word}").trim().to_owned();
    }
    let help = help(known, &path);
    if let Some(word) = words.peek() {
        let is_name = word.chars().all(|c| c.is_ascii_lowercase());
        if is_name && !help.commands.is_empty() {
            return Some(format!("`feroce {path}` has no subcommand `{word}`"));
        }
    }
    for word in words.filter(|word| word.starts_with("--")) {
        let name: String = word
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || "-0123456789".contains(*c))
            .collect();
        let is_known = help.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        if !is_known.into_iter().any(|known| known == name) {
            return Some(format!("`feroce {path}` has no option `{name}`"));
        }
    }
    None
}

#[test]
fn pages_name_subcommands_and_options_that_exist() {
    let mut pages = vec!["README.md".to_owned()];
    for page in fs::read_dir(repository().join("docs")).expect("a folder") {
        let name = page.expect("a page").file_name().into_string().expect("text");
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(format!("docs/{name}"));
        }
    }
    let (mut known, mut broken, mut count) = (BTreeMap::new(), Vec::new(), 0);
    for page in &pages {
        let text = read(page).replace("\\\n", " ");
        for code in text.split('`').skip(1).step_by(2) {
            for call in code.lines().flat_map(calls) {
                count += 1;
                broken.extend(fault(&mut known, &call).map(|fault| format!("{page}: {fault}")));
            }
        }
    }
    assert!(count > 200, "{count} calls are named");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_page_of_commands_names_every_subcommand() {
    let mut known = BTreeMap::new();
    let page = read("docs/cli.md");
    let mut paths = vec![String::new()];
    let mut missing = Vec::new();
    while let Some(path) = paths.pop() {
        for command in help(&mut known, &path).commands.clone() {
            let path = format!("{path} {command}").trim().to_owned();
            if command != "help" && !page.contains(&format!("`feroce {path}`")) {
                missing.push(path.clone());
            }
            paths.push(path);
        }
    }
    assert!(missing.is_empty(), "docs/cli.md lacks {missing:?}");
}

/// The job of docs/ci.md is the one that scripts/check-action.sh runs.
#[test]
fn the_job_to_copy_is_the_one_that_is_run() {
    let page = read("docs/ci.md");
    let (_, job) = page.split_once("```yaml\n").expect("a job");
    let (job, _) = job.split_once("```").expect("its end");
    assert!(read("containers/github-workflow.yml").contains(job), "{job}");
}

#[test]
fn blocks_are_found_with_their_comments() {
    let page = "```sh\na\n```\n\n\
                <!-- test: on=server as=user background timeouts=long exit=findings -->\n\
                ```sh\nb\nc\n```\n```text\nd\n```\n<!-- test: by scripts/x.sh -->\n```sh\ne\n```\n";
    let found = blocks("p", page);
    let places: Vec<_> = found.iter().map(|block| block.place.as_str()).collect();
    assert_eq!(places, ["p:1", "p:6", "p:14"]);
    let run = |host, set, exit: Option<&str>| How::Run {
        host: Some(host),
        as_user: set,
        background: set,
        has_long_timeouts: set,
        exit: exit.map(str::to_owned),
    };
    assert_eq!(found[0].how, run(CLIENT, false, None));
    assert_eq!(
        (found[1].code.as_str(), &found[1].how),
        ("b\nc", &run(SERVER, true, Some("findings")))
    );
    assert_eq!(found[2].how, How::By("scripts/x.sh".to_owned()));
    let mut known = BTreeMap::new();
    let wrong = [vec!["perf", "--no-such"], vec!["fabrik"], vec!["fabric", "walk", "fig12"]];
    for call in &wrong {
        assert!(fault(&mut known, call).is_some(), "{call:?}");
    }
    assert_eq!(fault(&mut known, &["fabric", "run", "fig12", "--set", "a"]), None);
    assert!(How::parse("as=root").is_err());
    assert_eq!(exit_code("feroce perf -i a --x", "findings"), 3);
    assert_eq!(
        calls("(sudo feroce run -i a -- b --c; x/feroce up | c"),
        [vec!["run", "-i", "a"], vec!["up"]]
    );
}
