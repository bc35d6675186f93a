//! The results of a catalogue for a pair of endpoints, as a file, and pages that compare several
//! results.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use feroce_engine::files;
use feroce_pfc_tools::plot::{self, Cell, Page, Part, Section, Table};
use serde::{Deserialize, Serialize};

use super::checker::{CHECKERS, Verdict, time};
use super::play::Played;
use super::relay::RelayReport;
use super::script::Script;
use super::toml_value;
use super::trace::Trace;
use crate::endpoint::Failure;

/// The results of a catalogue between two endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scorecard {
    /// Name of the requester.
    pub requester: String,
    /// Name of the responder.
    pub responder: String,
    /// `fabric` or `live`.
    pub place: String,
    /// What the relay between the endpoints did, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelayFigures>,
    /// Items, in the order of the catalogue.
    pub items: Vec<Item>,
}

/// What the relay did to the frames; not the endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayFigures {
    /// Forwarded frames.
    pub frames: u64,
    /// Median of the relay's own delay, in nanoseconds.
    pub delay_median: u64,
    /// 99th percentile of the same.
    pub delay_p99: u64,
    /// The longest delay.
    pub delay_max: u64,
    /// Frames that the relay lost.
    pub lost: u64,
}

impl RelayFigures {
    /// The figures of a report.
    pub fn of(report: &RelayReport) -> Self {
        let [delay_median, delay_p99, delay_max] =
            [0.5, 0.99, 1.0].map(|share| report.delay(share));
        Self { frames: report.frames(), delay_median, delay_p99, delay_max, lost: report.lost() }
    }
}

impl std::fmt::Display for RelayFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, p99, max] = [self.delay_median, self.delay_p99, self.delay_max].map(time);
        let Self { frames, lost, .. } = self;
        write!(
            f,
            "{frames} frames, own delay median {median}, p99 {p99}, longest {max}; lost {lost}"
        )
    }
}

/// The result of a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Name of the script.
    pub script: String,
    /// What the script shows.
    pub title: String,
    /// Why the script could not be played.
    pub not_played: Option<String>,
    /// Number of packets sent.
    pub packets: usize,
    /// Events: number of the packet, and the action.
    pub events: Vec<(usize, String)>,
    /// Verdicts of the checkers that found, measured or counted something.
    pub verdicts: Vec<Verdict>,
}

/// A known failure, matched by script (or `*`), check, and a part of the sentence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// A name, or `*`.
    pub script: String,
    /// Name of the checker.
    pub check: String,
    /// Text that the sentence of the finding contains.
    pub sentence: String,
    /// What is wrong, and what the specification says.
    pub why: String,
}

/// A file of known failures.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailures {
    /// The known failures, in any order.
    #[serde(default)]
    pub known: Vec<Known>,
}

impl Item {
    /// Creates the item of `script` from its result.
    pub fn new(script: &Script, played: &Result<Played, Failure>) -> Self {
        let (script, title) = (script.name.clone(), script.title.clone());
        let empty = Self {
            script,
            title,
            not_played: None,
            packets: 0,
            events: Vec::new(),
            verdicts: Vec::new(),
        };
        match played {
            Err(failure) => Self { not_played: Some(failure.to_string()), ..empty },
            Ok(played) => {
                let trace = &played.evidence.trace;
                let verdicts = played.verdicts.iter().filter(|verdict| {
                    !verdict.findings.is_empty()
                        || !verdict.measures.is_empty()
                        || !verdict.counts.is_empty()
                });
                Self {
                    packets: trace.sent.len(),
                    events: events(trace),
                    verdicts: verdicts.cloned().collect(),
                    ..empty
                }
            }
        }
    }

    /// Returns true if there are no findings.
    pub fn passed(&self) -> bool {
        self.not_played.is_none() && self.verdicts.iter().all(|verdict| verdict.findings.is_empty())
    }

