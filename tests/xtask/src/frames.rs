//! Checks of captures by independent decoders: tshark and scapy.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::process::output;
use crate::setup::{Work, build, built, need_packages, need_scapy};

/// Display filter for frames that tshark must not find. tshark parses beyond the end of UD
/// datagrams without payload: datagrams of up to 36 bytes of UDP are left to scapy. RoCEv2 requires
/// a UDP checksum of 0 over IPv6.
const BAD: &str = "(_ws.malformed || (_ws.expert.severity == error && !udp.checksum.zero)) \
                   && !(infiniband.deth && udp.length <= 36)";

/// Checks that the capture has at least `count` frames, that tshark reports none of them as
/// malformed, and that scapy computes the ICRC of each. Returns true if all holds, and a report.
pub fn judge(capture: &Path, count: usize, python: &str) -> Result<(bool, String)> {
    let total = frames(capture, None)?;
    let roce = frames(capture, Some("infiniband.bth"))?;
    let bad = frames(capture, Some(BAD))?;
    let mut report = format!("tshark: {total} frames, {roce} RoCE, {bad} malformed or in error");
    if total < count {
        report += &format!("\n{count} frames were expected, {total} are there");
    } else if roce != total {
        report += &format!("\n{} frames are not RoCE to tshark", total - roce);
    } else if bad > 0 {
        report += &format!("\ntshark finds {bad} frames malformed or in error");
    } else {
        let icrc = Command::new(python).arg("scripts/icrc.py").arg(capture).output()?;
        report += &format!("\n{}", String::from_utf8_lossy(&icrc.stdout).trim_end());
        return Ok((icrc.status.success(), report));
    }
    Ok((false, report))
}

/// Returns the number of frames that pass the display filter. RPC over RDMA is disabled: tshark
/// mistakes payloads for it and then reports short SENDs as malformed, even those of rxe.
fn frames(capture: &Path, filter: Option<&str>) -> Result<usize> {
    let mut command = Command::new("tshark");
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(capture);
    command.args(filter.iter().flat_map(|filter| ["-Y", filter]));
    Ok(output(&mut command)?.lines().count())
}

/// Makes `count` frames with the program `frames` and checks them.
pub fn run(count: usize) -> Result<u8> {
    need_packages(&["tshark"])?;
    let python = need_scapy()?;
    build(&["--bin", "frames"])?;
    let work = Work::new()?;
    let capture = work.file("frames.pcap");
    let mut command = Command::new(built().join("frames"));
    if crate::process::run(command.arg(&capture).arg(count.to_string()))? != 0 {
        return Ok(1);
    }
    let (ok, report) = judge(&capture, count, &python)?;
    println!("{report}");
    Ok(u8::from(!ok))
}
