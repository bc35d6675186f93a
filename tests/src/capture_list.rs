//! The list of captures in `tests/captures/README.md`, and the frames of any of them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;

/// Returns the directory of the captures.
pub fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

/// A capture and its row in the README.
#[derive(Debug)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// Number of frames.
    pub frames: usize,
    /// RoCEv2 frames among them.
    pub roce: usize,
    /// RoCEv2 frames whose ICRC is wrong.
    pub bad_icrc: usize,
}

/// Reads the rows of the README's tables: file, frames, RoCEv2 frames, wrong ICRCs.
///
/// # Panics
/// If the README cannot be read, or has a row without numbers.
pub fn listed() -> Vec<Listed> {
    let readme = fs::read_to_string(captures().join("README.md")).unwrap();
    let mut directory = String::new();
    let mut rows = Vec::new();
    for line in readme.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            directory = title.split(':').next().unwrap().to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.len() > 5 && cells[1].contains(".pcap") {
            let count = |cell: &str| cell.parse().unwrap();
            rows.push(Listed {
                path: captures().join(&directory).join(cells[1]),
                frames: count(cells[2]),
                roce: count(cells[3]),
                bad_icrc: count(cells[4]),
            });
        }
    }
    rows
}

/// Reads the link type and the frames of a capture, which may be compressed with zstd.
///
/// # Panics
/// If the file is not a capture that can be read.
pub fn frames(path: &Path) -> (DataLink, Vec<Vec<u8>>) {
    let bytes = read_file(path);
    let mut reader = PcapReader::new(bytes.as_slice()).unwrap();
    let link = reader.header().datalink;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    (link, frames)
}

/// Reads a capture file, which may be compressed with zstd.
pub(crate) fn read_file(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_none_or(|extension| extension != "zst") {
        return bytes;
    }
    let mut plain = Vec::new();
    let mut source = bytes.as_slice();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&mut source).expect("zstd");
    decoder.read_to_end(&mut plain).expect("zstd");
    plain
}
