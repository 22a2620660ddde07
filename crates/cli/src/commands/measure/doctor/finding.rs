//! The findings of `zmove doctor`, and their remedies.

use serde::Serialize;

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The check found no problem.
    Ok,
    /// The finding may affect transfers, or a fact could not be determined.
    Note,
    /// The finding reduces throughput.
    Slow,
    /// The finding makes transfers fail.
    Bad,
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The subject of the check, such as a sysctl or `lanes`.
    pub(crate) check: &'static str,
    pub(crate) level: Severity,
    pub(crate) text: String,
    /// Further lines below the text.
    pub(crate) details: Vec<String>,
    pub(crate) mend: Vec<Remedy>,
}

/// The remedy for a finding: a command, a line in a file that makes the change permanent, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Remedy {
    /// The host on which to apply the remedy.
    pub(crate) at: FindingHost,
    /// The shell command. It needs root unless it is a command of zmove.
    pub(crate) run: Option<String>,
    pub(crate) keep: Option<PersistentLine>,
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FindingHost {
    /// This host.
    Here,
    /// The receiver.
    There,
}

/// A configuration line that makes a change survive a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PersistentLine {
    pub(crate) file: &'static str,
    pub(crate) line: String,
}

impl Finding {
    pub(crate) fn new(level: Severity, check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check,
            level,
            text: text.into(),
            details: Vec::new(),
            mend: Vec::new(),
        }
    }

    pub(crate) fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, text)
    }

    pub(crate) fn note(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Note, check, text)
    }

    /// Returns a note that a fact could not be determined. `place` is the path of the file that should state the fact.
    pub(crate) fn unknown(check: &'static str, place: &str) -> Self {
        Self::note(check, format!("unknown: '{place}' cannot be read"))
    }

    /// Returns a note that a sysctl cannot be read.
    pub(crate) fn unknown_sysctl(check: &'static str, name: &str) -> Self {
        Self::unknown(check, &format!("/proc/sys/{}", name.replace('.', "/")))
    }

    pub(crate) fn with_remedy(mut self, mend: Remedy) -> Self {
        self.mend.push(mend);
        self
    }

    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }
}

impl Remedy {
    /// Returns a remedy that sets a sysctl.
    pub(crate) fn sysctl(name: &str, value: &str) -> Self {
        let quoted = if value.contains(' ') {
            format!("\"{value}\"")
        } else {
            value.to_owned()
        };
        let keep = PersistentLine {
            file: SYSCTL_FILE,
            line: format!("{name} = {value}"),
        };
        Self {
            keep: Some(keep),
            ..Self::command(format!("sysctl -w {name}={quoted}"))
        }
    }

    pub(crate) fn command(run: impl Into<String>) -> Self {
        Self {
            at: FindingHost::Here,
            run: Some(run.into()),
            keep: None,
        }
    }

    pub(crate) fn line(file: &'static str, line: impl Into<String>) -> Self {
        Self {
            at: FindingHost::Here,
            run: None,
            keep: Some(PersistentLine {
                file,
                line: line.into(),
            }),
        }
    }

    pub(crate) fn there(run: impl Into<String>) -> Self {
        Self {
            at: FindingHost::There,
            ..Self::command(run)
        }
    }
}

/// The file that makes sysctl settings survive a reboot.
const SYSCTL_FILE: &str = "/etc/sysctl.d/90-zmove.conf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_is_set_now_and_for_later() {
        let mend = Remedy::sysctl("net.ipv4.tcp_wmem", "4096 65536 268435456");
        assert_eq!(
            mend.run.as_deref(),
            Some("sysctl -w net.ipv4.tcp_wmem=\"4096 65536 268435456\"")
        );
        assert_eq!(
            mend.keep.unwrap().line,
            "net.ipv4.tcp_wmem = 4096 65536 268435456"
        );
        let mend = Remedy::sysctl("net.core.default_qdisc", "fq");
        assert_eq!(
            mend.run.as_deref(),
            Some("sysctl -w net.core.default_qdisc=fq")
        );
    }

    #[test]
    fn levels_have_an_order() {
        assert!(
            Severity::Ok < Severity::Note
                && Severity::Note < Severity::Slow
                && Severity::Slow < Severity::Bad
        );
    }
}
