//! The clients of a switch, and what they may send and receive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use feroce_wire::cm::{PortSpace, ServiceId};
use feroce_wire::{MacAddr, Packet, Qpn};

use super::admission::{Destination, Dscps, HostAddresses, Refused, Rules, marked_source};
use super::client::{Client, ClientId, Origin};
use super::cm_router::{self, Claim, ClaimError, CmRouter, Route};
use super::early_requests::{EarlyRequests, Held};
use super::former::FormerQps;
use super::frames::{flow_of, mad_frame, nak_frame, reply_flow};
use super::quota::Rate;
use super::slices::SliceTable;
use crate::device::EARLY_REQUEST_TIME;
use crate::port::daemon::limits::Limits;
use crate::port::daemon::protocol::{ProgramStat, Refusal, UserStat};
use crate::port::kind::ServicePort;
use crate::time::Instant;

/// The state of the switch, apart from the port.
#[derive(Debug)]
pub(super) struct Tables {
    /// The clients. The index of a client is its place; a place is used again after the client has
    /// ended, a [`ClientId`] is not.
    pub(super) places: Vec<Option<Client>>,
    pub(super) by_id: BTreeMap<ClientId, usize>,
    last_id: u32,
    pub(super) slices: SliceTable,
    pub(super) router: CmRouter,
    pub(super) host: HostAddresses,
    pub(super) dscps: Dscps,
    groups: BTreeMap<IpAddr, Vec<ClientId>>,
    limits: Limits,
    /// Rates by user, if there is a limit.
    pub(super) rates: BTreeMap<u32, Rate>,
    former: FormerQps,
    early_requests: EarlyRequests,
    /// Number of frames for which there was no client.
    pub(super) undelivered: u64,
    /// Frames that the daemon itself sends: MADs and NAKs.
    pub(super) own_frames: Vec<Vec<u8>>,
}

impl Tables {
    /// Tables without clients. `random`: see [`SliceTable::new`].
    pub(super) fn new(
        router: CmRouter,
        host: HostAddresses,
        (limits, dscps): (Limits, Dscps),
        random: u32,
    ) -> Self {
        Self {
            places: Vec::new(),
            by_id: BTreeMap::new(),
            last_id: 0,
            slices: SliceTable::new(random),
            router,
            host,
            dscps,
            groups: BTreeMap::new(),
            limits,
            rates: BTreeMap::new(),
            former: FormerQps::default(),
            early_requests: EarlyRequests::default(),
            undelivered: 0,
            own_frames: Vec::new(),
        }
    }

    /// Adds a client. `make` makes it from its number.
    pub(super) fn add(&mut self, make: impl FnOnce(ClientId) -> Client, now: Instant) -> ClientId {
        self.last_id += 1;
        let id = ClientId(self.last_id);
        let limits = cm_router::Limits {
            claims: self.limits.services as usize,
            connections: self.limits.connections as usize,
            ..cm_router::Limits::default()
        };
        self.router.add_client(id, limits);
        self.early_requests.note_attach(now);
        let client = make(id);
        if self.limits.packets.is_some() || self.limits.bytes.is_some() {
            // A bucket that is not full is kept after the user's last client has ended: attaching
            // again must not fill the bucket.
            let users: BTreeSet<u32> =
                self.places.iter().flatten().map(|client| client.credentials.user).collect();
            self.rates.retain(|user, rate| users.contains(user) || !rate.is_full(now));
            let rate = || Rate::new(&self.limits, now);
            self.rates.entry(client.credentials.user).or_insert_with(rate);
        }
        let client = Some(client);
        let place = match self.places.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        self.places[place] = client;
        self.by_id.insert(id, place);
        id
    }

    /// Removes a client. Its connections end towards their peers: see `orphans.rs` and `former.rs`.
    pub(super) fn remove(&mut self, id: ClientId, now: Instant) {
        let Some(place) = self.by_id.remove(&id) else { return };
        let Some(client) = self.places[place].take() else { return };
        self.former.add(client.permits.connected(), now);
        for group in &client.permits.groups {
            self.leave(id, *group);
        }
        self.slices.take_back(id, client.credentials.user, now);
        self.router.client_gone(id, now);
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        let place = *self.by_id.get(&id)?;
        self.places[place].as_mut()
    }

