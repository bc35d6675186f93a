//! Generates the send requests of a QP: valid requests of every kind, requests that depend on each
//! other, and requests that must fail.

use std::time::Duration;

use feroce_engine::memory::Access;

use super::layout::{Area, PoolAllocator, REVOKED_LEN, Range, TOP_BYTES, TOP_LEN};
use super::options::Options;
use super::random::Random;
use super::request::{
    ACCESS, Flaw, LOCAL_PROTECTION, Op, READ_GONE, Remote, Request, RevocationRisk,
};
use super::side_workload::{RegionUse, Revocation, SideWorkload};

/// Index of a QP: its pair and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QpIndex {
    /// Index of the pair.
    pub pair: usize,
    /// End that the QP belongs to.
    pub end: usize,
}

/// Generates the requests of all QPs of a scenario.
#[derive(Debug)]
pub(super) struct RequestGenerator<'a> {
    /// Random numbers.
    pub random: &'a mut Random,
    /// Options of the scenario.
    pub options: &'a Options,
    /// Initial memory contents.
    pub contents: &'a [Vec<Vec<u8>>; 2],
    /// Allocators of free pool memory.
    pub allocators: &'a mut [PoolAllocator; 2],
    /// By end, the word that several QPs add to.
    pub shared_words: [Option<Range>; 2],
    /// Number of bits of each shared word that are already used.
    pub shared_bits: [u32; 2],
}

/// Kind of the next request or requests of a QP.
#[derive(Debug, Clone, Copy)]
enum Job {
    Send,
    Write,
    Read,
    Atomic,
    WriteThenRead,
    ReadThenWrite,
    ReadThenSend,
    Bad,
    Revoked(Area, RegionUse),
}

const JOBS: &[(u32, Job)] = &[
    (30, Job::Send),
    (25, Job::Write),
    (15, Job::Read),
    (15, Job::Atomic),
    (5, Job::WriteThenRead),
    (5, Job::ReadThenWrite),
    (5, Job::ReadThenSend),
];

