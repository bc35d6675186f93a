//! An event script: traffic, what happens to which packet of it, and what must come of it. `docs/inject.md` has the keys.

use std::path::Path;
use std::time::Duration;

use feroce_congestion::params::Kind;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;
use feroce_wire::{NakCode, PathMtu, Psn};
use serde::{Deserialize, Deserializer, de};

use super::catalogue::SCRIPTS;
use super::text;
use super::trace::Side;
use crate::endpoint::plan::{Effect, Op, Plan};

/// The largest PSN.
const LAST_PSN: u32 = 0xff_ffff;

/// A script.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its file's name without the extension.
    #[serde(skip)]
    pub name: String,
    /// What it shows, in a sentence.
    pub title: String,
    /// What the endpoints exchange.
    pub traffic: Traffic,
    /// What happens to packets.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// What must come of it.
    #[serde(default)]
    pub expect: Expect,
}

/// What the endpoints exchange: reliable connections, requests of one side.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Traffic {
    /// Operations, in turn.
    pub verbs: Vec<Verb>,
    /// Bytes of each; atomics have eight.
    #[serde(default)]
    pub size: u32,
    /// How often the operations are posted.
    #[serde(default = "one")]
    pub count: u32,
    /// QP pairs that do the same at the same time.
    #[serde(default = "one")]
    pub qps: u32,
    /// Path MTU.
    #[serde(default = "mtu", deserialize_with = "path_mtu")]
    pub mtu: PathMtu,
    /// Local ACK timeout code of the requester: 4.096 us times two to its power.
    #[serde(default = "timeout")]
    pub timeout: u8,
    /// Retries.
    #[serde(default = "seven")]
    pub retries: u8,
    /// RNR retries; 7 is for ever.
    #[serde(default = "seven")]
    pub rnr_retries: u8,
    /// Code of the time that RNR NAKs of the responder ask for.
    #[serde(default = "rnr_timer")]
    pub rnr_timer: u8,
    /// READs and atomics outstanding.
    #[serde(default = "depth")]
    pub depth: u8,
    /// First PSN of the requester.
    #[serde(default = "first_psn")]
    pub first_psn: u32,
    /// Receives are posted so long after the requests.
    #[serde(default, deserialize_with = "optional_time")]
    pub receives_after: Option<Duration>,
    /// How many bytes shorter than its message each receive is.
    #[serde(default)]
    pub receives_short_by: u32,
    /// No receives at all.
    #[serde(default)]
    pub no_receives: bool,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // As verbs name them.
pub enum Verb {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

/// Which packets of a side are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Every one.
    #[default]
    Any,
    /// Requests.
    Request,
    /// Answers to READs.
    ReadResponse,
    /// Answers to atomics.
    AtomicResponse,
    /// Acknowledgements without data.
    Ack,
    /// NAKs of any kind, RNR NAKs too.
    Nak,
    /// Congestion notification packets.
    Cnp,
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// A bit of it is flipped.
    Corrupt,
    /// Congestion experienced, whether it is ECN-capable or not.
    Mark,
    /// It comes so many times more, at once.
    Duplicate(u32),
    /// A copy comes so much later.
    Echo(Duration),
    /// It comes later.
    Delay(Duration),
    /// It comes behind so many packets of its side that follow it.
    Reorder(u32),
    /// Its last bytes are missing.
    Truncate(u32),
    /// Its payload is so many bytes shorter; lengths and ICRC are right.
    Shorten(u32),
    /// Its PSN is so much higher; the ICRC is right.
    AddPsn(u32),
    /// Its remote key is one that was never given; the ICRC is right.
    WrongKey,
    /// Its remote address is beyond the region; the ICRC is right.
    WrongAddress,
    /// Its opcode is another; the ICRC is right.
    Opcode(u8),
    /// The acknowledge request is taken away; the ICRC is right.
    NoAckRequest,
}

/// Something that happens to packets.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "RawEvent")]
pub struct Event {
    /// QP pair, from 0.
    pub flow: u32,
    /// Who sends the packets.
    pub from: Side,
    /// Which of its packets.
    pub what: What,
    /// Which of these.
    pub at: At,
    /// What happens.
    pub action: Action,
}

/// Which packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Those with a PSN, counted from the requester's first, in a range, at a turn; at each, if it is 0.
    Psn {
        /// The first.
        from: u32,
        /// The last.
        to: u32,
        /// How often the PSN went by, from 1.
        iteration: u32,
    },
    /// The nth that went by, from 1, and those behind it up to `to`.
    Nth {
        /// The first.
        from: u32,
        /// The last.
        to: u32,
    },
}

