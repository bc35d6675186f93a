//! A lane: the messages of one queue pair to its peer, and the memory that they move.

use feroce_engine::device::{Buffer, MemoryWindow, ProtectionDomain};
use feroce_engine::memory::Access;
use feroce_engine::verbs::RemoteAddr;
use feroce_wire::{Key, PathMtu};

use super::super::check::Check;
use super::plan::{Kind, LONGEST, LanePlan, Message, Op};

/// Content of memory that no message has changed.
pub const FILL: u8 = 0xee;

/// Messages that the final stage adds to a lane.
pub const FINAL_MESSAGES: usize = 2;

/// What became of a posted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not complete.
    Open,
    Succeeded,
    Failed,
    /// Its queue pair was reset or destroyed.
    Dropped,
}

/// The window of a lane's target.
#[derive(Debug)]
pub struct Window {
    /// Kept: dropping it would close it.
    _window: MemoryWindow,
    pub key: Key,
    pub state: WindowState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    /// The bind is posted.
    Opening,
    Open,
    /// The invalidate is posted.
    Closing,
    Closed,
    /// The queue pair was reset meanwhile: the bind or invalidate may have been executed.
    Unknown,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Lane {
    pub kind: Kind,
    number: usize,
    pub plan: LanePlan,
    mtu: usize,
    /// At the sender: bytes of SENDs and WRITEs, results of READs.
    pub source: Buffer,
    pub window: Option<Window>,
    /// At the receiver: bytes that WRITEs change and READs return. `None`: deregistered.
    pub target: Option<Buffer>,
    target_name: RemoteAddr,
    pub outcomes: Vec<Outcome>,
    /// Of each posted request: its key was not valid any more.
    pub must_fail: Vec<bool>,
    /// All requests before this one are complete.
    pub resolved: usize,
    /// How often each message has arrived.
    pub arrivals: Vec<u32>,
    /// Messages that arrive later have at least this number (not UD).
    pub next_arrival: usize,
    /// A request has failed: all later ones are flushed.
    pub failed: bool,
    /// Number of the message that is posted after a request with a wrong key, which is not
    /// complete.
    pub broken_before: Option<usize>,
    /// That request has failed: the queue pair, of UC or UD, is in SQE.
    pub is_stopped: bool,
    /// The wire repeats frames or changes their order, which UC does not notice if a message is one
    /// packet: a first or only packet with any PSN begins a message.
    pub may_repeat: bool,
}

impl Lane {
    pub fn new(
        kind: Kind,
        number: usize,
        plan: LanePlan,
        (mtu, may_repeat): (PathMtu, bool),
        pds: [&ProtectionDomain; 2],
    ) -> Self {
        let len = plan.bytes + FINAL_MESSAGES * (LONGEST + 10);
        let [source, target] =
            pds.map(|pd| pd.alloc_buffer(len, Access::ALL).expect("room for a buffer"));
        for buffer in [&source, &target] {
            buffer.write(0, &vec![FILL; len]);
        }
        let target_name = RemoteAddr { addr: target.region().addr(), rkey: target.region().rkey() };
        Self {
            kind,
            number,
            plan,
            mtu: mtu.bytes() as usize,
            source,
            window: None,
            target: Some(target),
            target_name,
            outcomes: Vec::new(),
            must_fail: Vec::new(),
            resolved: 0,
            arrivals: Vec::new(),
            next_arrival: 0,
            failed: false,
            broken_before: None,
            is_stopped: false,
            may_repeat,
        }
    }

    /// Opens a window on the whole target, which the owner must bind with the returned key.
    pub fn add_window(&mut self, window: MemoryWindow) -> Key {
        let key = window.rkey_with(7);
        self.window = Some(Window { _window: window, key, state: WindowState::Opening });
        key
    }

    pub fn posted(&self) -> usize {
        self.outcomes.len()
    }

    /// Where requests of `message` access the target.
    pub fn remote(&self, message: &Message) -> RemoteAddr {
        let RemoteAddr { addr, rkey } = self.target_name;
        let rkey = self.window.as_ref().map_or(rkey, |window| window.key);
        RemoteAddr { addr: addr + message.cell as u64, rkey }
    }

    /// Requests that access the target may be refused.
    pub fn may_be_refused(&self) -> bool {
        self.target.is_none()
            || self.window.as_ref().is_some_and(|window| window.state != WindowState::Open)
    }

    /// The request `index` is posted. No key is needed to access no bytes.
    pub fn note_posted(&mut self, index: usize) {
        let message = &self.plan.messages[index];
        let is_closed = |window: &Window| window.state == WindowState::Closed;
        let is_invalid = self.target.is_none() || self.window.as_ref().is_some_and(is_closed);
        self.must_fail.push(is_invalid && message.op.names_memory() && message.len > 0);
        self.outcomes.push(Outcome::Open);
        self.arrivals.push(0);
    }

