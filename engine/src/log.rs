//! Prints the engine's messages on standard error, for programs without a log of their own, and
//! words errors with their causes.
//!
//! A line is `<program>: <level>: <message> <field>=<value> ...`.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable: the level of the least severe messages to print.
const VARIABLE: &str = "FEROCE_LOG";

/// Prints warnings and errors from now on, each line beginning with `name`. The environment
/// variable `FEROCE_LOG` selects another level: error, warn, info, debug or trace.
///
/// If the process already has a global `tracing` subscriber, that subscriber stays and this call
/// does nothing.
pub fn to_stderr(name: &'static str) {
    let text = crate::environment::var_os(VARIABLE).unwrap_or_default();
    let text = text.to_string_lossy();
    let level = level(&text);
    let subscriber = subscriber(name, level.unwrap_or(Level::WARN), std::io::stderr);
    // The only error: a global subscriber exists.
    let is_first = tracing::subscriber::set_global_default(subscriber).is_ok();
    if is_first && level.is_none() {
        tracing::warn!("{VARIABLE} is `{text}`, expected error, warn, info, debug or trace");
    }
}

/// The level that `text` selects: warnings if it is empty; `None` if there is no such level.
fn level(text: &str) -> Option<Level> {
    if text.is_empty() { Some(Level::WARN) } else { text.parse().ok() }
}

fn subscriber<W>(name: &'static str, level: Level, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .event_format(NamedLine { name })
        .finish()
}

/// Returns the message of `error` and of its causes. A cause that a message already contains is
/// left out.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Formats an event as one line that begins with the program's name. Spans are left out.
struct NamedLine {
    name: &'static str,
}

impl<S, N> FormatEvent<S, N> for NamedLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "{}: {level}: ", self.name)?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Returns the lines for the messages of `act` down to `level`, for tests.
#[cfg(test)]
pub(crate) fn lines_of(level: Level, act: impl FnOnce()) -> String {
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let captured = Captured::default();
    let writer = captured.clone();
    tracing::subscriber::with_default(subscriber("test", level, move || writer.clone()), act);
    String::from_utf8(captured.0.lock().unwrap().clone()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_name_the_level_the_message_and_the_fields() {
        let messages = || {
            let error = std::io::Error::other("no");
            tracing::warn!(core = 1, %error, text = "a b", "cannot pin {}", "it");
            tracing::error!("only a message");
            tracing::info!("for your information");
            tracing::debug!("a detail");
        };
        let warnings = "test: warning: cannot pin it core=1 error=no text=\"a b\"\n\
                        test: error: only a message\n";
        assert_eq!(lines_of(Level::WARN, messages), warnings);
        let more = "test: info: for your information\ntest: debug: a detail\n";
        assert_eq!(lines_of(Level::DEBUG, messages), format!("{warnings}{more}"));
    }

    #[test]
    fn the_variable_selects_the_level() {
        assert_eq!(level(""), Some(Level::WARN));
        assert_eq!(level("debug"), Some(Level::DEBUG));
        assert_eq!(level("error"), Some(Level::ERROR));
        assert_eq!(level("verbose"), None);
    }
}
