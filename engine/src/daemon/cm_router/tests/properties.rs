//! Random sequences of commands, messages and bytes: the router never panics, never exceeds its
//! bounds, never delivers to a client without a right to the message, and never lets one client use
//! the IDs of another.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::table::Class;
use super::super::{MAX_ORPHANS, MAX_OUTBOX};
use super::*;

const CLIENTS: [ClientId; 3] = [ClientId(1), ClientId(2), ClientId(3)];
const SERVICES: [ServiceId; 3] = [SERVICE, UDP_SERVICE, ServiceId(5)];

/// Fields of a message, each from a small set, so that messages refer to the same exchanges.
#[derive(Clone, Copy, Debug)]
struct Fields {
    kind: u8,
    local: u32,
    remote: u32,
    qpn: u32,
    service: usize,
    detail: u8,
    is_timeout: bool,
    transaction: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Claim(usize, usize),
    Release(usize, usize),
    Gone(usize),
    Sends(usize, u8, Fields),
    SendsBytes(usize, Vec<u8>),
    Arrives(u8, Fields),
    ArrivesBytes(Vec<u8>),
    Advance(u64),
}

impl Fields {
    fn message(self, src: [u8; 4], dst: [u8; 4]) -> CmMessage {
        let qpn = Qpn::masked(self.qpn);
        let (local, remote) = (self.local, self.remote);
        let guid = if src == LOCAL { GUID } else { PEER_GUID };
        let service_id = SERVICES[self.service];
        let (timeout, consumer) = (RejectReason::TIMEOUT, RejectReason::CONSUMER);
        match self.kind {
            0 => Req { service_id, ..req(local, qpn, src, dst) }.into(),
            1 => rep(local, remote, qpn, guid).into(),
            2 => rtu(local, remote).into(),
            3 => dreq(local, remote, qpn).into(),
            4 => drep(local, remote).into(),
            5 => mra(local, remote, self.detail & 3, self.detail >> 3).into(),
            6 => {
                let reason = if self.is_timeout { timeout } else { consumer };
                let mut rej = rej(local, remote, self.detail & 3, reason);
                rej.info[..8].copy_from_slice(&guid.to_be_bytes());
                rej.into()
            }
            7 => SidrReq { service_id, ..sidr_req(local, src, dst) }.into(),
            _ => sidr_rep(remote, qpn).into(),
        }
    }
}

fn fields() -> impl Strategy<Value = Fields> {
    let ids = (0..6u32, 0..6u32, 0..5u32);
    let rest = (0..SERVICES.len(), any::<u8>(), any::<bool>(), 0..2u64);
    (0..9u8, ids, rest).prop_map(|(kind, (local, remote, qpn), rest)| {
        let (service, detail, is_timeout, transaction) = rest;
        Fields { kind, local, remote, qpn, service, detail, is_timeout, transaction }
    })
}

/// Bytes, half of them with a valid MAD header.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 232);
    let valid = (0x10..0x19u8, body).prop_map(|(attribute, body)| {
        let mut bytes = mad(1, Rtu::default()).to_vec();
        bytes[17] = attribute;
        bytes[24..].copy_from_slice(&body);
        bytes
    });
    prop_oneof![valid, proptest::collection::vec(any::<u8>(), 0..300)]
}

fn step(longest_pause: u64) -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS.len();
    let service = 0..SERVICES.len();
    prop_oneof![
        2 => (client.clone(), service.clone()).prop_map(|(c, s)| Step::Claim(c, s)),
        1 => (client.clone(), service).prop_map(|(c, s)| Step::Release(c, s)),
        1 => client.clone().prop_map(Step::Gone),
        30 => (client.clone(), 2..4u8, fields()).prop_map(|(c, to, f)| Step::Sends(c, to, f)),
        1 => (client, bytes()).prop_map(|(c, bytes)| Step::SendsBytes(c, bytes)),
        30 => (1..4u8, fields()).prop_map(|(from, f)| Step::Arrives(from, f)),
        1 => bytes().prop_map(Step::ArrivesBytes),
        2 => (0..=longest_pause).prop_map(Step::Advance),
    ]
}

