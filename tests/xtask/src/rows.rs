//! Rows of `tests/programs/table.txt`: a server, a client, and what the client must print.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regex::Regex;

use crate::Result;
use crate::process::{Process, code, run_into};

/// The table.
const TABLE: &str = "tests/programs/table.txt";
/// Rows that run with `--extra` only.
const EXTRA: &str = "tests/programs/extra.txt";

/// Seconds after which a row is given up: `PROGRAM_SECONDS`, or 120.
pub fn seconds_each() -> u64 {
    std::env::var("PROGRAM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(120)
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The kind of programs.
    pub group: String,
    /// What the row shows.
    pub what: String,
    /// The server's command line; `None` if the client runs alone.
    pub server: Option<String>,
    /// True if the server does not end by itself.
    pub is_endless: bool,
    /// The client's command line.
    pub client: String,
    /// What a line of the client's output must match.
    pub pattern: String,
    /// The client's command line without its server.
    pub command: String,
}

/// The rows of the table, and of the second table if `extra`, whose group, description and command
/// match `filter`.
pub fn rows(filter: &str, extra: bool) -> Result<Vec<Row>> {
    let filter = Regex::new(filter)?;
    let mut table = std::fs::read_to_string(TABLE)?;
    if extra {
        table += &std::fs::read_to_string(EXTRA)?;
    }
    let rows = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows = rows.map(Row::parse).collect::<Result<Vec<Row>>>()?;
    Ok(rows.into_iter().filter(|row| filter.is_match(&row.title())).collect())
}

impl Row {
    /// Parses a line of the table.
    pub fn parse(line: &str) -> Result<Row> {
        let cells: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
        let &[group, what, server, client, pattern] = cells.as_slice() else {
            return Err(format!("{TABLE}: not five cells: {line}").into());
        };
        let is_endless = server.starts_with("! ");
        let server = server.strip_prefix("! ").unwrap_or(server);
        Ok(Row {
            group: group.to_owned(),
            what: what.to_owned(),
            server: (server != "-").then(|| server.to_owned()),
            is_endless,
            client: client.to_owned(),
            pattern: pattern.to_owned(),
            command: client.replace(" SERVER", ""),
        })
    }

    /// The words that a filter matches.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.group, self.what, self.command)
    }

    /// The group and what the row shows, for tables.
    pub fn name(&self) -> String {
        format!("{}: {}", self.group, self.what)
    }

    /// The client's program, without `env` and its variables.
    pub fn program(&self) -> &str {
        program(&self.command)
    }

    /// The programs of both ends.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.program()).chain(self.server.as_deref().map(program))
    }

    /// The words of both command lines.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let server = self.server.as_deref().unwrap_or_default();
        self.client.split(' ').chain(server.split(' '))
    }

    fn insert_option(&mut self, option: &str) {
        let insert = |words: &str| words.replacen(' ', &format!(" {option} "), 1);
        self.server = self.server.as_deref().map(insert);
        self.client = insert(&self.client);
        self.command = insert(&self.command);
    }

    fn serves_with(&self, prefixes: &[&str]) -> bool {
        let server = self.server.as_deref().unwrap_or_default();
        prefixes.iter().any(|prefix| server.starts_with(prefix))
    }

    /// Changes the row for a peer that is not Feroce. perftest requests from its own device as many
    /// READs and atomics at a time as the other end's device can do: rxe 128, Feroce 16.
    pub fn suit_other_peer(&mut self) {
        if self.serves_with(&["ib_read", "ib_atomic"]) {
            self.insert_option("-o 16");
        }
    }

    /// Changes the row for a `ucx_perftest` that was built with MPI: without a terminal, it expects
    /// that mpirun has started it.
    pub fn suit_ucx_with_mpi(&mut self) {
        if self.program() == "ucx_perftest" {
            let with = |words: &str| words.replacen("ucx_perftest", "ucx_perftest -P 0", 1);
            self.server = self.server.as_deref().map(with);
            self.client = with(&self.client);
            self.command = with(&self.command);
        }
    }

    /// Changes the row for rdma-core after release 56, where cmtime has other options. `own` is the
    /// client's address.
    pub fn suit_new_rdma_core(&mut self, own: &str) {
        if self.program() == "cmtime" {
            self.server = Some("cmtime -c 100 -b SERVER -C SERVER -L".to_owned());
            self.client = format!("cmtime -c 100 -b {own} -C SERVER");
            self.command.clone_from(&self.client);
        }
    }

    /// Changes the row for a peer that moves some 10 MB/s, as an emulated CPU does. perftest gets
    /// an eighth of the iterations, and an ACK timeout of 1 s, so that packets that wait for the
    /// peer are not sent again and again.
    pub fn suit_slow_peer(&mut self) -> Result {
        if !self.serves_with(&["ib_"]) {
            return Ok(());
        }
        self.insert_option("-u 18");
        let server = self.server.clone().unwrap_or_default();
        let Some(found) = Regex::new(" -n ([0-9]+)")?.captures(&server) else { return Ok(()) };
        let count: u64 = found[1].parse()?;
        let fewer = (count / 8).max(5); // perftest takes no fewer.
        let (old, new) = (format!(" -n {count}"), format!(" -n {fewer}"));
        self.server = Some(server.replacen(&old, &new, 1));
        self.client = self.client.replacen(&old, &new, 1);
        self.command = self.client.replace(" SERVER", "");
        if let Some(found) = Regex::new(r"^(.*\+)([0-9]+)$")?.captures(&self.pattern.clone()) {
            self.pattern = format!("{}{}", &found[1], found[2].parse::<u64>()? * fewer / count);
        }
        Ok(())
    }
}

