//! Linux rxe as an end of a plan: the client of the agent in the guest. `tests/rxe/peer.c` defines
//! the protocol.

use std::fmt::Display;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use feroce_engine::device::Endpoint;
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::qp::QpState;
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Completion, CompletionOpcode, Extra, RemoteAddr, Status};
use feroce_wire::{Key, PathMtu, Psn, Qpn};

use super::end::{End, Posting};
use super::plan::{Family, Op, Place, Region, Settings};
use super::{Failure, failed};

/// Address on which the agent listens.
pub const ADDRESS: ([u8; 4], u16) = ([10, 78, 0, 2], 18600);
/// Time limit for a reply, in addition to the time that the request itself waits.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Bits of `ibv_access_flags` and `ibv_send_flags` that the engine's types do not have.
const ACCESS_MW_BIND: u32 = 1 << 4;
const SEND_FENCE: u32 = 1;
const SEND_SIGNALED: u32 = 1 << 1;
const SEND_INLINE: u32 = 1 << 3;

/// A region registered by the agent.
#[derive(Debug, Clone, Copy)]
struct Registered {
    addr: u64,
    rkey: Key,
    window: bool,
    access: Access,
}

/// A connection to the agent. The objects of the agent's process are destroyed with the connection.
#[derive(Debug)]
pub struct RxeEnd {
    requests: BufWriter<TcpStream>,
    replies: BufReader<TcpStream>,
    regions: Vec<Registered>,
    gid_index: u32,
}

impl RxeEnd {
    /// Connects to the agent, which serves each connection in a process of its own.
    ///
    /// # Errors
    /// If the guest does not reply.
    pub fn new() -> Result<Self, Failure> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&SocketAddr::from(ADDRESS), REPLY_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            let requests = BufWriter::new(stream.try_clone()?);
            Ok((requests, BufReader::new(stream)))
        };
        let connected: std::io::Result<_> = connect();
        let (requests, replies) = connected.map_err(failed("connect to the agent"))?;
        Ok(Self { requests, replies, regions: Vec::new(), gid_index: 0 })
    }

    /// Runs a command in the guest's shell.
    ///
    /// # Errors
    /// If its exit status is not 0.
    pub fn shell(&mut self, command: &str) -> Result<(), Failure> {
        self.request(format!("shell {command}")).map(drop)
    }

    /// Returns the counters of rxe's port, by rxe's own names.
    ///
    /// # Errors
    /// If the guest does not report them.
    pub fn counters(&mut self) -> Result<Vec<(String, u64)>, Failure> {
        let count: usize = self.request("counters")?.next()?;
        (0..count)
            .map(|_| {
                let mut words = self.read_line()?;
                Ok((words.word()?.to_owned(), words.next()?))
            })
            .collect()
    }

    fn write_request(&mut self, request: impl Display) -> Result<(), Failure> {
        writeln!(self.requests, "{request}").map_err(failed("send a request to the agent"))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.requests.flush().map_err(failed("send a request to the agent"))
    }

    fn read_line(&mut self) -> Result<Words, Failure> {
        let mut line = String::new();
        let read = self.replies.read_line(&mut line);
        match read.map_err(failed("read the reply of the agent"))? {
            0 => Err(Failure("the agent closed the connection".into())),
            _ => Ok(Words { line: line.trim_end().to_owned(), at: 0 }),
        }
    }

    fn read_status(&mut self) -> Result<Words, Failure> {
        let mut words = self.read_line()?;
        match words.word()? {
            "ok" => Ok(words),
            _ => Err(Failure(format!("rxe: {}", words.line))),
        }
    }

    fn request(&mut self, request: impl Display) -> Result<Words, Failure> {
        self.write_request(request)?;
        self.flush()?;
        self.read_status()
    }

    /// Sends all requests, then reads their replies.
    fn request_all(&mut self, requests: &[String]) -> Result<(), Failure> {
        requests.iter().try_for_each(|request| self.write_request(request))?;
        self.flush()?;
        requests.iter().try_for_each(|_| self.read_status().map(drop))
    }

    fn find_gid(&mut self, family: Family) -> Result<Gid, Failure> {
        let count: usize = self.request("gids")?.next()?;
        let mut found = None;
        for _ in 0..count {
            let mut words = self.read_line()?;
            let (index, gid) = (words.next()?, words.next::<Gid>()?);
            if family.covers(gid.ip()) {
                found = Some((index, gid));
            }
        }
        let (index, gid) = found.ok_or_else(|| Failure("rxe has no such GID".into()))?;
        self.gid_index = index;
        Ok(gid)
    }
}