    /// All clients.
    pub(super) fn clients(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().flatten()
    }

    /// Clients that must be detached, and why.
    pub(super) fn faulty(&self, now: Instant) -> Vec<(ClientId, &'static str)> {
        self.clients().filter_map(|client| Some((client.id, client.fault(now)?))).collect()
    }

    /// Statistics of the programs of `user`; `None`: of all users.
    pub(super) fn programs(&self, user: Option<u32>) -> Vec<ProgramStat> {
        let shown = |client: &&Client| user.is_none_or(|user| client.credentials.user == user);
        let stat = |client: &Client| ProgramStat {
            program: client.credentials.program.clone(),
            pid: client.credentials.pid,
            user: client.credentials.user,
            qp_numbers: client.qp_numbers,
            connections: self.router.connections(client.id),
            services: client.services,
            frames: client.stats,
        };
        self.clients().filter(shown).map(stat).collect()
    }

    /// The use of the limits by `user`; `None`: by each user who uses some.
    pub(super) fn users(&mut self, user: Option<u32>, now: Instant) -> Vec<UserStat> {
        let mut users: BTreeMap<u32, UserStat> = BTreeMap::new();
        let mut entry = |user: u32, programs: u32, qp_numbers: u32| {
            let stat = users.entry(user).or_insert(UserStat { user, programs: 0, qp_numbers: 0 });
            stat.programs += programs;
            stat.qp_numbers += qp_numbers;
        };
        for (user, qp_numbers) in self.slices.charged(now) {
            entry(user, 0, qp_numbers);
        }
        self.clients().for_each(|client| entry(client.credentials.user, 1, 0));
        users.into_values().filter(|stat| user.is_none_or(|user| stat.user == user)).collect()
    }

    /// Adds `id` to a group. Returns true if it is the group's first member.
    pub(super) fn join(&mut self, id: ClientId, group: IpAddr) -> bool {
        let Some(client) = self.get_mut(id) else { return false };
        client.permits.groups.insert(group);
        let members = self.groups.entry(group).or_default();
        if !members.contains(&id) {
            members.push(id);
        }
        members.len() == 1
    }

    /// Removes `id` from a group. Returns true if the group has no member any more.
    pub(super) fn leave(&mut self, id: ClientId, group: IpAddr) -> bool {
        if let Some(client) = self.get_mut(id) {
            client.permits.groups.remove(&group);
        }
        let Some(members) = self.groups.get_mut(&group) else { return false };
        members.retain(|member| *member != id);
        let is_empty = members.is_empty();
        if is_empty {
            self.groups.remove(&group);
        }
        is_empty
    }

    /// The groups with members.
    pub(super) fn groups(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.keys().copied()
    }

    /// Allows packets from the QP `qpn` of client `id` to a QP of another host or client. A remote
    /// QP has one peer: no other client may send to it.
    pub(super) fn connect(
        &mut self,
        id: ClientId,
        qpn: Qpn,
        (remote, remote_qpn): (IpAddr, Qpn),
        now: Instant,
    ) -> Result<(), Refusal> {
        if self.slices.owner(qpn) != Some(id) {
            return Err(Refusal::Invalid("the QP is not the program's".to_owned()));
        }
        if self.host.is_own(remote) {
            self.pair(qpn, (remote, remote_qpn))?;
        } else {
            let is_taken =
                |client: &Client| client.id != id && client.permits.is_peer(remote, remote_qpn);
            if self.clients().any(is_taken) || self.former.has_peer((remote, remote_qpn), now) {
                return Err(Refusal::InUse);
            }
        }
        if let Some(client) = self.get_mut(id) {
            client.permits.connect(qpn, remote, remote_qpn);
        }
        Ok(())
    }

    /// Checks that the QP `peer` of this host is not connected to another QP than `qpn`, and ends
    /// permissions of other QPs to send to `qpn`.
    fn pair(&mut self, qpn: Qpn, peer: (IpAddr, Qpn)) -> Result<(), Refusal> {
        let owner = self.slices.owner(peer.1).and_then(|owner| self.get_mut(owner));
        let back = owner.and_then(|owner| owner.permits.peer_of(peer.1));
        if back.is_some_and(|(_, back)| back != qpn) {
            return Err(Refusal::InUse);
        }
        let own: Vec<IpAddr> = self.host.gids().iter().map(|entry| entry.gid.ip()).collect();
        for client in self.places.iter_mut().flatten() {
            own.iter().for_each(|ip| client.permits.evict((*ip, qpn), peer.1));
        }
        Ok(())
    }

