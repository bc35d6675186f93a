//! Words to the person at the terminal: a program shows an error number at best.

/// What lines on standard error begin with.
const NAME: &str = "libibverbs (Feroce)";

/// Prints the engine's warnings from now on.
pub fn start() {
    feroce_engine::log::to_stderr(NAME);
}

/// Says why something is refused.
pub fn say(words: &str) {
    eprintln!("{NAME}: {words}");
}