/// The words of a reply.
struct Words {
    line: String,
    at: usize,
}

impl Words {
    fn word(&mut self) -> Result<&str, Failure> {
        let word = self.line.split(' ').nth(self.at);
        self.at += 1;
        word.ok_or_else(|| Failure(format!("the reply of the agent is too short: {}", self.line)))
    }

    fn next<T: FromStr>(&mut self) -> Result<T, Failure> {
        let parsed = self.word()?.parse();
        parsed.map_err(|_| Failure(format!("the reply of the agent is invalid: {}", self.line)))
    }
}

impl End for RxeEnd {
    fn name(&self) -> &'static str {
        "rxe"
    }

    fn prepare(
        &mut self,
        family: Family,
        regions: &[Region],
        seed: u64,
        settings: &Settings,
    ) -> Result<Endpoint, Failure> {
        let gid = self.find_gid(family)?;
        for (region, seed) in regions.iter().zip(seed..) {
            let &Region { len, access, window } = region;
            let bits = access.bits() | if window { ACCESS_MW_BIND } else { 0 };
            let mut words = self.request(format!("mr {len} {seed} {bits}"))?;
            let (_index, addr): (usize, u64) = (words.next()?, words.next()?);
            let (_lkey, rkey): (u32, u32) = (words.next()?, words.next()?);
            self.regions.push(Registered { addr, rkey: Key(rkey), window, access });
        }
        let access = settings.access.bits();
        let qpn = self.request(format!("qp {access} 128 128 64"))?.next()?;
        Ok(Endpoint::new(Qpn::masked(qpn), settings.psn, gid))
    }

    fn connect(
        &mut self,
        peer: &Endpoint,
        rq_psn: Psn,
        mtu: PathMtu,
        settings: &Settings,
    ) -> Result<(), Failure> {
        let &Settings { psn, timeout, retry_cnt, rnr_retry, min_rnr_timer, depth, .. } = settings;
        let gid = match peer.gid.ip() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        self.request_all(&[
            format!(
                "rtr {} {} {} {} {gid} {depth} {min_rnr_timer}",
                self.gid_index,
                mtu.code(),
                peer.qpn.value(),
                rq_psn.value()
            ),
            format!("rts {} {timeout} {retry_cnt} {rnr_retry} {depth}", psn.value()),
        ])
    }

    fn keys(&mut self) -> Result<Vec<RemoteAddr>, Failure> {
        for index in 0..self.regions.len() {
            if self.regions[index].window {
                let remote = self.regions[index].access.bits() & !Access::LOCAL_WRITE.bits();
                let rkey = self.request(format!("window {index} {remote}"))?.next()?;
                self.regions[index].rkey = Key(rkey);
            }
        }
        let regions = self.regions.iter();
        Ok(regions.map(|region| RemoteAddr { addr: region.addr, rkey: region.rkey }).collect())
    }

    fn post_receives(&mut self, receives: &[(u64, Place, u32)]) -> Result<(), Failure> {
        let line = |&(wr_id, place, len): &(u64, Place, u32)| {
            format!("recv {wr_id} {} {} {len}", place.region, place.offset)
        };
        self.request_all(&receives.iter().map(line).collect::<Vec<_>>())
    }

    fn post_sends(&mut self, requests: &[Posting]) -> Result<(), Failure> {
        let line = |request: &Posting| {
            let &Posting { wr_id, op, local, len, remote, operand, swap, .. } = request;
            let flags =
                [(true, SEND_SIGNALED), (request.fence, SEND_FENCE), (request.inline, SEND_INLINE)];
            let flags: u32 = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
            let operand = if op == Op::SendInv { u64::from(remote.rkey.value()) } else { operand };
            format!(
                "send {wr_id} {} {flags} {} {} {len} {} {} {operand} {swap}",
                op.verbs_opcode(),
                local.region,
                local.offset,
                remote.addr,
                remote.rkey.value()
            )
        };
        self.request_all(&requests.iter().map(line).collect::<Vec<_>>())
    }

    fn completions(&mut self, count: usize, timeout: Duration) -> Result<Vec<Completion>, Failure> {
        let stream = self.replies.get_ref();
        let set =
            |time| stream.set_read_timeout(Some(time)).map_err(failed("set the reply timeout"));
        set(timeout + REPLY_TIMEOUT)?;
        let count: usize = self.request(format!("poll {count} {}", timeout.as_millis()))?.next()?;
        let completions = (0..count).map(|_| completion(&mut self.read_line()?)).collect();
        self.replies
            .get_ref()
            .set_read_timeout(Some(REPLY_TIMEOUT))
            .map_err(failed("set the reply timeout"))?;
        completions
    }

    fn memory(&mut self, region: usize) -> Result<Vec<u8>, Failure> {
        let len = self.request(format!("read {region}"))?.next()?;
        let mut bytes = vec![0; len];
        let read = self.replies.read_exact(&mut bytes);
        read.map_err(failed("read the guest's memory"))?;
        Ok(bytes)
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Failure> {
        self.write_request(format!("write {} {} {}", place.region, place.offset, bytes.len()))?;
        self.requests.write_all(bytes).map_err(failed("write the guest's memory"))?;
        self.flush()?;
        self.read_status().map(drop)
    }

    fn state(&mut self) -> Result<QpState, Failure> {
        let state: u8 = self.request("state")?.next()?;
        let known = QpState::ALL.into_iter().find(|&known| known as u8 == state);
        known.ok_or_else(|| Failure(format!("rxe's QP is in state {state}")))
    }

    fn destroy_qp(&mut self) -> Result<(), Failure> {
        self.request("destroy").map(drop)
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.write_request("die")?;
        self.flush()?;
        let mut line = String::new();
        match self.replies.read_line(&mut line) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Failure(format!(
                "the agent must exit without a reply; its reply: {}",
                line.trim_end()
            ))),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            Err(e) => Err(failed("wait for the exit of the agent")(e)),
        }
    }
}

