//! Processes that run beside this program. They are ended by process id.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::Result;
use crate::exit::{Guard, at_end};

/// Longest time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// A child process. Dropping it sends SIGTERM and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Guard,
}

impl Process {
    /// Starts `command`.
    pub fn spawn(command: &mut Command) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let pid = child.id();
        Ok(Process { child, guard: at_end(move || end(pid)) })
    }

    /// Starts `command` with standard output and standard error in the file `output`.
    pub fn spawn_into(command: &mut Command, output: &Path) -> Result<Process> {
        let file = File::create(output)?;
        Process::spawn(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the signal `name`, such as `KILL`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Returns true if the process has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end of the process.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let status = self.child.wait()?;
        self.guard.disarm();
        Ok(status)
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn stop(self) -> Result<ExitStatus> {
        self.terminate();
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_running() {
            self.guard.disarm();
            return;
        }
        self.terminate();
        for _ in 0..GRACE.as_millis() / STEP.as_millis() {
            if !self.is_running() {
                self.guard.disarm();
                return;
            }
            std::thread::sleep(STEP);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.guard.disarm();
    }
}

fn signal(pid: u32, signal: &str) {
    let _ = output(Command::new("kill").args(["-s", signal, &pid.to_string()]));
}

/// Ends the process `pid`, which need not be a child: SIGTERM, and SIGKILL after [`GRACE`].
pub fn end(pid: u32) {
    signal(pid, "TERM");
    for _ in 0..GRACE.as_millis() / STEP.as_millis() {
        if !is_alive(pid) {
            return;
        }
        std::thread::sleep(STEP);
    }
    signal(pid, "KILL");
}

/// Returns true if the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Runs `command` with its output in the file `output`; returns its exit code (128 + the signal's
/// number if a signal ended it).
pub fn run_into(command: &mut Command, output: &Path) -> Result<i32> {
    Ok(code(Process::spawn_into(command, output)?.wait()?))
}

/// Runs `command` with the output of this program; returns its exit code as [`run_into`].
pub fn run(command: &mut Command) -> Result<i32> {
    Ok(code(Process::spawn(command.stdin(Stdio::null()))?.wait()?))
}

/// Runs `command` and returns its standard output. Standard error is discarded.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The exit code of a status; 128 + the signal's number for a signal.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A command from words that spaces separate.
pub fn words(text: &str) -> Command {
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// The last `count` lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The last `count` lines of a text that are not empty, each indented on a new line.
pub fn end_of(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    last.iter().map(|line| format!("\n    {line}")).collect()
}
