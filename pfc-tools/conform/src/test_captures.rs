//! The captures of `tests/captures`, for unit tests.

use std::path::{Path, PathBuf};

use feroce_pfc_tools::capture::Capture;

/// Returns the path of `tests/captures/<file>`.
pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(file)
}

/// Returns the frames of `tests/captures/<file>`.
pub(crate) fn read(file: &str) -> Vec<Vec<u8>> {
    let mut capture = Capture::open(&path(file)).expect("a capture");
    let mut frames = Vec::new();
    while let Some(frame) = capture.next_frame().expect("a whole record") {
        frames.push(frame.bytes.to_vec());
    }
    frames
}
