//! Messages on standard error: verbs programs usually print an error number at best.

/// Prefix of each line.
const NAME: &str = "libibverbs (Feroce)";

/// Prints the engine's warnings on standard error from now on.
pub fn start() {
    feroce_engine::log::to_stderr(NAME);
}

/// Prints a message, usually why a call failed.
pub fn print(message: &str) {
    eprintln!("{NAME}: {message}");
}