/// A model of what the router may allow, with simpler rules.
struct Model {
    router: CmRouter,
    limits: Limits,
    now: Instant,
    gone: BTreeSet<ClientId>,
    /// Every claim that was ever held.
    claimed: BTreeSet<(ClientId, ServiceId)>,
    /// The last client that used a local ID, and when.
    users: BTreeMap<u32, (ClientId, Instant)>,
    /// Requests that reached a client.
    requests: BTreeSet<(ClientId, [u8; 4], u32)>,
    /// True if the limits are so high that no exchange is forgotten because of them.
    is_strict: bool,
}

impl Model {
    fn new(limits: Limits, is_strict: bool) -> Self {
        let mut router = CmRouter::new(GUID, || 3);
        CLIENTS.into_iter().for_each(|client| router.add_client(client, limits));
        Self {
            router,
            limits,
            now: Instant::ZERO,
            gone: BTreeSet::new(),
            claimed: BTreeSet::new(),
            users: BTreeMap::new(),
            requests: BTreeSet::new(),
            is_strict,
        }
    }

    fn claim_for(service: usize) -> Claim {
        let any = Some([0, 0, 0, 0].into());
        let service = SERVICES[service];
        Claim { address: any.filter(|_| service.port().is_some()), ..Claim::service(service) }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Claim(client, service) => {
                let (client, claim) = (CLIENTS[*client], Self::claim_for(*service));
                if self.router.claim(client, claim).is_ok() {
                    assert!(!self.gone.contains(&client));
                    self.claimed.insert((client, claim.service));
                }
            }
            Step::Release(client, service) => {
                self.router.release(CLIENTS[*client], Self::claim_for(*service));
            }
            Step::Gone(client) => {
                let client = CLIENTS[*client];
                self.router.client_gone(client, self.now);
                self.gone.insert(client);
            }
            Step::Sends(client, to, fields) => self.sends(CLIENTS[*client], *to, *fields),
            Step::SendsBytes(client, bytes) => {
                let client = CLIENTS[*client];
                let owns = |qpn: Qpn| qpn.value() == client.0;
                let _ = self.router.outgoing(client, &flow_to(PEER), bytes, &owns, self.now);
            }
            Step::Arrives(from, fields) => self.arrives([10, 0, 0, *from], *fields),
            Step::ArrivesBytes(bytes) => {
                self.router.incoming(&flow_to(PEER), bytes, self.now);
            }
            Step::Advance(millis) => {
                self.now += Duration::from_millis(*millis);
                self.router.expire(self.now);
                assert!(self.router.next_deadline().is_none_or(|due| due > self.now));
            }
        }
        self.check();
    }

    fn sends(&mut self, client: ClientId, to: u8, fields: Fields) {
        let dst = [10, 0, 0, to];
        let message = fields.message(LOCAL, dst);
        let owns = |qpn: Qpn| qpn.value() == client.0 + 1;
        let bytes = mad(fields.transaction, message);
        if self.router.outgoing(client, &flow_to(dst), &bytes, &owns, self.now).is_err() {
            return;
        }
        assert!(!self.gone.contains(&client));
        if matches!(message, CmMessage::Req(_) | CmMessage::Rep(_)) {
            assert!(fields.qpn == 0 || owns(Qpn::masked(fields.qpn)));
        }
        if fields.kind == 8 {
            let request = (client, dst, fields.remote);
            assert!(self.requests.contains(&request), "no such request");
            return;
        }
        if fields.local == 0 {
            assert!(matches!(message, CmMessage::Mra(_) | CmMessage::Rej(_)));
            assert!(self.requests.contains(&(client, dst, fields.remote)));
            return;
        }
        let user = self.users.insert(fields.local, (client, self.now));
        if let Some((user, at)) = user.filter(|_| self.is_strict) {
            let age = self.now.saturating_since(at);
            assert!(user == client || age >= Duration::from_secs(100), "the ID of {user:?}");
        }
    }

    fn arrives(&mut self, src: [u8; 4], fields: Fields) {
        let message = fields.message(src, LOCAL);
        let bytes = mad(fields.transaction, message);
        let Route::Client(client) = self.router.incoming(&flow_to(src), &bytes, self.now) else {
            return;
        };
        assert!(!self.gone.contains(&client));
        let request = (client, src, fields.local);
        match message {
            CmMessage::Req(Req { service_id, .. })
            | CmMessage::SidrReq(SidrReq { service_id, .. }) => {
                assert!(self.claimed.contains(&(client, service_id)));
                self.requests.insert(request);
            }
            message => {
                let user = self.users.get(&fields.remote).map(|(user, _)| *user);
                let is_timeout = matches!(message, CmMessage::Rej(_)) && fields.is_timeout;
                let is_own = user == Some(client);
                // A peer that we connected to may also end its side by GUID and ID.
                assert!(is_own || is_timeout, "{client:?} is not {user:?}");
            }
        }
    }

    fn check(&mut self) {
        self.router.table.check();
        let count = |owner, class| self.router.table.count(owner, class);
        for client in CLIENTS {
            let counts = Class::ALL.map(|class| count(Some(client), class));
            let Limits { claims, connections, requests, ended } = self.limits;
            let limits = [ended, requests, connections];
            assert!((0..3).all(|index| counts[index] <= limits[index]), "{counts:?} {limits:?}");
            assert_eq!(self.router.connections(client), counts[2]);
            assert!(self.router.claims.count(client) <= claims);
            if self.gone.contains(&client) {
                assert_eq!((counts, self.router.claims.count(client)), ([0; 3], 0));
            }
        }
        assert!(Class::ALL.map(|class| count(None, class)).iter().sum::<usize>() <= MAX_ORPHANS);
        assert!(self.router.outbox.len() <= MAX_OUTBOX);
        while let Some(sent) = self.router.transmit() {
            CmMad::parse(&sent.mad).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn ids_and_requests_belong_to_one_client(
        steps in proptest::collection::vec(step(40_000), 1..200)
    ) {
        let mut model = Model::new(Limits::default(), true);
        steps.iter().for_each(|step| model.step(step));
    }

    #[test]
    fn bounds_hold_with_small_limits(
        steps in proptest::collection::vec(step(1_000_000), 1..200)
    ) {
        let limits = Limits { claims: 1, connections: 2, requests: 2, ended: 1 };
        let mut model = Model::new(limits, false);
        steps.iter().for_each(|step| model.step(step));
    }
}

#[test]
fn clients_that_come_and_go_leave_a_bounded_rest() {
    let mut router = CmRouter::new(GUID, || 3);
    let (now, flow) = (Instant::ZERO, flow_to(PEER));
    for number in 0..6 {
        let client = ClientId(number);
        router.add_client(client, Limits::default());
        for id in 1..=4096 {
            let request = mad(7, req(number << 16 | id, A_QP, LOCAL, PEER));
            router.outgoing(client, &flow, &request, &|_| true, now).unwrap();
        }
        assert_eq!(router.connections(client), 4096);
        router.client_gone(client, now);
    }
    assert_eq!(router.table.len(), MAX_ORPHANS);
    assert_eq!(std::iter::from_fn(|| router.transmit()).count(), MAX_OUTBOX);
    router.table.check();
    // The oldest are forgotten, the latest are not.
    router.add_client(A, Limits::default());
    let mut send = |id| {
        let request = mad(7, req(id, A_QP, LOCAL, PEER));
        router.outgoing(A, &flow, &request, &|_| true, now).is_ok()
    };
    assert_eq!([send(1), send(0x5_0001)], [true, false]);
}
