//! Stray packets: of another service than their QP, or far from the PSNs of their flow. And captures
//! without anything to judge.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::{Psn, Qpn};

use super::Report;
use super::connection_failure;
use super::findings::{Findings, Place};
use super::requester::hex;
use crate::flow::{Channel, Flows, Service};
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

/// Returns to the connection before a distant PSN, because it goes on, and reports the stray packet.
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
}

/// Reports packets of another service than their QP, and shows flows that only failed.
pub(super) fn end(flows: &mut Flows, out: &mut Findings) {
    let mut uses: BTreeMap<(u16, IpAddr, Qpn), Vec<Use>> = BTreeMap::new();
    for (flow, channel) in flows.all().iter().enumerate() {
        let (key, figures) = (channel.key, channel.figures);
        let Some(first) = channel.first else { continue };
        let packets = figures.requests + figures.responses;
        let one = Use {
            service: key.service,
            flow,
            first,
            first_at: figures.first_at,
            last_at: figures.last_at,
            packets,
        };
        let mut add = |host, qpn: Qpn| {
            if qpn > Qpn::GSI && qpn != Qpn::MULTICAST {
                uses.entry((key.tap, host, qpn)).or_default().push(one);
            }
        };
        add(key.dst, key.qpn);
        if let Some(qpn) = channel.response_qpn {
            add(key.src, qpn);
        }
    }
    for ((_, host, qpn), all) in &uses {
        // Most packets are of the service of the QP.
        let packets = |service: Service| -> u64 {
            all.iter().filter(|one| one.service == service).map(|one| one.packets).sum()
        };
        let rank = |one: &&Use| (packets(one.service), std::cmp::Reverse(one.first_at));
        let Some(main) = all.iter().max_by_key(rank) else { continue };
        for one in all.iter().filter(|one| one.service != main.service) {
            let overlaps = all.iter().filter(|other| other.service == main.service).any(|other| {
                one.first_at <= other.last_at.saturating_add(REUSE_TIME)
                    && other.first_at <= one.last_at.saturating_add(REUSE_TIME)
            });
            if !overlaps {
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
    for channel in flows.all_mut() {
        channel.is_merged &= channel.failed.is_none();
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