fn program(words: &str) -> &str {
    let is_variable = |word: &&str| *word == "env" || *word == "PRELOAD" || word.contains('=');
    let is_env = words.starts_with("env ");
    words.split(' ').find(|word| !(is_env && is_variable(word))).unwrap_or_default()
}

/// Where one side of a row runs.
pub trait End {
    /// The command that runs the command line `words` at this end, with a time limit.
    fn command(&self, words: &str) -> Command;
    /// Ends the program that the last command started, where ending the command is not enough.
    fn stop(&self) {}
    /// How many servers wait for clients.
    fn listeners(&self, group: &str) -> usize;
}

/// Returns true if the servers of the group usually have no TCP socket, because they use the RDMA
/// CM or files.
fn is_without_tcp(group: &str) -> bool {
    matches!(group, "cm" | "rsocket" | "librpma" | "udapl" | "gloo")
}

/// The shell command that counts listeners at an end that runs on Feroce. A program without a TCP
/// socket is known by its engine's socket.
pub fn feroce_listeners(group: &str) -> &'static str {
    match group {
        "iser" => "ss -ltnH 'sport = :3260' | wc -l", // tgtd listens at another port before
        _ if is_without_tcp(group) => "{ grep feroce/stat /proc/net/unix; ss -lunH; } | wc -l",
        _ => "ss -ltnH | wc -l",
    }
}

/// The number that a command printed; 0 if it printed none.
pub fn number(output: Result<String>) -> usize {
    output.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The two ends of a run, and its files.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // Ends are trait objects.
pub struct Run<'a> {
    /// Where the server runs.
    pub server: &'a dyn End,
    /// Where the client runs.
    pub client: &'a dyn End,
    /// The server's address.
    pub address: &'a str,
    /// `librspreload.so.1`, for TCP programs on rsockets.
    pub preload: &'a str,
    /// The folder for the files `server` and `client` with the outputs.
    pub work: &'a Path,
}