    /// Reserves the port of a service for `id`.
    pub(super) fn claim(&mut self, id: ClientId, service: ServicePort) -> Result<(), Refusal> {
        let claim = claim_of(service)?;
        let claimed = self.router.claim(id, claim);
        if let (Ok(()), Some(client)) = (&claimed, self.get_mut(id)) {
            client.services += 1;
        }
        self.early_requests.note_claim();
        claimed.map_err(|error| match error {
            ClaimError::AddressInUse => Refusal::InUse,
            ClaimError::AddressNotAvailable => Refusal::NotAvailable,
            error @ (ClaimError::TooMany(_) | ClaimError::UnknownClient) => {
                Refusal::Quota(error.to_string())
            }
        })
    }

    /// Ends a reservation.
    pub(super) fn release(&mut self, id: ClientId, service: ServicePort, now: Instant) {
        if let Ok(claim) = claim_of(service) {
            self.router.release(id, claim);
            self.early_requests.note_release(now);
            if let Some(client) = self.get_mut(id) {
                client.services = client.services.saturating_sub(1);
            }
        }
    }

    /// The Ethernet address of a next hop has changed.
    pub(super) fn move_next_hop(&mut self, former: MacAddr, mac: MacAddr) {
        for client in self.places.iter_mut().flatten() {
            if client.permits.next_hops.contains(&former) {
                client.permits.next_hops.insert(mac);
            }
        }
    }

    /// Returns true if a client has resolved a next hop with the Ethernet address `mac`.
    pub(super) fn uses_next_hop(&self, mac: MacAddr) -> bool {
        self.places.iter().flatten().any(|client| client.permits.next_hops.contains(&mac))
    }

    /// Decides whether the client at `place` may send `frame`, and counts the frame.
    pub(super) fn admit(
        &mut self,
        place: usize,
        frame: &[u8],
        now: Instant,
    ) -> Result<Destination, Refused> {
        let client = self.places[place].as_ref().expect("the caller has its frame");
        let rules = Rules {
            client: client.id,
            permits: &client.permits,
            host: &self.host,
            slices: &self.slices,
            dscps: self.dscps,
        };
        let packet = Packet::parse(frame, &[]);
        let mut admitted = match &packet {
            Ok(packet) => rules.admit(packet),
            Err(_) => Err(Refused::Packet),
        };
        if let (Ok(_), Ok(packet)) = (admitted, &packet)
            && packet.bth.dest_qp == Qpn::GSI
        {
            admitted = self.admit_mad(client.id, packet, now).map(|()| admitted.expect("checked"));
        }
        let stats = &mut self.places[place].as_mut().expect("as above").stats;
        match admitted {
            Ok(_) => {
                stats.tx_frames += 1;
                stats.tx_bytes += frame.len() as u64;
            }
            Err(refused) => {
                stats.tx_refused += 1;
                tracing::debug!(place, ?refused, "a client may not send a frame");
            }
        }
        admitted
    }

