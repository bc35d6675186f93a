//! A terminal that a command draws on: set-up, input, and the styles that all screens share.

use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::{DefaultTerminal, Frame};

/// Titles.
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Column headings, lines and hints.
pub const DIM: Style = Style::new().fg(Color::DarkGray);
/// What needs attention.
pub const WARNING: Style = Style::new().fg(Color::Yellow);

/// A terminal in raw mode. It is restored on drop and on a panic.
pub struct Screen {
    terminal: DefaultTerminal,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// User input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The window was resized.
    Resized,
    /// `q`, Escape or Control-C (which is not a signal in raw mode).
    Quit,
    /// Another key.
    Key(KeyCode),
}

impl Screen {
    /// Returns true if standard input and output are terminals.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Takes over the terminal.
    ///
    /// # Errors
    /// If standard output is not a terminal.
    pub fn open() -> io::Result<Self> {
        ratatui::try_init().map(|terminal| Self { terminal })
    }

    /// Draws the screen.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Input since the last call. Does not wait.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub fn inputs(&mut self) -> io::Result<Vec<Input>> {
        let mut inputs = Vec::new();
        while event::poll(Duration::ZERO)? {
            inputs.extend(input(&event::read()?));
        }
        Ok(inputs)
    }
}

fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => Some(match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Input::Quit,
            KeyCode::Char('q') | KeyCode::Esc => Input::Quit,
            code => Input::Key(code),
        }),
        Event::Resize(..) => Some(Input::Resized),
        _ => None,
    }
}

/// The descriptor that is readable when there is input.
impl AsRawFd for Screen {
    fn as_raw_fd(&self) -> RawFd {
        io::stdin().as_raw_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn keys_quit_or_are_passed_on() {
        let press = |code, modifiers| input(&Event::Key(KeyEvent::new(code, modifiers)));
        let (plain, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
        for quits in [
            press(KeyCode::Char('q'), plain),
            press(KeyCode::Esc, plain),
            press(KeyCode::Char('c'), control),
        ] {
            assert_eq!(quits, Some(Input::Quit));
        }
        assert_eq!(press(KeyCode::Char('c'), plain), Some(Input::Key(KeyCode::Char('c'))));
        assert_eq!(input(&Event::Resize(80, 24)), Some(Input::Resized));
        assert_eq!(input(&Event::FocusGained), None);
    }
}
