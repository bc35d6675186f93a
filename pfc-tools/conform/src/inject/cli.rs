//! The command lines of `feroce conform inject` and `feroce conform scorecard`.

use std::path::PathBuf;
use std::time::Duration;

use feroce_congestion::params::Kind;
use indicatif::{ProgressBar, ProgressStyle};

use super::checker;
use super::connection::{Connection, TimeoutCodes};
use super::fabric::Fabric;
use super::flows::{Flow, Flows};
use super::injector::Injector;
use super::live::{Live, SLACK, Stack};
use super::outcome::{Evidence, Known};
use super::play::{self, Played, Testbed};
use super::relay::{Relay, RelayInterfaces, RelayReport};
use super::scorecard::{self, Item, KnownFailures, RelayFigures, Scorecard};
use super::script::Script;
use super::trace::Trace;
use crate::capture_file::{self, Frame};
use crate::failure::{Failure, Outcome};
use feroce_engine::files;
use feroce_engine::port::af_xdp::XdpMode;
use feroce_engine::time::wall_clock;
use feroce_wire::PathMtu;

/// Options of `inject`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Files of scripts, or names of scripts in the catalogue
    #[arg(value_name = "SCRIPT")]
    scripts: Vec<String>,
    /// Play all scripts of the catalogue that have traffic of their own
    #[arg(long)]
    catalogue: bool,
    /// List the scripts of the catalogue and exit
    #[arg(long, exclusive = true)]
    list: bool,
    /// Play between two interfaces instead of in virtual time: that on the requester's side, then
    /// that on the responder's side
    #[arg(long, value_names = ["A", "B"], num_args = 2)]
    live: Vec<String>,
    /// Network namespace of both interfaces
    #[arg(long, value_name = "NAME", requires = "live")]
    namespace: Option<String>,
    /// XDP programs on both interfaces forward what concerns no flow of the script (generic works
    /// on every interface; native needs drivers that send redirected frames)
    #[arg(long, value_name = "MODE", requires = "live")]
    xdp: Option<Xdp>,
    /// The requester: feroce:NAMESPACE:INTERFACE:PORT, or rxe:NAMESPACE for the agent of
    /// scripts/rxe.sh, reached from this namespace
    #[arg(long, value_name = "STACK", requires = "live", requires = "responder")]
    requester: Option<Stack>,
    /// The responder, in the same form
    #[arg(long, value_name = "STACK", requires = "live", requires = "requester")]
    responder: Option<Stack>,
    /// Without --requester and --responder: apply the script to the first QP pairs seen in this
    /// time, whatever endpoints they belong to
    #[arg(
        long = "for",
        value_name = "TIME",
        requires = "live",
        conflicts_with = "requester",
        value_parser = time
    )]
    duration: Option<Duration>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Play a failing script up to this many more times and count the best result: a busy machine
    /// can delay endpoints
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "duration")]
    again: u32,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a capture of each item to this folder, with the packets as sent
    #[arg(long, value_name = "FOLDER")]
    captures: Option<PathBuf>,
}

/// Where the XDP programs of the relay run.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Xdp {
    /// In the driver.
    Native,
    /// In the kernel's stack, before the protocols.
    Generic,
}

impl From<Xdp> for XdpMode {
    fn from(mode: Xdp) -> Self {
        match mode {
            Xdp::Native => Self::Native,
            Xdp::Generic => Self::Generic,
        }
    }
}

/// What no packet shows, for `--for`. A connection that is set up through the CM during this time
/// tells all but the RNR timer; what remains unknown is not judged.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ConnectionOptions {
    /// Path MTU of connections set up before [default: as their packets show]
    #[arg(long, value_name = "BYTES", requires = "duration", value_parser = path_mtu)]
    mtu: Option<PathMtu>,
    /// Local ACK timeout code: 4.096 us times two to its power; 0: none
    #[arg(
        long,
        value_name = "CODE",
        requires = "duration",
        value_parser = clap::value_parser!(u8).range(..=31)
    )]
    timeout: Option<u8>,
    /// Retry count
    #[arg(
        long,
        value_name = "N",
        requires = "duration",
        value_parser = clap::value_parser!(u8).range(..=7)
    )]
    retries: Option<u8>,
    /// RNR retry count; 7: without limit
    #[arg(
        long,
        value_name = "N",
        requires = "duration",
        value_parser = clap::value_parser!(u8).range(..=7)
    )]
    rnr_retries: Option<u8>,
    /// Timer code in the responder's RNR NAKs
    #[arg(
        long,
        value_name = "CODE",
        requires = "duration",
        value_parser = clap::value_parser!(u8).range(..=31)
    )]
    rnr_timer: Option<u8>,
    /// READs and atomics that the responder accepts at the same time
    #[arg(long, value_name = "N", requires = "duration")]
    depth: Option<u8>,
}

