//! The live suite against Linux rxe, inside the namespaces that `scripts/rxe.sh` makes.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use feroce_conform::capture_file::{self, Frame};
use feroce_conform::endpoint::agent::RxeEnd;
use feroce_conform::endpoint::{Failure, failed, feroce};
use feroce_engine::congestion::Control;
use feroce_engine::counters::Counter;
use feroce_engine::device::{Device, DeviceConfig, PortKind};
use feroce_tests::rxe::capture_checks::{self, CaptureFindings, Deviation, SourcePorts};
use feroce_tests::rxe::case::{Case, Fault};
use feroce_tests::rxe::faults::{self, Network};
use feroce_tests::rxe::{cases, external_decoders, run_case};

const USAGE: &str = "usage: rxe --list [FILTER]
       rxe --port KIND --switch NAMESPACE --captures FOLDER --python PROGRAM [--keep] [--repeat N]
           [--skip-mtu] [--icrcs N] [FILTER]";
/// Feroce's interface.
const INTERFACE: &str = "v0";

/// Number of failures after which the other cases are not played: a case that hangs takes minutes.
const MOST_FAILURES: usize = 20;

/// The command line.
#[derive(Debug, Default)]
struct Options {
    list: bool,
    keep: bool,
    skip_mtu: bool,
    port: Option<PortKind>,
    switch: Option<String>,
    captures: Option<PathBuf>,
    python: Option<String>,
    repeat: Option<usize>,
    icrcs: Option<usize>,
    filter: String,
}

