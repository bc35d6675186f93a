//! Checks the frames that Feroce's port captured during a case, and searches them for known
//! deviations of rxe.

use std::collections::BTreeMap;
use std::fmt;

use feroce_conform::capture_file::Frame;
use feroce_wire::{IpHeader, NakCode, Opcode, Operation, Packet, Psn, Syndrome};

use super::case::{Case, Fault};

/// A known deviation of rxe from the specification. The suite expects it and reports where it was
/// seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deviation {
    /// MigReq is 0 in every packet.
    MigReq,
    /// After an RNR NAK, rxe sends a NAK (PSN sequence error) for the same packet when the next
    /// packet of the message arrives.
    NakBehindRnrNak,
    /// rxe refuses a message that is longer than its receive with "remote operational error".
    LengthErrorCode,
    /// rxe acknowledges a duplicate that arrives before any request with the PSN 0xffffff.
    AckBeforeFirst,
    /// rxe never sends a fenced request although the response to the READ or atomic before it has
    /// arrived. In Linux 6.1, `req_next_wqe` compares the queue's indices before it sets
    /// `wait_fence`; a completion between the two does not wake the requester.
    FenceStall,
}

/// Description of each deviation, and what the specification requires.
const DEVIATIONS: [(Deviation, &str); 5] = [
    (Deviation::MigReq, "MigReq is 0 in every packet; it must be 1 for a path that never migrates"),
    (
        Deviation::NakBehindRnrNak,
        "NAK (PSN sequence) after an RNR NAK for the same packet; one NAK per gap is allowed",
    ),
    (
        Deviation::LengthErrorCode,
        "NAK (remote operational) if a message exceeds its receive; (invalid request) required",
    ),
    (
        Deviation::AckBeforeFirst,
        "duplicates before the first packet acknowledged with PSN 0xffffff; newest PSN required",
    ),
    (
        Deviation::FenceStall,
        "no fenced request after the response it waits for; the case is played once more",
    ),
];

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = DEVIATIONS.iter().find(|(known, _)| known == self).map_or("", |(_, text)| text);
        f.pad(text)
    }
}

/// Returns true for RoCE frames: UDP to port 4791 over IPv6, or over IPv4 without options.
fn is_roce(frame: &Frame) -> bool {
    let word =
        |at: usize| Some(u16::from_be_bytes([*frame.bytes.get(at)?, *frame.bytes.get(at + 1)?]));
    let (protocol, port) = match word(12) {
        Some(0x0800) => (frame.bytes.get(23), word(36)),
        Some(0x86dd) => (frame.bytes.get(20), word(56)),
        _ => return false,
    };
    protocol == Some(&17) && port == Some(4791)
}

/// Result of the checks of one case.
#[derive(Debug, Default)]
pub struct CaptureFindings {
    /// Indices of the RoCE frames that must be valid.
    pub must_be_valid: Vec<usize>,
    /// Indices of the RoCE frames that the network may have corrupted.
    pub may_be_corrupted: Vec<usize>,
    /// First frame that shows each deviation: its number, from 1, and its text.
    pub deviations: BTreeMap<Deviation, (usize, String)>,
    /// Indices of the CNPs that Feroce sent.
    pub cnps: Vec<usize>,
    /// Errors.
    pub errors: Vec<String>,
    /// Number of frames that the network corrupted.
    corrupted: usize,
    /// Number of duplicated frames from rxe, recognized by their IPv4 IDs.
    duplicated: usize,
    /// Number of frames from rxe that arrived after a later one, recognized by their IPv4 IDs.
    overtaken: usize,
}

/// UDP source ports that Feroce's port can send from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePorts {
    /// Any port.
    Any,
    /// Ports of sockets, and so not port 0, from which a ConnectX sends CNPs.
    OfSockets,
}

