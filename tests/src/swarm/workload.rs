//! The workload of a scenario, generated completely before the scenario runs: what each program
//! posts and does, and when. Initial memory contents are part of the workload, so the bytes that
//! each request moves are known in advance.

use std::time::Duration;

use super::layout::{Area, MAX_REVOKED, PoolAllocator, Range};
use super::options::{Options, ReceiveTiming};
use super::random::Random;
use super::request::{Action, BAD_RECEIVE, Op, Receive, Remote, Request, RevocationRisk};
use super::request_generator::{QpIndex, RequestGenerator};
use super::side_workload::{RegionUse, Revocation, SideWorkload};

/// The workload of one scenario. See the head of this file.
#[derive(Clone)]
pub struct Workload {
    /// Options of the scenario.
    pub options: Options,
    /// Initial contents of the regions of each end.
    pub contents: [Vec<Vec<u8>>; 2],
    /// Requests and receives by pair and end.
    pub sides: Vec<[SideWorkload; 2]>,
    /// Other actions, in the order of time.
    pub actions: Vec<TimedAction>,
    /// Time at which the wire faults end. From then on all receives are posted.
    pub faults_end: Duration,
    /// By end, the word to which all QPs of the other end add, if the scenario has one.
    pub shared_words: [Option<Range>; 2],
    /// Generator for random values that are needed while the scenario runs.
    pub runtime_random: Random,
}

/// An action with its time.
#[derive(Debug, Clone, Copy)]
pub struct TimedAction {
    /// Earliest time, since the start of the scenario.
    pub at: Duration,
    /// Number of frames that must be sent after `at` before the action runs, so that it hits the
    /// middle of a message.
    pub frames: u64,
    /// The action.
    pub action: Action,
}

impl TimedAction {
    fn generate(random: &mut Random, most: Duration, action: Action) -> Self {
        let frames = if random.percent(50) { random.below(60) } else { 0 };
        Self { at: random.time(most), frames, action }
    }
}

impl Workload {
    /// Generates the workload of `seed`.
    pub fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut options = Options::generate(&mut random);
        options.add_congestion(&mut Random::new(!seed));
        let faults_end = options.span + Duration::from_micros(random.pick(&[0, 50, 500, 5000]));
        let mut contents = [0, 1].map(|_| Area::ALL.map(|area| random.bytes(area.len())).to_vec());
        let mut allocators = [PoolAllocator::new(0), PoolAllocator::new(1)];
        let shared_words = [0, 1].map(|end| {
            let word = allocators[end].take(&mut random, 8, 8).filter(|_| options.pairs > 1)?;
            let pool: &mut Vec<u8> = &mut contents[end][Area::Pool.index()];
            pool[word.offset..word.offset + 8].fill(0);
            Some(word)
        });
        let revocations = random_revocations(&mut random, &options);
        let mut actions = random_actions(&mut random, &options, faults_end);
        for revocation in
            revocations.iter().filter(|revocation| revocation.region_use != RegionUse::Invalidated)
        {
            let action = Action::Deregister { end: revocation.end, area: revocation.area };
            actions.push(TimedAction::generate(&mut random, faults_end, action));
        }
        actions.sort_by_key(|action| action.at);
        let mut generator = RequestGenerator {
            random: &mut random,
            options: &options,
            contents: &contents,
            allocators: &mut allocators,
            shared_words,
            shared_bits: [0; 2],
        };
        let mut sides: Vec<[SideWorkload; 2]> = Vec::new();
        for pair in 0..options.pairs {
            sides.push(
                [0, 1].map(|end| generator.side_workload(QpIndex { pair, end }, &revocations)),
            );
        }
        for (pair, ends) in sides.iter_mut().enumerate() {
            for end in 0..2 {
                let consumers = consumers(&ends[1 - end].requests);
                let revocation = |v: &&Revocation| {
                    v.region_use == RegionUse::Receive && (v.pair, v.end) == (pair, end)
                };
                let revocation =
                    revocations.iter().find(revocation).map(|revocation| revocation.area);
                let mut receives =
                    Receives { random: &mut random, options: &options, faults_end, end };
                let receives = receives.generate(&consumers, &mut allocators[end], revocation);
                ends[end].final_from.1 = receives.len();
                ends[end].receives = receives;
            }
        }
        for pair in &mut sides {
            add_final(pair, &options, &mut random, &mut allocators, &contents);
        }
        Self { options, contents, sides, actions, faults_end, shared_words, runtime_random: random }
    }
}

/// Returns the requests that consume a receive.
pub fn consumers(requests: &[Request]) -> Vec<Request> {
    requests.iter().filter(|request| request.op.consumes_receive()).cloned().collect()
}

fn random_revocations(random: &mut Random, options: &Options) -> Vec<Revocation> {
    let mut revocations = Vec::new();
    for end in 0..2 {
        for n in 0..MAX_REVOKED {
            let uses = [RegionUse::Target, RegionUse::Source, RegionUse::Local, RegionUse::Receive];
            let region_use = match options.deregister && random.percent(60) {
                true => random.pick(&uses),
                false if random.percent(10) => RegionUse::Invalidated,
                false => continue,
            };
            let pair = random.between(0, options.pairs - 1);
            revocations.push(Revocation { end, area: Area::Revoked(n), pair, region_use });
        }
    }
    revocations
}