impl RequestGenerator<'_> {
    /// Generates what the program of `qp` posts.
    pub fn side_workload(&mut self, qp: QpIndex, revocations: &[Revocation]) -> SideWorkload {
        let peer = 1 - qp.end;
        let word = self.allocators[peer].take(self.random, 8, 8);
        let mut side = SideWorkload { word, ..SideWorkload::default() };
        if let Some(word) = word {
            let bytes = self.content(word);
            side.word_values.push(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")));
        }
        let mut jobs: Vec<Job> = Vec::new();
        for _ in 0..self.random.between(0, self.options.requests) {
            let bad = self.random.percent(self.options.bad);
            jobs.push(if bad { Job::Bad } else { self.random.weighted(JOBS) });
        }
        for revocation in revocations.iter().filter(|revocation| revocation.pair == qp.pair) {
            let is_same_end = revocation.end == qp.end;
            let meets = match revocation.region_use {
                RegionUse::Local => is_same_end,
                RegionUse::Receive => false,
                _ => !is_same_end,
            };
            if meets {
                let at = self.random.between(0, jobs.len());
                jobs.insert(at, Job::Revoked(revocation.area, revocation.region_use));
            }
        }
        let mut times: Vec<Duration> =
            jobs.iter().map(|_| self.random.time(self.options.span)).collect();
        times.sort_unstable();
        for (job, at) in jobs.into_iter().zip(times) {
            // `None`: the memory is used up, or the connection does not allow the request.
            let _ = self.job(job, qp, at, &mut side);
        }
        side
    }

    fn job(&mut self, job: Job, qp: QpIndex, at: Duration, side: &mut SideWorkload) -> Option<()> {
        let end = qp.end;
        match job {
            Job::Send => side.requests.push(self.send(end, at)?),
            Job::Write => side.requests.push(self.write(end, at)?),
            Job::Read => side.requests.push(self.read(end, at)?),
            Job::Atomic => self.atomic(end, at, side)?,
            Job::WriteThenRead => self.write_then_read(end, at, side)?,
            Job::ReadThenWrite => self.read_then_write(end, at, side)?,
            Job::ReadThenSend => self.read_then_send(end, at, side)?,
            Job::Bad => side.requests.push(self.invalid_request(end, at)?),
            Job::Revoked(area, RegionUse::Invalidated) => self.invalidate(end, at, area, side)?,
            Job::Revoked(area, region_use) => {
                side.requests.push(self.using_revoked_region(end, at, area, region_use)?)
            }
        }
        Some(())
    }

    fn content(&self, range: Range) -> Vec<u8> {
        let area = &self.contents[range.end][range.area.index()];
        area[range.offset..range.offset + range.len].to_vec()
    }

    fn contents_of(&self, ranges: &[Range]) -> Vec<u8> {
        ranges.iter().flat_map(|&range| self.content(range)).collect()
    }

    /// Returns a message length, often short, often around a multiple of the path MTU.
    fn length(&mut self) -> usize {
        let mtu = self.options.mtu_bytes();
        let random = &mut *self.random;
        match random.weighted(&[(8, 0), (8, 1), (50, 2), (14, 3), (15, 4), (5, 5)]) {
            0 => 0,
            1 => 1,
            2 => random.between(2, 64),
            3 => random.between(mtu - 1, mtu + 1),
            4 => random.between(1, 3 * mtu),
            _ => random.between(1, (40 * mtu).min(10_000)),
        }
    }

    fn flags(&mut self, mut request: Request) -> Request {
        request.signaled = self.random.percent(70);
        request.solicited = self.random.percent(20);
        request.fence = self.random.percent(10);
        let short =
            request.payload.len() <= super::options::MAX_INLINE && !request.op.returns_data();
        request.inline = short && self.random.percent(25);
        request
    }

    fn peer_allows(&self, end: usize, right: Access) -> Option<()> {
        let answered = right != Access::REMOTE_WRITE;
        let allowed = self.options.limits[1 - end].access.contains(right);
        (allowed && !(answered && self.options.max_rd_atomic == 0)).then_some(())
    }

    fn send(&mut self, end: usize, at: Duration) -> Option<Request> {
        let len = self.length();
        let local = self.allocators[end].pieces(self.random, len)?;
        let payload = self.contents_of(&local);
        let imm = self.random.bits() >> 32;
        let imm = Op::SendImm(u32::try_from(imm).expect("32 bits"));
        let op = self.random.pick(&[Op::Send, imm]);
        Some(self.flags(Request::new(at, op, local, payload)))
    }

    fn write(&mut self, end: usize, at: Duration) -> Option<Request> {
        self.peer_allows(end, Access::REMOTE_WRITE)?;
        let len = self.length();
        let local = self.allocators[end].pieces(self.random, len)?;
        let target = self.allocators[1 - end].take(self.random, len, 1)?;
        let payload = self.contents_of(&local);
        let imm = u32::try_from(self.random.bits() >> 32).expect("32 bits");
        let op = self.random.weighted(&[(70, Op::Write), (30, Op::WriteImm(imm))]);
        let mut request = self.flags(Request::new(at, op, local, payload));
        // In a request without data, the key does not matter.
        let wrong_key = len == 0 && self.random.percent(50);
        request.remote = Some(Remote { area: target.area, offset: target.offset, wrong_key });
        Some(request)
    }

    fn read(&mut self, end: usize, at: Duration) -> Option<Request> {
        let len = self.length();
        let source = self.allocators[1 - end].take(self.random, len, 1)?;
        self.read_from(end, at, source)
    }

    fn read_from(&mut self, end: usize, at: Duration, source: Range) -> Option<Request> {
        self.peer_allows(end, Access::REMOTE_READ)?;
        let local = self.allocators[end].pieces(self.random, source.len)?;
        let mut request = Request::new(at, Op::Read, local, self.content(source));
        request = self.flags(request);
        let wrong_key = source.len == 0 && self.random.percent(50);
        request.remote = Some(Remote { area: source.area, offset: source.offset, wrong_key });
        Some(request)
    }

    fn atomic(&mut self, end: usize, at: Duration, side: &mut SideWorkload) -> Option<()> {
        self.peer_allows(end, Access::REMOTE_ATOMIC)?;
        let local = self.allocators[end].pieces(self.random, 8)?;
        let shared = self.shared_words[1 - end].filter(|_| self.random.percent(40));
        if let Some(word) = shared {
            let bit = self.shared_bits[1 - end];
            if bit < u64::BITS {
                self.shared_bits[1 - end] += 1;
                let op = Op::FetchAdd(1 << bit);
                let mut request = self.flags(Request::new(at, op, local, vec![0; 8]));
                request.remote =
                    Some(Remote { area: word.area, offset: word.offset, wrong_key: false });
                request.shared_word = true;
                request.keeps_remote = true;
                side.requests.push(request);
                return Some(());
            }
        }
        let word = side.word?;
        let before = *side.word_values.last()?;
        let operand = self.random.bits();
        let compare = if self.random.percent(60) { before } else { operand ^ 1 };
        let (op, after) = match self.random.percent(50) {
            true => (Op::FetchAdd(operand), before.wrapping_add(operand)),
            false => {
                let after = if compare == before { operand } else { before };
                (Op::CompareSwap { compare, swap: operand }, after)
            }
        };
        let payload = before.to_ne_bytes().to_vec();
        let mut request = self.flags(Request::new(at, op, local, payload));
        request.remote = Some(Remote { area: word.area, offset: word.offset, wrong_key: false });
        request.keeps_remote = true;
        side.word_values.push(after);
        side.requests.push(request);
        Some(())
    }

    /// A READ that must return what the WRITE before it wrote.
    fn write_then_read(&mut self, end: usize, at: Duration, side: &mut SideWorkload) -> Option<()> {
        let mut write = self.write(end, at)?;
        let remote = write.remote.filter(|_| !write.payload.is_empty())?;
        let len = write.payload.len();
        let source = Range { end: 1 - end, area: remote.area, offset: remote.offset, len };
        let mut read = self.read_from(end, at, source)?;
        read.payload.clone_from(&write.payload);
        write.keeps_remote = true;
        side.requests.extend([write, read]);
        Some(())
    }

    /// A READ and a fenced WRITE to the same bytes. The WRITE must not overtake the READ.
    fn read_then_write(&mut self, end: usize, at: Duration, side: &mut SideWorkload) -> Option<()> {
        let mut write = self.write(end, at)?;
        let remote = write.remote.filter(|_| !write.payload.is_empty())?;
        let len = write.payload.len();
        let source = Range { end: 1 - end, area: remote.area, offset: remote.offset, len };
        let mut read = self.read_from(end, at, source)?;
        read.keeps_remote = true;
        write.fence = true;
        side.requests.extend([read, write]);
        Some(())
    }

    /// A READ and a fenced SEND of the bytes that the READ returned.
    fn read_then_send(&mut self, end: usize, at: Duration, side: &mut SideWorkload) -> Option<()> {
        let mut read = self.read(end, at)?;
        read.keeps_local = true;
        let mut send = Request::new(at, Op::Send, read.local.clone(), read.payload.clone());
        send.signaled = self.random.percent(70);
        send.fence = true;
        side.requests.extend([read, send]);
        Some(())
    }

    /// Writes to a region, invalidates its key, and sometimes writes again.
    fn invalidate(
        &mut self,
        end: usize,
        at: Duration,
        area: Area,
        side: &mut SideWorkload,
    ) -> Option<()> {
        let remote = Remote { area, offset: 0, wrong_key: false };
        let writes = self.peer_allows(end, Access::REMOTE_WRITE).is_some();
        if writes {
            let mut write = self.write(end, at)?;
            write.payload.truncate(REVOKED_LEN);
            if write.payload.len() == write.local.iter().map(|range| range.len).sum::<usize>() {
                write.remote = Some(remote);
                write.op = Op::Write;
                side.requests.push(write);
            }
        }
        let mut send = self.send(end, at)?;
        send.op = Op::SendInvalidate;
        send.remote = Some(remote);
        side.requests.push(send);
        if writes && self.random.percent(50) {
            let mut again = self.write(end, at)?;
            if !again.payload.is_empty() && again.payload.len() <= REVOKED_LEN {
                again.remote = Some(remote);
                again.flaw = Some(Flaw::Invalidated);
                side.requests.push(again);
            }
        }
        Some(())
    }

    /// A long request that uses a region which is deregistered during the scenario.
    fn using_revoked_region(
        &mut self,
        end: usize,
        at: Duration,
        area: Area,
        region_use: RegionUse,
    ) -> Option<Request> {
        let peer = 1 - end;
        let range = |end| Range { end, area, offset: 0, len: REVOKED_LEN };
        let mut request = match region_use {
            RegionUse::Source => self.read_from(end, at, range(peer))?,
            RegionUse::Local => {
                let local = vec![range(end)];
                let payload = self.content(local[0]);
                Request::new(at, Op::Send, local, payload)
            }
            _ => {
                self.peer_allows(end, Access::REMOTE_WRITE)?;
                let local = self.allocators[end].pieces(self.random, REVOKED_LEN)?;
                let payload = self.contents_of(&local);
                let mut write = Request::new(at, Op::Write, local, payload);
                write.remote = Some(Remote { area, offset: 0, wrong_key: false });
                write
            }
        };
        let (end, failures): (_, &'static [_]) = match region_use {
            RegionUse::Source => (peer, &[ACCESS, READ_GONE]),
            RegionUse::Local => (end, &[LOCAL_PROTECTION]),
            _ => (peer, &[ACCESS]),
        };
        request.risk = Some(RevocationRisk { end, area, failures });
        Some(request)
    }

    /// A request that must fail.
    fn invalid_request(&mut self, end: usize, at: Duration) -> Option<Request> {
        use Flaw as F;
        let flaw = self.random.pick(&F::ALL);
        let mut request = match flaw {
            F::LocalKey => self.any_valid(end, at)?,
            F::LocalBounds => {
                let mut request = self.any_valid(end, at)?;
                let offset = Area::Pool.len() - 4;
                let len = request.payload.len();
                request.local = vec![Range { end, area: Area::Pool, offset, len: len.max(5) }];
                request.payload.resize(len.max(5), 0);
                request
            }
            F::LocalRights => {
                let mut read = self.read(end, at)?;
                let len = read.payload.len().min(Area::ReadOnly.len());
                read.payload.truncate(len);
                read.local = vec![Range { end, area: Area::ReadOnly, offset: 0, len }];
                read
            }
            F::AtomicLength => {
                let mut add = self.unrelated_add(end, at)?;
                add.local[0].len = self.random.pick(&[0, 4, 7]);
                add
            }
            F::NoDepth if self.options.max_rd_atomic == 0 => {
                let local = vec![self.allocators[end].take(self.random, 8, 1)?];
                let mut read = Request::new(at, Op::Read, local, vec![0; 8]);
                read.remote = Some(Remote { area: Area::Pool, offset: 0, wrong_key: false });
                read
            }
            F::NoDepth | F::Invalidated => return None, // `Invalidated` has a job of its own.
            F::NotInvalidatable => self.invalidate_wrong_key(end, at)?,
            F::QpRights => self.without_qp_rights(end, at)?,
            _ => self.with_bad_remote(end, at, flaw)?,
        };
        if request.payload.is_empty() && flaw != F::NotInvalidatable {
            return None;
        }
        request.flaw = Some(flaw);
        request.inline = false;
        Some(request)
    }

    fn any_valid(&mut self, end: usize, at: Duration) -> Option<Request> {
        match self.random.between(0, 2) {
            0 => self.send(end, at),
            1 => self.write(end, at),
            _ => self.read(end, at),
        }
    }

    /// A fetch and add on a word of the peer's pool that no other request uses.
    fn unrelated_add(&mut self, end: usize, at: Duration) -> Option<Request> {
        self.peer_allows(end, Access::REMOTE_ATOMIC)?;
        let local = self.allocators[end].take(self.random, 8, 1)?;
        let word = self.allocators[1 - end].take(self.random, 16, 8)?;
        let mut add = Request::new(at, Op::FetchAdd(1), vec![local], vec![0; 8]);
        add.remote = Some(Remote { area: word.area, offset: word.offset, wrong_key: false });
        Some(add)
    }

    fn invalidate_wrong_key(&mut self, end: usize, at: Duration) -> Option<Request> {
        let mut send = self.send(end, at)?;
        send.op = Op::SendInvalidate;
        let wrong_key = self.random.percent(50);
        let area = if wrong_key { Area::Pool } else { Area::ReadOnly };
        send.remote = Some(Remote { area, offset: 0, wrong_key });
        Some(send)
    }

    /// A request of a kind that the peer's QP does not allow.
    fn without_qp_rights(&mut self, end: usize, at: Duration) -> Option<Request> {
        let access = self.options.limits[1 - end].access;
        let local = self.allocators[end].pieces(self.random, 8)?;
        let op = [
            (Access::REMOTE_WRITE, Op::Write),
            (Access::REMOTE_READ, Op::Read),
            (Access::REMOTE_ATOMIC, Op::FetchAdd(1)),
        ];
        let (_, op) = op.into_iter().find(|(right, _)| !access.contains(*right))?;
        if op.returns_data() && self.options.max_rd_atomic == 0 {
            return None;
        }
        let mut request = Request::new(at, op, local, vec![0; 8]);
        request.remote = Some(Remote { area: Area::Pool, offset: 8, wrong_key: false });
        Some(request)
    }

    /// A WRITE, READ or atomic with a wrong remote address or key.
    fn with_bad_remote(&mut self, end: usize, at: Duration, flaw: Flaw) -> Option<Request> {
        let mut request = match self.random.between(0, 2) {
            _ if flaw == Flaw::Misaligned => self.unrelated_add(end, at)?,
            0 if !matches!(flaw, Flaw::RemoteWrap) => self.unrelated_add(end, at)?,
            1 if flaw != Flaw::RemoteRights => self.read(end, at)?,
            _ => self.write(end, at)?,
        };
        let len = request.payload.len();
        let mut remote = request.remote?;
        match flaw {
            Flaw::RemoteKey => remote.wrong_key = true,
            Flaw::RemoteBounds => remote = range_past_end(self.random, request.op, len)?,
            Flaw::RemoteWrap => {
                let offset = self.random.between(1, TOP_LEN - 1);
                remote = Remote { area: Area::Top, offset, wrong_key: false };
                let wraps = (TOP_BYTES..3000).contains(&(offset + len));
                (self.options.rig.plain_keys && wraps).then_some(())?;
            }
            Flaw::RemoteRights => {
                remote = Remote { area: Area::ReadOnly, offset: 0, wrong_key: false }
            }
            Flaw::RemoteDomain => {
                remote = Remote { area: Area::Foreign, offset: 0, wrong_key: false }
            }
            _ => remote.offset += self.random.between(1, 7),
        }
        request.remote = Some(remote);
        Some(request)
    }
}

/// A range of `len` bytes that starts in the pool and ends behind it.
fn range_past_end(random: &mut Random, op: Op, len: usize) -> Option<Remote> {
    let end = Area::Pool.len();
    let offset = match op.is_atomic() {
        true => end, // The next word.
        false => end + random.between(1, len.max(1)) - len,
    };
    (len > 0).then_some(Remote { area: Area::Pool, offset, wrong_key: false })
}