impl ConnectionOptions {
    fn connection(self) -> Connection {
        let Self { mtu, timeout, retries, rnr_retries, rnr_timer, depth } = self;
        let timeout = timeout.map(TimeoutCodes::exactly);
        Connection { mtu, timeout, retries, rnr_retries, rnr_timer, depth }
    }
}

fn path_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "expected 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Options of `scorecard`.
#[derive(Debug, clap::Args)]
pub struct ScorecardOptions {
    /// Files written by `inject --json`
    #[arg(value_name = "FILE", required = true)]
    cards: Vec<PathBuf>,
    /// Write an HTML page to this file
    #[arg(short = 'o', long = "out", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the table as Markdown to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// File of known failures and their reasons
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
}

fn time(text: &str) -> Result<Duration, String> {
    let nanos = Kind::Time.parse(text).filter(|&nanos| nanos > 0);
    nanos.map(Duration::from_nanos).ok_or_else(|| "expected a time, such as 10s".to_owned())
}

/// Plays scripts.
///
/// # Errors
/// See [`Failure`].
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    if options.list {
        for script in Script::built_in() {
            println!("{:32} {}", script.name, script.title);
        }
        return Ok(Outcome::Fine);
    }
    let scripts = scripts(options)?;
    if options.duration.is_none()
        && let Some(script) = scripts.iter().find(|script| !script.has_traffic())
    {
        let why =
            "has no traffic to play: it applies to the programs between --live A B, --for TIME";
        return Err(unusable(format!("{} {why}", script.name)));
    }
    if let Some(folder) = &options.captures {
        std::fs::create_dir_all(folder)?;
    }
    if let Some(duration) = options.duration {
        return watch(options, &scripts, duration);
    }
    let mut testbed = testbed(options)?;
    let [requester, responder] = testbed.roles();
    let place = if options.live.is_empty() { "fabric" } else { "live" }.to_owned();
    let mut card = Scorecard { requester, responder, place, relay: None, items: Vec::new() };
    let mut relay: Option<RelayReport> = None;
    for script in &scripts {
        let mut item = played(script, &mut *testbed, options)?;
        for _ in 0..options.again {
            if item.passed() {
                break;
            }
            item = played(script, &mut *testbed, options)?;
        }
        print_item(&item);
        card.items.push(item);
        match (&mut relay, testbed.relay()) {
            (Some(relay), Some(more)) => relay.add(&more),
            (relay, more) => *relay = more,
        }
    }
    card.relay = relay.as_ref().map(RelayFigures::of);
    finish(&card, options)
}

fn finish(card: &Scorecard, options: &Options) -> Result<Outcome, Failure> {
    if let Some(relay) = &card.relay {
        println!("relay: {relay}");
    }
    println!("{} of {} items passed: {}", card.passed(), card.items.len(), card.name());
    if let Some(path) = &options.json {
        card.write(path)?;
    }
    Ok(Outcome::of(card.passed() < card.items.len()))
}

/// Applies one script to endpoints that this program does not control.
fn watch(options: &Options, scripts: &[Script], duration: Duration) -> Result<Outcome, Failure> {
    let [script] = scripts else { return Err(unusable("--for takes one script")) };
    let relay = Relay::open(&between(options)?).map_err(unusable)?;
    let flows = Flows::learned(script.traffic.qps as usize);
    relay.put(Some(Injector::new(script, flows, Duration::ZERO)));
    wait(duration);
    let injector = relay.put(None).ok_or_else(|| unusable("the relay has ended"))?;
    let until = u64::try_from(wall_clock().as_nanos()).unwrap_or(u64::MAX);
    let report = relay.report();
    let told = options.connection.connection();
    let known = print_flows(injector.flows(), told);
    // Faults in the set-up may leave no connection to judge.
    let has_applied = injector.times_applied().iter().any(|times| *times > 0);
    if known.is_empty() && !has_applied {
        return Err(unusable("nothing to judge: no request of a reliable connection was seen"));
    }
    let slack = u64::try_from(SLACK.as_nanos()).unwrap_or(u64::MAX);
    let evidence = Evidence {
        times_applied: injector.times_applied().to_vec(),
        trace: injector.into_trace(),
        flows: Vec::new(),
        counted: [None, None],
        slack: slack.saturating_add(report.delay(1.0)),
        known,
        until,
    };
    let figures = RelayFigures::of(&report);
    let played = report.is_whole().map(|()| {
        let verdicts = checker::check(script, &evidence);
        Played { evidence, verdicts, relay: Some(report) }
    });
    let item = save_item(script, played, options)?;
    print_item(&item);
    let [requester, responder] = ["requester", "responder"].map(str::to_owned);
    let (place, relay, items) = ("live".to_owned(), Some(figures), vec![item]);
    finish(&Scorecard { requester, responder, place, relay, items }, options)
}

