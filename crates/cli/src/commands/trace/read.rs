//! Reads the lines of a trace again.
//!
//! A key that is not known is ignored. A file is refused, with the line's number, if a line cannot be parsed, or time
//! or a stage's bytes go back.
//!
//! **Invariant:** a trace that [`read`] returns has at least one line, and neither time nor any stage's bytes
//! go back in it.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail, ensure};

use crate::display::trace::{About, Line};

impl About {
    /// What a later line says in addition.
    fn with(self, later: Self) -> Self {
        Self {
            from: self.from.or(later.from),
            to: self.to.or(later.to),
            at: self.at.or(later.at),
            limited_by: later.limited_by.or(self.limited_by),
        }
    }
}

impl Line {
    fn parse(text: &[u8]) -> Result<Self> {
        let line: Self = serde_json::from_slice(text).map_err(|error| {
            // The place within the line is of no use, and would be taken for one in the file.
            let said = error.to_string();
            anyhow::Error::msg(
                said.split(" at line ")
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
        })?;
        ensure!(
            (0.0..=SECONDS_MAX).contains(&line.seconds),
            "seconds is {}",
            line.seconds
        );
        Ok(line)
    }

    /// The values of a line that never fall from one line to the next, with their names.
    fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("bytes_read", self.bytes_read),
            ("bytes_handed_over", self.bytes_handed_over),
            ("bytes_stored", self.bytes_stored),
        ]
    }

    fn follows(&self, before: &Self) -> Result<()> {
        ensure!(
            self.seconds >= before.seconds,
            "seconds goes back from {} to {}",
            before.seconds,
            self.seconds
        );
        for ((key, before), (_, now)) in before.counters().into_iter().zip(self.counters()) {
            ensure!(now >= before, "{key} goes back from {before} to {now}");
        }
        Ok(())
    }
}

/// Reads a whole trace.
///
/// # Errors
///
/// The number of the line that is no line of a trace, and the reason.
pub(super) fn read(mut from: impl BufRead) -> Result<(Vec<Line>, About)> {
    let mut lines: Vec<Line> = Vec::new();
    let mut about = About::default();
    let mut text = Vec::new();
    loop {
        let number = lines.len() + 1;
        text.clear();
        let length = from
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut text);
        if length.with_context(|| format!("line {number}"))? == 0 {
            break;
        }
        let line = parse_next(&text, lines.last()).with_context(|| format!("line {number}"));
        if line.is_ok() {
            about = about.with(serde_json::from_slice(&text).unwrap_or_default());
        }
        lines.push(if number == 1 {
            line.context(FOREIGN)?
        } else {
            line?
        });
    }
    if lines.is_empty() {
        bail!("it is empty: the push ended before its receiver answered");
    }
    Ok((lines, about))
}

fn parse_next(text: &[u8], before: Option<&Line>) -> Result<Line> {
    let Some(text) = text.strip_suffix(b"\n") else {
        bail!("it has no end, or more than {LINE_BYTES_MAX} bytes")
    };
    let line = Line::parse(text)?;
    if let Some(before) = before {
        line.follows(before)?;
    }
    Ok(line)
}

const FOREIGN: &str = "not a trace of 'zmove push --trace'";
/// The longest line that is read, in bytes; no line of a trace comes near.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The longest time in a trace, some 300 years; beyond it arithmetic would lose its digits.
const SECONDS_MAX: f64 = 1e10;

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "{\"seconds\":0.5,\"bytes_read\":3,\"bytes_handed_over\":2,\"bytes_acked\":null,\
        \"bytes_stored\":1,\"packs_waiting\":4,\"frames_waiting\":5,\"items_outstanding\":6,\"lanes\":7,\
        \"segments_retransmitted\":null}\n";

    fn refusal(text: &str) -> String {
        format!("{:#}", read(text.as_bytes()).unwrap_err())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let line = read(LINE.as_bytes()).unwrap().0[0];
        assert_eq!(
            (line.seconds, line.bytes_read, line.bytes_acked, line.lanes),
            (0.5, 3, None, 7)
        );
        let written = format!("{}\n", serde_json::to_string(&line).unwrap());
        assert_eq!(written, LINE);
    }

    #[test]
    fn keys_of_later_versions_are_passed_over() {
        let later = LINE.replace("{\"seconds\"", "{\"later\":[1],\"seconds\"");
        assert_eq!(
            read(later.as_bytes()).unwrap(),
            read(LINE.as_bytes()).unwrap()
        );
    }

    #[test]
    fn what_is_said_of_the_whole_transfer_stands_in_the_first_and_the_last_line() {
        let first = LINE.replace("}\n", ",\"from\":\"a\",\"to\":\"b\",\"at\":7}\n");
        let last = LINE.replace("}\n", ",\"limited_by\":\"path, 90 % of the time\"}\n");
        let (lines, about) = read(format!("{first}{LINE}{last}").as_bytes()).unwrap();
        let said = |text: &str| Some(text.to_owned());
        let limited_by = said("path, 90 % of the time");
        assert_eq!(
            about,
            About {
                from: said("a"),
                to: said("b"),
                at: Some(7),
                limited_by
            }
        );
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn damage_is_named_by_its_line() {
        let damaged = |line: &str| refusal(&format!("{LINE}{LINE}{line}"));
        assert_eq!(
            damaged("{\"seconds\":1}\n"),
            "line 3: missing field `bytes_read`"
        );
        assert_eq!(damaged("\n"), "line 3: EOF while parsing a value");
        assert_eq!(
            damaged(&LINE[..40]),
            "line 3: it has no end, or more than 65536 bytes"
        );
        assert_eq!(
            damaged(&LINE.replace("0.5", "0.4")),
            "line 3: seconds goes back from 0.5 to 0.4"
        );
        assert_eq!(damaged(&LINE.replace("0.5", "-1")), "line 3: seconds is -1");
        assert_eq!(
            damaged(&LINE.replace("stored\":1", "stored\":0")),
            "line 3: bytes_stored goes back from 1 to 0"
        );
        assert!(
            damaged(&LINE.replace(":4", ":-4")).starts_with("line 3: invalid value: integer `-4`")
        );
    }

    #[test]
    fn what_is_no_trace_is_told_so() {
        assert_eq!(
            refusal("{\"event\":\"summary\"}\n"),
            "not a trace of 'zmove push --trace': line 1: missing field `seconds`"
        );
        assert!(
            refusal("\u{7f}ELF\n")
                .starts_with("not a trace of 'zmove push --trace': line 1: expected value")
        );
        assert!(refusal("").starts_with("it is empty"));
        assert!(
            refusal(&"x".repeat(200_000))
                .ends_with("line 1: it has no end, or more than 65536 bytes")
        );
    }
}