/// What must come of it; the rest follows from the rules.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Expect {
    /// How the request number `fails` completes; those behind it are flushed.
    #[serde(deserialize_with = "status")]
    pub status: Status,
    /// See there.
    pub fails: u32,
    /// PSNs of NAKs (PSN sequence error), in order.
    pub naks: Option<Vec<u32>>,
    /// Code of the NAK that ends the connection.
    #[serde(deserialize_with = "nak_code")]
    pub refused: Option<NakCode>,
    /// How many RNR NAKs at least.
    pub rnr_naks: Option<u32>,
    /// What makes the requester go back, each time.
    pub back_by: Option<Vec<Cause>>,
    /// Where it goes back to, each time.
    pub back_to: Option<Vec<u32>>,
    /// How often the first packet that was never acknowledged is sent.
    pub tries: Option<u32>,
    /// How many CNPs at least.
    pub cnps: Option<u32>,
}

/// Why a requester sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A NAK (PSN sequence error).
    Nak,
    /// An RNR NAK, and its time went by.
    Rnr,
    /// An answer passed one that is missing.
    Implied,
    /// The local ACK timeout.
    Timeout,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Nak => "NAK",
            Self::Rnr => "RNR NAK",
            Self::Implied => "implied NAK",
            Self::Timeout => "timeout",
        })
    }
}

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    /// It is no script.
    #[error("{0}: {1}")]
    Parse(String, String),
}

impl Script {
    /// The script in `text`.
    ///
    /// # Errors
    /// [`ScriptError::Parse`] with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let refused = |error: String| ScriptError::Parse(name.to_owned(), error);
        let mut script: Self = text::read(text).map_err(refused)?;
        script.name = name.to_owned();
        script.check().map_err(refused)?;
        Ok(script)
    }

    /// The script in a file.
    ///
    /// # Errors
    /// See [`ScriptError`].
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScriptError::Read(path.display().to_string(), error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text)
    }

    /// Those that come with the program.
    ///
    /// # Panics
    /// If one of them is wrong: a test parses them all.
    pub fn catalogue() -> Vec<Self> {
        let parse = |(name, text): &(&str, &str)| Self::parse(name, text);
        SCRIPTS.iter().map(parse).collect::<Result<_, _>>().expect("scripts of this program")
    }

    /// What cannot be.
    fn check(&self) -> Result<(), String> {
        let traffic = &self.traffic;
        let requests = traffic.count as usize * traffic.verbs.len();
        let rules = [
            (traffic.verbs.is_empty(), "traffic.verbs names no operation"),
            (requests > 100, "more than 100 requests"),
            (!(1..=8).contains(&traffic.qps), "traffic.qps must be 1 to 8"),
            (traffic.size > 1 << 20, "traffic.size must be at most 1048576"),
            (traffic.timeout > 31, "traffic.timeout must be at most 31"),
            (traffic.retries > 7 || traffic.rnr_retries > 7, "retries must be at most 7"),
            (traffic.rnr_timer > 31, "traffic.rnr-timer must be at most 31"),
            (!(1..=16).contains(&traffic.depth), "traffic.depth must be 1 to 16"),
            (traffic.first_psn > LAST_PSN, "traffic.first-psn must be at most 16777215"),
            (self.expect.fails as usize >= requests, "expect.fails names no request"),
            (
                self.events.iter().any(|event| event.flow >= traffic.qps),
                "an event names a flow that traffic.qps does not make",
            ),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, told)) => Err((*told).to_owned()),
            None => Ok(()),
        }
    }

    /// What the QP pair number `flow` does, as the suite against rxe plays it.
    pub fn plan(&self, flow: u32) -> Plan {
        let traffic = &self.traffic;
        let mut plan = Plan::new();
        plan.set(|settings| {
            settings.timeout = traffic.timeout;
            settings.retry_cnt = traffic.retries;
            settings.rnr_retry = traffic.rnr_retries;
            settings.min_rnr_timer = traffic.rnr_timer;
            settings.depth = traffic.depth;
        });
        plan.settings[0].psn = Psn::new(traffic.first_psn + flow * FLOW_PSNS);
        for verb in (0..traffic.count).flat_map(|_| &traffic.verbs) {
            let op = verb.op();
            plan.request(op, if op.is_atomic() { 8 } else { traffic.size });
        }
        for receive in &mut plan.receives {
            receive.len = receive.len.saturating_sub(traffic.receives_short_by);
        }
        if traffic.no_receives {
            plan.receives.clear();
        }
        self.spoil(&mut plan);
        plan
    }

    /// Writes into the plan what fails.
    fn spoil(&self, plan: &mut Plan) {
        let Expect { status, fails, .. } = self.expect;
        if status == Status::Success {
            return;
        }
        for (index, request) in plan.requests.iter_mut().enumerate().skip(fails as usize) {
            let is_first = index == fails as usize;
            request.status = if is_first { status } else { Status::WorkRequestFlushed };
            request.effect = Effect::Unknown;
        }
        plan.states[0] = QpState::Err;
        if self.expect.refused.is_some() {
            plan.states[1] = QpState::Err;
        }
    }
}