    fn admit_mad(
        &mut self,
        id: ClientId,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Result<(), Refused> {
        let mut mad = [0; feroce_wire::MAD_LEN];
        if packet.payload.len() != mad.len() || !packet.icrc_valid() {
            return Err(Refused::Management);
        }
        packet.payload.copy_to(&mut mad);
        let flow = flow_of(packet);
        let slices = &self.slices;
        let owns = |qpn: Qpn| slices.owner(qpn) == Some(id);
        let sent = self.router.outgoing(id, &flow, &mad, &owns, now);
        sent.map_err(|_| Refused::Management)
    }

    /// Passes a frame to the client that has its QP.
    pub(super) fn deliver(&mut self, first: &[u8], second: &[u8], from: Origin, now: Instant) {
        let Ok(packet) = Packet::parse(first, second) else {
            self.undelivered += 1;
            return;
        };
        let to = match packet.bth.dest_qp {
            Qpn::MULTICAST => return self.deliver_to_group(&packet, first, second, from, now),
            Qpn::GSI => match self.route_mad(&packet, self.early_requests.holds(now), now) {
                Route::Client(id) => Some(id),
                Route::Unclaimed => {
                    let (frame, due) = ([first, second].concat(), now + EARLY_REQUEST_TIME);
                    return self.early_requests.hold(Held { frame, from, due });
                }
                Route::Answered | Route::Dropped => None,
            },
            qpn => self.slices.owner(qpn),
        };
        let is_delivered = to.is_some_and(|id| self.push(id, &packet, [first, second], from, now));
        if !is_delivered && packet.bth.dest_qp != Qpn::GSI {
            self.undelivered += 1;
            let is_here = self.host.is_own(packet.ip.dst());
            let nak = if is_here { self.former.refuse(&packet, now) } else { None };
            self.own_frames.extend(nak.map(|nak| nak_frame(&nak)));
        }
    }

    /// Puts a frame into the ring of a client. Returns false if there is no such client.
    fn push(
        &mut self,
        to: ClientId,
        packet: &Packet<'_>,
        [first, second]: [&[u8]; 2],
        from: Origin,
        now: Instant,
    ) -> bool {
        let Some(client) = self.get_mut(to) else { return false };
        if let Some(source) = marked_source(packet) {
            client.permits.note_marked(source);
        }
        match from {
            Origin::Link => client.push(first, second, now),
            Origin::Host(_) => client.push_from_host(first, now),
        }
        true
    }

    fn deliver_to_group(
        &mut self,
        packet: &Packet<'_>,
        first: &[u8],
        second: &[u8],
        from: Origin,
        now: Instant,
    ) {
        let sender = if let Origin::Host(sender) = from { sender } else { None };
        let Some(members) = self.groups.get(&packet.ip.dst()) else {
            self.undelivered += 1;
            return;
        };
        for id in members.iter().filter(|id| Some(**id) != sender) {
            let client = self.by_id.get(id).and_then(|place| self.places[*place].as_mut());
            if let Some(client) = client {
                client.push(first, second, now);
            }
        }
    }

    /// Returns which client gets a message of communication management. `is_early`: see
    /// [`CmRouter::incoming_early`].
    fn route_mad(&mut self, packet: &Packet<'_>, is_early: bool, now: Instant) -> Route {
        let mut mad = [0; feroce_wire::MAD_LEN];
        let is_mad = packet.payload.len() == mad.len() && packet.icrc_valid();
        if !is_mad || !self.host.is_own(packet.ip.dst()) {
            return Route::Dropped;
        }
        packet.payload.copy_to(&mut mad);
        match is_early {
            true => self.router.incoming_early(&reply_flow(packet), &mad, now),
            false => self.router.incoming(&reply_flow(packet), &mad, now),
        }
    }

    /// Routes held requests again: a service was claimed, or their time is over.
    fn route_held(&mut self, now: Instant) {
        for held in self.early_requests.take(now) {
            let Ok(packet) = Packet::parse(&held.frame, &[]) else { continue };
            match self.route_mad(&packet, now < held.due, now) {
                Route::Client(id) => {
                    self.push(id, &packet, [&held.frame, &[]], held.from, now);
                }
                Route::Unclaimed => self.early_requests.hold(held),
                Route::Answered | Route::Dropped => {}
            }
        }
    }

    /// When the tables are due, even if no frame arrives: see [`Self::collect_own_frames`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.router.next_deadline().into_iter().chain(self.early_requests.next_deadline()).min()
    }

    pub(super) fn collect_own_frames(&mut self, now: Instant) {
        self.route_held(now);
        self.router.expire(now);
        while let Some(own) = self.router.transmit() {
            self.own_frames.push(mad_frame(&own.flow, &own.mad));
        }
    }
}

fn claim_of(service: ServicePort) -> Result<Claim, Refusal> {
    let ServicePort { space, port, ip, reuse, v6_only } = service;
    let space = PortSpace::from_number(space);
    let space = space.ok_or_else(|| Refusal::Invalid("no port space".to_owned()))?;
    Ok(Claim { service: ServiceId::new(space, port), address: Some(ip), reuse, v6_only })
}
