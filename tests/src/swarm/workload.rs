//! The workload of a scenario, generated completely before the scenario runs: what each program
//! posts and does, and when. Initial memory contents are part of the workload, so the bytes that
//! each request moves are known in advance.

use std::time::Duration;

use super::layout::{Area, Dealer, Range, VICTIMS};
use super::options::{Options, Supply};
use super::random::Draw;
use super::request::{Act, BAD_RECEIVE, Doom, Op, Receive, Remote, Request};
use super::request_generator::{Lane, Requests};

/// What one QP's program posts.
#[derive(Debug, Default)]
pub struct SidePlan {
    /// Send requests, in order.
    pub requests: Vec<Request>,
    /// Receives, in order.
    pub receives: Vec<Receive>,
    /// Send requests and receives from here on are posted only when all before are done.
    pub final_from: (usize, usize),
    /// Values of the peer's word after each atomic of this QP, beginning with the one before the
    /// first.
    pub word_values: Vec<u64>,
    /// The peer's word that only this QP uses.
    pub word: Option<Range>,
}

/// The workload of one scenario. See the [module](self).
#[derive(Debug)]
pub struct Plan {
    /// Options of the scenario.
    pub options: Options,
    /// Initial contents of the regions of each end.
    pub contents: [Vec<Vec<u8>>; 2],
    /// Requests and receives by pair and end.
    pub sides: Vec<[SidePlan; 2]>,
    /// Other actions, in the order of time.
    pub acts: Vec<Timed>,
    /// Time at which the wire faults end. From then on all receives are posted.
    pub heal_at: Duration,
    /// By end, the word to which all QPs of the other end add, if the scenario has one.
    pub shared_words: [Option<Range>; 2],
    /// Generator for random values that are needed while the scenario runs.
    pub later: Draw,
}

/// An action with its time.
#[derive(Debug, Clone, Copy)]
pub struct Timed {
    /// Earliest time, since the start of the scenario.
    pub at: Duration,
    /// Number of frames that must be sent after `at` before the action runs, so that it hits the
    /// middle of a message.
    pub frames: u64,
    /// The action.
    pub act: Act,
}

impl Timed {
    fn draw(draw: &mut Draw, most: Duration, act: Act) -> Self {
        let frames = if draw.percent(50) { draw.below(60) } else { 0 };
        Self { at: draw.time(most), frames, act }
    }
}

/// What happens to a victim, and through which pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    /// Whose.
    pub end: usize,
    /// Which.
    pub area: Area,
    /// Which pair's requests meet it.
    pub pair: usize,
    /// How.
    pub role: Role,
}

/// How a victim is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The peer invalidates its key.
    Invalidated,
    /// It is deregistered while the peer writes to it.
    Target,
    /// It is deregistered while the peer reads it.
    Source,
    /// It is deregistered while its own end sends from it.
    Local,
    /// It is deregistered while it waits for a SEND.
    Receive,
}

impl Plan {
    /// Generates the workload of `seed`.
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let mut options = Options::draw(&mut draw);
        options.draw_congestion(&mut Draw::new(!seed));
        let heal_at = options.span + Duration::from_micros(draw.pick(&[0, 50, 500, 5000]));
        let mut contents = [0, 1].map(|_| Area::ALL.map(|area| draw.bytes(area.len())).to_vec());
        let mut dealers = [Dealer::new(0), Dealer::new(1)];
        let shared_words = [0, 1].map(|end| {
            let word = dealers[end].take(&mut draw, 8, 8).filter(|_| options.pairs > 1)?;
            let pool: &mut Vec<u8> = &mut contents[end][Area::Pool.index()];
            pool[word.offset..word.offset + 8].fill(0);
            Some(word)
        });
        let victims = draw_victims(&mut draw, &options);
        let mut acts = draw_acts(&mut draw, &options, heal_at);
        for victim in victims.iter().filter(|victim| victim.role != Role::Invalidated) {
            let act = Act::Withdraw { end: victim.end, area: victim.area };
            acts.push(Timed::draw(&mut draw, heal_at, act));
        }
        acts.sort_by_key(|act| act.at);
        let mut requests = Requests {
            draw: &mut draw,
            options: &options,
            contents: &contents,
            dealers: &mut dealers,
            shared_words,
            shared_bits: [0; 2],
        };
        let mut sides: Vec<[SidePlan; 2]> = Vec::new();
        for pair in 0..options.pairs {
            sides.push([0, 1].map(|end| requests.side(Lane { pair, end }, &victims)));
        }
        for (pair, ends) in sides.iter_mut().enumerate() {
            for end in 0..2 {
                let consumers = consumers(&ends[1 - end].requests);
                let victim =
                    |v: &&Victim| v.role == Role::Receive && (v.pair, v.end) == (pair, end);
                let victim = victims.iter().find(victim).map(|victim| victim.area);
                let mut receives = Receives { draw: &mut draw, options: &options, heal_at, end };
                let receives = receives.make(&consumers, &mut dealers[end], victim);
                ends[end].final_from.1 = receives.len();
                ends[end].receives = receives;
            }
        }
        for pair in &mut sides {
            add_final(pair, &options, &mut draw, &mut dealers, &contents);
        }
        Self { options, contents, sides, acts, heal_at, shared_words, later: draw }
    }
}

/// Returns the requests that consume a receive.
pub fn consumers(requests: &[Request]) -> Vec<Request> {
    requests.iter().filter(|request| request.op.consumes_receive()).cloned().collect()
}

