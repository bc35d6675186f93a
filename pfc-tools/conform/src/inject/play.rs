//! Plays a script between two endpoints.

use std::time::Duration;

use feroce_engine::verbs::{RemoteAddr, Status};

use super::checker::{self, Verdict};
use super::connection::Connection;
use super::flows::{Flow, Flows};
use super::injector::Injector;
use super::outcome::{Evidence, FlowOutcome, Known, counted};
use super::relay::RelayReport;
use super::script::Script;
use super::trace::Side;
use crate::endpoint::Failure;
use crate::endpoint::end::{End, Pace, Posting};
use crate::endpoint::model::Model;
use crate::endpoint::plan::{Family, Plan, REQUESTER, RESPONDER};
use crate::endpoint::setup::{self, FIRST_RECEIVE};

/// Time limit for the completions of an item.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Both ends of a QP pair: requester, responder.
pub type Ends = [Box<dyn End>; 2];

/// Two endpoints and the link between them.
pub trait Testbed {
    /// Returns the names of the requester and of the responder.
    fn roles(&self) -> [String; 2];

    /// Creates the ends for the QP pairs of `script`.
    ///
    /// # Errors
    /// The error of the stack.
    fn ends(&mut self, script: &Script) -> Result<Vec<Ends>, Failure>;

    /// Returns the latency of a frame without faults.
    fn latency(&self) -> Duration;

    /// Inserts `injector` between the endpoints.
    fn begin(&mut self, injector: Injector);

    /// Removes the injector and returns it.
    fn finish(&mut self) -> Injector;

    /// Returns the clock of the endpoints.
    fn clock(&self) -> Box<dyn Pace>;

    /// Returns the counters of the device of `side`, by the device's own names.
    ///
    /// # Errors
    /// If the device does not report them.
    fn counters(&self, side: Side) -> Result<Vec<(String, u64)>, Failure>;

    /// Returns how much later than required an endpoint may act.
    fn slack(&self) -> Duration;

    /// Returns what the relay between the endpoints did since the injector was inserted; `None`
    /// without a relay.
    fn relay(&self) -> Option<RelayReport> {
        None
    }
}

/// The result of a script.
#[derive(Debug, Clone)]
pub struct Played {
    /// Everything observed.
    pub evidence: Evidence,
    /// The verdicts of the checkers.
    pub verdicts: Vec<Verdict>,
    /// What the relay did, if there was one.
    pub relay: Option<RelayReport>,
}

/// A connected QP pair.
struct Pair {
    ends: Ends,
    plan: Plan,
    model: Model,
    postings: Vec<Posting>,
}

/// Plays `script` on `testbed`.
///
/// # Errors
/// If the script cannot be played.
pub fn play(script: &Script, testbed: &mut dyn Testbed) -> Result<Played, Failure> {
    let mut flows = Vec::new();
    let mut pairs = Vec::new();
    for (flow, ends) in (0..).zip(testbed.ends(script)?) {
        let (pair, flow) = connect(script, flow, ends)?;
        pairs.push(pair);
        flows.push(flow);
    }
    let counters = |testbed: &dyn Testbed| {
        let [requester, responder] = Side::ALL.map(|side| testbed.counters(side));
        Ok::<_, Failure>([requester?, responder?])
    };
    let before = counters(testbed)?;
    testbed.begin(Injector::new(script, Flows::fixed(flows), testbed.latency()));
    let outcomes = exchange(script, &mut pairs, &mut *testbed.clock());
    let injector = testbed.finish();
    let relay = testbed.relay();
    relay.as_ref().map_or(Ok(()), RelayReport::is_whole)?;
    let after = counters(testbed)?;
    let known = Known { connection: Connection::of(&script.traffic), from_start: true };
    let of = |side: usize| Some(counted(&before[side], &after[side]));
    let late = relay.as_ref().map_or(0, |relay| relay.delay(1.0));
    let slack = u64::try_from(testbed.slack().as_nanos()).unwrap_or(u64::MAX);
    let evidence = Evidence {
        times_applied: injector.times_applied().to_vec(),
        trace: injector.into_trace(),
        flows: outcomes?,
        counted: [of(0), of(1)],
        slack: slack.saturating_add(late),
        known: vec![known; script.traffic.qps as usize],
        until: u64::MAX,
    };
    let verdicts = checker::check(script, &evidence);
    Ok(Played { evidence, verdicts, relay })
}

