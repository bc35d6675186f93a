//! Plays one end of a captured conversation of communication management: an endpoint of the engine
//! receives what the captured end received, its program does what the captured program did, and
//! the endpoint must send what the captured end sent.
//!
//! Numbers that an endpoint chooses (communication ID, starting PSN, port, GUID) are those of the
//! capture. Time advances with the capture; timers expire only where the capture shows a copy of a
//! message, or a REJ for a timeout.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use feroce_engine::cm::{
    CmConfig, CmError, CmId, DeviceKey, Ece, Endpoint, EventKind, Parameters, Path, QpKind, Source,
    State,
};
use feroce_engine::time::{Duration, Instant};
use feroce_wire::cm::{
    CmMad, CmMessage, IpCmHeader, PortSpace, RejectReason, Rep, Req, SidrStatus, Transport,
};
use feroce_wire::{MAD_LEN, PathMtu};

use super::cm_compare::{compare_mads, words};
use super::conversations::{CmPacket, Conversation};
use super::lanes::Captured;
use super::rig::{Unplayable, unplayable};
use super::tolerance::Tolerance;
use super::{Difference, Outcome};

const DEVICE: DeviceKey = DeviceKey(0);
/// More than the retransmissions of any message, of which there are at most 15.
const MOST_TIMERS: usize = 20;

/// What the request of a conversation tells.
struct Request {
    space: PortSpace,
    port: u16,
    kind: QpKind,
    addresses: IpCmHeader,
    req: Option<Req>,
    data: Vec<u8>,
}

struct Player<'a> {
    conversation: &'a Conversation,
    frames: &'a [Captured],
    is_active: bool,
    request: Request,
    endpoint: Endpoint,
    /// Number of the identifier with the captured communication ID.
    number: u32,
    id: Option<CmId>,
    now: Instant,
    /// Messages of the endpoint that were not compared yet.
    waiting: VecDeque<CmMad>,
    /// Messages that were compared.
    sent: BTreeSet<[u8; MAD_LEN]>,
    outcome: Outcome,
}

/// Plays the active or the passive end of `conversation`.
///
/// # Errors
/// If the capture does not contain enough information.
pub fn play(
    conversation: &Conversation,
    frames: &[Captured],
    is_active: bool,
) -> Result<Outcome, Unplayable> {
    let request = request(conversation, is_active)?;
    let (endpoint, number) = endpoint(conversation, is_active);
    let mut player = Player {
        number,
        conversation,
        frames,
        is_active,
        request,
        endpoint,
        id: None,
        now: Instant::ZERO,
        waiting: VecDeque::new(),
        sent: BTreeSet::new(),
        outcome: Outcome::default(),
    };
    match is_active {
        true => player.resolve()?,
        false => player.listen()?,
    }
    player.run();
    Ok(player.outcome)
}

/// Reads the request of the conversation.
fn request(conversation: &Conversation, is_active: bool) -> Result<Request, Unplayable> {
    let (service, private, req) = match &conversation.messages[0].mad.message {
        CmMessage::Req(req) => (req.service_id, &req.private_data[..], Some(*req)),
        CmMessage::SidrReq(req) => (req.service_id, &req.private_data[..], None),
        _ => return Err(Unplayable("the capture has no REQ".to_owned())),
    };
    let foreign = || Unplayable("the REQ is not one of the RDMA CM".to_owned());
    let addresses = IpCmHeader::parse(private).map_err(|_| foreign())?;
    let (space, port) = service.port().ok_or_else(foreign)?;
    if port == 0 || addresses.source.port() == 0 {
        return Err(foreign());
    }
    let kind = match (req.map(|req| req.connection()), is_active) {
        (None, _) => QpKind::Ud,
        (Some(Some(Transport::Uc)), _) => QpKind::Uc,
        (Some(Some(Transport::Xrc)), true) => QpKind::XrcIni,
        (Some(Some(Transport::Xrc)), false) => QpKind::XrcTgt,
        (Some(Some(Transport::Rc)), _) => QpKind::Rc,
        (Some(None), _) => return Err(Unplayable("the REQ is for an unknown service".to_owned())),
    };
    let data = private[IpCmHeader::LEN..].to_vec();
    Ok(Request { space, port, kind, addresses, req, data })
}

