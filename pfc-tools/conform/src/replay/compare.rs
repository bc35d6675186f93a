//! Compares one packet of the engine or a live peer with a captured one.

use feroce_wire::{Ecn, IpHeader, Ipv4Header, NakCode, Operation, Packet, Position, Syndrome};

use super::tolerance::{Tolerance, UsedTolerances};

/// Compares `ours` with `theirs`, the packet `number` of the capture. Where a tolerance applies,
/// our value is replaced by theirs; then all bytes must be equal. `is_peers` is true for a response
/// of a live peer. Returns a description of the differences.
pub fn compare(
    ours: &[u8],
    theirs: &[u8],
    number: u64,
    is_peers: bool,
    used: &mut UsedTolerances,
) -> Option<String> {
    let (mine, captured) = match (Packet::parse(ours, &[]), Packet::parse(theirs, &[])) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(error), _) | (_, Err(error)) => return Some(format!("does not parse: {error}")),
    };
    if !mine.icrc_valid() {
        return Some("the ICRC is wrong".to_owned());
    }
    let mut tolerated = mine;
    let mut tolerances = Vec::new();
    if is_peers {
        tolerate_peer(&mut tolerated, &captured, &mut tolerances);
    }
    tolerate_headers(&mut tolerated, &captured, &mut tolerances);
    tolerate_transport(&mut tolerated, &captured, &mut tolerances);
    let differences = differences(&tolerated, &captured);
    let [own, other] = [&tolerated, &captured].map(sealed_again);
    if differences.is_empty() && own != other {
        let at = own.iter().zip(&other).position(|(a, b)| a != b).unwrap_or(own.len());
        return Some(format!("bytes differ from {at} on: ours {mine}, captured {captured}"));
    }
    if !differences.is_empty() {
        return Some(format!("{}: ours {mine}, captured {captured}", differences.join(", ")));
    }
    tolerances.into_iter().for_each(|tolerance| used.count_use(tolerance, number));
    None
}

/// Applies the tolerances for a live peer, which has other settings and deviations than the
/// captured one.
fn tolerate_peer(response: &mut Packet<'_>, theirs: &Packet<'_>, used: &mut Vec<Tolerance>) {
    let settings = |packet: &Packet<'_>| (packet.ip.hop_limit(), packet.ip.traffic_class() >> 2);
    if settings(response) != settings(theirs) {
        used.push(Tolerance::PathSettings);
        let ecn = response.ip.traffic_class() & 3;
        let traffic_class = theirs.ip.traffic_class() & !3 | ecn;
        match &mut response.ip {
            IpHeader::V4(ip) => (ip.tos, ip.ttl) = (traffic_class, theirs.ip.hop_limit()),
            IpHeader::V6(ip) => {
                (ip.traffic_class, ip.hop_limit) = (traffic_class, theirs.ip.hop_limit());
            }
        }
    }
    if !response.bth.mig_req && theirs.bth.mig_req {
        used.push(Tolerance::MigReq);
        response.bth.mig_req = true;
    }
    if let (Some(aeth), Some(their)) = (&mut response.ext.aeth, theirs.ext.aeth) {
        // The MSN itself is checked in `peer_rules`.
        if aeth.msn != their.msn {
            used.push(Tolerance::MsnAhead);
            aeth.msn = their.msn;
        }
    }
}

fn tolerate_headers<'a>(ours: &mut Packet<'a>, theirs: &Packet<'a>, used: &mut Vec<Tolerance>) {
    let mut tolerate = |tolerance, occurs: bool| {
        if occurs {
            used.push(tolerance);
        }
        occurs
    };
    let ecn = Ecn::from_traffic_class(theirs.ip.traffic_class());
    let same_dscp = ours.ip.traffic_class() >> 2 == theirs.ip.traffic_class() >> 2;
    if tolerate(Tolerance::Ecn, same_dscp && ecn != ours.ip.ecn()) {
        match (&mut ours.ip, &theirs.ip) {
            (IpHeader::V4(ip), IpHeader::V4(their)) => ip.tos = their.tos,
            (IpHeader::V6(ip), IpHeader::V6(their)) => ip.traffic_class = their.traffic_class,
            _ => {}
        }
    }
    match (&mut ours.ip, &theirs.ip) {
        (IpHeader::V4(ip), IpHeader::V4(their)) => {
            if tolerate(Tolerance::Ipv4Id, ip.identification != their.identification) {
                ip.identification = their.identification;
            }
            ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
        }
        (IpHeader::V6(ip), IpHeader::V6(their))
            if tolerate(Tolerance::FlowLabel, ip.flow_label != their.flow_label) =>
        {
            ip.flow_label = their.flow_label;
        }
        _ => {}
    }
    let other_port = ours.udp.src_port != theirs.udp.src_port;
    if tolerate(Tolerance::SourcePort, theirs.info.is_response() && other_port) {
        ours.udp.src_port = theirs.udp.src_port;
    }
    ours.trailer = theirs.trailer; // Padding of short frames.
}

