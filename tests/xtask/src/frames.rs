//! Decoders of others judge captures: tshark and scapy.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::process::output;
use crate::setup::{Work, build, built, need_packages, need_scapy};

/// What tshark must not find. tshark reads on in UD datagrams that carry nothing: those of up to
/// 36 bytes of UDP are left to scapy. A UDP checksum of 0 over IPv6 is what RoCEv2 demands.
const BAD: &str = "(_ws.malformed || (_ws.expert.severity == error && !udp.checksum.zero)) \
                   && !(infiniband.deth && udp.length <= 36)";

/// Checks that tshark finds no frame malformed, and that scapy computes the ICRC of each frame; at
/// least `count` frames must be there. Returns whether that is so, and what was found.
pub fn judge(capture: &Path, count: usize, python: &str) -> Result<(bool, String)> {
    let total = frames(capture, None)?;
    let roce = frames(capture, Some("infiniband.bth"))?;
    let bad = frames(capture, Some(BAD))?;
    let mut told = format!("tshark: {total} frames, {roce} RoCE, {bad} malformed or in error");
    if total < count {
        told += &format!("\n{count} frames were expected, {total} are there");
    } else if roce != total {
        told += &format!("\n{} frames are not RoCE to tshark", total - roce);
    } else if bad > 0 {
        told += &format!("\ntshark finds {bad} frames malformed or in error");
    } else {
        let icrc = Command::new(python).arg("scripts/icrc.py").arg(capture).output()?;
        told += &format!("\n{}", String::from_utf8_lossy(&icrc.stdout).trim_end());
        return Ok((icrc.status.success(), told));
    }
    Ok((false, told))
}

/// How many frames pass the display filter. tshark guesses that payloads are RPC over RDMA and
/// calls short SENDs malformed then, also those of rxe: that protocol is disabled.
fn frames(capture: &Path, filter: Option<&str>) -> Result<usize> {
    let mut command = Command::new("tshark");
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(capture);
    command.args(filter.iter().flat_map(|filter| ["-Y", filter]));
    Ok(output(&mut command)?.lines().count())
}

/// Makes `count` frames with the program `frames` and judges them.
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
    let (ok, told) = judge(&capture, count, &python)?;
    println!("{told}");
    Ok(u8::from(!ok))
}