fn connect(script: &Script, flow: u32, mut ends: Ends) -> Result<(Pair, Flow), Failure> {
    let plan = script.plan(flow);
    let addresses =
        setup::connect(&plan, Family::V4, script.traffic.mtu, &mut borrowed(&mut ends))?;
    let keys: Vec<RemoteAddr> = ends[RESPONDER].keys()?;
    let (model, postings) = setup::requests_of(&plan, &keys);
    Ok((Pair { ends, plan, model, postings }, Flow::between(&addresses)))
}

fn borrowed(ends: &mut Ends) -> [&mut dyn End; 2] {
    let [requester, responder] = ends;
    [&mut **requester, &mut **responder]
}

/// Posts all work requests and waits for their completions.
fn exchange(
    script: &Script,
    pairs: &mut [Pair],
    clock: &mut dyn Pace,
) -> Result<Vec<FlowOutcome>, Failure> {
    let late = script.traffic.receives_after;
    if late.is_none() {
        pairs.iter_mut().try_for_each(Pair::post_receives)?;
    }
    for pair in pairs.iter_mut() {
        pair.ends[REQUESTER].post_sends(&pair.postings)?;
    }
    if let Some(time) = late {
        wait(clock, time);
        pairs.iter_mut().try_for_each(Pair::post_receives)?;
    }
    let sends = pairs
        .iter_mut()
        .map(|pair| pair.ends[REQUESTER].completions(pair.plan.requests.len(), TIMEOUT));
    let sends = sends.collect::<Result<Vec<_>, _>>()?;
    // The last acknowledgements and deliberately delayed packets.
    wait(clock, DRAIN);
    pairs.iter_mut().zip(sends).map(|(pair, sends)| pair.outcome(&sends)).collect()
}

/// Time for packets that are on their way after the last completion.
const DRAIN: Duration = Duration::from_millis(30);

fn wait(clock: &mut dyn Pace, time: Duration) {
    let end = clock.now() + time;
    loop {
        let left = end.saturating_sub(clock.now());
        if left.is_zero() {
            return;
        }
        clock.pass(left);
    }
}

impl Pair {
    fn post_receives(&mut self) -> Result<(), Failure> {
        let receives = self.plan.receives.iter();
        let receives: Vec<_> = (FIRST_RECEIVE..)
            .zip(receives)
            .map(|(wr_id, receive)| (wr_id, receive.place, receive.len))
            .collect();
        self.ends[RESPONDER].post_receives(&receives)
    }

    fn outcome(
        &mut self,
        sends: &[feroce_engine::verbs::Completion],
    ) -> Result<FlowOutcome, Failure> {
        let succeed =
            self.plan.requests.iter().filter(|request| {
                request.op.consumes_receive() && request.status == Status::Success
            });
        let expected = succeed.count();
        let mut receives = self.ends[RESPONDER].completions(expected, TIMEOUT)?;
        receives.extend(self.ends[RESPONDER].completions(MAX_UNEXPECTED, Duration::ZERO)?);
        let mut wrong_bytes = Vec::new();
        let mut states = [feroce_engine::qp::QpState::Reset; 2];
        for end in [REQUESTER, RESPONDER] {
            for region in 0..self.plan.regions[end].len() {
                let found = self.ends[end].memory(region)?;
                wrong_bytes
                    .extend(self.model.check(end, region, &found).err().map(|failure| failure.0));
            }
            states[end] = self.ends[end].state()?;
        }
        Ok(FlowOutcome {
            plan: self.plan.clone(),
            sends: sends.iter().map(|done| (done.wr_id, done.status)).collect(),
            receives: receives
                .iter()
                .map(|done| (done.wr_id.saturating_sub(FIRST_RECEIVE), done.status))
                .collect(),
            wrong_bytes,
            states,
        })
    }
}

/// Maximum number of unexpected receive completions that are read.
const MAX_UNEXPECTED: usize = 128;