/// So far apart are the first PSNs of QP pairs.
const FLOW_PSNS: u32 = 0x1_0000;

impl Verb {
    /// As the suite against rxe has it.
    pub const fn op(self) -> Op {
        match self {
            Self::Send => Op::Send,
            Self::SendImm => Op::SendImm,
            Self::Write => Op::Write,
            Self::WriteImm => Op::WriteImm,
            Self::Read => Op::Read,
            Self::FetchAdd => Op::FetchAdd,
            Self::CompareSwap => Op::CmpSwap,
        }
    }
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            status: Status::Success,
            fails: 0,
            naks: None,
            refused: None,
            rnr_naks: None,
            back_by: None,
            back_to: None,
            tries: None,
            cnps: None,
        }
    }
}

/// An event as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawEvent {
    #[serde(default)]
    flow: u32,
    from: Side,
    #[serde(default)]
    what: What,
    psn: Option<u32>,
    nth: Option<u32>,
    to: Option<u32>,
    iteration: Option<u32>,
    #[serde(rename = "do")]
    action: String,
    #[serde(default, deserialize_with = "optional_time")]
    time: Option<Duration>,
    count: Option<u32>,
}

impl TryFrom<RawEvent> for Event {
    type Error = String;

    fn try_from(raw: RawEvent) -> Result<Self, String> {
        let at = match (raw.psn, raw.nth, raw.iteration) {
            (Some(from), None, iteration) => {
                At::Psn { from, to: raw.to.unwrap_or(from), iteration: iteration.unwrap_or(1) }
            }
            (None, Some(from), None) if from > 0 => At::Nth { from, to: raw.to.unwrap_or(from) },
            _ => {
                return Err("an event has either psn, perhaps with iteration, or nth from 1".into());
            }
        };
        let (name, count, time) = (raw.action.as_str(), raw.count, raw.time);
        let code = |count| u8::try_from(count).map_err(|_| "an opcode is at most 255".to_owned());
        let action = match (name, count, time) {
            ("drop", None, None) => Action::Drop,
            ("corrupt", None, None) => Action::Corrupt,
            ("mark", None, None) => Action::Mark,
            ("duplicate", count, None) => Action::Duplicate(count.unwrap_or(1)),
            ("echo", None, Some(time)) => Action::Echo(time),
            ("delay", None, Some(time)) => Action::Delay(time),
            ("reorder", Some(count), None) => Action::Reorder(count),
            ("truncate", Some(count), None) => Action::Truncate(count),
            ("shorten", Some(count), None) => Action::Shorten(count),
            ("add-psn", Some(count), None) => Action::AddPsn(count),
            ("wrong-key", None, None) => Action::WrongKey,
            ("wrong-address", None, None) => Action::WrongAddress,
            ("opcode", Some(count), None) => Action::Opcode(code(count)?),
            ("no-ack-request", None, None) => Action::NoAckRequest,
            _ => {
                return Err(format!(
                    "no action `{name}` with these: drop, corrupt, mark, duplicate (count), echo (time), delay (time), \
                     reorder (count), truncate (count), shorten (count), add-psn (count), wrong-key, wrong-address, \
                     opcode (count), no-ack-request"
                ));
            }
        };
        Ok(Self { flow: raw.flow, from: raw.from, what: raw.what, at, action })
    }
}

const fn one() -> u32 {
    1
}

const fn mtu() -> PathMtu {
    PathMtu::Mtu256
}

/// 1.07 s: on a busy machine nothing else runs out.
const fn timeout() -> u8 {
    18
}