/// Returns an endpoint that chooses the numbers of the captured end, and the number of the
/// identifier that does so.
fn endpoint(conversation: &Conversation, is_active: bool) -> (Endpoint, u32) {
    let mut config = CmConfig { early_copies: [Duration::ZERO; 2], ..CmConfig::default() };
    let mut numbers = (0, 0);
    let mut guid = 1;
    for message in conversation.messages.iter().filter(|one| one.is_active == is_active) {
        match &message.mad.message {
            CmMessage::Req(req) => {
                config.response_timeout = req.local_response_timeout;
                config.max_retries = req.max_cm_retries;
                (numbers, guid) =
                    ((req.local_comm_id, req.starting_psn.value()), req.local_ca_guid);
            }
            CmMessage::Rep(rep) => {
                config.ack_delay = rep.target_ack_delay;
                (numbers, guid) =
                    ((rep.local_comm_id, rep.starting_psn.value()), rep.local_ca_guid);
            }
            CmMessage::SidrReq(req) => numbers = (req.request_id, 0),
            // Before a REP there may be an MRA or a REJ.
            CmMessage::Mra(mra) if numbers.0 == 0 => numbers.0 = mra.local_comm_id,
            CmMessage::Rej(rej) if numbers.0 == 0 => numbers.0 = rej.local_comm_id,
            _ => {}
        }
    }
    // The first random number is mixed into the communication IDs. Each identifier draws its PSN.
    let (id, psn) = numbers;
    let number = number(id, is_active);
    let unused = (1..number).map(|_| 0);
    let draws: Vec<u32> = [id ^ number].into_iter().chain(unused).chain([psn]).collect();
    let mut draws = draws.into_iter();
    let mut endpoint = Endpoint::new(config, move || draws.next().unwrap_or(0));
    endpoint.add_device(DEVICE, guid);
    (endpoint, number)
}

/// Returns the number of the identifier that gets the communication ID `id`. The passive end has a
/// listener ahead of it. An endpoint passes over numbers whose communication ID would be 0.
fn number(id: u32, is_active: bool) -> u32 {
    let least = if is_active { 1 } else { 3 };
    let is_reached = |number: &u32| {
        let operand = id ^ number;
        operand == 0 || operand >= *number
    };
    (least..least + 8).find(is_reached).unwrap_or(least)
}

