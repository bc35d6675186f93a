//! Stray packets: of another service than their QP, or far from the PSNs of their flow. And
//! captures without anything to judge.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::{Psn, Qpn};

use super::Report;
use super::connection_failure;
use super::findings::{Findings, Place, hex};
use crate::flow::{Channel, Flows, Key, Service};
use crate::rules::{PacketRef, RuleId};

/// A QP number that was unused for this time may belong to a new QP, in nanoseconds.
const REUSE_TIME: u64 = 100_000_000;

/// Decides with a response whether a distant PSN began a new connection.
pub(super) fn settle_jump(channel: &mut Channel, psn: Psn, place: Place, out: &mut Findings) {
    let Some((before, _)) = &channel.before_jump else { return };
    if channel.window.find(psn).is_some() {
        confirm_jump(channel, place, out);
    } else if before.window.find(psn).is_some() {
        undo_jump(channel, place, out);
    }
}

/// Ends the connection before a distant PSN, because a new one has begun.
pub(super) fn confirm_jump(channel: &mut Channel, place: Place, out: &mut Findings) {
    let Some((before, _)) = channel.before_jump.take() else { return };
    connection_failure::end(&before, place.flow.map_or(0, |flow| flow as usize), out);
}

/// Returns to the connection before a distant PSN, because it goes on, and reports the stray
/// packet.
pub(super) fn undo_jump(channel: &mut Channel, place: Place, out: &mut Findings) {
    let Some((stray, false)) = channel.undo_jump() else { return };
    let at = Place { packet: stray.first, at: stray.last_at, flow: place.flow };
    out.add(RuleId::Jump, at, || {
        format!(
            "a single packet has PSN {}, but the packets before and after it continue at {}: a \
             stray packet",
            hex(stray.psn),
            channel.next.map_or_else(String::new, hex)
        )
    });
}

/// The packets of one service at a QP.
#[derive(Clone, Copy)]
struct Use {
    service: Service,
    flow: usize,
    first: PacketRef,
    first_at: u64,
    last_at: u64,
    packets: u64,
    /// True if communication management agreed on the service.
    is_agreed: bool,
}

/// The uses of each QP, by capture point, host and QP.
type Uses = BTreeMap<(u16, IpAddr, Qpn), Vec<Use>>;

fn uses(flows: &Flows) -> Uses {
    let mut uses = Uses::new();
    for (flow, channel) in flows.all().iter().enumerate() {
        let (key, figures, is_agreed) = (channel.key, channel.figures, channel.is_agreed);
        // A connection without packets counts for its service only.
        let nothing = is_agreed.then_some(PacketRef { file: 0, number: 0 });
        let Some(first) = channel.first.or(nothing) else { continue };
        let one = Use {
            service: key.service,
            flow,
            first,
            first_at: figures.first_at,
            last_at: figures.last_at,
            packets: figures.requests + figures.responses,
            is_agreed,
        };
        let response = channel.response_qpn.map(|qpn| (key.src, qpn));
        for (host, qpn) in [(key.dst, key.qpn)].into_iter().chain(response) {
            if qpn > Qpn::GSI && qpn != Qpn::MULTICAST {
                uses.entry((key.tap, host, qpn)).or_default().push(one);
            }
        }
    }
    uses
}

/// Reports packets of another service than their QP, and shows flows that only failed.
pub(super) fn end(flows: &mut Flows, out: &mut Findings) {
    for ((_, host, qpn), all) in &uses(flows) {
        let packets = |service: Service| -> u64 {
            all.iter().filter(|one| one.service == service).map(|one| one.packets).sum()
        };
        // The service of the QP is the agreed one, or that of most packets.
        let rank =
            |one: &&Use| (one.is_agreed, packets(one.service), std::cmp::Reverse(one.first_at));
        let Some(main) = all.iter().max_by_key(rank) else { continue };
        let is_other = |one: &&Use| one.service != main.service && one.packets > 0;
        for one in all.iter().filter(is_other) {
            let is_main = |other: &&Use| other.service == main.service;
            if !all.iter().filter(is_main).any(|other| one.overlaps(other)) {
                continue;
            }
            let place =
                Place { packet: one.first, at: one.first_at, flow: u32::try_from(one.flow).ok() };
            out.add(RuleId::Transport, place, || {
                format!(
                    "{} packets of service {} for QP {qpn} of {host}, which has {} packets of \
                     service {}",
                    one.packets,
                    one.service.name(),
                    packets(main.service),
                    main.service.name()
                )
            });
        }
    }
    alone(flows, out);
    for channel in flows.all_mut() {
        channel.is_merged &= channel.failed.is_none();
    }
}

