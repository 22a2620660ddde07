//! Reads a trace.
//!
//! Unknown keys are ignored. A file is refused, with a line number, if a line cannot be parsed, or if the time or a
//! byte count of a stage decreases.
//!
//! **Invariant:** a trace that was read has at least one line, and neither the time nor the byte count of any stage
//! decreases in it.

use std::io::{self, BufRead, Read};

use super::Trace;

use super::line::{About, TraceLine};

impl About {
    /// Adds the properties of a later line to these properties.
    fn with(self, later: Self) -> Self {
        Self {
            from: self.from.or(later.from),
            to: self.to.or(later.to),
            at: self.at.or(later.at),
            limited_by: later.limited_by.or(self.limited_by),
        }
    }
}

/// The reason why a file is not a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadTraceError {
    /// The file has no lines.
    #[error("the file is empty: the push ended before its receiver answered")]
    Empty,
    /// The first line is not a line of a trace.
    #[error("not a trace of 'zmove push --trace': line 1: {0}")]
    Foreign(LineFault),
    /// A later line is not a line of a trace, or contradicts the line before it.
    #[error("line {number}: {fault}")]
    Line {
        /// The line number, starting at 1.
        number: usize,
        /// The reason.
        fault: LineFault,
    },
}

/// The reason why a line is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// Reading the file failed.
    #[error("{0}")]
    Read(io::Error),
    /// The line has no line break, or is too long.
    #[error("the line has no end or is longer than {LINE_BYTES_MAX} bytes")]
    Endless,
    /// The line is not the JSON of a trace line.
    // The JSON parser counts the position of the error from the start of the line. The position is removed from the
    // message, because a user would take it for a position in the file.
    #[error("{}", .0.to_string().split(" at line ").next().unwrap_or_default())]
    Json(serde_json::Error),
    /// The time is outside the allowed range.
    #[error("seconds is {0}")]
    Seconds(f64),
    /// The time is earlier than in the line before.
    #[error("seconds decreases from {before} to {now}")]
    TimeBack {
        /// The time of the previous line.
        before: f64,
        /// The time of this line.
        now: f64,
    },
    /// A count is smaller than in the line before.
    #[error("{key} decreases from {before} to {now}")]
    CountBack {
        /// The name of the count.
        key: &'static str,
        /// The count of the previous line.
        before: u64,
        /// The count of this line.
        now: u64,
    },
}

impl TraceLine {
    fn parse(text: &[u8]) -> Result<Self, LineFault> {
        let line: Self = serde_json::from_slice(text).map_err(LineFault::Json)?;
        if (0.0..=SECONDS_MAX).contains(&line.seconds) {
            Ok(line)
        } else {
            Err(LineFault::Seconds(line.seconds))
        }
    }

    /// Returns the counts that never decrease, with their names.
    fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("bytes_read", self.bytes_read),
            ("bytes_handed_over", self.bytes_handed_over),
            ("bytes_stored", self.bytes_stored),
        ]
    }

    fn follows(&self, before: &Self) -> Result<(), LineFault> {
        if self.seconds < before.seconds {
            return Err(LineFault::TimeBack {
                before: before.seconds,
                now: self.seconds,
            });
        }
        let counters = before.counters().into_iter().zip(self.counters());
        for ((key, before), (_, now)) in counters {
            if now < before {
                return Err(LineFault::CountBack { key, before, now });
            }
        }
        Ok(())
    }
}

impl Trace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// A line is invalid. The error has its number and the reason.
    pub fn read(mut from: impl BufRead) -> Result<Self, ReadTraceError> {
        let mut lines: Vec<TraceLine> = Vec::new();
        let mut about = About::default();
        let mut text = Vec::new();
        loop {
            let number = lines.len() + 1;
            let at_line = |fault| match fault {
                LineFault::Read(_) => ReadTraceError::Line { number, fault },
                fault if number == 1 => ReadTraceError::Foreign(fault),
                fault => ReadTraceError::Line { number, fault },
            };
            text.clear();
            let read = from
                .by_ref()
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut text);
            if read.map_err(|error| at_line(LineFault::Read(error)))? == 0 {
                break;
            }
            lines.push(parse_next(&text, lines.last()).map_err(at_line)?);
            about = about.with(serde_json::from_slice(&text).unwrap_or_default());
        }
        if lines.is_empty() {
            return Err(ReadTraceError::Empty);
        }
        Ok(Self { lines, about })
    }
}

fn parse_next(text: &[u8], before: Option<&TraceLine>) -> Result<TraceLine, LineFault> {
    let text = text.strip_suffix(b"\n").ok_or(LineFault::Endless)?;
    let line = TraceLine::parse(text)?;
    before.map_or(Ok(()), |before| line.follows(before))?;
    Ok(line)
}

/// Maximum length of a line, in bytes. Lines of a trace are much shorter.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Maximum time in a trace, in seconds, which is about 300 years. Larger values would lose precision.
const SECONDS_MAX: f64 = 1e10;

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "{\"seconds\":0.5,\"bytes_read\":3,\"bytes_handed_over\":2,\"bytes_acked\":null,\
        \"bytes_stored\":1,\"packs_waiting\":4,\"frames_waiting\":5,\"items_outstanding\":6,\"lanes\":7,\
        \"segments_retransmitted\":null}\n";

    fn refusal(text: &str) -> String {
        Trace::read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let line = Trace::read(LINE.as_bytes()).unwrap().lines[0];
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
            Trace::read(later.as_bytes()).unwrap(),
            Trace::read(LINE.as_bytes()).unwrap()
        );
    }

    #[test]
    fn what_is_said_of_the_whole_transfer_stands_in_the_first_and_the_last_line() {
        let first = LINE.replace("}\n", ",\"from\":\"a\",\"to\":\"b\",\"at\":7}\n");
        let last = LINE.replace("}\n", ",\"limited_by\":\"path, 90 % of the time\"}\n");
        let text = format!("{first}{LINE}{last}");
        let Trace { lines, about } = Trace::read(text.as_bytes()).unwrap();
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
            "line 3: the line has no end or is longer than 65536 bytes"
        );
        assert_eq!(
            damaged(&LINE.replace("0.5", "0.4")),
            "line 3: seconds decreases from 0.5 to 0.4"
        );
        assert_eq!(damaged(&LINE.replace("0.5", "-1")), "line 3: seconds is -1");
        assert_eq!(
            damaged(&LINE.replace("stored\":1", "stored\":0")),
            "line 3: bytes_stored decreases from 1 to 0"
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
        assert!(refusal("").starts_with("the file is empty"));
        assert!(
            refusal(&"x".repeat(200_000))
                .ends_with("line 1: the line has no end or is longer than 65536 bytes")
        );
    }
}