const fn seven() -> u8 {
    7
}

const fn rnr_timer() -> u8 {
    12
}

const fn depth() -> u8 {
    16
}

const fn first_psn() -> u32 {
    0x100
}

fn path_mtu<'de, D: Deserializer<'de>>(from: D) -> Result<PathMtu, D::Error> {
    let bytes = u32::deserialize(from)?;
    PathMtu::from_bytes(bytes)
        .ok_or_else(|| de::Error::custom("a path MTU is 256, 512, 1024, 2048 or 4096"))
}

fn optional_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let nanos = Kind::Time.parse(&text);
    nanos
        .map(|nanos| Some(Duration::from_nanos(nanos)))
        .ok_or_else(|| de::Error::custom("expected a time, as 100us"))
}

/// Names of statuses, as `ibv_wc_status_str` has them in short.
const STATUSES: [(&str, Status); 8] = [
    ("success", Status::Success),
    ("retry-exceeded", Status::RetryExceeded),
    ("rnr-retry-exceeded", Status::RnrRetryExceeded),
    ("remote-access", Status::RemoteAccess),
    ("remote-invalid-request", Status::RemoteInvalidRequest),
    ("remote-operational", Status::RemoteOperational),
    ("bad-response", Status::BadResponse),
    ("local-length", Status::LocalLength),
];

/// The name of a status.
pub fn status_name(status: Status) -> String {
    let found = STATUSES.iter().find(|(_, known)| *known == status);
    found.map_or_else(|| format!("{status:?}"), |(name, _)| (*name).to_owned())
}

fn status<'de, D: Deserializer<'de>>(from: D) -> Result<Status, D::Error> {
    let text = String::deserialize(from)?;
    let found = STATUSES.iter().find(|(name, _)| *name == text);
    let names = || STATUSES.map(|(name, _)| name).join(", ");
    found.map(|(_, status)| *status).ok_or_else(|| de::Error::custom(format!("one of {}", names())))
}

fn nak_code<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NakCode>, D::Error> {
    let text = String::deserialize(from)?;
    let found = (1..4).filter_map(NakCode::from_code).find(|code| code.to_string() == text);
    found.map(Some).ok_or_else(|| {
        de::Error::custom("one of invalid-request, remote-access, remote-operational")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "title = 'x'\n[traffic]\nverbs = ['write']\nsize = 1000\n";

    #[test]
    fn the_catalogue_is_large_and_each_script_has_a_name_of_its_own() {
        let scripts = Script::catalogue();
        assert!(scripts.len() >= 40, "{}", scripts.len());
        let mut titles: Vec<_> = scripts.iter().map(|script| &script.title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), scripts.len());
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_catalogue() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogue");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("a file").path().file_stem().expect("a name").to_owned())
            .collect();
        files.sort_unstable();
        let names: Vec<_> =
            SCRIPTS.iter().map(|(name, _)| std::ffi::OsString::from(name)).collect();
        assert_eq!(names, files);
    }

    #[test]
    fn what_makes_no_sense_is_told_in_a_line() {
        let rows = [
            ("[[event]]\nfrom = 'requester'\ndo = 'drop'", "either psn"),
            ("[[event]]\nfrom = 'requester'\npsn = 1\ndo = 'explode'", "no action `explode`"),
            ("[[event]]\nfrom = 'requester'\npsn = 1\ndo = 'delay'", "no action `delay`"),
            ("[[event]]\nfrom = 'requester'\nflow = 1\npsn = 1\ndo = 'drop'", "names a flow"),
            ("[expect]\nfails = 1", "names no request"),
            ("[expect]\nstatus = 'fine'", "one of success"),
            ("[expect]\ncolour = 1", "unknown field"),
        ];
        for (text, told) in rows {
            let error =
                Script::parse("test", &format!("{HEAD}{text}")).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        Script::parse("test", HEAD).expect("as it must be");
    }

    #[test]
    fn a_plan_says_what_fails() {
        let text = format!("{HEAD}count = 3\n[expect]\nstatus = 'retry-exceeded'\nfails = 1");
        let plan = Script::parse("test", &text).expect("a script").plan(0);
        let statuses: Vec<_> = plan.requests.iter().map(|request| request.status).collect();
        let due = [Status::Success, Status::RetryExceeded, Status::WorkRequestFlushed];
        assert_eq!(statuses, due);
    }
}
