//! Prints the engine's warnings and errors on standard error, for programs without a log of their
//! own, and words errors with their causes.
//!
//! A line is `<program>: <level>: <message> <field>=<value> ...`.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Prints warnings and errors from now on, each line beginning with `name`.
///
/// If the process already has a global `tracing` subscriber, that subscriber stays and this call
/// does nothing.
pub fn to_stderr(name: &'static str) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_writer(std::io::stderr)
        .event_format(NamedLine { name })
        .finish();
    // The only error: a global subscriber exists.
    let _ = tracing::subscriber::set_global_default(subscriber);
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
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        write!(writer, "{}: {level}: ", self.name)?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_the_name_the_level_the_message_and_the_fields() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::WARN)
            .with_writer(move || writer.clone())
            .event_format(NamedLine { name: "program" })
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = std::io::Error::other("no");
            tracing::warn!(core = 1, %error, text = "a b", "cannot pin {}", "it");
            tracing::error!("only a message");
            tracing::info!("below the level");
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let expected = "program: warning: cannot pin it core=1 error=no text=\"a b\"\n\
                        program: error: only a message\n";
        assert_eq!(text, expected);
    }
}