/// All statuses and opcodes of completions; their numbers are those of verbs.
const STATUSES: [Status; 13] = [
    Status::Success,
    Status::LocalLength,
    Status::LocalQpOperation,
    Status::LocalProtection,
    Status::WorkRequestFlushed,
    Status::BadResponse,
    Status::LocalAccess,
    Status::RemoteInvalidRequest,
    Status::RemoteAccess,
    Status::RemoteOperational,
    Status::RetryExceeded,
    Status::RnrRetryExceeded,
    Status::Fatal,
];
const OPCODES: [CompletionOpcode; 7] = [
    CompletionOpcode::Send,
    CompletionOpcode::RdmaWrite,
    CompletionOpcode::RdmaRead,
    CompletionOpcode::CompareSwap,
    CompletionOpcode::FetchAdd,
    CompletionOpcode::Receive,
    CompletionOpcode::ReceiveRdmaWithImmediate,
];

fn completion(words: &mut Words) -> Result<Completion, Failure> {
    let (wr_id, status, opcode): (u64, u8, u8) = (words.next()?, words.next()?, words.next()?);
    let byte_len = words.next()?;
    let (kind, value): (String, u32) = (words.next()?, words.next()?);
    let unknown = || Failure(format!("rxe reports an unknown completion: {}", words.line));
    Ok(Completion {
        wr_id,
        status: STATUSES.into_iter().find(|&s| s as u8 == status).ok_or_else(unknown)?,
        opcode: OPCODES.into_iter().find(|&o| o as u8 == opcode).ok_or_else(unknown)?,
        byte_len,
        extra: match kind.as_str() {
            "immediate" => Extra::Immediate(value),
            "invalidated" => Extra::Invalidated(Key(value)),
            _ => Extra::None,
        },
        solicited: false, // The agent does not report it.
        qp: Qpn::masked(0),
        at: Instant::ZERO, // The agent's clock is not ours.
        datagram: None,
    })
}