/// Waits, and shows on a terminal how long still.
fn wait(duration: Duration) {
    // Draws nothing if standard error is not a terminal.
    let bar = ProgressBar::new(duration.as_secs().max(1));
    let style = "watching for QP pairs {wide_bar} {eta}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    let mut left = duration;
    while !left.is_zero() {
        let step = left.min(Duration::from_secs(1));
        std::thread::sleep(step);
        left -= step;
        bar.inc(1);
    }
    bar.finish_and_clear();
}

/// Prints the flows that were learned, and returns what is known of them.
fn print_flows(flows: &Flows, told: Connection) -> Vec<Known> {
    let known = |(number, flow): (usize, &Flow)| {
        let [requester, responder] = flow.addresses;
        let by = if flow.known.from_start { "set up through the CM" } else { "joined while open" };
        // Programs may have set something else than they agreed on.
        let connection = told.or(flow.known.connection);
        println!("flow {number}: {requester} to {responder}, {by}; {connection}");
        Known { connection, ..flow.known }
    };
    flows.known().iter().enumerate().map(known).collect()
}

fn unusable(why: impl std::fmt::Display) -> Failure {
    Failure::Unusable(why.to_string())
}

fn scripts(options: &Options) -> Result<Vec<Script>, Failure> {
    let named = options.scripts.iter().map(|name| Script::find(name));
    let mut scripts = named.collect::<Result<Vec<_>, _>>().map_err(unusable)?;
    if options.catalogue {
        scripts.extend(Script::catalogue());
    }
    match scripts.is_empty() {
        true => Err(unusable("no script given: --catalogue plays all, --list lists them")),
        false => Ok(scripts),
    }
}

fn between(options: &Options) -> Result<RelayInterfaces, Failure> {
    let interfaces = options.live.clone().try_into();
    let interfaces = interfaces.map_err(|_| unusable("--live takes two interfaces"))?;
    Ok(RelayInterfaces {
        interfaces,
        namespace: options.namespace.clone(),
        xdp: options.xdp.map(XdpMode::from),
    })
}

fn testbed(options: &Options) -> Result<Box<dyn Testbed>, Failure> {
    if options.live.is_empty() {
        return Ok(Box::new(Fabric::new()));
    }
    let between = between(options)?;
    let (Some(requester), Some(responder)) = (&options.requester, &options.responder) else {
        return Err(unusable("--live needs --requester and --responder, or --for"));
    };
    let folder = options.captures.clone().unwrap_or_else(std::env::temp_dir);
    let stacks = [requester.clone(), responder.clone()];
    Ok(Box::new(Live::open(&between, &stacks, &folder).map_err(unusable)?))
}

fn played(script: &Script, testbed: &mut dyn Testbed, options: &Options) -> Result<Item, Failure> {
    save_item(script, play::play(script, testbed), options)
}

/// Creates the item of a script, and writes its capture if requested.
fn save_item(
    script: &Script,
    played: Result<Played, crate::endpoint::Failure>,
    options: &Options,
) -> Result<Item, Failure> {
    if let (Some(folder), Ok(Played { evidence, .. })) = (&options.captures, &played) {
        let path = folder.join(format!("{}.pcap", script.name));
        capture_file::write(&path, &frames(&evidence.trace)).map_err(unusable)?;
    }
    Ok(Item::new(script, &played))
}

/// Returns the packets in the order of sending: the number of a packet is its number in the
/// capture.
fn frames(trace: &Trace) -> Vec<Frame> {
    let frame = |sent: &super::trace::Sent| Frame {
        at: Duration::from_nanos(sent.at),
        bytes: sent.bytes.clone(),
    };
    trace.sent.iter().map(frame).collect()
}

fn print_item(item: &Item) {
    let verdict = if item.passed() { "ok" } else { "FAILED" };
    println!("{verdict:6} {:32} {} packets", item.script, item.packets);
    for (check, sentence) in item.complaints() {
        println!("       {check}: {sentence}");
    }
}

/// Writes the table of several scorecards.
///
/// # Errors
/// See [`Failure`].
pub fn scorecard(options: &ScorecardOptions) -> Result<Outcome, Failure> {
    let cards = options.cards.iter().map(|path| Scorecard::read(path).map_err(unusable));
    let cards = cards.collect::<Result<Vec<_>, _>>()?;
    let known = match &options.known {
        Some(path) => KnownFailures::read(path).map_err(unusable)?,
        None => KnownFailures::default(),
    };
    let page = scorecard::page(&cards, &known);
    if let Some(path) = &options.out {
        files::write(path, page.html())?;
    }
    if let Some(path) = &options.markdown {
        files::write(path, page.markdown(".").0)?;
    }
    for card in &cards {
        println!("{} of {} items passed: {}", card.passed(), card.items.len(), card.name());
    }
    Ok(Outcome::Fine)
}
