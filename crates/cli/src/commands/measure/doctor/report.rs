//! Prints the findings as text or as JSON.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use serde::Serialize;
use serde_json::json;

use crate::commands::doctor::finding::{Finding, FindingHost, PersistentLine, Severity};
use crate::display::format::{counted, wrapped};
use crate::display::terminal::Printable;

/// All findings, grouped by section.
#[derive(Debug, Default)]
pub(crate) struct Report {
    sections: Vec<Section>,
}

#[derive(Debug, Serialize)]
struct Section {
    about: String,
    findings: Vec<Finding>,
}

/// Whether severity levels are colored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Plain,
    Ansi,
}

impl Colour {
    /// Returns colors for a terminal, unless its user has disabled them.
    pub(crate) fn of_stdout() -> Self {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !forbidden {
            Self::Ansi
        } else {
            Self::Plain
        }
    }

    /// Returns the name of a level, padded to the longest name.
    fn level(self, level: Severity) -> String {
        let (name, code) = match level {
            Severity::Ok => ("ok", 32),
            Severity::Note => ("note", 36),
            Severity::Slow => ("slow", 33),
            Severity::Bad => ("bad", 31),
        };
        match self {
            Self::Plain => format!("{name:<4}"),
            Self::Ansi => format!("\x1b[{code}m{name:<4}\x1b[0m"),
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, about: impl Into<String>, findings: Vec<Finding>) {
        self.sections.push(Section {
            about: about.into(),
            findings,
        });
    }

    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.sections.iter().flat_map(|section| &section.findings)
    }

    /// Returns the number of findings of a level.
    pub(crate) fn count(&self, level: Severity) -> usize {
        self.findings()
            .filter(|finding| finding.level == level)
            .count()
    }

    /// Returns the findings as one line of JSON.
    pub(crate) fn json(&self) -> String {
        let worst = self
            .findings()
            .map(|finding| finding.level)
            .max()
            .unwrap_or(Severity::Ok);
        let count = |level| self.count(level);
        let counts = json!({
            "ok": count(Severity::Ok), "note": count(Severity::Note), "slow": count(Severity::Slow), "bad": count(Severity::Bad),
        });
        let version = env!("CARGO_PKG_VERSION");
        json!({ "zmove": version, "worst": worst, "counts": counts, "sections": self.sections })
            .to_string()
    }

    /// Returns the findings as text for the terminal.
    pub(crate) fn text(&self, colour: Colour) -> String {
        let mut text = String::new();
        for Section { about, findings } in &self.sections {
            text += &format!("{}\n", Printable(about));
            text.extend(findings.iter().map(|finding| finding_text(finding, colour)));
        }
        text += &self.kept_text();
        let bad = self.count(Severity::Bad);
        let slow = self.count(Severity::Slow);
        let notes = counted(self.count(Severity::Note) as u64, "note");
        text + &format!("{bad} bad, {slow} slow, {notes}\n")
    }

    /// Returns the configuration lines that make the remedies permanent, grouped by file.
    fn kept_text(&self) -> String {
        let mends = self.findings().flat_map(|finding| &finding.mend);
        // A remedy without a command is shown next to its finding, so it is left out here.
        let kept = mends
            .filter(|mend| mend.run.is_some())
            .filter_map(|mend| mend.keep.as_ref());
        let mut files: BTreeMap<&str, String> = BTreeMap::new();
        for PersistentLine { file, line } in kept {
            *files.entry(file).or_default() += &format!("  {line}\n");
        }
        let told = files
            .iter()
            .map(|(file, lines)| format!("to keep it after a restart, in {file}:\n{lines}"));
        told.collect()
    }
}

