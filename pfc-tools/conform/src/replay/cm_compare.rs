//! Compares a message of the engine's communication management with a captured one.

use feroce_wire::cm::{CmMad, CmMessage, RejectReason};

use super::tolerance::Tolerance;

/// Compares `ours` with `theirs`. Fields that each end chooses may differ: timeouts and retries of
/// communication management, fields of the path that RoCE does not use, the transaction ID where
/// the played end has started the exchange (`chooses_transaction`).
///
/// # Errors
/// The difference in words.
pub fn compare_mads(
    ours: CmMad,
    theirs: &CmMad,
    chooses_transaction: bool,
) -> Result<Vec<Tolerance>, String> {
    let mut tolerated = ours;
    let mut used = Vec::new();
    if chooses_transaction && ours.transaction != theirs.transaction {
        tolerated.transaction = theirs.transaction;
        used.push(Tolerance::CmTransaction);
    }
    tolerate(&mut tolerated.message, &theirs.message, &mut used);
    let [own, other] = [&tolerated, theirs].map(CmMad::to_bytes);
    match own.iter().zip(&other).position(|(a, b)| a != b) {
        None => Ok(used),
        Some(at) => {
            let [own, other] = [ours.message, theirs.message].map(|message| words(&message));
            Err(format!("bytes differ from {at} on: ours {own}, captured {other}"))
        }
    }
}

/// Replaces each of `pairs`' first values by the second one. Returns true if any differs.
macro_rules! same {
    ($ours:ident, $theirs:ident: $($field:ident),+) => {{
        let differs = $($ours.$field != $theirs.$field)||+;
        $($ours.$field = $theirs.$field;)+
        differs
    }};
}

fn tolerate(ours: &mut CmMessage, theirs: &CmMessage, used: &mut Vec<Tolerance>) {
    let (timeouts, path, information) = match (ours, theirs) {
        (CmMessage::Req(ours), CmMessage::Req(theirs)) => (
            same!(ours, theirs: remote_response_timeout, local_response_timeout, max_cm_retries,
                primary_ack_timeout),
            same!(ours, theirs: primary_local_lid, primary_remote_lid, primary_flow_label,
                primary_packet_rate, primary_sl, primary_subnet_local),
            false,
        ),
        (CmMessage::Rep(ours), CmMessage::Rep(theirs)) => {
            (same!(ours, theirs: target_ack_delay), false, false)
        }
        (CmMessage::Mra(ours), CmMessage::Mra(theirs)) => {
            (same!(ours, theirs: service_timeout), false, false)
        }
        (CmMessage::Rej(ours), CmMessage::Rej(theirs)) if ours.reason != RejectReason::TIMEOUT => {
            (false, false, same!(ours, theirs: info, info_length))
        }
        _ => (false, false, false),
    };
    let differing = [
        (timeouts, Tolerance::CmTimeouts),
        (path, Tolerance::CmPath),
        (information, Tolerance::CmInformation),
    ];
    used.extend(differing.into_iter().filter(|(differs, _)| *differs).map(|(_, why)| why));
}

/// Describes a message in words: its name, and its reason or status.
pub fn words(message: &CmMessage) -> String {
    let name = message.name().to_uppercase();
    match message {
        CmMessage::Rej(rej) => format!("{name} with reason {}", rej.reason.0),
        CmMessage::SidrRep(rep) => format!("SIDR_REP with status {}", rep.status.0),
        CmMessage::SidrReq(_) => "SIDR_REQ".to_owned(),
        _ => name,
    }
}
