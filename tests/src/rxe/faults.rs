//! Network faults: nft on the bridge drops and marks frames; netem in the guest duplicates,
//! reorders and corrupts them.

use std::io::Write;
use std::process::{Command, Stdio};

use feroce_conform::endpoint::agent::RxeEnd;
use feroce_conform::endpoint::plan::{Op, Request};
use feroce_conform::endpoint::{Failure, failed};

use super::case::{Case, Fault, Role};

const LOSS: &str = include_str!("../../rxe/loss.nft");
const CUT: &str = include_str!("../../rxe/cut.nft");
const MARK: &str = include_str!("../../rxe/mark.nft");

/// netem options for the frames that leave the guest: for many frames, and for a few frames that
/// are only acknowledgements.
const NETEM: [(Fault, &str, &str); 3] = [
    (Fault::Duplicated, "duplicate 20%", "duplicate 50%"),
    // One frame in ten is delayed by 1 ms, so later ones overtake it.
    (Fault::Reordered, "delay 1ms reorder 90%", "delay 10ms reorder 50%"),
    (Fault::Corrupted, "corrupt 10%", "corrupt 40%"),
];

/// netem acts at random. Cases with fewer packets than this may see no fault, so they run several
/// times.
const ENOUGH_PACKETS: u32 = 100;
const ROUNDS_WITH_FEW_PACKETS: usize = 4;
/// Maximum number of runs of a case until its fault is observed.
pub const MAX_ROUNDS: usize = 40;

/// Access to the places where faults are made.
#[derive(Debug)]
pub struct Network {
    /// Network namespace of the bridge.
    pub switch: String,
}

impl Network {
    /// Starts the fault of `case`, if it has one.
    ///
    /// # Errors
    /// If nft or tc fails.
    pub fn begin(&self, case: &Case, guest: &mut RxeEnd) -> Result<(), Failure> {
        if case.fault.is_none() {
            return Ok(());
        }
        match netem(case) {
            Some(options) => guest.shell(&format!("tc qdisc add dev data root netem {options}")),
            None if case.fault == Some(Fault::Marked) => self.nft(&["-f", "-"], MARK).map(drop),
            None => self.nft(&["-f", "-"], LOSS).map(drop),
        }
    }

    /// Ends the fault. Returns how many frames were dropped or marked, if the bridge counted them.
    ///
    /// # Errors
    /// If nft or tc fails.
    pub fn end(&self, case: &Case, guest: &mut RxeEnd) -> Result<Option<u64>, Failure> {
        if case.fault.is_none() {
            return Ok(None);
        }
        if netem(case).is_some() {
            guest.shell("tc qdisc del dev data root")?;
            return Ok(None);
        }
        let listed = self.nft(&["list", "table", "bridge", "loss"], "")?;
        self.nft(&["delete", "table", "bridge", "loss"], "")?;
        let counts = listed.split("packets ").skip(1);
        Ok(Some(counts.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()))
    }

    /// Cuts the network: the bridge drops all RoCE frames until the returned guard is dropped.
    ///
    /// # Errors
    /// If nft fails.
    pub fn cut(&self) -> Result<Cut<'_>, Failure> {
        self.nft(&["-f", "-"], CUT)?;
        Ok(Cut(self))
    }

    fn nft(&self, arguments: &[&str], input: &str) -> Result<String, Failure> {
        let run = || {
            let mut child = Command::new("nsenter")
                .arg(format!("--net=/run/netns/{}", self.switch))
                .arg("nft")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            child.stdin.take().expect("piped").write_all(input.as_bytes())?;
            child.wait_with_output()
        };
        let output = run().map_err(failed::<std::io::Error>("run nft"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Failure(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }
}

/// Guard of a cut network.
#[derive(Debug)]
pub struct Cut<'a>(&'a Network);

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.0.nft(&["delete", "table", "bridge", "cut"], "") {
            eprintln!("rxe: {failure}");
        }
    }
}

/// Returns the minimum number of runs of `case`, so that its fault is likely to happen.
pub fn rounds(case: &Case) -> usize {
    let from_guest = |request: &&Request| {
        case.role.pick(request.op == Op::Read, request.op != Op::Read && !request.op.is_atomic())
    };
    let bytes: u32 = case.plan.requests.iter().filter(from_guest).map(|request| request.len).sum();
    let is_few = bytes / case.mtu.bytes() < ENOUGH_PACKETS;
    if netem(case).is_some() && is_few { ROUNDS_WITH_FEW_PACKETS } else { 1 }
}

/// Returns the netem options for the fault of `case`, if netem makes it.
fn netem(case: &Case) -> Option<&'static str> {
    let (_, many, few) = NETEM.iter().find(|(known, ..)| Some(*known) == case.fault)?;
    Some(if sends_only_acknowledgements(case) { few } else { many })
}

/// Returns true if rxe sends only acknowledgements in `case`.
fn sends_only_acknowledgements(case: &Case) -> bool {
    let has_data_response = |request: &Request| request.op == Op::Read || request.op.is_atomic();
    case.role == Role::Requester && !case.plan.requests.iter().any(has_data_response)
}