    /// Returns the findings as pairs of checker name and sentence.
    pub fn complaints(&self) -> Vec<(String, String)> {
        let not_played = self.not_played.iter().map(|why| ("played".to_owned(), why.clone()));
        let found = self.verdicts.iter().flat_map(|verdict| {
            let findings = verdict.findings.iter();
            findings.map(|finding| (verdict.check.clone(), finding.sentence.clone()))
        });
        not_played.chain(found).collect()
    }

    /// Returns the shortest measured time called `name`.
    fn measured(&self, name: &str) -> Option<u64> {
        let measures = self.verdicts.iter().flat_map(|verdict| &verdict.measures);
        measures.filter(|measure| measure.name == name).map(|measure| measure.nanos).min()
    }
}

fn events(trace: &Trace) -> Vec<(usize, String)> {
    let sent = trace.sent.iter().enumerate();
    sent.flat_map(|(at, sent)| sent.events.iter().map(move |event| (at + 1, event.clone())))
        .collect()
}

impl Scorecard {
    /// Reads a file.
    ///
    /// # Errors
    /// One line that describes the error.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| format!("{}: not a scorecard: {error}", path.display()))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        files::write(path, text)
    }

    /// Returns the name in tables.
    pub fn name(&self) -> String {
        match self.place.as_str() {
            "fabric" => format!("{} in virtual time", self.requester),
            _ => format!("{} to {}", self.requester, self.responder),
        }
    }

    /// Returns the number of items that passed.
    pub fn passed(&self) -> usize {
        self.items.iter().filter(|item| item.passed()).count()
    }
}

impl KnownFailures {
    /// Reads a file.
    ///
    /// # Errors
    /// One line that describes the error.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failure = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| failure(&error))?;
        toml_value::read(&text).map_err(|error| failure(&error))
    }

    fn why(&self, script: &str, check: &str, sentence: &str) -> Option<&str> {
        let fits = |known: &&Known| {
            (known.script == "*" || known.script == script)
                && known.check == check
                && sentence.contains(&known.sentence)
        };
        self.known.iter().find(fits).map(|known| known.why.as_str())
    }
}

/// Creates a page that compares scorecards.
pub fn page(cards: &[Scorecard], known: &KnownFailures) -> Page {
    let mut sections = vec![summary(cards), side_by_side(cards, known), latencies(cards)];
    sections.extend(cards.iter().enumerate().map(|(at, card)| failures(at, card, known)));
    sections.push(demands());
    let intro = "Each item is a short exchange in which chosen packets meet a fault. The checkers \
                 examine the trace, the completions, the memories and the counters. Packet numbers \
                 are those of the item's capture.";
    Page {
        title: "Scorecards".to_owned(),
        parts: vec![Part::Paragraph(intro.to_owned())],
        sections,
    }
}

fn cell(words: impl Into<String>) -> Cell {
    Cell::Text(words.into())
}

fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn section(id: &str, heading: &str, parts: Vec<Part>) -> Section {
    Section { id: id.to_owned(), heading: heading.to_owned(), parts }
}

fn summary(cards: &[Scorecard]) -> Section {
    let rows = cards.iter().map(|card| {
        let (passed, all) = (card.passed(), card.items.len());
        vec![
            cell(card.name()),
            Cell::Number(all.to_string()),
            Cell::Number(passed.to_string()),
            Cell::Number((all - passed).to_string()),
        ]
    });
    let table =
        Table { head: head(&["endpoints", "items", "passed", "failed"]), rows: rows.collect() };
    section("summary", "Summary", vec![Part::Table(table)])
}

/// Returns the verdict on an item. Failures that are all known count as explained.
fn verdict(item: &Item, known: &KnownFailures) -> plot::Verdict {
    let complaints = item.complaints();
    let explained =
        |(check, sentence): &(String, String)| known.why(&item.script, check, sentence).is_some();
    match complaints.is_empty() {
        true => plot::Verdict::Holds,
        false if complaints.iter().all(explained) => plot::Verdict::Explained,
        false => plot::Verdict::Fails,
    }
}