/// Checks all frames of `case`. Feroce sends from `own_mac` and from `source_ports`.
pub fn check_frames(
    case: &Case,
    frames: &[Frame],
    own_mac: [u8; 6],
    source_ports: SourcePorts,
) -> CaptureFindings {
    let mut findings = CaptureFindings::default();
    let mut search = DeviationSearch::default();
    for (index, frame) in frames.iter().enumerate().filter(|(_, frame)| is_roce(frame)) {
        let from_feroce = frame.bytes[6..12] == own_mac;
        let suspect = case.fault == Some(Fault::Corrupted) && !from_feroce;
        if suspect {
            findings.may_be_corrupted.push(index)
        } else {
            findings.must_be_valid.push(index)
        }
        let packet = Packet::parse(&frame.bytes, &[]);
        let wrong = match &packet {
            Ok(packet) => packet.verify_icrc().err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        match (wrong, packet) {
            (Some(_), _) if suspect => findings.corrupted += 1,
            (Some(wrong), _) => findings.errors.push(format!("frame {}: {wrong}", index + 1)),
            (None, Ok(packet)) if from_feroce && packet.bth.opcode == Opcode::CNP => {
                findings.cnps.push(index);
                let different = difference_from_connectx(&packet, source_ports);
                findings
                    .errors
                    .extend(different.map(|text| format!("frame {}: {text}", index + 1)));
            }
            (None, Ok(packet)) if from_feroce && has_map(&packet) => {
                let text = "the acknowledgement has the map of selective repeat";
                findings.errors.push(format!("frame {}: {text}", index + 1));
            }
            (None, Ok(packet)) if !from_feroce => search.inspect(index + 1, &packet, &mut findings),
            _ => {}
        }
    }
    if findings.must_be_valid.is_empty() && findings.may_be_corrupted.is_empty() {
        findings.errors.push("no RoCE frame was captured".into());
    }
    findings.require_visible_fault(case);
    findings
}

/// Returns the number, from 1, and the text of the last of `frames` if rxe is silent at a fence
/// ([`Deviation::FenceStall`]): Feroce, at `own_mac`, completed the response to a READ or atomic,
/// and no frame follows.
pub fn fence_stall(frames: &[Frame], own_mac: [u8; 6]) -> Option<(usize, String)> {
    let last = frames.iter().rposition(is_roce)?;
    let packet = Packet::parse(&frames[last].bytes, &[]).ok()?;
    let answered = matches!(
        packet.bth.opcode,
        Opcode::RC_READ_RESPONSE_LAST
            | Opcode::RC_READ_RESPONSE_ONLY
            | Opcode::RC_ATOMIC_ACKNOWLEDGE
    );
    let from_feroce = packet.ethernet.src.0 == own_mac;
    (from_feroce && answered).then(|| (last + 1, packet.to_string()))
}

/// Returns true for an acknowledgement with a payload: the map of a peer with selective repeat.
fn has_map(packet: &Packet<'_>) -> bool {
    packet.info.operation == Operation::Acknowledge && !packet.payload.is_empty()
}

/// Compares a CNP with one of a ConnectX, apart from addresses, QP, IPv4 ID and checksums, and from
/// the source port if Feroce cannot send from that of a ConnectX. Returns the difference, if any.
fn difference_from_connectx(packet: &Packet<'_>, source_ports: SourcePorts) -> Option<String> {
    const CAPTURED: &[u8] = include_bytes!("../../captures/hardware/connectx4lx_cnp.pcap");
    // One frame, after the file header and the record header.
    let model = Packet::parse(&CAPTURED[24 + 16..], &[]).expect("a frame of the captures");
    let mut same = model;
    same.ethernet.dst = packet.ethernet.dst;
    same.ethernet.src = packet.ethernet.src;
    if let (IpHeader::V4(same), IpHeader::V4(ip)) = (&mut same.ip, &packet.ip) {
        (same.src, same.dst) = (ip.src, ip.dst);
        (same.identification, same.checksum) = (ip.identification, ip.checksum);
    }
    if source_ports == SourcePorts::OfSockets && packet.udp.src_port != 0 {
        same.udp.src_port = packet.udp.src_port;
    }
    same.bth.dest_qp = packet.bth.dest_qp;
    same.icrc = packet.icrc;
    let written = |packet: &Packet<'_>| {
        let mut out = vec![0; packet.frame_len()];
        packet.emit(&mut out).map(|_| out)
    };
    let (expected, found) = (written(&same), written(packet));
    (expected != found).then(|| format!("CNP {found:02x?}, a ConnectX sends {expected:02x?}"))
}

