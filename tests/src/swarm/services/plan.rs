//! What happens in a scenario: the queue pairs, their messages, the actions, the wire.

use std::time::Duration;

use feroce_wire::PathMtu;

use super::super::RigKind;
use super::super::options::random_faults;
use super::super::random::Random;
use crate::ports::RigPorts;
use crate::wire::WireFaults;

/// A transport service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

impl Kind {
    /// Every message arrives, or its request fails.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// Name in the tally.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
}

impl Op {
    /// Name in the tally.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
            Self::Read => "READ",
        }
    }

    /// It names memory of the peer.
    pub fn names_memory(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::Read)
    }

    /// The peer's program sees the message.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
}

/// A message to post.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub op: Op,
    pub len: usize,
    /// Offset of its bytes in the buffers of its lane.
    pub cell: usize,
    /// Time of posting, from the start.
    pub at: Duration,
    pub signaled: bool,
    pub inline: bool,
    /// XRC: which of the two shared receive queues it names.
    pub queue: usize,
    /// UD: it has another Q_Key than the receiver.
    pub wrong_qkey: bool,
}

/// What one QP sends to its peer.
#[derive(Debug, Clone, Default)]
pub struct LanePlan {
    pub messages: Vec<Message>,
    /// Bytes of the buffers.
    pub bytes: usize,
    /// WRITEs and READs use a memory window (RC).
    pub windowed: bool,
}

/// A pair of queue pairs.
#[derive(Debug, Clone)]
pub struct PairPlan {
    pub kind: Kind,
    /// Receives come from the shared receive queue of the end.
    pub shared: [bool; 2],
    /// By sending end; the second is empty for XRC.
    pub lanes: [LanePlan; 2],
    /// XRC: the end of the initiator.
    pub first: usize,
    /// RC: only lost packets are repeated.
    pub selective_repeat: bool,
}

/// Something that happens to an object under traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Kill {
        pair: usize,
        end: usize,
    },
    Destroy {
        pair: usize,
        end: usize,
    },
    Renew {
        pair: usize,
    },
    Resize {
        end: usize,
        depth: u32,
    },
    Deregister {
        pair: usize,
        from: usize,
    },
    CloseWindow {
        pair: usize,
        from: usize,
    },
    /// Moves to SQD. When the faults of the wire end, the program resumes what is drained.
    Drain {
        pair: usize,
        end: usize,
    },
    /// Moves back to RTS.
    Resume {
        pair: usize,
        end: usize,
    },
    /// Moves to the state that it is in.
    Stay {
        pair: usize,
        end: usize,
    },
    /// Posts a request that moves a queue pair of UC or UD to SQE.
    Break {
        pair: usize,
        from: usize,
    },
    /// Posts a receive that moves the queue pair to ERR when a message arrives in it.
    BreakReceive {
        pair: usize,
        end: usize,
    },
    /// Moves from SQE to RTS.
    Recover {
        pair: usize,
        from: usize,
    },
    /// Gives both queue pairs the addresses of the other IP version.
    Migrate {
        pair: usize,
    },
}

/// The whole scenario.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Cores of each device.
    pub cores: usize,
    /// DCQCN is on and the wire marks frames.
    pub congestion: bool,
    pub delay: Duration,
    pub faults: WireFaults,
    pub faults_end: Duration,
    pub mtu: PathMtu,
    pub v6: bool,
    pub pairs: Vec<PairPlan>,
    pub actions: Vec<(Duration, Action)>,
    /// Receives that each queue holds at most.
    pub receives: usize,
    /// Time from a completed receive to the next post.
    pub repost: Duration,
}

/// Maximum number of outstanding SEND and WRITE packets of a queue pair.
pub const WINDOW: u32 = 64;
/// Number of kinds of rig that scenarios need on the kernel's ports.
pub const RIG_KINDS: usize = 2;
/// Bytes of the longest message.
pub const LONGEST: usize = 1500;
/// Shorter messages carry their number as immediate data.
pub const HEADER: usize = 16;
/// Inline bytes of a queue pair.
pub const MAX_INLINE: usize = 64;

impl Plan {
    /// The rig that the scenario needs.
    pub fn rig(&self) -> RigKind {
        let Self { congestion, cores, .. } = *self;
        RigKind { window: WINDOW, plain_keys: false, congestion, cores }
    }

    pub fn generate(random: &mut Random) -> Self {
        let count = random.weighted(&[(30, 1), (40, 2), (20, 3), (10, 4)]);
        let span = Duration::from_micros(random.pick(&[0, 20, 200, 2000]));
        let mtu = random.pick(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu512]);
        let pairs: Vec<PairPlan> =
            (0..count).map(|_| PairPlan::generate(random, mtu, span)).collect();
        let actions = random_actions(random, &pairs, span);
        let mut faults = random_faults(random);
        faults.jitter = faults.jitter.min(Duration::from_micros(50));
        let congestion = random.percent(20);
        if congestion {
            faults.mark = random.pick(&[10_000, 200_000, 1_000_000]);
        }
        let cores = random.weighted(&[(50, 1), (30, 2), (20, 3)]);
        Self {
            cores: if RigPorts::are_the_kernels() { 1 } else { cores },
            congestion,
            delay: Duration::from_nanos(random.pick(&[100, 1000, 20_000])),
            faults,
            faults_end: 2 * span + Duration::from_micros(random.pick(&[10, 1000])),
            mtu,
            v6: random.percent(30),
            pairs,
            actions,
            receives: random.weighted(&[(60, 16), (25, 3), (15, 1)]),
            repost: Duration::from_micros(random.weighted(&[(60, 0), (25, 5), (15, 300)])),
        }
    }
}