fn options() -> Option<Options> {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--keep" => options.keep = true,
            "--skip-mtu" => options.skip_mtu = true,
            "--port" => options.port = Some(args.next()?.parse().ok()?),
            "--switch" => options.switch = Some(args.next()?),
            "--captures" => options.captures = Some(args.next()?.into()),
            "--repeat" => options.repeat = Some(args.next()?.parse().ok()?),
            "--icrcs" => options.icrcs = Some(args.next()?.parse().ok().filter(|&n| n > 0)?),
            "--python" => options.python = Some(args.next()?),
            other if other.starts_with('-') || !options.filter.is_empty() => return None,
            _ => options.filter = arg,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut cases = cases::cases();
    cases.retain(|case| case.name.contains(&options.filter));
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    let Options { port: Some(port), switch: Some(switch), captures: Some(captures), .. } = options
    else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let count = cases.len() * options.repeat.unwrap_or(1);
    let cases: Vec<_> = cases.iter().cycle().take(count).collect();
    let python = options.python.unwrap_or_else(|| "python3".into());
    let Options { keep, skip_mtu, icrcs, .. } = options;
    let icrcs = icrcs.unwrap_or(usize::MAX);
    let suite = Suite { network: Network { switch }, captures, python, keep, skip_mtu, icrcs };
    match suite.run(&cases, port) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("rxe: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The set-up of a run.
struct Suite {
    network: Network,
    captures: PathBuf,
    python: String,
    keep: bool,
    /// Leave out cases whose path MTU is too large for the interface.
    skip_mtu: bool,
    /// Most frames of a case whose ICRC scapy computes.
    icrcs: usize,
}

/// A case that was played.
struct Played<'a> {
    case: &'a Case,
    began: Duration,
    took: Duration,
    result: Result<(), Failure>,
    /// Frames between the beginning of this case and that of the next one.
    frames: Vec<Frame>,
    findings: CaptureFindings,
}

impl Suite {
    /// Plays `cases`. Returns true if all passed.
    fn run(&self, cases: &[&Case], port: PortKind) -> Result<bool, Failure> {
        let start = Instant::now();
        let _ = std::fs::remove_dir_all(&self.captures);
        std::fs::create_dir_all(&self.captures).map_err(failed("make a folder"))?;
        // Congestion control is off, as by default, except where frames are marked.
        let is_marked = |case: &&&Case| case.fault == Some(Fault::Marked);
        let (marked, others): (Vec<&Case>, Vec<_>) = cases.iter().partition(is_marked);
        let mut played = Vec::new();
        for (cases, control) in [(others, Control::Off), (marked, Control::DCQCN)] {
            if !cases.is_empty() {
                played.extend(self.play_on_a_device(&cases, port, control)?);
            }
        }
        self.judge(&mut played)?;
        Ok(self.report(&played, cases.len(), start.elapsed()))
    }

    /// Plays `cases` on a new device.
    fn play_on_a_device<'a>(
        &self,
        cases: &[&'a Case],
        port: PortKind,
        control: Control,
    ) -> Result<Vec<Played<'a>>, Failure> {
        let whole = self.captures.join("whole.pcap");
        let file = File::create(&whole).map_err(failed(whole.display()))?;
        // Towards rxe, which has no selective repeat, not one bit may differ.
        let config = DeviceConfig { selective_repeat: true, ..feroce::config(port, control) };
        let device = feroce::open(INTERFACE, config, Some(file)).map_err(failed("open Feroce"))?;
        let attributes = device.attributes();
        println!("{} cases on {}", cases.len(), attributes.port);
        let fits = |case: &&&'a Case| attributes.active_mtu.is_some_and(|mtu| case.mtu <= mtu);
        let too_large = cases.iter().filter(|case| !fits(case)).count();
        if too_large > 0 && !self.skip_mtu {
            let mtu = attributes.active_mtu.map_or(0, |mtu| mtu.bytes());
            let reason = format!("{too_large} cases need a path MTU of more than {mtu} bytes");
            return Err(Failure(format!(
                "{reason}: enlarge the MTU of the interface, or skip these cases with --skip-mtu"
            )));
        }
        let mut operator = RxeEnd::new()?;
        let mut played = Vec::new();
        let mut failures = 0;
        for case in cases.iter().filter(fits) {
            let first: Played<'a> = self.play(case, &device, &mut operator);
            let stalled = first.result.is_err() && case.may_stall_at_fence();
            failures += usize::from(first.result.is_err());
            played.push(first);
            if stalled {
                played.push(self.play(case, &device, &mut operator));
            }
            if failures == MOST_FAILURES {
                println!("{MOST_FAILURES} cases failed: the others are not played");
                break;
            }
        }
        drop(device);
        let own_mac = own_mac()?;
        let source_ports = match port {
            PortKind::Udp => SourcePorts::OfSockets,
            _ => SourcePorts::Any,
        };
        self.sort_frames(&whole, &mut played, own_mac, source_ports)?;
        let _ = std::fs::remove_file(&whole);
        Ok(played)
    }

    fn play<'a>(&self, case: &'a Case, device: &Device, operator: &mut RxeEnd) -> Played<'a> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = Instant::now();
        let result = self.play_over_network(case, device, operator);
        let took = start.elapsed();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{verdict:6} {:6.2} s  {}", took.as_secs_f64(), case.name);
        if let Err(failure) = &result {
            println!("       {failure}");
        }
        let (frames, findings) = (Vec::new(), CaptureFindings::default());
        Played { case, began, took, result, frames, findings }
    }

    fn play_over_network(
        &self,
        case: &Case,
        device: &Device,
        operator: &mut RxeEnd,
    ) -> Result<(), Failure> {
        self.network.begin(case, operator)?;
        let result = self.play_until_fault(case, device);
        match self.network.end(case, operator)? {
            Some(0) => {
                result.and(Err(Failure("the bridge neither dropped nor marked a frame".into())))
            }
            _ => result,
        }
    }

    /// Plays `case` until its fault has occurred, at most [`faults::MAX_ROUNDS`] times.
    fn play_until_fault(&self, case: &Case, device: &Device) -> Result<(), Failure> {
        let icrc_errors = || device.counter(Counter::RxIcrcEncapsulated);
        let before = icrc_errors();
        for round in 1..=faults::MAX_ROUNDS {
            self.play_or_panic(case, device)?;
            let occurred = case.fault != Some(Fault::Corrupted) || icrc_errors() > before;
            if round >= faults::rounds(case) && occurred {
                break;
            }
        }
        Ok(()) // The checks of the capture report a fault that did not occur.
    }

    /// Plays `case` once. A panic fails the case, and the suite continues.
    fn play_or_panic(&self, case: &Case, device: &Device) -> Result<(), Failure> {
        let play = std::panic::AssertUnwindSafe(|| run_case::run(case, device, &self.network));
        std::panic::catch_unwind(play).unwrap_or_else(|_| Err(Failure("a panic, see above".into())))
    }

    /// Assigns each frame to its case, by time, and checks the frames, which a port with these
    /// source ports has sent.
    fn sort_frames(
        &self,
        whole: &Path,
        played: &mut [Played<'_>],
        own_mac: [u8; 6],
        source_ports: SourcePorts,
    ) -> Result<(), Failure> {
        for frame in capture_file::read(whole)? {
            let index = played.partition_point(|played| played.began <= frame.at);
            if let Some(index) = index.checked_sub(1) {
                played[index].frames.push(frame);
            }
        }
        for index in 0..played.len() {
            let passes_next = played.get(index + 1).is_some_and(|next| {
                next.result.is_ok() && next.case.name == played[index].case.name
            });
            let Played { case, frames, findings, result, .. } = &mut played[index];
            *findings = capture_checks::check_frames(case, frames, own_mac, source_ports);
            if result.is_err()
                && passes_next
                && case.may_stall_at_fence()
                && let Some(shown) = capture_checks::fence_stall(frames, own_mac)
            {
                findings.deviations.insert(Deviation::FenceStall, shown);
                *result = Ok(());
            }
        }
        Ok(())
    }

    /// Lets tshark check every frame, and scapy [`Self::icrcs`] of each case.
    fn judge(&self, played: &mut [Played<'_>]) -> Result<(), Failure> {
        let [right, suspect, sample] =
            ["right.pcap", "suspect.pcap", "sample.pcap"].map(|name| self.captures.join(name));
        let index_of = |pick: fn(&CaptureFindings) -> &[usize]| {
            let frames = |(case, played): (usize, &Played<'_>)| {
                pick(&played.findings).iter().map(move |&frame| (case, frame)).collect::<Vec<_>>()
            };
            played.iter().enumerate().flat_map(frames).collect::<Vec<_>>()
        };
        let frames_of = |index: &[(usize, usize)]| {
            index.iter().map(|&(case, frame)| &played[case].frames[frame]).collect::<Vec<_>>()
        };
        let all = index_of(|findings| &findings.must_be_valid);
        capture_file::write(&right, frames_of(&all))?;
        let sampled = sample_of(&all, self.icrcs);
        capture_file::write(&sample, frames_of(&sampled))?;
        let icrcs = external_decoders::scapy(&self.python, &sample)?;
        let malformed = external_decoders::tshark(&right)?;
        let doubtful = sample_of(&index_of(|findings| &findings.may_be_corrupted), self.icrcs);
        capture_file::write(&suspect, frames_of(&doubtful))?;
        let corrupted = if doubtful.is_empty() {
            None
        } else {
            Some(external_decoders::scapy(&self.python, &suspect)?)
        };
        println!(
            "scapy computes the ICRC of {} frames: {} wrong; tshark: {} of {} malformed",
            icrcs.frames,
            icrcs.wrong,
            malformed.len(),
            all.len()
        );
        if let Some(corrupted) = &corrupted {
            println!(
                "scapy, of frames that may be corrupted: {} of {} wrong",
                corrupted.wrong, corrupted.frames
            );
        }
        if icrcs.frames != sampled.len() {
            let (found, of) = (icrcs.frames, sampled.len());
            return Err(Failure(format!("scapy found {found} frames of {of}")));
        }
        if icrcs.wrong > icrcs.first.len() {
            println!("  of {} frames only the first {} are named", icrcs.wrong, icrcs.first.len());
        }
        let complaints = [
            ("scapy: another ICRC", &icrcs.first, &sampled),
            ("tshark: malformed", &malformed, &all),
        ];
        for (what, numbers, index) in complaints {
            for &number in numbers {
                let (case, frame) = index[number - 1];
                let complaint = format!("frame {}: {what}", frame + 1);
                played[case].findings.errors.push(complaint);
            }
        }
        self.judge_cnps(played, &right)?;
        [right, suspect, sample].iter().for_each(|file| drop(std::fs::remove_file(file)));
        Ok(())
    }

    /// Checks that scapy and tshark recognize every CNP that Feroce sent.
    fn judge_cnps(&self, played: &[Played<'_>], file: &Path) -> Result<(), Failure> {
        let cnps = |played: &'_ Played<'_>| {
            let frames = played.findings.cnps.iter().map(|&index| played.frames[index].clone());
            frames.collect::<Vec<_>>()
        };
        let sent: Vec<_> = played.iter().flat_map(cnps).collect();
        if sent.is_empty() {
            return Ok(());
        }
        capture_file::write(file, &sent)?;
        let [tshark, scapy] = external_decoders::cnps(&self.python, file)?;
        println!(
            "{} CNPs, all in the form of a ConnectX; tshark finds {tshark}, scapy {scapy}",
            sent.len()
        );
        match [tshark, scapy] == [sent.len(); 2] {
            true => Ok(()),
            false => Err(Failure("a decoder does not recognize every CNP".into())),
        }
    }

    /// Prints the results and saves the captures of failures and deviations. Returns true if all
    /// played cases passed.
    fn report(&self, played: &[Played<'_>], requested: usize, took: Duration) -> bool {
        let mut failed = 0;
        for played in played {
            let complaints = &played.findings.errors;
            let bad = played.result.is_err() || !complaints.is_empty();
            failed += usize::from(bad);
            for complaint in complaints {
                println!("FAILED {}: {complaint}", played.case.name);
            }
            if bad || self.keep {
                self.save(played);
            }
        }
        self.report_deviations(played);
        let frames: usize = played.iter().map(|played| played.frames.len()).sum();
        let slowest = played.iter().max_by_key(|played| played.took);
        if let Some(slowest) = slowest {
            println!("slowest: {}, {:.1} s", slowest.case.name, slowest.took.as_secs_f64());
        }
        println!(
            "{} cases passed, {failed} failed, {} not played, {frames} frames, {:.0} s",
            played.len() - failed,
            requested.saturating_sub(played.len()),
            took.as_secs_f64()
        );
        failed == 0 && !played.is_empty()
    }

    fn report_deviations(&self, played: &[Played<'_>]) {
        let mut found: BTreeMap<Deviation, (&Played<'_>, usize, &String, usize)> = BTreeMap::new();
        for played in played {
            for (&deviation, (number, text)) in &played.findings.deviations {
                found.entry(deviation).or_insert((played, *number, text, 0)).3 += 1;
            }
        }
        if !found.is_empty() {
            println!("deviations of rxe, each with the first packet that shows it:");
        }
        for (deviation, (played, number, text, count)) in found {
            println!("  {deviation}");
            println!(
                "    {} frame {number} (of {count} cases that show it): {text}",
                played.case.name
            );
            self.save(played);
        }
    }

    fn save(&self, played: &Played<'_>) {
        let name = format!("{}.pcap", played.case.name.replace('/', "_"));
        let path = self.captures.join(name);
        if let Err(failure) = capture_file::write(&path, &played.frames) {
            eprintln!("rxe: {failure}");
        }
    }
}

/// At most `most` frames of each case, evenly spaced.
fn sample_of(index: &[(usize, usize)], most: usize) -> Vec<(usize, usize)> {
    let cases = index.chunk_by(|a, b| a.0 == b.0);
    cases.flat_map(|case| case.iter().copied().step_by(case.len().div_ceil(most))).collect()
}

fn own_mac() -> Result<[u8; 6], Failure> {
    let path = format!("/sys/class/net/{INTERFACE}/address");
    let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
    let mac: feroce_wire::MacAddr = text.trim().parse().map_err(failed(&path))?;
    Ok(mac.0)
}

#[cfg(test)]
mod tests {
    use super::sample_of;

    #[test]
    fn a_sample_has_frames_of_every_case() {
        let index: Vec<_> = (0..100).map(|n| (3, n)).chain([(4, 0), (5, 0), (5, 1)]).collect();
        let few = [(3, 0), (3, 50), (4, 0), (5, 0), (5, 1)];
        assert_eq!(sample_of(&index, 2), few);
        assert_eq!(sample_of(&index, usize::MAX), index);
    }
}
