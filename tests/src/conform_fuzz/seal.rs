//! Corrects lengths, checksums and ICRCs of mutated frames.

use feroce_pfc_tools::capture::Capture;
use feroce_wire::{Packet, ParseError};
use pcap_file::DataLink;

/// Maximum number of frames that are read of a capture.
const FRAMES: usize = 1 << 12;

/// Returns the Ethernet frames of `capture` up to the first read error, as a pcap file with
/// nanoseconds.
pub(super) fn sealed(mut capture: Capture) -> Vec<u8> {
    const MAGIC: u32 = 0xa1b2_3c4d;
    const SNAP_LEN: u32 = 1 << 18;
    let mut out: Vec<u8> = [MAGIC, 0x0004_0002, 0, 0, SNAP_LEN, u32::from(DataLink::ETHERNET)]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    for _ in 0..FRAMES {
        let Ok(Some(frame)) = capture.next_frame() else { break };
        if frame.link != DataLink::ETHERNET {
            continue;
        }
        let mut bytes = frame.bytes.to_vec();
        if bytes.len() >= frame.original_len as usize {
            seal(&mut bytes);
        }
        let nanos = frame.at % 1_000_000_000;
        let seconds = frame.at / 1_000_000_000;
        #[allow(clippy::cast_possible_truncation)] // A record has 32 bits for each field.
        let record = [seconds as u32, nanos as u32, bytes.len() as u32, frame.original_len];
        out.extend(record.into_iter().flat_map(u32::to_le_bytes));
        out.extend_from_slice(&bytes);
    }
    out
}

/// Sets lengths, IPv4 header checksum and ICRC to match the bytes. Does nothing if the frame is not
/// UDP over IP over Ethernet.
pub fn seal(frame: &mut [u8]) -> Option<()> {
    const IP: usize = 14;
    let ip_len = u16::try_from(frame.len().checked_sub(IP)?).ok()?;
    let udp_len = match frame.get(12..IP)? {
        [0x08, 0x00] => {
            put(frame, 16, ip_len)?;
            let udp_len = ip_len.checked_sub(20)?;
            put(frame, 38, udp_len)?;
            udp_len
        }
        [0x86, 0xdd] => {
            let udp_len = ip_len.checked_sub(40)?;
            put(frame, 18, udp_len)?;
            put(frame, 58, udp_len)?;
            udp_len
        }
        _ => return None,
    };
    if let Err(ParseError::IpChecksum { expected, .. }) = Packet::parse(frame, &[]) {
        put(frame, 24, expected)?;
    }
    let icrc = Packet::parse(frame, &[]).ok()?.computed_icrc();
    let at = frame.len().checked_sub(4).filter(|_| udp_len > 12)?;
    frame[at..].copy_from_slice(&icrc.to_le_bytes());
    Some(())
}

fn put(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    frame.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
