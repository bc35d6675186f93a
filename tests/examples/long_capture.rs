//! Writes a capture of the given size: WRITEs of 64 KiB at a path MTU of 1024, in virtual time, so
//! that every run gives the same file. `scripts/bench.sh` passes it to `feroce conform check` and
//! to tshark.
//!
//!     long_capture FILE MEGABYTES

use std::fs::File;
use std::io::{BufWriter, Error, Write};
use std::process::ExitCode;
use std::time::Duration;

use feroce_engine::verbs::SendOp;
use feroce_tests::pair::{Pair, PairSetup};
use feroce_wire::PathMtu;
use pcap_file::pcap::{PcapPacket, PcapWriter};

const MESSAGE: u32 = 64 << 10;
/// Number of messages posted at once.
const BATCH: u64 = 16;
/// Start time of the capture, in seconds since 1970.
const BEGIN: u64 = 1_700_000_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(megabytes), None) = (
        arguments.next(),
        arguments.next().and_then(|text| text.parse::<u64>().ok()),
        arguments.next(),
    ) else {
        eprintln!("usage: long_capture FILE MEGABYTES");
        return ExitCode::from(2);
    };
    match File::create(&file).and_then(|out| write(out, megabytes * 1_000_000)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("long_capture: {file}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(out: File, bytes: u64) -> Result<(), Error> {
    let failed = |error: pcap_file::PcapError| Error::other(error.to_string());
    let mut writer = PcapWriter::new(BufWriter::with_capacity(1 << 20, out)).map_err(failed)?;
    let setup = PairSetup::with(|options| options.path_mtu = Some(PathMtu::Mtu1024));
    let mut pair = Pair::new(&PairSetup { buffer: 1 << 20, ..setup });
    let mut written = 0;
    while written < bytes {
        for message in 0..BATCH {
            pair.post(message, SendOp::Write(pair.remote(0)), MESSAGE);
        }
        let mut done = 0;
        while done < BATCH {
            pair.run(100);
            done += pair.done(0).len() as u64;
        }
        for seen in pair.frames() {
            let at = Duration::from_secs(BEGIN) + Duration::from_nanos(seen.at.as_nanos());
            let len = u32::try_from(seen.bytes.len()).expect("a frame");
            writer.write_packet(&PcapPacket::new(at, len, &seen.bytes)).map_err(failed)?;
            written += u64::from(len);
        }
    }
    writer.into_writer().flush()
}
