//! What a check is, and the report that the checks fill.

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Information.
    Info,
    /// It works, but slower than possible or not with every peer.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Result of a check.
#[derive(Debug)]
pub struct Verdict {
    pub severity: Severity,
    pub found: String,
    pub remedy: Option<String>,
}

impl Verdict {
    pub fn ok(found: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Ok, found: found.into(), remedy: None })
    }

    pub fn info(found: impl Into<String>) -> Option<Self> {
        Some(Self { severity: Severity::Info, found: found.into(), remedy: None })
    }

    /// What works, and could be faster.
    pub fn hint(found: impl Into<String>, remedy: impl Into<String>) -> Option<Self> {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Some(Self { severity: Severity::Info, found, remedy })
    }

    pub fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Option<Self> {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Some(Self { severity: Severity::Warning, found, remedy })
    }

    pub fn error(found: impl Into<String>, remedy: impl Into<String>) -> Option<Self> {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Some(Self { severity: Severity::Error, found, remedy })
    }
}

/// A row of the tables: a check of a subject `S`.
pub struct Check<S: ?Sized> {
    /// Identifier, for scripts.
    pub id: &'static str,
    /// Title for people.
    pub what: &'static str,
    /// Runs the check. `None`: the check does not apply.
    pub run: fn(&S) -> Option<Verdict>,
}

/// Result of a check, in the report.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub id: &'static str,
    pub what: &'static str,
    pub interface: Option<String>,
    pub severity: Severity,
    pub found: String,
    pub remedy: Option<String>,
}

/// The report: results of all checks.
#[derive(Debug, Serialize)]
pub struct Report {
    pub worst: Severity,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn take<S>(&mut self, interface: Option<&str>, checks: &[Check<S>], subject: &S) {
        for check in checks {
            if let Some(verdict) = (check.run)(subject) {
                self.add(interface, (check.id, check.what), verdict);
            }
        }
    }

    pub fn add(
        &mut self,
        interface: Option<&str>,
        (id, what): (&'static str, &'static str),
        verdict: Verdict,
    ) {
        let Verdict { severity, found, remedy } = verdict;
        self.worst = self.worst.max(severity);
        let interface = interface.map(str::to_owned);
        self.findings.push(Finding { id, what, interface, severity, found, remedy });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_worst_severity() {
        let mut report = Report { worst: Severity::Ok, findings: Vec::new() };
        for verdict in [Verdict::warning("w", "r"), Verdict::error("e", "r"), Verdict::info("i")] {
            report.add(None, ("id", "what"), verdict.unwrap());
        }
        assert_eq!(report.worst, Severity::Error);
    }
}