impl PairPlan {
    fn generate(random: &mut Random, mtu: PathMtu, span: Duration) -> Self {
        let kind =
            random.weighted(&[(25, Kind::Rc), (30, Kind::Uc), (20, Kind::Ud), (25, Kind::Xrc)]);
        let first = random.between(0, 1);
        let lanes = [0, 1].map(|end| match kind {
            Kind::Xrc if end != first => LanePlan::default(),
            _ => LanePlan::generate(random, kind, mtu, span),
        });
        let shared = [0, 1].map(|_| {
            random.percent(match kind {
                Kind::Rc => 60,
                Kind::Uc | Kind::Ud => 30,
                Kind::Xrc => 0,
            })
        });
        let selective_repeat = kind == Kind::Rc && random.percent(40);
        Self { kind, shared, lanes, first, selective_repeat }
    }
}

impl LanePlan {
    fn generate(random: &mut Random, kind: Kind, mtu: PathMtu, span: Duration) -> Self {
        let count = random.weighted(&[(20, 0), (40, 3), (30, 8), (10, 20)]);
        let mut times: Vec<Duration> = (0..count).map(|_| random.time(span)).collect();
        times.sort();
        let mut plan = Self { windowed: kind == Kind::Rc && random.percent(40), ..Self::default() };
        for at in times {
            let message = plan.random_message(random, kind, mtu, at);
            plan.messages.push(message);
        }
        plan
    }

    /// A message whose bytes follow those of the messages before it.
    pub fn random_message(
        &mut self,
        random: &mut Random,
        kind: Kind,
        mtu: PathMtu,
        at: Duration,
    ) -> Message {
        let op = match kind {
            Kind::Ud => random.pick(&[Op::Send, Op::SendImm]),
            Kind::Uc => random.pick(&[Op::Send, Op::SendImm, Op::Write, Op::WriteImm]),
            _ => random.pick(&[Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read]),
        };
        let mtu = mtu.bytes() as usize;
        let longest = if kind == Kind::Ud { mtu } else { LONGEST };
        let shortest = if op == Op::Send { HEADER } else { 0 };
        let len = random.weighted(&[(30, shortest), (20, mtu), (50, longest)]);
        let len = random.between(shortest, len.max(shortest));
        let message = Message {
            op,
            len,
            cell: self.bytes,
            at,
            signaled: random.percent(70),
            inline: op != Op::Read && len <= MAX_INLINE && random.percent(30),
            queue: random.between(0, 1),
            wrong_qkey: kind == Kind::Ud && random.percent(10),
        };
        // Between two messages, a gap that no request may touch.
        self.bytes += len + random.between(1, 9);
        message
    }
}

fn random_actions(
    random: &mut Random,
    pairs: &[PairPlan],
    span: Duration,
) -> Vec<(Duration, Action)> {
    let mut actions = Vec::new();
    for (pair, plan) in pairs.iter().enumerate() {
        let is_calm = random.percent(40);
        if !is_calm {
            actions.extend(pair_actions(random, pair, plan, span));
        }
    }
    for _ in 0..random.weighted(&[(60, 0), (30, 1), (10, 4)]) {
        let (end, depth) = (random.between(0, 1), random.pick(&[600, 1000, 2000]));
        actions.push((random.time(span), Action::Resize { end, depth }));
    }
    actions.sort_by_key(|(at, _)| *at);
    actions
}

/// What happens to a pair: often only one thing, so that traffic meets each.
fn pair_actions(
    random: &mut Random,
    pair: usize,
    plan: &PairPlan,
    span: Duration,
) -> Vec<(Duration, Action)> {
    let (end, from) = (random.between(0, 1), random.between(0, 1));
    let is_reliable = plan.kind.is_reliable();
    let kill = |end| Action::Kill { pair, end };
    let (drain, resume) = (Action::Drain { pair, end }, Action::Resume { pair, end });
    let (stop, recover) = (Action::Break { pair, from: end }, Action::Recover { pair, from: end });
    let break_receive = Action::BreakReceive { pair, end };
    let (first, second) = match random.between(0, 99) {
        0..14 => (kill(end), None),
        14..28 => (Action::Destroy { pair, end }, None),
        28..40 => (Action::Renew { pair }, None),
        40..48 => (Action::Deregister { pair, from }, None),
        48..60 if plan.lanes[from].windowed => (Action::CloseWindow { pair, from }, None),
        48..60 => (break_receive, None),
        60..68 => (drain, Some(break_receive)),
        68..76 if is_reliable => (drain, Some(kill(1 - end))),
        68..76 => (stop, Some(break_receive)),
        76..82 if is_reliable => (drain, Some(resume)),
        82..88 if is_reliable => (Action::Migrate { pair }, None),
        76..88 => (stop, Some(recover)),
        88..96 => (drain, Some(stop)),
        _ => (Action::Stay { pair, end }, None),
    };
    // Often while the first packet of a message is on its way.
    let messages = &plan.lanes[end].messages;
    let at = match !messages.is_empty() && random.percent(60) {
        true => messages[random.between(0, messages.len() - 1)].at + Duration::from_nanos(50),
        false => random.time(span),
    };
    let mut actions = vec![(at, first)];
    let later = |random: &mut Random| match random.percent(40) {
        true => at,
        false => at + random.time(span.saturating_sub(at)),
    };
    actions.extend(second.map(|second| (later(random), second)));
    if random.percent(25) {
        actions.push((later(random), Action::Stay { pair, end }));
    }
    if random.percent(15) {
        actions.push((random.time(span), drain));
    }
    if random.percent(25) {
        let ends = [kill(end), Action::Renew { pair }, Action::Destroy { pair, end }];
        actions.push((later(random), random.pick(&ends)));
    }
    actions
}
