//! An event script: the traffic, the faults and their packets, and the expected behaviour.
//! `docs/inject.md` lists the keys.

use std::path::Path;
use std::time::Duration;

use feroce_congestion::params::Kind;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;
use feroce_wire::{NakCode, PathMtu, Psn};
use serde::{Deserialize, Deserializer, de};

use super::action::Action;
use super::catalogue::{SCRIPTS, names_near};
use super::packet_kind::PacketKind;
use super::toml_value;
use super::trace::Side;
use crate::endpoint::plan::{Effect, Op, Plan};

/// The largest PSN.
const LAST_PSN: u32 = 0xff_ffff;

/// An event script.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// File name without the extension.
    #[serde(skip)]
    pub name: String,
    /// What the script shows, in one sentence.
    pub title: String,
    /// What the endpoints exchange. Empty in a script for endpoints that exchange what they like.
    #[serde(default)]
    pub traffic: Traffic,
    /// Events that apply to packets.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// Expected behaviour.
    #[serde(default)]
    pub expect: Expect,
}

/// What the endpoints exchange: reliable connections, with requests of one side.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Traffic {
    /// Operations, in this order.
    #[serde(deserialize_with = "operations")]
    pub verbs: Vec<Verb>,
    /// Length of each message, in bytes; atomics have eight bytes.
    #[serde(default)]
    pub size: u32,
    /// How often the list of operations is posted.
    #[serde(default = "one")]
    pub count: u32,
    /// Number of QP pairs that do the same at the same time.
    #[serde(default = "one")]
    pub qps: u32,
    /// Path MTU.
    #[serde(default = "mtu", deserialize_with = "path_mtu")]
    pub mtu: PathMtu,
    /// Local ACK timeout code of the requester: 4.096 us times two to its power.
    #[serde(default = "timeout")]
    pub timeout: u8,
    /// Retry count.
    #[serde(default = "seven")]
    pub retries: u8,
    /// RNR retry count; 7 means without limit.
    #[serde(default = "seven")]
    pub rnr_retries: u8,
    /// Timer code in the responder's RNR NAKs.
    #[serde(default = "rnr_timer")]
    pub rnr_timer: u8,
    /// Maximum number of READs and atomics outstanding.
    #[serde(default = "depth")]
    pub depth: u8,
    /// Starting PSN of the requester.
    #[serde(default = "first_psn")]
    pub first_psn: u32,
    /// Receives are posted this long after the requests.
    #[serde(default, deserialize_with = "optional_time")]
    pub receives_after: Option<Duration>,
    /// Number of bytes by which each receive is shorter than its message.
    #[serde(default)]
    pub receives_short_by: u32,
    /// True if no receives are posted.
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

/// An action and the packets that it applies to.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "RawEvent")]
pub struct Event {
    /// QP pair, from 0.
    pub flow: u32,
    /// Sender of the packets.
    pub from: Side,
    /// Kind of the packets.
    pub what: PacketKind,
    /// Which packets of this kind.
    pub at: PacketSelector,
    /// The action.
    pub action: Action,
}

/// Selects packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketSelector {
    /// Packets with a PSN in a range, relative to the requester's starting PSN.
    Psn {
        /// First PSN of the range.
        from: u32,
        /// Last PSN of the range.
        to: u32,
        /// Which occurrence of the PSN, from 1; 0 means each.
        iteration: u32,
    },
    /// Packets by number, from 1.
    Nth {
        /// The first packet.
        from: u32,
        /// The last packet.
        to: u32,
    },
}

impl PacketSelector {
    /// Returns true if it selects the `nth` packet of its kind.
    pub fn is_nth(self, nth: u32) -> bool {
        matches!(self, Self::Nth { from, to } if (from..=to).contains(&nth))
    }
}

/// Expected behaviour that does not follow from the rules of the protocol.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Expect {
    /// Completion status of the request number `fails`; later requests are flushed.
    #[serde(deserialize_with = "status")]
    pub status: Status,
    /// Number of the request that fails.
    pub fails: u32,
    /// PSNs of the NAKs (PSN sequence error), in order.
    pub naks: Option<Vec<u32>>,
    /// Code of the NAK that fails the connection.
    #[serde(deserialize_with = "nak_code")]
    pub refused: Option<NakCode>,
    /// Minimum number of RNR NAKs.
    pub rnr_naks: Option<u32>,
    /// Causes of the requester's retransmissions, in order.
    pub back_by: Option<Vec<Cause>>,
    /// PSNs at which the retransmissions begin, in order.
    pub back_to: Option<Vec<u32>>,
    /// Number of transmissions of the first packet that is never acknowledged.
    pub tries: Option<u32>,
    /// Minimum number of CNPs.
    pub cnps: Option<u32>,
}

