//! Parses and displays time spans.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use zmove_types::parse_span;

/// A time span such as `90s`, `30min`, `12h`, `7d` or `2w`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

/// The units for display with their length in seconds, longest first. Weeks are parsed but not displayed.
const UNITS: [(&str, u64); 4] = [("d", 24 * 60 * 60), ("h", 60 * 60), ("min", 60), ("s", 1)];

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_span(text).map(Self).ok_or_else(|| {
            format!("'{text}' is not a duration: write a number with s, min, h, d or w")
        })
    }
}

impl fmt::Display for Age {
    /// Writes the time span in the largest unit that fits, rounded down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let fitting = UNITS.into_iter().find(|(_, unit)| seconds >= *unit);
        let (name, unit) = fitting.unwrap_or(("s", 1));
        write!(f, "{} {name}", seconds / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_and_shown() {
        let cases = [
            ("0", 0, "0 s"),
            ("59s", 59, "59 s"),
            ("90s", 90, "1 min"),
            ("30min", 1800, "30 min"),
            ("12h", 43_200, "12 h"),
            ("1.5 h", 5_400, "1 h"),
            ("7d", 604_800, "7 d"),
            ("2w", 1_209_600, "14 d"),
        ];
        for (text, seconds, shown) in cases {
            let age: Age = text.parse().unwrap();
            assert_eq!(
                (age, age.to_string().as_str()),
                (Age(Duration::from_secs(seconds)), shown),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_age_is_refused() {
        for text in [
            "",
            "7",
            "d",
            "-1d",
            "7days",
            "99999999999999999999s",
            "9999999999999999999w",
        ] {
            assert!(text.parse::<Age>().is_err(), "{text}");
        }
    }
}