impl CaptureFindings {
    /// Reports an error if no frame shows the fault of `case`: such a run proves nothing.
    fn require_visible_fault(&mut self, case: &Case) {
        // IPv6 has no packet IDs.
        let ipv4 = case.family == feroce_conform::endpoint::plan::Family::V4;
        let (what, count) = match case.fault {
            Some(Fault::Duplicated) if ipv4 => ("duplicated", self.duplicated),
            Some(Fault::Reordered) if ipv4 => ("overtaken", self.overtaken),
            Some(Fault::Corrupted) => ("corrupted", self.corrupted),
            Some(Fault::Marked) => ("answered with a CNP", self.cnps.len()),
            _ => return,
        };
        if count == 0 {
            self.errors.push(format!("no frame was {what}"));
        }
    }
}

/// State of the search for deviations in the packets of rxe.
#[derive(Debug, Default)]
struct DeviationSearch {
    /// IPv4 ID of the newest frame.
    newest_id: Option<u16>,
    /// PSN of the last RNR NAK, until an ACK follows.
    rnr_nak: Option<Psn>,
}

impl DeviationSearch {
    fn inspect(&mut self, number: usize, packet: &Packet<'_>, findings: &mut CaptureFindings) {
        self.count_by_ipv4_id(packet, findings);
        let mut record_if = |deviation: Deviation, is_shown: bool| {
            if is_shown {
                let text = || (number, packet.to_string());
                findings.deviations.entry(deviation).or_insert_with(text);
            }
        };
        record_if(Deviation::MigReq, !packet.bth.mig_req);
        let Some(aeth) = packet.ext.aeth else { return };
        let psn = packet.bth.psn;
        match aeth.syndrome {
            Syndrome::RnrNak(_) => self.rnr_nak = Some(psn),
            Syndrome::Nak(NakCode::PsnSequence) => {
                record_if(Deviation::NakBehindRnrNak, self.rnr_nak == Some(psn));
            }
            Syndrome::Nak(code) => {
                record_if(Deviation::LengthErrorCode, code == NakCode::RemoteOperational);
            }
            _ => {
                self.rnr_nak = None;
                let nothing_received = aeth.msn.value() == 0 && psn == Psn::new(0).prev();
                let ack = packet.bth.opcode == Opcode::RC_ACKNOWLEDGE;
                record_if(Deviation::AckBeforeFirst, ack && nothing_received);
            }
        }
    }