impl Player<'_> {
    /// Creates the active end's identifier, with the captured addresses and a route.
    fn resolve(&mut self) -> Result<(), Unplayable> {
        let Request { space, port, kind, addresses, req, .. } = &self.request;
        let (end, wrong) = (&mut self.endpoint, || unplayable::<CmError>("a route"));
        let id = end.create(*space, *kind);
        end.bind(id, addresses.source).map_err(wrong())?;
        let destination = SocketAddr::new(addresses.destination, *port);
        end.resolve_address(id, None, destination).map_err(wrong())?;
        let mtu = req.and_then(|req| PathMtu::from_code(req.path_mtu));
        let path = Path {
            device: DEVICE,
            local: self.conversation.active,
            remote: self.conversation.passive,
            mtu: mtu.unwrap_or(PathMtu::Mtu1024),
            hop_limit: req.map_or(64, |req| req.primary_hop_limit),
            traffic_class: req.map_or(0, |req| req.primary_traffic_class),
        };
        end.address_resolved(id, Ok(path)).map_err(wrong())?;
        end.resolve_route(id).map_err(wrong())?;
        end.route_resolved(id, Ok(())).map_err(wrong())?;
        if let Some(req) = req {
            let ece = Ece {
                vendor_id: req.vendor_id,
                options: self.conversation.messages[0].mad.modifier,
            };
            end.set_local_ece(id, ece).map_err(wrong())?;
        }
        self.id = Some(id);
        Ok(())
    }

    /// Listens, unless the captured end had no listener.
    fn listen(&mut self) -> Result<(), Unplayable> {
        let Request { space, port, kind, addresses, .. } = &self.request;
        let listener = self.endpoint.create(*space, *kind);
        let wrong = || unplayable::<CmError>("a listener");
        for _ in 2..self.number {
            self.endpoint.create(*space, *kind);
        }
        let own = self.conversation.messages.iter().find(|message| !message.is_active);
        let has_listener = match own.map(|message| &message.mad.message) {
            Some(CmMessage::Rej(rej)) => rej.reason != RejectReason::INVALID_SERVICE_ID,
            Some(CmMessage::SidrRep(rep)) => rep.status != SidrStatus::UNSUPPORTED,
            _ => true,
        };
        if has_listener {
            let address = SocketAddr::new(addresses.destination, *port);
            self.endpoint.bind(listener, address).map_err(wrong())?;
            self.endpoint.listen(listener, 0, self.now).map_err(wrong())?;
        }
        Ok(())
    }

    fn run(&mut self) {
        for message in &self.conversation.messages {
            let frame = &self.frames[message.index];
            self.now = self.now.max(Instant::ZERO + frame.at);
            if message.is_active != self.is_active {
                match self.is_lost(message) {
                    true => {
                        self.outcome.tolerances.count_use(Tolerance::NotDelivered, frame.number);
                    }
                    false => self.receive(message),
                }
            } else if !self.send_captured(message, frame.number) {
                return;
            }
        }
        let last = self.conversation.messages.last().map_or(0, |message| message.index);
        let number = self.frames[last].number;
        while let Some(mad) = self.waiting.pop_front() {
            // What answers the last message may be behind the end of the conversation.
            let is_answer = self
                .conversation
                .messages
                .last()
                .is_some_and(|last| last.is_active != self.is_active);
            match is_answer {
                true => self.outcome.tolerances.count_use(Tolerance::CaptureEnds, number),
                false => self.not_captured(&mad, number),
            }
        }
    }

    /// Returns true if the played end did not get a message of the other end: the next one of its
    /// messages repeats its request.
    fn is_lost(&self, message: &CmPacket) -> bool {
        let messages = &self.conversation.messages;
        let own = |one: &&CmPacket| one.is_active == self.is_active;
        let next = messages.iter().filter(own).find(|one| one.index > message.index);
        let is_request = |one: &CmPacket| {
            matches!(
                one.mad.message,
                CmMessage::Req(_) | CmMessage::Rep(_) | CmMessage::Dreq(_) | CmMessage::SidrReq(_)
            )
        };
        let Some(next) = next.filter(|next| is_request(next)) else { return false };
        let mut earlier = messages.iter().take_while(|one| one.index < message.index);
        !matches!(message.mad.message, CmMessage::Mra(_))
            && !is_request(message)
            && earlier.any(|one| own(&one) && one.bytes == next.bytes)
    }

    fn receive(&mut self, message: &CmPacket) {
        let (local, remote) = self.addresses();
        let source = Source { device: DEVICE, local, remote };
        // Parsed before, so it is well-formed.
        let _ = self.endpoint.receive(&message.bytes, &source, self.now);
        self.outcome.fed += 1;
        self.take();
    }

    /// Returns the address of the played end and that of the other.
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let Conversation { active, passive, .. } = *self.conversation;
        if self.is_active { (active, passive) } else { (passive, active) }
    }

    /// Takes what the endpoint sends, and its events.
    fn take(&mut self) {
        while let Some(outgoing) = self.endpoint.transmit() {
            self.waiting.extend(CmMad::parse(&outgoing.mad).ok());
        }
        while let Some(event) = self.endpoint.event() {
            if event.kind == EventKind::ConnectRequest {
                self.id.get_or_insert(event.id);
                let _ = self.endpoint.take_request(event.id);
            }
        }
    }

    /// Lets the endpoint send a captured message and compares both. Returns false if the rest
    /// cannot be played.
    fn send_captured(&mut self, message: &CmPacket, number: u64) -> bool {
        let theirs = &message.mad;
        let is_same = |mad: &CmMad| mad.message.attribute() == theirs.message.attribute();
        if !self.waiting.iter().any(is_same) {
            if self.lacks_cause(&theirs.message) {
                self.outcome.tolerances.count_use(Tolerance::CaptureHole, number);
                return false;
            }
            // A refused command shows as a message that the endpoint does not send.
            let _ = self.id.map(|id| self.command(id, theirs));
            self.take();
        }
        if !self.waiting.iter().any(is_same) && self.is_timed(message) {
            self.expire(theirs, number);
        }
        let found = self.waiting.iter().position(is_same);
        for _ in 0..found.unwrap_or(0) {
            let extra = self.waiting.pop_front();
            extra.into_iter().for_each(|mad| self.not_captured(&mad, number));
        }
        match (found.and_then(|_| self.waiting.pop_front()), &theirs.message) {
            (Some(ours), _) => self.compare(ours, theirs, number),
            (None, CmMessage::Mra(_)) => {
                self.outcome.tolerances.count_use(Tolerance::CmWait, number);
            }
            (None, theirs) => {
                let sentence =
                    format!("the capture has {}, which the engine does not send", words(theirs));
                self.outcome.differences.push(Difference { packet: Some(number), sentence });
            }
        }
        true
    }

    fn compare(&mut self, ours: CmMad, theirs: &CmMad, number: u64) {
        self.sent.insert(ours.to_bytes());
        self.outcome.compared += 1;
        let chooses_transaction = match theirs.message {
            CmMessage::Dreq(_) => true,
            CmMessage::Drep(_) => false,
            _ => self.is_active,
        };
        match compare_mads(ours, theirs, chooses_transaction) {
            Ok(used) => {
                for tolerance in used {
                    self.outcome.tolerances.count_use(tolerance, number);
                }
            }
            Err(sentence) => {
                self.outcome.differences.push(Difference { packet: Some(number), sentence });
            }
        }
    }

    /// The endpoint sends a message that the capture lacks: a copy of an earlier one, an MRA, or a
    /// difference.
    fn not_captured(&mut self, mad: &CmMad, number: u64) {
        let tolerance = match mad.message {
            CmMessage::Mra(_) => Tolerance::CmWait,
            CmMessage::Rtu(_) if !self.has_rtu() => Tolerance::CaptureHole,
            _ if self.sent.contains(&mad.to_bytes()) => Tolerance::RetransmissionTimer,
            _ => {
                let message = words(&mad.message);
                let sentence = format!("the engine sends {message}, which the capture lacks");
                self.outcome.differences.push(Difference { packet: Some(number), sentence });
                return;
            }
        };
        self.outcome.tolerances.count_use(tolerance, number);
    }

    fn has_rtu(&self) -> bool {
        let mut messages = self.conversation.messages.iter();
        messages.any(|one| matches!(one.mad.message, CmMessage::Rtu(_)))
    }

    /// Returns true if the captured message answers one of the other end that the capture lacks.
    fn lacks_cause(&self, message: &CmMessage) -> bool {
        let has = |attribute: u16| {
            let mut others = self.conversation.messages.iter();
            others.any(|one| {
                one.is_active != self.is_active && one.mad.message.attribute() == attribute
            })
        };
        match message {
            CmMessage::Rtu(_) => !has(Rep::ATTRIBUTE),
            CmMessage::Dreq(_) => self.is_active && !has(Rep::ATTRIBUTE),
            CmMessage::Drep(_) => !has(feroce_wire::cm::Dreq::ATTRIBUTE),
            _ => false,
        }
    }

    /// Returns true if a timer explains the captured message: it is a copy of an earlier one, or
    /// the end gives up.
    fn is_timed(&self, message: &CmPacket) -> bool {
        let earlier = self.conversation.messages.iter().take_while(|one| one.index < message.index);
        let mut earlier = earlier.filter(|one| one.is_active == self.is_active);
        let gives_up = match message.mad.message {
            CmMessage::Rej(rej) => rej.reason == RejectReason::TIMEOUT,
            _ => false,
        };
        gives_up || earlier.any(|one| one.bytes == message.bytes)
    }

    /// Lets timers expire until the endpoint sends a message like `theirs`.
    fn expire(&mut self, theirs: &CmMad, number: u64) {
        self.outcome.tolerances.count_use(Tolerance::RetransmissionTimer, number);
        for _ in 0..MOST_TIMERS {
            let Some(deadline) = self.endpoint.next_deadline() else { return };
            self.now = self.now.max(deadline);
            self.endpoint.expire(self.now);
            self.take();
            let mut sent = self.waiting.iter();
            if sent.any(|mad| mad.message.attribute() == theirs.message.attribute()) {
                return;
            }
        }
    }

    /// Does what the captured program did to send `mad`.
    fn command(&mut self, id: CmId, mad: &CmMad) -> Result<(), CmError> {
        let (end, now) = (&mut self.endpoint, self.now);
        match &mad.message {
            CmMessage::Req(req) => end.connect(id, &of_req(req), &self.request.data, now),
            CmMessage::SidrReq(_) => {
                end.connect(id, &Parameters::default(), &self.request.data, now)
            }
            CmMessage::Rep(rep) => {
                let ece = Ece { vendor_id: rep.vendor_id(), options: mad.modifier };
                end.set_local_ece(id, ece)?;
                end.accept(id, &of_rep(rep, self.request.kind), &rep.private_data, now)
            }
            CmMessage::SidrRep(rep) if rep.status == SidrStatus::SUCCESS => {
                let own = Parameters { qpn: rep.qpn, qkey: rep.qkey, ..Parameters::default() };
                end.accept(id, &own, &rep.private_data, now)
            }
            CmMessage::SidrRep(rep) => {
                end.reject(id, RejectReason::CONSUMER, &rep.private_data, now)
            }
            CmMessage::Rtu(rtu) => end.establish(id, &rtu.private_data),
            CmMessage::Rej(rej) if rej.reason == RejectReason::TIMEOUT && self.is_active => {
                end.destroy(id, now)
            }
            CmMessage::Rej(rej) => end.reject(id, rej.reason, &rej.private_data, now),
            CmMessage::Dreq(_) => {
                match (self.is_active, end.state(id)?) {
                    // The capture lacks the RTU.
                    (true, State::RepReceived) => end.establish(id, &[])?,
                    // The RTU was lost, but data have arrived.
                    (false, State::RepSent) => end.notify_established(id)?,
                    _ => {}
                }
                end.disconnect(id, now)
            }
            CmMessage::Drep(_) => end.disconnect(id, now),
            CmMessage::Mra(_) => Ok(()),
        }
    }
}

fn of_req(req: &Req) -> Parameters {
    Parameters {
        qpn: req.local_qpn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ..Parameters::default()
    }
}

fn of_rep(rep: &Rep, kind: QpKind) -> Parameters {
    Parameters {
        qpn: if kind == QpKind::XrcTgt { rep.local_eecn } else { rep.local_qpn },
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        ..Parameters::default()
    }
}
