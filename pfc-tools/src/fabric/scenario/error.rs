//! The error of reading a scenario.

use std::path::PathBuf;

/// Why a scenario cannot be run. Always an error in the scenario or in the options.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The name is neither that of a built-in scenario nor of a file.
    #[error(
        "there is no scenario `{name}` and no such file; `feroce fabric list` shows those that are \
         built in"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// File and line.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// No such key exists.
    #[error("{place}: unknown key `{key}`; known keys: {known}")]
    UnknownKey {
        /// File and line.
        place: String,
        /// The key.
        key: String,
        /// The keys that exist.
        known: String,
    },
    /// A value is not valid for its key.
    #[error("{place}: `{key}` is `{value}`, expected {expected}")]
    Value {
        /// File and line.
        place: String,
        /// The key.
        key: String,
        /// The value as given.
        value: String,
        /// What is expected.
        expected: String,
    },
    /// A required key is missing.
    #[error("{place}: `{key}` is missing, expected {expected}")]
    Missing {
        /// File and line of the table that lacks the key.
        place: String,
        /// The key.
        key: String,
        /// What is expected.
        expected: String,
    },
    /// Parts of the scenario do not fit together.
    #[error("{place}: {message}")]
    Inconsistent {
        /// The file.
        place: String,
        /// What does not fit.
        message: String,
    },
}
