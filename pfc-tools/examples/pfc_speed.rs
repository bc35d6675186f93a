//! Flow control frames per second that one core reads from a capture: prints the figure that
//! `scripts/bench.sh` reports. Uses the same code as `feroce pfc decode`. Seconds are CPU time, so
//! that other programs do not count.

mod common;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use common::processor_seconds;
use feroce_pfc_tools::capture::Capture;
use feroce_pfc_tools::fabric::time::LinkRate;
use feroce_pfc_tools::pfc::decode;
use feroce_pfc_tools::pfc::meter::Meter;
use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use pcap_file::pcap::{PcapPacket, PcapWriter};

const NAME: &str = "pfc: watch a capture, M frames/s";
/// Millions of frames per second.
const LEAST: f64 = 1.0;
const FRAMES: u32 = 1_000_000;

fn main() -> ExitCode {
    if !NAME.contains(&std::env::args().nth(1).unwrap_or_default()) {
        return ExitCode::SUCCESS;
    }
    let file = std::env::temp_dir().join(format!("feroce-pfc-speed-{}.pcap", std::process::id()));
    let measured = write(&file).map(|()| (0..3).map(|_| seconds(&file)).fold(f64::MAX, f64::min));
    let _gone = std::fs::remove_file(&file);
    let seconds = match measured {
        Ok(seconds) => seconds,
        Err(error) => {
            eprintln!("pfc_speed: {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    };
    let value = f64::from(FRAMES) / 1e6 / seconds;
    let word = if value >= LEAST { "ok" } else { "short" };
    let note = format!("{FRAMES} frames in {seconds:.2} s of the processor");
    println!("{NAME:<44} {value:>9.2}  {:>8}  {word:<5}  {note}", format!(">= {LEAST}"));
    if value >= LEAST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One frame per microsecond from four senders: pauses of one and of several priorities, some XONs,
/// one in a hundred malformed.
fn write(file: &Path) -> std::io::Result<()> {
    let failed = |error: pcap_file::PcapError| std::io::Error::other(error.to_string());
    let mut writer = PcapWriter::new(BufWriter::new(File::create(file)?)).map_err(failed)?;
    for n in 0..FRAMES {
        let quanta = if n % 4 == 3 { 0 } else { 200 };
        let enabled = if n % 8 < 6 { 0b1000 } else { 0b1011_0010 };
        let quanta =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|p| if enabled >> p & 1 == 1 { quanta } else { 0 });
        let [.., low] = (n / 64 % 4).to_be_bytes();
        let src = MacAddr([2, 0, 0, 0, 0, low]);
        let mut bytes =
            FlowControlFrame { src, control: FlowControl::Pfc { enabled, quanta } }.to_bytes();
        bytes[59] = u8::from(n % 100 == 0);
        let at = Duration::from_secs(1_700_000_000) + Duration::from_micros(n.into());
        writer.write_packet(&PcapPacket::new(at, 60, &bytes)).map_err(failed)?;
    }
    writer.into_writer().flush()
}

/// CPU time in seconds for the whole capture.
fn seconds(file: &Path) -> f64 {
    let mut meter = Meter::new(Some(LinkRate::new(100_000_000_000)));
    let before = processor_seconds();
    let mut capture = Capture::open(file).expect("it was just written");
    decode::take(&mut capture, &mut meter, |_, _| {}).expect("it is whole");
    let seconds = processor_seconds() - before;
    assert_eq!((meter.frames().pfc, meter.senders().len()), (FRAMES.into(), 4));
    seconds
}