fn finding_text(
    Finding {
        check,
        level,
        text,
        details,
        mend,
    }: &Finding,
    colour: Colour,
) -> String {
    let shown = |text: &str| wrapped(&Printable(text).to_string(), INDENT);
    let mut lines = format!(
        "  {} {check:<CHECK_COLUMNS$} {}\n",
        colour.level(*level),
        shown(text)
    );
    for detail in details {
        lines += &format!("{:INDENT$}{}\n", "", shown(detail));
    }
    for mend in mend {
        let there = if mend.at == FindingHost::There {
            "there: "
        } else {
            ""
        };
        match (&mend.run, &mend.keep) {
            (Some(run), _) => lines += &format!("{:INDENT$}{there}{}\n", "", Printable(run)),
            (None, Some(PersistentLine { file, line })) => {
                lines += &format!("{:INDENT$}in {file}: {line}\n", "")
            }
            (None, None) => {}
        }
    }
    lines
}

const CHECK_COLUMNS: usize = 14;
/// The column at which the text of a finding starts.
const INDENT: usize = 2 + 4 + 1 + CHECK_COLUMNS + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Remedy;

    fn report() -> Report {
        let mut report = Report::default();
        let slow = Finding::new(Severity::Slow, "tcp_wmem", "too small")
            .with_details(vec!["at 90 ms".into()])
            .with_remedy(Remedy::sysctl("net.ipv4.tcp_wmem", "1 2 3"));
        let limit = Finding::note("files", "few").with_remedy(Remedy::line("/etc/x", "y"));
        report.add(
            "this host",
            vec![Finding::ok("kernel", "6.18"), slow, limit],
        );
        let refused = Finding::new(Severity::Bad, "key", "refused\x1b[2J")
            .with_remedy(Remedy::there("zmove allow K"));
        report.add("far:5870", vec![refused]);
        report
    }

    #[test]
    fn lines_are_aligned_and_what_mends_them_stands_below() {
        let expected = "\
this host
  ok   kernel         6.18
  slow tcp_wmem       too small
                      at 90 ms
                      sysctl -w net.ipv4.tcp_wmem=\"1 2 3\"
  note files          few
                      in /etc/x: y
far:5870
  bad  key            refused\\u{1b}[2J
                      there: zmove allow K
to keep it after a restart, in /etc/sysctl.d/90-zmove.conf:
  net.ipv4.tcp_wmem = 1 2 3
1 bad, 1 slow, 1 note
";
        assert_eq!(report().text(Colour::Plain), expected);
    }

    #[test]
    fn colours_change_nothing_else() {
        let mut coloured = report().text(Colour::Ansi);
        for code in ["\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[31m", "\x1b[0m"] {
            assert!(coloured.contains(code), "{code:?}");
            coloured = coloured.replace(code, "");
        }
        assert_eq!(coloured, report().text(Colour::Plain));
    }

    #[test]
    fn json_has_it_all() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let kernel = json!({
            "check": "kernel", "level": "ok", "text": "6.18", "details": [], "mend": [],
        });
        let mend = json!({
            "at": "here", "run": "sysctl -w net.ipv4.tcp_wmem=\"1 2 3\"",
            "keep": { "file": "/etc/sysctl.d/90-zmove.conf", "line": "net.ipv4.tcp_wmem = 1 2 3" },
        });
        let wmem = json!({
            "check": "tcp_wmem", "level": "slow", "text": "too small", "details": ["at 90 ms"], "mend": [mend],
        });
        let mend = json!({
            "at": "here", "run": null, "keep": { "file": "/etc/x", "line": "y" },
        });
        let files = json!({
            "check": "files", "level": "note", "text": "few", "details": [], "mend": [mend],
        });
        let mend = json!({ "at": "there", "run": "zmove allow K", "keep": null });
        let key = json!({
            "check": "key", "level": "bad", "text": "refused\u{1b}[2J", "details": [], "mend": [mend],
        });
        let expected = json!({
            "zmove": env!("CARGO_PKG_VERSION"),
            "worst": "bad",
            "counts": { "ok": 1, "note": 1, "slow": 1, "bad": 1 },
            "sections": [
                { "about": "this host", "findings": [kernel, wmem, files] },
                { "about": "far:5870", "findings": [key] },
            ],
        });
        assert_eq!(json, expected);
    }
}