fn side_by_side(cards: &[Scorecard], known: &KnownFailures) -> Section {
    let mut rows: BTreeMap<&str, (String, Vec<Cell>)> = BTreeMap::new();
    for item in cards.iter().flat_map(|card| &card.items) {
        rows.entry(&item.script).or_insert_with(|| (item.title.clone(), Vec::new()));
    }
    for (script, (_, cells)) in &mut rows {
        for card in cards {
            let item = card.items.iter().find(|item| item.script == *script);
            cells.push(Cell::Verdict(
                item.map_or(plot::Verdict::Shown, |item| verdict(item, known)),
            ));
        }
    }
    let mut names = vec!["script".to_owned(), "what it shows".to_owned()];
    names.extend(cards.iter().map(Scorecard::name));
    let row = |(script, (title, cells)): (&str, (String, Vec<Cell>))| {
        [cell(script), cell(title)].into_iter().chain(cells).collect()
    };
    let table = Table { head: names, rows: rows.into_iter().map(row).collect() };
    section("items", "Items", vec![Part::Table(table)])
}

/// Names of the measured times, in the order of the table.
const LATENCIES: [&str; 7] = [
    "gap to NAK",
    "NAK to retransmission",
    "goes back by implied NAK",
    "RNR NAK to retransmission",
    "timeout",
    "duplicate to ACK",
    "mark to CNP",
];

fn latencies(cards: &[Scorecard]) -> Section {
    let row = |name: &str| {
        let cells = cards.iter().map(|card| {
            let mut times: Vec<_> =
                card.items.iter().filter_map(|item| item.measured(name)).collect();
            times.sort_unstable();
            let shown = match times.get(times.len() / 2) {
                None => "-".to_owned(),
                Some(median) => {
                    format!(
                        "{} ({} to {})",
                        time(*median),
                        time(times[0]),
                        time(times[times.len() - 1])
                    )
                }
            };
            Cell::Number(shown)
        });
        [cell(name)].into_iter().chain(cells).collect()
    };
    let mut names = vec!["time".to_owned()];
    names.extend(cards.iter().map(Scorecard::name));
    let table = Table { head: names, rows: LATENCIES.iter().map(|name| row(name)).collect() };
    let words = "Median over the items of the shortest time in each item, and the range. The \
                 injector measures with its own clock, so times of a live run include the latency \
                 between the injector and the endpoint.";
    let parts = vec![Part::Paragraph(words.to_owned()), Part::Table(table)];
    section("latencies", "Latencies", parts)
}

fn failures(at: usize, card: &Scorecard, known: &KnownFailures) -> Section {
    let mut rows = Vec::new();
    for item in &card.items {
        for (check, sentence) in item.complaints() {
            let why = known.why(&item.script, &check, &sentence).unwrap_or("not explained");
            rows.push(vec![
                cell(&item.script),
                cell(applied_events(item)),
                cell(check),
                cell(sentence),
                cell(why),
            ]);
        }
    }
    let heading = format!("Failures: {}", card.name());
    let part = match rows.is_empty() {
        true => Part::Paragraph("None.".to_owned()),
        false => Part::Table(Table {
            head: head(&["script", "events", "check", "finding", "why"]),
            rows,
        }),
    };
    section(&format!("failures-{}", at + 1), &heading, vec![part])
}

/// Returns the first events of an item and their packets.
fn applied_events(item: &Item) -> String {
    let events =
        item.events.iter().take(2).map(|(number, event)| format!("packet {number}: {event}"));
    let more = if item.events.len() > 2 { ", ..." } else { "" };
    events.collect::<Vec<_>>().join(", ") + more
}

fn demands() -> Section {
    let rows = CHECKERS.iter().map(|checker| vec![cell(checker.name), cell(checker.demands)]);
    let table = Table { head: head(&["check", "requirement"]), rows: rows.collect() };
    section("checks", "Checks", vec![Part::Table(table)])
}