    fn count_by_ipv4_id(&mut self, packet: &Packet<'_>, findings: &mut CaptureFindings) {
        let feroce_wire::IpHeader::V4(ip) = packet.ip else { return };
        let ahead = self.newest_id.map_or(1, |newest| ip.identification.wrapping_sub(newest));
        match ahead {
            0 => findings.duplicated += 1,
            1..0x8000 => self.newest_id = Some(ip.identification),
            _ => findings.overtaken += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{capture, rxe::cases};

    /// Requester of the captures. Here it takes the place of Feroce, so the responder's frames are
    /// searched.
    const REQUESTER: [u8; 6] = [0x02, 0x77, 0x00, 0x00, 0x01, 0x42];
    const ANY_PORT: SourcePorts = SourcePorts::Any;

    fn frames(file: &str) -> Vec<Frame> {
        let frames = capture::read(file);
        frames.into_iter().map(|frame| Frame { at: Duration::ZERO, bytes: frame.bytes }).collect()
    }

    #[test]
    fn deviations_are_found_where_captures_show_them() {
        let case = &cases::cases()[0];
        let rows = [
            ("rxe/ops_zero_len.pcap.zst", vec![]),
            ("rxe/ops_rnr_late.pcap.zst", vec![Deviation::NakBehindRnrNak]),
            ("rxe/ops_rx_short.pcap.zst", vec![Deviation::LengthErrorCode]),
            ("rxe/ops_psn_mismatch.pcap.zst", vec![Deviation::AckBeforeFirst]),
        ];
        for (file, mut expected) in rows {
            let findings = check_frames(case, &frames(file), REQUESTER, ANY_PORT);
            expected.insert(0, Deviation::MigReq);
            assert_eq!(findings.deviations.into_keys().collect::<Vec<_>>(), expected, "{file}");
            assert_eq!(findings.errors, Vec::<String>::new(), "{file}");
        }
    }

    /// Here the responder of the captures takes the place of Feroce.
    #[test]
    fn a_capture_that_ends_with_an_answered_read_or_atomic_shows_a_stall_at_a_fence() {
        let rows = [
            ("rxe/ops_read_big.pcap.zst", Opcode::RC_READ_RESPONSE_LAST),
            ("rxe/atomic_fa_v4.pcap.zst", Opcode::RC_ATOMIC_ACKNOWLEDGE),
        ];
        for (file, opcode) in rows {
            let mut frames = frames(file);
            let is_response = |frame: &Frame| {
                Packet::parse(&frame.bytes, &[]).is_ok_and(|packet| packet.bth.opcode == opcode)
            };
            let end = frames.iter().position(is_response).expect("a response") + 1;
            frames.truncate(end);
            let feroce = Packet::parse(&frames[end - 1].bytes, &[]).expect("RoCE").ethernet.src.0;
            let (number, _) = fence_stall(&frames, feroce).expect("a stall");
            assert_eq!(number, end, "{file}");
            assert_eq!(fence_stall(&frames[..end - 1], feroce), None, "{file}: not answered");
            assert_eq!(fence_stall(&frames, [0; 6]), None, "{file}: rxe is the responder");
        }
    }

    #[test]
    fn a_case_without_roce_frames_is_an_error() {
        let case = &cases::cases()[0];
        let others = [Frame { at: Duration::ZERO, bytes: vec![0; 60] }];
        for frames in [&[][..], &others] {
            let errors = check_frames(case, frames, REQUESTER, ANY_PORT).errors;
            assert_eq!(errors, ["no RoCE frame was captured"]);
        }
    }

    #[test]
    fn a_wrong_icrc_is_an_error_unless_the_fault_corrupts_frames() {
        let cases = cases::cases();
        let mut frames = frames("rxe/ops_zero_len.pcap.zst");
        let find = |from_feroce| {
            let is_wanted =
                |frame: &Frame| (frame.bytes[6..12] == REQUESTER) == from_feroce && is_roce(frame);
            frames.iter().position(is_wanted).expect("both sides sent something")
        };
        let (request, response) = (find(true), find(false));
        *frames[response].bytes.last_mut().expect("not empty") ^= 1;
        let errors = check_frames(&cases[0], &frames, REQUESTER, ANY_PORT).errors;
        assert!(errors.len() == 1 && errors[0].starts_with(&format!("frame {}:", response + 1)));
        let corrupted = |case: &&Case| case.fault == Some(Fault::Corrupted);
        let case = cases.iter().find(corrupted).expect("in the table");
        let findings = check_frames(case, &frames, REQUESTER, ANY_PORT);
        assert_eq!((findings.errors.len(), findings.corrupted), (0, 1));
        *frames[request].bytes.last_mut().expect("not empty") ^= 1;
        assert_eq!(
            check_frames(case, &frames, REQUESTER, ANY_PORT).errors.len(),
            1,
            "frames from Feroce must always be valid"
        );
    }
}