fn random_actions(
    random: &mut Random,
    options: &Options,
    faults_end: Duration,
) -> Vec<TimedAction> {
    let mut actions = Vec::new();
    let qp = |random: &mut Random| (random.between(0, options.pairs - 1), random.between(0, 1));
    if options.kill {
        let (pair, end) = qp(random);
        actions.push(TimedAction::generate(random, faults_end, Action::Kill { pair, end }));
    }
    if options.drain {
        let (pair, end) = qp(random);
        let drain = TimedAction::generate(random, faults_end, Action::Drain { pair, end });
        let until = if random.percent(50) {
            faults_end
        } else {
            drain.at + random.time(faults_end - drain.at)
        };
        actions.push(drain);
        actions.push(TimedAction { at: until, frames: 0, action: Action::Resume { pair, end } });
    }
    if options.cut {
        let from = random.pick(&[None, Some(0), Some(1)]);
        let cut = TimedAction::generate(random, faults_end, Action::Cut { from });
        let until = cut.at + random.time(faults_end - cut.at);
        actions.push(cut);
        actions.push(TimedAction { at: until, frames: 0, action: Action::Restore });
    }
    actions
}

/// Generates the receives of one QP.
struct Receives<'a> {
    random: &'a mut Random,
    options: &'a Options,
    faults_end: Duration,
    end: usize,
}

impl Receives<'_> {
    fn generate(
        &mut self,
        consumers: &[Request],
        allocator: &mut PoolAllocator,
        mut revocation: Option<Area>,
    ) -> Vec<Receive> {
        let mut receives: Vec<Receive> = Vec::new();
        for (index, consumer) in consumers.iter().enumerate() {
            let scarce = self.options.receive_timing == ReceiveTiming::Scarce
                && index >= consumers.len() / 2;
            let at = if scarce { self.faults_end } else { self.time(consumer.at) };
            let at = at.max(receives.last().map_or(Duration::ZERO, |before| before.at));
            let plain = consumer.flaw.is_none() && consumer.op.is_send();
            let revoked = revocation.filter(|_| plain && !consumer.payload.is_empty());
            if let Some(area) = revoked {
                revocation = None;
                receives.push(self.draw_into_revoked_region(at, area, consumer.payload.len()));
                continue;
            }
            receives.push(self.receive(at, allocator, consumer.payload.len()));
        }
        for _ in 0..self.random.between(0, 2) {
            receives.push(self.receive(self.faults_end, allocator, 16));
        }
        receives
    }

    fn time(&mut self, request_at: Duration) -> Duration {
        let span = self.options.span;
        let at = match self.options.receive_timing {
            ReceiveTiming::Early => Duration::ZERO,
            ReceiveTiming::Paced | ReceiveTiming::Scarce => {
                (request_at + self.random.time(span)).saturating_sub(span / 2)
            }
            ReceiveTiming::Late => {
                request_at + self.random.time(span * 2 + Duration::from_micros(200))
            }
        };
        at.min(self.faults_end)
    }

    fn receive(&mut self, at: Duration, allocator: &mut PoolAllocator, payload: usize) -> Receive {
        let bad = self.random.percent(self.options.bad / 3);
        let wrong_key = bad && self.random.percent(50);
        let len = match (bad && !wrong_key, payload) {
            (true, 1..) => self.random.between(0, payload - 1),
            _ if self.random.percent(60) => payload,
            _ => payload + self.random.between(1, 40),
        };
        match allocator.pieces(self.random, len) {
            Some(local) => Receive { at, local, wrong_key, risk: None },
            // The pool is used up. This receive has no memory and is too short for most messages.
            None => Receive { at, local: Vec::new(), wrong_key: false, risk: None },
        }
    }

    fn draw_into_revoked_region(&mut self, at: Duration, area: Area, payload: usize) -> Receive {
        let len = payload.min(area.len());
        let risk = Some(RevocationRisk { end: self.end, area, failures: &[BAD_RECEIVE] });
        let local = vec![Range { end: self.end, area, offset: 0, len }];
        Receive { at, local, wrong_key: false, risk }
    }
}

/// Adds the last requests of each QP. They show that the QP still works after all faults.
fn add_final(
    pair: &mut [SideWorkload; 2],
    options: &Options,
    random: &mut Random,
    allocators: &mut [PoolAllocator; 2],
    contents: &[Vec<Vec<u8>>; 2],
) {
    use feroce_engine::memory::Access;
    for end in 0..2 {
        pair[end].final_from.0 = pair[end].requests.len();
        let readable = options.limits[1 - end].access.contains(Access::REMOTE_READ);
        let local = allocators[end].take(random, 8, 1);
        if let Some(local) = local.filter(|_| readable && options.max_rd_atomic > 0) {
            let bytes = contents[1 - end][Area::ReadOnly.index()][..8].to_vec();
            let mut read = Request::new(Duration::ZERO, Op::Read, vec![local], bytes);
            read.remote = Some(Remote { area: Area::ReadOnly, offset: 0, wrong_key: false });
            read.keeps_remote = true; // The other QPs of this end read the same bytes.
            pair[end].requests.push(read);
        }
        let send = Request::new(Duration::ZERO, Op::SendImm(0xfe), Vec::new(), Vec::new());
        pair[end].requests.push(send);
        let empty = Receive { at: Duration::ZERO, local: vec![], wrong_key: false, risk: None };
        pair[1 - end].receives.push(empty);
    }
}