/// Reports single requests to a QP of which nothing else was captured, if other flows between the
/// two hosts are captured in both directions and go on for longer than a timeout.
fn alone(flows: &Flows, out: &mut Findings) {
    const TIMEOUT: u64 = 1_000_000_000;
    let hosts = |channel: &Channel| (channel.key.tap, channel.key.src, channel.key.dst);
    let mut ends = BTreeMap::new();
    for channel in flows.all().iter().filter(|channel| channel.is_reliable()) {
        let figures = channel.figures;
        if figures.requests > 1 && figures.responses > 0 {
            let end = ends.entry(hosts(channel)).or_insert(0);
            *end = figures.last_at.max(*end);
        }
    }
    for (flow, channel) in (0..).zip(flows.all()) {
        let figures = channel.figures;
        let is_alone = channel.is_reliable()
            && !channel.is_agreed
            && (figures.requests, figures.responses) == (1, 0);
        let goes_on = ends
            .get(&hosts(channel))
            .is_some_and(|&end| end.saturating_sub(figures.last_at) > TIMEOUT);
        let Some(packet) = channel.first.filter(|_| is_alone && goes_on) else { continue };
        let place = Place { packet, at: figures.first_at, flow: Some(flow) };
        out.add(RuleId::Alone, place, || {
            format!(
                "a single request to QP {}, without a response or a retransmission, while other \
                 flows between the two hosts go on: a stray packet",
                channel.key.qpn
            )
        });
    }
}

impl Use {
    /// Returns true if `self` and `other` are of the same time, so that the QP is the same.
    const fn overlaps(&self, other: &Self) -> bool {
        other.packets == 0
            || self.first_at <= other.last_at.saturating_add(REUSE_TIME)
                && other.first_at <= self.last_at.saturating_add(REUSE_TIME)
    }
}

/// Maximum number of CNPs to unknown QPs that are kept.
pub(super) const MAX_CNPS: usize = 1024;

/// Reports CNPs to QPs of which the capture has no packet, although it has flows between the hosts.
pub(super) fn cnps(lost: &[(Key, Place)], flows: &Flows, out: &mut Findings) {
    let connected = || flows.all().iter().filter(|channel| channel.key.service != Service::Ud);
    for (key, place) in lost {
        let is_host = |channel: &Channel| {
            let (one, other) = channel.ends();
            channel.key.tap == key.tap && [(one, other), (other, one)].contains(&(key.src, key.dst))
        };
        let has_qp = |channel: &Channel| {
            (channel.key.dst == key.dst && channel.key.qpn == key.qpn)
                || (channel.key.src == key.dst
                    && channel.response_qpn.is_none_or(|qpn| qpn == key.qpn))
        };
        let mut between = connected().filter(|channel| is_host(channel)).peekable();
        if between.peek().is_some() && !between.any(has_qp) {
            out.add(RuleId::CnpUnknown, *place, || {
                format!(
                    "a CNP to QP {} of {}, of which no other packet was captured",
                    key.qpn, key.dst
                )
            });
        }
    }
}

/// Reports that the capture, or the chosen part of it, has no packet to judge.
pub(super) fn nothing(report: &mut Report) {
    let place = Place { packet: PacketRef { file: 0, number: 1 }, at: report.first_at, flow: None };
    let (frames, packets) = (report.frames, report.packets);
    report.findings.add(RuleId::Nothing, place, || {
        format!(
            "nothing to judge: of {frames} frames {packets} are RoCE packets, none of them of a \
             chosen flow"
        )
    });
}
