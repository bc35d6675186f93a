//! Checks by independent decoders: scapy recomputes the ICRC of each frame, tshark reports
//! malformed frames.

use std::path::Path;
use std::process::Command;

use feroce_conform::endpoint::{Failure, failed};

/// Display filter for RoCE frames that tshark must not find. A UDP checksum of 0 over IPv6 is
/// required by RoCEv2.
const MALFORMED: &str = "!infiniband.bth || _ws.malformed || \
                          (_ws.expert.severity == error && !udp.checksum.zero)";

/// Returns the numbers, from 1, of the frames that match `MALFORMED`.
///
/// # Errors
/// If the program does not run.
pub fn tshark(capture: &Path) -> Result<Vec<usize>, Failure> {
    // tshark guesses that payloads are RPC over RDMA and reports short ones as malformed.
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-r"])
        .arg(capture)
        .args(["-Y", MALFORMED, "-T", "fields", "-e", "frame.number"])
        .output();
    let output = output.map_err(failed("run tshark"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(Failure(format!("tshark: {}", stderr.trim())));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// Returns how many frames of a capture tshark and scapy recognize as CNPs.
///
/// # Errors
/// If one of the programs does not run.
pub fn cnps(python: &str, capture: &Path) -> Result<[usize; 2], Failure> {
    const CNP: &str = "infiniband.bth.opcode == 0x81 && infiniband.bth.destqp && !_ws.malformed";
    const COUNT: &str = "import sys; from scapy.all import rdpcap; from scapy.contrib import roce; \
                         print(sum(roce.CNPPadding in p and p[roce.BTH].becn == 1 \
                         for p in rdpcap(sys.argv[1])))";
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-Y", CNP, "-T", "fields", "-e", "frame.number"]);
    let stdout = lines_of(&mut tshark)?;
    let mut scapy = Command::new(python);
    scapy.args(["-c", COUNT]).arg(capture);
    let count = lines_of(&mut scapy)?.trim().parse().map_err(failed("read what scapy says"))?;
    Ok([stdout.lines().count(), count])
}

fn lines_of(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(failed("run a decoder"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Failure(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Result of the ICRC check by scapy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Icrcs {
    /// Number of RoCE frames.
    pub frames: usize,
    /// Number of RoCE frames with a wrong ICRC.
    pub wrong: usize,
    /// Numbers, from 1, of the first frames with a wrong ICRC.
    pub first: Vec<usize>,
}

/// Runs `scripts/icrc.py` on a capture of RoCE frames.
///
/// # Errors
/// If the program does not run.
pub fn scapy(python: &str, capture: &Path) -> Result<Icrcs, Failure> {
    let output = Command::new(python).arg("scripts/icrc.py").arg(capture).output();
    let output = output.map_err(failed("run scapy"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    parse(&stdout).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        Failure(format!("scapy: {} {}", stdout.trim(), error.trim()))
    })
}

/// Parses `scapy: 100 frames, 2 with another ICRC [3, 4]`.
fn parse(line: &str) -> Option<Icrcs> {
    let numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    let mut numbers = numbers.collect::<Vec<usize>>().into_iter();
    line.starts_with("scapy: ").then_some(())?;
    Some(Icrcs { frames: numbers.next()?, wrong: numbers.next()?, first: numbers.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scapy_result_is_parsed() {
        let none = parse("scapy: 100 frames, 0 with another ICRC \n");
        assert_eq!(none, Some(Icrcs { frames: 100, wrong: 0, first: vec![] }));
        let two = parse("scapy: 100 frames, 2 with another ICRC [3, 40]\n");
        assert_eq!(two, Some(Icrcs { frames: 100, wrong: 2, first: vec![3, 40] }));
        assert_eq!(parse("Traceback (most recent call last): line 12, line 40"), None);
    }
}
