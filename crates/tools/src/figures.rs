//! Formats numbers for display.

use time::OffsetDateTime;
use zmove_types::{ByteCount, SizeClass};

/// Formats a time span in the unit that suits its length.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// The layout of a text that is wrapped at spaces.
#[derive(Clone, Copy, Debug)]
pub struct Wrapping {
    /// The column at which the first line starts.
    pub first: usize,
    /// The column at which all other lines start.
    pub indent: usize,
    /// The width of a line, in columns.
    pub columns: usize,
}

impl Wrapping {
    /// Returns the text in lines. A word that is longer than a line is not broken.
    #[must_use]
    pub fn of(self, text: &str) -> String {
        let Self {
            first,
            indent,
            columns,
        } = self;
        let mut lines = String::new();
        let mut column = first;
        let mut is_begun = false;
        for word in text.split(' ') {
            let wide = word.chars().count();
            if is_begun && column + 1 + wide > columns {
                lines += &format!("\n{:indent$}", "");
                column = indent;
            } else if is_begun {
                lines.push(' ');
                column += 1;
            }
            lines += word;
            column += wide;
            is_begun = true;
        }
        lines
    }
}

/// Formats a count with its noun in the singular or plural.
pub fn counted(number: u64, thing: &str) -> String {
    match thing.strip_suffix('y') {
        _ if number == 1 => format!("{number} {thing}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {thing}s"),
    }
}

/// Formats a rate in bytes per second with a binary unit.
pub(crate) fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", ByteCount(rounded(rate)))
}

/// Rounds a rate to a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate above zero"
)]
pub(crate) fn rounded(rate: f64) -> u64 {
    rate.round() as u64
}

/// Formats a rate of files without its unit. Rates below 10 have two decimals.
pub fn files_per_second(rate: f64) -> String {
    format!("{rate:.*}", usize::from(rate < 10.0) * 2)
}

/// Formats a fraction as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns `part` as a fraction of `whole`, or zero if `whole` is zero.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        ByteCount(part).as_f64() / ByteCount(whole).as_f64()
    }
}

/// Returns the JSON name of a size class.
pub(crate) const fn class_key(class: SizeClass) -> &'static str {
    match class {
        SizeClass::Losf => "losf",
        SizeClass::Medium => "medium",
        SizeClass::Large => "large",
    }
}

/// Formats a time in seconds since the Unix epoch, to the minute.
pub fn minute(seconds: u64) -> String {
    let moment = moment(seconds);
    let date = moment.date();
    format!("{date} {:02}:{:02} UTC", moment.hour(), moment.minute())
}

/// Formats the UTC date of a time in seconds since the Unix epoch.
pub(crate) fn day(seconds: u64) -> String {
    moment(seconds).date().to_string()
}

/// Converts seconds since the Unix epoch to a date and time. A time after the year 9999 becomes the last second of that
/// year.
fn moment(seconds: u64) -> OffsetDateTime {
    let seconds = seconds.min(SECONDS_MAX).cast_signed();
    OffsetDateTime::from_unix_timestamp(seconds).expect("the calendar has the moment")
}

/// The last second of the year 9999. Later years have five digits.
const SECONDS_MAX: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_825_599, "2000-02-29 11:59 UTC"),
            (1_764_099_371, "2025-11-25 19:36 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (u64::MAX, "9999-12-31 23:59 UTC"),
        ] {
            assert_eq!(minute(seconds), expected);
        }
    }
}