/// Why a requester retransmits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A NAK (PSN sequence error).
    Nak,
    /// An RNR NAK whose time has passed.
    Rnr,
    /// A response that implies the loss of an earlier one.
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
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    /// The name is neither that of a script of the catalogue nor of a file; the names near it.
    #[error("`{0}` is neither a script of the catalogue nor a file; {1}")]
    Unknown(String, String),
    /// The text is not a valid script.
    #[error("{0}: {1}")]
    Parse(String, String),
}

impl Script {
    /// Parses a script.
    ///
    /// # Errors
    /// [`ScriptError::Parse`], with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let refused = |error: String| ScriptError::Parse(name.to_owned(), error);
        let mut script: Self = toml_value::read(text).map_err(refused)?;
        script.name = name.to_owned();
        script.check().map_err(refused)?;
        Ok(script)
    }

    /// Reads a script from a file.
    ///
    /// # Errors
    /// See [`ScriptError`].
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScriptError::Read(path.display().to_string(), error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text)
    }

    /// Returns the script `name` of the catalogue, or the one in the file of this name.
    ///
    /// # Errors
    /// See [`ScriptError`].
    pub fn find(name: &str) -> Result<Self, ScriptError> {
        if let Some((name, text)) = SCRIPTS.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        Self::read(Path::new(name)).map_err(|error| match error {
            ScriptError::Read(_, cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                let near = names_near(name);
                let advice = match near.as_slice() {
                    [] => "--list lists the catalogue".to_owned(),
                    near => format!("near it: {}; --list lists all", near.join(", ")),
                };
                ScriptError::Unknown(name.to_owned(), advice)
            }
            other => other,
        })
    }

    /// Returns the scripts built into the program.
    ///
    /// # Panics
    /// If one of them is invalid; a test parses them all.
    pub fn built_in() -> Vec<Self> {
        let parse = |(name, text): &(&str, &str)| Self::parse(name, text);
        SCRIPTS.iter().map(parse).collect::<Result<_, _>>().expect("scripts of this program")
    }

    /// Returns the scripts built into the program that can be played.
    ///
    /// # Panics
    /// See [`built_in`](Self::built_in).
    pub fn catalogue() -> Vec<Self> {
        let mut scripts = Self::built_in();
        scripts.retain(Self::has_traffic);
        scripts
    }

    /// Returns false if the script only applies to endpoints that exchange what they like.
    pub fn has_traffic(&self) -> bool {
        !self.traffic.verbs.is_empty()
    }

    /// Checks the values.
    fn check(&self) -> Result<(), String> {
        let traffic = &self.traffic;
        let requests = traffic.count as usize * traffic.verbs.len();
        let rules = [
            (requests > 100, "more than 100 requests"),
            (!(1..=8).contains(&traffic.qps), "traffic.qps must be 1 to 8"),
            (traffic.size > 1 << 20, "traffic.size must be at most 1048576"),
            (traffic.timeout > 31, "traffic.timeout must be at most 31"),
            (traffic.retries > 7 || traffic.rnr_retries > 7, "retries must be at most 7"),
            (traffic.rnr_timer > 31, "traffic.rnr-timer must be at most 31"),
            (!(1..=16).contains(&traffic.depth), "traffic.depth must be 1 to 16"),
            (traffic.first_psn > LAST_PSN, "traffic.first-psn must be at most 16777215"),
            (
                self.has_traffic() && self.expect.fails as usize >= requests,
                "expect.fails names no request",
            ),
            (
                self.events.iter().any(|event| event.flow >= traffic.qps),
                "an event names a flow, but traffic.qps makes fewer flows",
            ),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, message)) => Err((*message).to_owned()),
            None => Ok(()),
        }
    }

    /// Returns the plan of QP pair number `flow`.
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
        self.mark_failures(&mut plan);
        plan
    }

    /// Marks the requests that must fail.
    fn mark_failures(&self, plan: &mut Plan) {
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

/// Distance between the starting PSNs of QP pairs.
const FLOW_PSNS: u32 = 0x1_0000;

impl Verb {
    /// Returns the operation of a plan.
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

impl Default for Traffic {
    fn default() -> Self {
        Self {
            verbs: Vec::new(),
            size: 0,
            count: one(),
            qps: one(),
            mtu: mtu(),
            timeout: timeout(),
            retries: seven(),
            rnr_retries: seven(),
            rnr_timer: rnr_timer(),
            depth: depth(),
            first_psn: first_psn(),
            receives_after: None,
            receives_short_by: 0,
            no_receives: false,
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

/// An event as written in TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawEvent {
    #[serde(default)]
    flow: u32,
    from: Side,
    #[serde(default)]
    what: PacketKind,
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
            (Some(from), None, iteration) => PacketSelector::Psn {
                from,
                to: raw.to.unwrap_or(from),
                iteration: iteration.unwrap_or(1),
            },
            (None, Some(from), None) if from > 0 => {
                PacketSelector::Nth { from, to: raw.to.unwrap_or(from) }
            }
            _ => {
                return Err(
                    "an event needs either psn (optionally with iteration) or nth, from 1".into()
                );
            }
        };
        let action = Action::parse(&raw.action, raw.count, raw.time)?;
        if action.needs_response() && raw.from != Side::Responder {
            return Err(format!("`{}` forges from a response: from = \"responder\"", raw.action));
        }
        if raw.what.is_cm() != action.is_for_cm().unwrap_or(raw.what.is_cm()) {
            return Err(format!("`{}` does not apply to this kind of packet", raw.action));
        }
        if raw.what.is_cm() && raw.psn.is_some() {
            return Err("messages of the CM are selected by nth, not by psn".into());
        }
        Ok(Self { flow: raw.flow, from: raw.from, what: raw.what, at, action })
    }
}

fn operations<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Verb>, D::Error> {
    let verbs = Vec::deserialize(from)?;
    if verbs.is_empty() { Err(de::Error::custom("names no operation")) } else { Ok(verbs) }
}

const fn one() -> u32 {
    1
}

const fn mtu() -> PathMtu {
    PathMtu::Mtu256
}

/// The default timeout, 1.07 s: long enough that a busy machine causes no timeouts.
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
        .ok_or_else(|| de::Error::custom("expected a time, such as 100us"))
}

/// Names of statuses, shortened from `ibv_wc_status_str`.
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

/// Returns the name of a status.
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
        let scripts = Script::built_in();
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
    fn invalid_scripts_are_described() {
        let rows = [
            ("[[event]]\nfrom = 'requester'\ndo = 'drop'", "either psn"),
            ("[[event]]\nfrom = 'requester'\npsn = 1\ndo = 'explode'", "no action `explode`"),
            ("[[event]]\nfrom = 'requester'\npsn = 1\ndo = 'delay'", "no action `delay`"),
            ("[[event]]\nfrom = 'requester'\nflow = 1\npsn = 1\ndo = 'drop'", "names a flow"),
            ("[[event]]\nfrom = 'requester'\nnth = 1\ndo = 'forge-nak'\ncount = 0", "a response"),
            ("[[event]]\nfrom = 'responder'\nnth = 1\ndo = 'forge-nak'\ncount = 5", "0 to 4"),
            ("[[event]]\nfrom = 'responder'\nnth = 1\ndo = 'wrong-qpn'", "does not apply"),
            ("[[event]]\nfrom = 'requester'\nwhat = 'cm-req'\npsn = 1\ndo = 'drop'", "by nth"),
            ("[[event]]\nfrom = 'requester'\nwhat = 'cm-req'\nnth = 1\ndo = 'cnp'", "not apply"),
            ("[expect]\nfails = 1", "names no request"),
            ("[expect]\nstatus = 'fine'", "one of success"),
            ("[expect]\ncolour = 1", "unknown field"),
        ];
        for (text, message) in rows {
            let error =
                Script::parse("test", &format!("{HEAD}{text}")).expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
        Script::parse("test", HEAD).expect("as it must be");
    }

    #[test]
    fn a_plan_contains_the_expected_failure() {
        let text = format!("{HEAD}count = 3\n[expect]\nstatus = 'retry-exceeded'\nfails = 1");
        let plan = Script::parse("test", &text).expect("a script").plan(0);
        let statuses: Vec<_> = plan.requests.iter().map(|request| request.status).collect();
        let expected = [Status::Success, Status::RetryExceeded, Status::WorkRequestFlushed];
        assert_eq!(statuses, expected);
    }
}