fn tolerate_transport(ours: &mut Packet<'_>, theirs: &Packet<'_>, used: &mut Vec<Tolerance>) {
    let mut tolerate = |tolerance, occurs: bool| {
        if occurs {
            used.push(tolerance);
        }
        occurs
    };
    if tolerate(Tolerance::MigReq, ours.bth.mig_req && !theirs.bth.mig_req) {
        ours.bth.mig_req = false;
    }
    let reserved = |packet: &Packet<'_>| (packet.bth.reserved6, packet.bth.reserved7);
    if tolerate(Tolerance::ReservedBits, reserved(ours) != reserved(theirs)) {
        (ours.bth.reserved6, ours.bth.reserved7) = reserved(theirs);
    }
    let differs = theirs.info.is_request() && ours.bth.ack_req != theirs.bth.ack_req;
    if tolerate(Tolerance::AckRequest, differs) {
        ours.bth.ack_req = theirs.bth.ack_req;
    }
    if let (Some(eth), Some(their)) = (&mut ours.ext.atomic_eth, theirs.ext.atomic_eth) {
        let unused = theirs.info.operation == Operation::FetchAdd && eth.compare != their.compare;
        if tolerate(Tolerance::UnusedOperand, unused) {
            eth.compare = their.compare;
        }
    }
    let resumed = match (ours.info.position, theirs.info.position) {
        (Position::First, Position::Middle) | (Position::Only, Position::Last) => {
            ours.info.operation == Operation::ReadResponse
                && theirs.info.operation == Operation::ReadResponse
        }
        _ => false,
    };
    if tolerate(Tolerance::ReadResumed, resumed) {
        ours.bth.opcode = theirs.bth.opcode;
        ours.ext.aeth = ours.ext.aeth.filter(|_| theirs.ext.aeth.is_some());
        ours.udp.length = theirs.udp.length;
        match (&mut ours.ip, &theirs.ip) {
            (IpHeader::V4(ip), IpHeader::V4(their)) => {
                ip.total_length = their.total_length;
                ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
            }
            (IpHeader::V6(ip), IpHeader::V6(their)) => ip.payload_length = their.payload_length,
            _ => {}
        }
    }
    let (Some(aeth), Some(their)) = (&mut ours.ext.aeth, theirs.ext.aeth) else { return };
    match (aeth.syndrome, their.syndrome) {
        (Syndrome::Ack(own), Syndrome::Ack(other)) => {
            if tolerate(Tolerance::Credits, own != other) {
                aeth.syndrome = their.syndrome;
            }
        }
        codes => {
            let length_error =
                (Syndrome::Nak(NakCode::InvalidRequest), Syndrome::Nak(NakCode::RemoteOperational));
            if tolerate(Tolerance::LengthErrorCode, codes == length_error) {
                aeth.syndrome = their.syndrome;
            }
        }
    }
    let before_first = their.msn.value() == 0 && theirs.bth.psn.value() == 0xff_ffff;
    if tolerate(Tolerance::AckBeforeFirst, before_first && ours.bth.psn != theirs.bth.psn) {
        ours.bth.psn = theirs.bth.psn;
    }
}

/// Returns the names of the fields that differ.
fn differences(ours: &Packet<'_>, theirs: &Packet<'_>) -> Vec<&'static str> {
    let (a, b) = (&ours.bth, &theirs.bth);
    let syndromes = [ours, theirs].map(|packet| packet.ext.aeth.map(|aeth| aeth.syndrome));
    let msns = [ours, theirs].map(|packet| packet.ext.aeth.map(|aeth| aeth.msn));
    let payloads = [ours, theirs].map(|packet| packet.payload.slices().concat());
    let fields = [
        ("opcode", a.opcode != b.opcode),
        ("PSN", a.psn != b.psn),
        ("destination QP", a.dest_qp != b.dest_qp),
        ("P_Key", a.pkey != b.pkey),
        ("solicited event", a.solicited != b.solicited),
        ("acknowledge request", a.ack_req != b.ack_req),
        ("pad count", a.pad != b.pad),
        ("MigReq", a.mig_req != b.mig_req),
        ("syndrome", syndromes[0] != syndromes[1]),
        ("MSN", msns[0] != msns[1]),
        ("RETH", ours.ext.reth != theirs.ext.reth),
        ("AtomicETH", ours.ext.atomic_eth != theirs.ext.atomic_eth),
        ("atomic value", ours.ext.atomic_ack != theirs.ext.atomic_ack),
        ("immediate data", ours.ext.imm != theirs.ext.imm),
        ("key to invalidate", ours.ext.ieth != theirs.ext.ieth),
        ("Q_Key or source QP", ours.ext.deth != theirs.ext.deth),
        ("payload", payloads[0] != payloads[1]),
        ("IP addresses", (ours.ip.src(), ours.ip.dst()) != (theirs.ip.src(), theirs.ip.dst())),
        ("hop limit", ours.ip.hop_limit() != theirs.ip.hop_limit()),
        ("traffic class", ours.ip.traffic_class() != theirs.ip.traffic_class()),
        ("UDP source port", ours.udp.src_port != theirs.udp.src_port),
        (
            "Ethernet addresses or VLAN",
            (ours.ethernet, ours.vlan) != (theirs.ethernet, theirs.vlan),
        ),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Returns the bytes of `packet` with a recomputed ICRC.
pub fn sealed_again(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.frame_len()];
    if packet.emit(&mut bytes).is_err() {
        return Vec::new();
    }
    let Ok(icrc) = Packet::parse(&bytes, &[]).map(|packet| packet.computed_icrc()) else {
        return Vec::new();
    };
    let at = bytes.len() - packet.trailer.len() - 4;
    bytes[at..at + 4].copy_from_slice(&icrc.to_le_bytes());
    bytes
}