    /// The bytes of message `index`: its lane and number, then bytes that depend on both.
    pub fn bytes(&self, index: usize) -> Vec<u8> {
        let number = |n: usize| u32::try_from(n).expect("small").to_le_bytes();
        let header = [number(self.number), number(index), *b"swar", *b"m!!!"].concat();
        let len = self.plan.messages[index].len;
        let byte = |at: usize| {
            let mixed = (self.number * 8191 + index * 131 + at).wrapping_mul(0x9e37_79b1) >> 11;
            u8::try_from(mixed % usize::from(FILL)).expect("a byte")
        };
        (0..len).map(|at| header.get(at).copied().unwrap_or_else(|| byte(at))).collect()
    }

    /// The message whose first bytes these are.
    pub fn index_of(&self, bytes: &[u8]) -> Option<usize> {
        let number = |at: usize| {
            let word = bytes.get(at..at + 4)?.try_into().expect("four bytes");
            usize::try_from(u32::from_le_bytes(word)).ok()
        };
        (number(0)? == self.number).then(|| number(4)).flatten()
    }

    /// Writes the bytes of message `index` to where it takes them from.
    pub fn prepare(&self, index: usize) {
        let (message, bytes) = (&self.plan.messages[index], self.bytes(index));
        match (message.op, &self.target) {
            (Op::Read, Some(target)) => target.write(message.cell, &bytes),
            (Op::Read, None) => {}
            _ => self.source.write(message.cell, &bytes),
        }
    }

    /// Checks that the message has moved its bytes whole.
    pub fn check_moved(&self, index: usize) -> Check {
        let message = &self.plan.messages[index];
        let place = match message.op {
            Op::Read => Some(&self.source),
            Op::Write | Op::WriteImm => self.target.as_ref(),
            Op::Send | Op::SendImm => None,
        };
        let Some(place) = place else { return Ok(()) };
        let mut found = vec![0; message.len];
        place.read(message.cell, &mut found);
        match found == self.bytes(index) {
            true => Ok(()),
            false => Err(format!("{message:?} is complete, but its bytes are not there")),
        }
    }

    /// Checks every byte of both buffers. See the [module above](super).
    pub fn check_memory(&self) -> Check {
        self.check_buffer(&self.source, |op| op == Op::Read, |op| op != Op::Read)?;
        let Some(target) = &self.target else { return Ok(()) };
        self.check_buffer(target, |op| matches!(op, Op::Write | Op::WriteImm), |op| op == Op::Read)
    }

    /// `moves`: operations that write to `buffer`; `holds`: those whose bytes were in it before.
    fn check_buffer(
        &self,
        buffer: &Buffer,
        moves: impl Fn(Op) -> bool,
        holds: impl Fn(Op) -> bool,
    ) -> Check {
        let mut all = vec![0; usize::try_from(buffer.region().len()).expect("small")];
        buffer.read(0, &mut all);
        let mut unused = 0;
        for (index, outcome) in self.outcomes.iter().enumerate() {
            let message = &self.plan.messages[index];
            let cell = message.cell..message.cell + message.len;
            let is_whole =
                holds(message.op) || *outcome == Outcome::Succeeded && self.kind.is_reliable();
            let found = &all[cell.clone()];
            if holds(message.op) || moves(message.op) {
                let place = self.check_cell(found, &self.bytes(index), is_whole);
                place.map_err(|why| format!("message {index}, {message:?}: {why}"))?;
                self.check_unused(&all[unused..cell.start])?;
                unused = cell.end;
            }
        }
        self.check_unused(&all[unused..])
    }

    fn check_unused(&self, bytes: &[u8]) -> Check {
        match bytes.iter().all(|&byte| byte == FILL) {
            true => Ok(()),
            false => Err(format!("lane {}: memory changed without a request", self.number)),
        }
    }

    /// Of each packet nothing or everything has arrived. UC drops what follows a lost packet.
    fn check_cell(&self, found: &[u8], bytes: &[u8], is_whole: bool) -> Check {
        let mut is_cut = false;
        for (found, bytes) in found.chunks(self.mtu).zip(bytes.chunks(self.mtu)) {
            let has_arrived = found == bytes;
            if !has_arrived && (is_whole || found.iter().any(|&byte| byte != FILL)) {
                return Err("its memory holds neither its bytes nor what was there before".into());
            }
            if has_arrived && is_cut && self.kind == Kind::Uc {
                return Err("a packet behind a lost one was written".into());
            }
            is_cut |= !has_arrived;
        }
        Ok(())
    }
}