impl Run<'_> {
    fn filled_in(&self, words: &str) -> String {
        let preload = format!("LD_PRELOAD={}", self.preload);
        words.replace("SERVER", self.address).replace("PRELOAD", &preload)
    }

    /// Runs the row. The error says why it failed.
    pub fn play(&self, row: &Row) -> Result<std::result::Result<(), String>> {
        std::fs::write(self.work.join("server"), "")?;
        let mut server = None;
        if let Some(words) = &row.server {
            server = Some(self.start_server(row, words)?);
        }
        let mut client = self.client.command(&self.filled_in(&row.client));
        let client = run_into(&mut client, &self.work.join("client"))?;
        let mut served = 0;
        if let Some(server) = server {
            if client != 0 || row.is_endless {
                self.server.stop();
                server.terminate();
            }
            let status = code(server.wait()?);
            served = if row.is_endless { 0 } else { status };
        }
        let codes: Vec<String> = [("client", client), ("server", served)]
            .into_iter()
            .filter(|(_, code)| *code != 0)
            .map(|(end, code)| format!("{end}: exit code {code}"))
            .collect();
        if !codes.is_empty() {
            return Ok(Err(codes.join(", ")));
        }
        Ok(match self.shows_result(row)? {
            true => Ok(()),
            false => Err(format!("no line of the output matches: {}", row.pattern)),
        })
    }

    /// Starts the server and waits up to 15 s until it listens.
    fn start_server(&self, row: &Row, words: &str) -> Result<Process> {
        let before = self.server.listeners(&row.group);
        let mut command = self.server.command(&self.filled_in(words));
        let mut server = Process::spawn_into(&mut command, &self.work.join("server"))?;
        for _ in 0..300 {
            if self.server.listeners(&row.group) > before || !server.is_running() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if is_without_tcp(&row.group) {
            // These programs open the device first and listen later.
            std::thread::sleep(Duration::from_millis(600));
        }
        Ok(server)
    }

    /// The output of `end`, `server` or `client`.
    pub fn output(&self, end: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.work.join(end))?).into_owned())
    }

    /// Returns true if a line of the client's output matches the row's pattern.
    fn shows_result(&self, row: &Row) -> Result<bool> {
        let pattern = Regex::new(&row.pattern)?;
        Ok(self.output("client")?.lines().any(|line| pattern.is_match(line)))
    }

    /// Returns true if a program met a race of its own (docs/programs.md), so that the row must be
    /// played again.
    pub fn met_own_race(&self, row: &Row) -> Result<bool> {
        Ok(self.met_no_listener(row)? || self.used_destroyed_channel(row)?)
    }

    /// Returns true if rping, after the last ping, used the event channel that it had destroyed.
    fn used_destroyed_channel(&self, row: &Row) -> Result<bool> {
        let used = "rdma_get_cm_event: Invalid argument";
        Ok(row.client.starts_with("rping ")
            && self.shows_result(row)?
            && (self.output("client")?.contains(used) || self.output("server")?.contains(used)))
    }

    /// Returns true if perftest's client came between the two listeners of its server. With `-R`,
    /// the server closes its first listener, for parameters, before it opens one for QPs at the
    /// same port, and the client does not wait: on a busy machine its REQ finds no listener, and
    /// is rejected with reason 8, invalid service ID.
    fn met_no_listener(&self, row: &Row) -> Result<bool> {
        let rejected = "RDMA_CM_EVENT_REJECTED; error: 8.";
        Ok(row.client.contains(" -R ") && self.output("client")?.contains(rejected))
    }

    /// What both ends printed: the first 5 lines of each, since errors are not buffered and come
    /// first, then the last 35 of the others.
    pub fn explain(&self, why: &str) -> Result<String> {
        let mut lines = vec![format!("    {why}")];
        let outputs = [("client", self.output("client")?), ("server", self.output("server")?)];
        for (end, text) in &outputs {
            lines.extend(text.lines().take(5).map(|line| format!("    {end}: {line}")));
        }
        for (end, text) in &outputs {
            let rest: Vec<&str> = text.lines().skip(5).collect();
            let last = &rest[rest.len().saturating_sub(35)..];
            lines.extend(last.iter().map(|line| format!("    {end}: {line}")));
        }
        Ok(lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_parsed_and_suited_to_a_slow_peer() {
        let line = "read | RC | ib_read_bw -F -q 16 -n 500 | ib_read_bw -F -q 16 -n 500 SERVER \
                    | ^ *65536 +8000";
        let mut row = Row::parse(line).expect("five cells");
        row.suit_other_peer();
        row.suit_slow_peer().expect("numbers");
        assert_eq!(row.server.as_deref(), Some("ib_read_bw -u 18 -o 16 -F -q 16 -n 62"));
        assert_eq!(row.client, "ib_read_bw -u 18 -o 16 -F -q 16 -n 62 SERVER");
        assert_eq!(row.command, "ib_read_bw -u 18 -o 16 -F -q 16 -n 62");
        assert_eq!(row.pattern, "^ *65536 +992");
    }

    #[test]
    fn rows_suit_other_releases() {
        let line = "ucx | put | env A=b ucx_perftest | env A=b ucx_perftest SERVER -t x | p";
        let mut row = Row::parse(line).expect("a row");
        row.suit_new_rdma_core("10.0.0.1");
        assert_eq!(row, Row::parse(line).expect("a row"));
        row.suit_ucx_with_mpi();
        assert_eq!(row.server.as_deref(), Some("env A=b ucx_perftest -P 0"));
        assert_eq!(row.client, "env A=b ucx_perftest -P 0 SERVER -t x");
        let mut row =
            Row::parse("cm | c | ! cmtime -c 9 | cmtime -c 9 -s SERVER | p").expect("row");
        row.suit_ucx_with_mpi();
        row.suit_new_rdma_core("10.0.0.1");
        assert_eq!(row.client, "cmtime -c 100 -b 10.0.0.1 -C SERVER");
    }

    #[test]
    fn the_program_of_a_row_has_no_variables() {
        let row = |client: &str| Row::parse(&format!("g | w | - | {client} | p")).expect("a row");
        assert_eq!(row("env UCX_TLS=rc,self ucx_perftest SERVER -t x").program(), "ucx_perftest");
        assert_eq!(row("env PRELOAD iperf -c SERVER").program(), "iperf");
        assert_eq!(row("fio --name=client").program(), "fio");
        let two = Row::parse("g | w | env A=b rcopy | compare SERVER | p").expect("a row");
        assert_eq!(two.programs().collect::<Vec<_>>(), ["compare", "rcopy"]);
        let endless = Row::parse("g | w | ! qperf | qperf SERVER | p").expect("a row");
        assert!(endless.is_endless && endless.server.as_deref() == Some("qperf"));
    }

    #[test]
    fn patterns_of_the_table_are_regular_expressions() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        for file in [TABLE, EXTRA] {
            let table = std::fs::read_to_string(format!("{folder}/{file}")).expect("the table");
            for line in table.lines().filter(|line| !line.starts_with('#')) {
                let row = Row::parse(line).expect("five cells");
                Regex::new(&row.pattern).expect("a regular expression");
            }
        }
    }
}