fn draw_victims(draw: &mut Draw, options: &Options) -> Vec<Victim> {
    let mut victims = Vec::new();
    for end in 0..2 {
        for n in 0..VICTIMS {
            let gone = [Role::Target, Role::Source, Role::Local, Role::Receive];
            let role = match options.withdraw && draw.percent(60) {
                true => draw.pick(&gone),
                false if draw.percent(10) => Role::Invalidated,
                false => continue,
            };
            let pair = draw.between(0, options.pairs - 1);
            victims.push(Victim { end, area: Area::Victim(n), pair, role });
        }
    }
    victims
}

fn draw_acts(draw: &mut Draw, options: &Options, heal_at: Duration) -> Vec<Timed> {
    let mut acts = Vec::new();
    let qp = |draw: &mut Draw| (draw.between(0, options.pairs - 1), draw.between(0, 1));
    if options.kill {
        let (pair, end) = qp(draw);
        acts.push(Timed::draw(draw, heal_at, Act::Kill { pair, end }));
    }
    if options.drain {
        let (pair, end) = qp(draw);
        let drain = Timed::draw(draw, heal_at, Act::Drain { pair, end });
        let until =
            if draw.percent(50) { heal_at } else { drain.at + draw.time(heal_at - drain.at) };
        acts.push(drain);
        acts.push(Timed { at: until, frames: 0, act: Act::Resume { pair, end } });
    }
    if options.cut {
        let from = draw.pick(&[None, Some(0), Some(1)]);
        let cut = Timed::draw(draw, heal_at, Act::Cut { from });
        let until = cut.at + draw.time(heal_at - cut.at);
        acts.push(cut);
        acts.push(Timed { at: until, frames: 0, act: Act::Mend });
    }
    acts
}

/// Generates the receives of one QP.
struct Receives<'a> {
    draw: &'a mut Draw,
    options: &'a Options,
    heal_at: Duration,
    end: usize,
}

impl Receives<'_> {
    fn make(
        &mut self,
        consumers: &[Request],
        dealer: &mut Dealer,
        mut victim: Option<Area>,
    ) -> Vec<Receive> {
        let mut receives: Vec<Receive> = Vec::new();
        for (index, consumer) in consumers.iter().enumerate() {
            let scarce = self.options.supply == Supply::Scarce && index >= consumers.len() / 2;
            let at = if scarce { self.heal_at } else { self.time(consumer.at) };
            let at = at.max(receives.last().map_or(Duration::ZERO, |before| before.at));
            let plain = consumer.flaw.is_none() && consumer.op.is_send();
            let doomed = victim.filter(|_| plain && !consumer.payload.is_empty());
            if let Some(area) = doomed {
                victim = None;
                receives.push(self.doomed(at, area, consumer.payload.len()));
                continue;
            }
            receives.push(self.one(at, dealer, consumer.payload.len()));
        }
        for _ in 0..self.draw.between(0, 2) {
            receives.push(self.one(self.heal_at, dealer, 16));
        }
        receives
    }

    fn time(&mut self, request_at: Duration) -> Duration {
        let span = self.options.span;
        let at = match self.options.supply {
            Supply::Early => Duration::ZERO,
            Supply::Paced | Supply::Scarce => {
                (request_at + self.draw.time(span)).saturating_sub(span / 2)
            }
            Supply::Late => request_at + self.draw.time(span * 2 + Duration::from_micros(200)),
        };
        at.min(self.heal_at)
    }

    fn one(&mut self, at: Duration, dealer: &mut Dealer, payload: usize) -> Receive {
        let bad = self.draw.percent(self.options.bad / 3);
        let wrong_key = bad && self.draw.percent(50);
        let len = match (bad && !wrong_key, payload) {
            (true, 1..) => self.draw.between(0, payload - 1),
            _ if self.draw.percent(60) => payload,
            _ => payload + self.draw.between(1, 40),
        };
        match dealer.pieces(self.draw, len) {
            Some(local) => Receive { at, local, wrong_key, doom: None },
            // The pool is used up. This receive has no memory and is too short for most messages.
            None => Receive { at, local: Vec::new(), wrong_key: false, doom: None },
        }
    }

    fn doomed(&mut self, at: Duration, area: Area, payload: usize) -> Receive {
        let len = payload.min(area.len());
        let doom = Some(Doom { end: self.end, area, failures: &[BAD_RECEIVE] });
        let local = vec![Range { end: self.end, area, offset: 0, len }];
        Receive { at, local, wrong_key: false, doom }
    }
}

/// Adds the last requests of each QP. They show that the QP still works after all faults.
fn add_final(
    pair: &mut [SidePlan; 2],
    options: &Options,
    draw: &mut Draw,
    dealers: &mut [Dealer; 2],
    contents: &[Vec<Vec<u8>>; 2],
) {
    use feroce_engine::memory::Access;
    for end in 0..2 {
        pair[end].final_from.0 = pair[end].requests.len();
        let readable = options.limits[1 - end].access.contains(Access::REMOTE_READ);
        let local = dealers[end].take(draw, 8, 1);
        if let Some(local) = local.filter(|_| readable && options.max_rd_atomic > 0) {
            let bytes = contents[1 - end][Area::ReadOnly.index()][..8].to_vec();
            let mut read = Request::new(Duration::ZERO, Op::Read, vec![local], bytes);
            read.remote = Some(Remote { area: Area::ReadOnly, offset: 0, wrong_key: false });
            read.keeps_remote = true; // The other QPs of this end read the same bytes.
            pair[end].requests.push(read);
        }
        let send = Request::new(Duration::ZERO, Op::SendImm(0xfe), Vec::new(), Vec::new());
        pair[end].requests.push(send);
        let empty = Receive { at: Duration::ZERO, local: vec![], wrong_key: false, doom: None };
        pair[1 - end].receives.push(empty);
    }
}
