//! A file or a link of sysfs.

use std::path::PathBuf;

/// A file or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A file with this content.
    File(Vec<u8>),
    /// A symbolic link to this path.
    Link(PathBuf),
}

impl Entry {
    /// A file with a line of text.
    pub fn from_text(text: &str) -> Self {
        Self::File(format!("{text}\n").into_bytes())
    }
}
